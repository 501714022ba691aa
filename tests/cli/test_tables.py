"""The tables that a comparison ends with, and what is told of numbers that are not finite."""

import numpy as np
import pytest
from summary_helpers import ALL_DIVERGED, FIRST, HALF_DIVERGED, OTHER, rows

from fedjax_algos.analysis import tables
from fedjax_algos.cli.method_tables import method_tables

BOTH = rows("first", FIRST) + rows("other", OTHER)


def printed(measured, **options):
    """The lines of the two tables and of their notes."""
    return tables.text(method_tables(measured, **options)).splitlines()


def test_a_comparison_by_hand():
    """Seven seeds. t(.975, 6) is 2.446912; standard deviations are .0216, .0398 and .0227."""
    finals = np.array([0.50, 0.51, 0.52, 0.53, 0.54, 0.55, 0.56])
    first = rows("first", [[0.1, 0.5, final] for final in finals])
    other = rows("other", [[0.1, 0.2, final - 0.02] for final in finals[:-1]] + [[0.1, 0.2, 0.6]])
    table, pairs = "\n".join(printed(first + other)).split("\n\ncompared with first\n\n")
    assert table.splitlines()[:3] == [
        "method         final          best  rounds    upload  reached  wall time",
        "first   53.0 ± 2.0 *  53.0 ± 2.0 *      20    2.0 kB      7/7     4.00 s",
        "other   51.9 ± 3.7 ~  51.9 ± 3.7 ~    > 20  > 2.0 kB      1/7     4.00 s",
    ]
    # six differences of -2 and one of +4
    assert pairs.splitlines()[:2] == [
        "method       final        best  rounds ratio  upload ratio  common seeds",
        "other   -1.1 ± 2.1  -1.1 ± 2.1          1.00          1.00           1/7",
    ]
    assert "mean of 7 seeds ± half the 95% confidence interval." in table
    assert "chosen on test data" in table
    told = "> 20: all that is known of the lower median, because some seeds had not reached the "
    assert f"{told}target when their runs ended." in table
    assert "best accuracy on the same seed, the lower median over seeds." in table


def test_two_seeds_are_shown_themselves():
    lines = printed(BOTH)
    assert lines[1].split("  ")[1:3] == [" 60.0, 60.0", "60.0, 70.0"]
    assert "final, best: test accuracy in %, of each of 2 seeds." in lines
    assert not any("±" in line for line in lines)
    late = "best accuracy on the same seed, of each of 2 seeds. That is often late"
    assert any(late in line for line in lines)
    lines = printed(BOTH, target=0.65)
    assert "> 20, 10  > 2.0 kB, 1.0 kB" in lines[1]
    assert "> 20: the seed had not reached the target when its run ended, at 20." in lines
    assert any(line.startswith("other   +20.0, +30.0  +20.0, +20.0 ") for line in lines)


def test_one_method_has_costs_only_with_a_target():
    heading, _, *notes = printed(rows("first", FIRST))
    assert [name for name in ("rounds", "upload", "reached") if name in heading] == []
    assert "Costs to a test accuracy are shown with --target." in notes
    assert "rounds" in printed(rows("first", FIRST), target=0.65)[0]


def test_flops_and_simulated_time_are_shown_where_they_were_measured():
    measured = rows("first", FIRST, flops=3.14e11) + rows("other", OTHER)
    heading, first, other, *notes = printed(measured)
    assert heading.split()[5] == "flops"
    assert "3.1 TFLOP" in first
    assert other.split()[-4] == "-"
    assert any("rounds, upload, flops (of all clients): to" in line for line in notes)
    clocked = rows("first", FIRST, simulated_seconds=0.5)
    merged = "wall time: of one seed, or of all seeds whose plans are merged."
    assert merged in printed(clocked)
    lines = printed(clocked + rows("other", OTHER, simulated_seconds=0.5))
    assert " ".join(lines[1].split()[-13:]) == ("20, 10 10 s, 5 s 2.0 kB, 1.0 kB 2/2 1.50 s")
    assert any("rounds (server steps), simulated time, upload" in line for line in lines)


@pytest.mark.filterwarnings("error")
def test_diverged_runs_are_printed():
    measured = rows("half", HALF_DIVERGED) + rows("all", ALL_DIVERGED) + rows("fine", OTHER)
    lines = [" ".join(line.split()) for line in printed(measured)]
    assert lines[1].startswith("half 1/2 diverged 50.0, 50.0 20 2.0 kB 1/1")
    assert lines[2].startswith("all diverged diverged diverged diverged 0/1")
    assert "without seed 0, on which the reference has diverged: no target." in lines
    assert lines[3].startswith("fine 80.0, 90.0 ")
    assert "all none (without seeds 0, 1) none (without seeds 0, 1) - - 0/2" in lines
    assert "fine +40.0 (without seed 0) +40.0 (without seed 0) 1.00 1.00 1/2" in lines
    assert any(line.startswith("without: seeds on which one of the two") for line in lines)


def test_the_texts_name_the_metric():
    measured = [row | {"test_dice_score": row["test_accuracy"]} for row in BOTH]
    lines = printed(measured, target=0.85, metric="test_dice_score")
    assert "final, best: test dice score in %, of each of 2 seeds." in lines
    assert "best: the highest test dice score over the evaluations, chosen on test data." in lines
    assert any("to a test dice score of 85%, of each" in line for line in lines)
    lines = printed(measured, metric="test_dice_score", is_sweep=True)
    assert any("in the order of their final test dice score: " in line for line in lines)


def test_a_median_that_is_not_known_is_shown_as_its_bounds():
    """Seed 0 has not reached the target at 8 s, before seeds 1 and 2 reach it at 20 s and 18 s."""
    measured = rows("a", [[0.1, 0.2], [0.1, 0.9], [0.1, 0.9]])
    measured += rows("b", [[0.1, 0.2], [0.1, 0.9], [0.1, 0.2]])
    for row in measured:
        row["simulated_seconds"] = (8, 20, 18)[row["seed"]] * (row["round"] > 0)
    table, _ = method_tables(measured, target=0.8)
    _, first, other, *notes = tables.text([table]).splitlines()
    assert "  18 s..20 s  " in first
    assert "  > 18 s  " in other
    told = "> 10, 18 s..20 s: all that is known of the lower median, because some seeds had not"
    assert any(line.startswith(told) for line in notes)
    assert "& 18 to 20 & " in tables.latex([table])
    measured = [row for row in measured if row["method"] == "b"]
    for row in measured:
        row["simulated_seconds"] *= {0: 1, 1: 0.5, 2: 2}[row["seed"]]  # 8, 10, and 36 seconds
    (table,) = method_tables(measured, target=0.8)
    assert "  ≥ 10 s  " in tables.text([table])
    assert r"& $\geq$ 10 & " in tables.latex([table])
