"""The papers' summaries, by hand on a few evaluations, and the command `paper_table.py`."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from paper_measures.fedcompass import time_to_target
from paper_measures.fedgbo import maximum_and_cost
from paper_measures.fedlga import rounds_to_target
from paper_measures.ghbm import final_quality
from paper_table import main
from summary_helpers import FIRST, NAN, OTHER, rows, write_folder


def run(method, seed, qualities, every=10, upload=4, seconds=2.0, **columns):
    """One run's rows; costs are given for one round."""
    columns |= {"download_bytes": 6, "upload_bytes": upload, "wall_seconds": seconds}
    return [
        {"method": method, "seed": seed, "round": every * i, "test_accuracy": quality}
        | {name: per_round * every * i for name, per_round in columns.items()}
        for i, quality in enumerate(qualities)
    ]


def runs(method, by_seed, *given, **columns):
    """The rows of several seeds, from 0."""
    return [r for s, own in enumerate(by_seed) for r in run(method, s, own, *given, **columns)]


def column(lines, name):
    return [getattr(line, name) for line in lines]


FEDAVG = runs("fedavg", [[0.1, 0.5, 0.4, 0.6], [0.1, 0.3, 0.6, 0.5]], flops=7)
FASTER = runs("faster", [[0.1, 0.55, 0.7, 0.6], [0.1, 0.57, 0.9, 0.6]], upload=8, flops=9)
SLOWER = runs("slower", [[0.1, 0.2, 0.5, 0.5], [0.1, 0.2, 0.4, 0.4]])


def test_maximum_of_the_mean_curve_and_its_cost():
    """FedAvg's mean curve is .1, .4, .5, .55; the maxima of its seeds are .6 and .6."""
    lines = maximum_and_cost(FEDAVG + FASTER + SLOWER)
    assert [line.best.mean for line in lines] == pytest.approx([0.55, 0.8, 0.45])
    assert lines[0].best_of_seeds == pytest.approx(0.6)
    assert [line.best.values for line in lines[:2]] == [(0.6, 0.5), (0.7, 0.9)]
    assert column(lines, "cost") == [(30, 120, 210), (20, 160, 180), (20, 80, None)]
    assert column(lines, "reference_cost") == [(30, 120, 210), (10, 80, 90), None]
    fedavg, *_ = maximum_and_cost(FEDAVG + FASTER + SLOWER, "slower")
    assert fedavg.reference_cost == (20, 80, 140)


def test_runs_that_diverged_or_ended_early():
    early = runs("half", [[0.1, 0.8, NAN], [0.1, 0.6, 0.7, 0.8]])
    (_, half) = maximum_and_cost(FEDAVG + early)
    assert (half.best.mean, half.cost.rounds, half.seeds_diverged) == (pytest.approx(0.7), 10, 1)
    (_, half) = final_quality(FEDAVG + early, last=10)
    assert (half.final.mean, half.seeds_diverged) == (pytest.approx(NAN, nan_ok=True), 1)
    gone, faster = maximum_and_cost(run("gone", 0, [NAN, NAN]) + FASTER, "gone")
    assert (gone.best.mean, faster.best.mean) == pytest.approx((NAN, 0.8), nan_ok=True)
    assert gone.cost is faster.reference_cost is None


def test_rounds_and_seconds_to_a_target():
    """The mean is over the seeds that reach the target, if they are at least half."""
    rows = [
        *run("all", 0, [0.1, 0.6, 0.2]),
        *run("all", 1, [0.1, 0.2, 0.7], seconds=3),
        *runs("half", [[0.1, 0.2, 0.3], [0.1, 0.2, 0.6]]),
        *runs("few", [[0.1, 0.6, 0.6], [0.1, 0.2, NAN], [0.1, 0.2, 0.4]]),
    ]
    between = [{"method": "all", "seed": 0, "round": 5, "train_loss": 0.1}]  # no evaluation
    for given in (rows, rows[:1] + between + rows[1:]):
        assert rounds_to_target(given, 0.6) == [
            ("all", 15, 40, 2.5, ((0.6, 0.7),), 2, 0, 2),
            ("half", 20, 40, 2, ((0.3, 0.6),), 1, 0, 2),
            ("few", None, None, 2, ((0.6, 0.2, 0.4),), 1, 1, 3),
        ]
    untimed = [{"method": "a", "seed": 0, "round": r, "dice": q} for r, q in enumerate([0.2, 0.8])]
    for given in (untimed, [row | {"wall_seconds": None} for row in untimed]):
        found = rounds_to_target(given, 0.5, metric="dice")
        assert found == [("a", 1, None, None, ((0.8,),), 1, 0, 1)]


GHBM_ROWS = [
    # every 50 rounds to 200: the last 100 are at 150 and 200
    # FedAvg's second seed is above .45 early, but charged in full
    *runs("fedavg", [[0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.2, 0.5, 0.6, 0.3]], 50),
    *runs("ghbm", [[0.1, 0.5, 0.6, 0.7, 0.8], [0.1, 0.3, 0.6, 0.8, 0.9]], 50, upload=9, seconds=3),
    *runs("never", [[0.1, 0.2, 0.2, 0.3, 0.3], [0.1, 0.2, 0.5, 0.3, 0.3]], 50, upload=24),
]


def test_final_quality_and_the_cost_to_reach_fedavgs():
    """GHBM reaches .45 at 50 and 100; never's first seed never, its second at 100."""
    lines = final_quality(GHBM_ROWS)
    assert [line.final.mean for line in lines] == pytest.approx([0.45, 0.8, 0.3])
    assert lines[1].final.values == pytest.approx((0.75, 0.85))
    for name, expected in {
        "evaluations": [2, 2, 2],
        "rounds": [200, 75, 150],
        "overhead": [1, 1.5, 3],
        "total_bytes": [2000, 1125, 4500],
        "bytes_reduction": [0, 1 - 1125 / 2000, -1.25],
        "seconds": [400, 225, 300],
        "seconds_reduction": [0, 1 - 225 / 400, 1 - 300 / 400],
        "seeds_reaching": [2, 2, 1],
    }.items():
        assert column(lines, name) == pytest.approx(expected), name


def test_other_windows_budgets_and_overheads():
    fedavg, _, never = final_quality(GHBM_ROWS, last=50)
    assert (fedavg.final.mean, never.evaluations) == (pytest.approx(0.4), 1)
    fedavg, ghbm, _ = final_quality(GHBM_ROWS, last=500, budget=100)
    assert fedavg.final.mean == pytest.approx(0.3)  # of rounds 50 and 100, not of the start
    assert (fedavg.total_bytes, ghbm.rounds) == (1000, 50)
    lines = final_quality(GHBM_ROWS, overheads={"fedavg": 2, "ghbm": 4, "never": 1})
    assert column(lines, "overhead") == [1, 2, 0.5]
    assert lines[1].total_bytes == 75 * 20
    assert lines[1].bytes_reduction == pytest.approx(1 - 75 * 2 / 200)


def test_divergence_does_not_affect_other_methods():
    measured = GHBM_ROWS + runs("gone", [[0.1, 0.5, NAN, NAN, NAN], [0.1] + [NAN] * 4], 50)
    *others, gone = final_quality(measured)
    assert others == final_quality(GHBM_ROWS)
    assert np.isnan(gone.final.mean)
    assert gone[3:7] == (125, 1, 1250, 1 - 1250 / 2000)  # at 50, and never
    assert gone[-3:] == (1, 2, 2)
    _, ghbm, _, lost = final_quality(measured, "gone")
    assert ghbm.final.mean == pytest.approx(0.8)
    assert ghbm.rounds is ghbm.total_bytes is ghbm.seconds is ghbm.bytes_reduction is None
    assert lost.rounds is None


def test_first_times_relative_to_a_method():
    rows = [
        *run("fedcompass", 0, [0.1, 0.6, 0.7], 1, clock=10),
        *run("fedcompass", 1, [0.1, 0.6, 0.9], 1, clock=30),
        *runs("fedavg", [[0.1, 0.2, 0.6], [0.1, 0.2, 0.4]], 1, clock=25),
        *runs("fedasync", [[0.1, NAN, NAN], [0.1, 0.5, 0.5]], 1, clock=5),
    ]
    lines = time_to_target(rows, 0.6, "fedcompass", clock="clock")
    # only seed 0 is common: 50 / 10; 50 divided by the mean 20 of two seeds would be half of it
    assert [line[1:4] for line in lines] == [(20, 1, 2), (50, 5, 1), (None, None, 0)]
    assert [lines[0].best, lines[2].best] == pytest.approx([0.8, 0.3])
    assert lines[0].best_deviation == pytest.approx(np.sqrt(0.02))
    counts = [(line.seeds_reaching, line.seeds_diverged, line.seeds) for line in lines]
    assert counts == [(2, 0, 2), (1, 0, 2), (0, 1, 2)]
    lines = time_to_target(rows, 0.6, "fedasync", clock="clock")
    assert lines[1][1:4] == (50, None, 0)
    (one,) = time_to_target(rows[:3], 0.6, "fedcompass", clock="clock")
    assert np.isnan(one.best_deviation)


def test_reductions_are_over_the_seeds_that_both_methods_have():
    """The reference's third seed is at .9, so that the target is .6, and costs nothing."""
    third = run("fedavg", 2, [0.9, 0.9, 0.9, 0.9, 0.9], 50, upload=0)
    fedavg, ghbm, _ = final_quality(GHBM_ROWS + third)
    assert fedavg.final.mean == pytest.approx(0.6)
    assert fedavg.total_bytes == pytest.approx(200 * (10 + 10 + 6) / 3)
    assert (ghbm.rounds, ghbm.total_bytes) == (100, 1500)
    assert (fedavg.bytes_reduction, ghbm.bytes_reduction) == (0, 1 - 1500 / 2000)
    other = [row | {"seed": 5} for row in GHBM_ROWS[10:15]]
    assert final_quality(GHBM_ROWS[:10] + other)[1].bytes_reduction is None


def without(rows, name):
    return [{key: value for key, value in row.items() if key != name} for row in rows]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: maximum_and_cost(FEDAVG + FASTER, "fedagv"), "'fedagv' is unknown"),
        (lambda: maximum_and_cost(FEDAVG[:-1]), "different rounds on seeds 0 and 1"),
        (lambda: maximum_and_cost(without(FEDAVG, "seed")), "lacks 'seed'"),
        (lambda: maximum_and_cost(without(FEDAVG, "test_accuracy")), "on seed 0 has 'test_accur"),
        (lambda: rounds_to_target(FEDAVG[:4] * 2, 0.5), "from round 30 back to 0"),
        (lambda: final_quality(FEDAVG + GHBM_ROWS[10:]), "rounds 101 to 200"),
        (lambda: final_quality(GHBM_ROWS, overheads={"fedavg": 1, "ghbm": 1.5}), "'never'"),
        (lambda: time_to_target(FEDAVG, 0.5, "fedavg"), "clock='simulated_seconds'"),
    ],
)
def test_errors_name_the_value(call, named):
    with pytest.raises(ValueError, match=named):
        call()


BOTH = rows("fedavg", FIRST) + rows("other", OTHER)


def command(paper, *arguments):
    """The output of the command; `paper` may have options."""
    name, *options = paper.split()
    result = CliRunner().invoke(main, [name, *arguments, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_labels_columns_a_file_and_what_a_paper_does_not_have(here):
    write_folder(Path("a"), BOTH)
    given = "fedlga --target 0.5 --columns rounds,best"
    assert command(given, "a", "--label", "other=S", "--out", "a.txt") == ""
    heading, *lines = Path("a.txt").read_text().splitlines()
    assert heading.split() == ["method", "rounds", "best"]
    assert [line.split()[:2] for line in lines[:2]] == [["FedAvg", "10"], ["S", "20"]]
    assert command(f"{given} --format csv", "a").startswith("label,rounds,best\n")
    for options, named in {
        "fedlga --target 0.6 --reference fedavg": "reference",
        "ghbm --target 0.6": "target",
        "fedcompass": "needs a target",
    }.items():
        with pytest.raises(ValueError, match=named):
            command(options, "a")


PAPER_ROWS = [
    row | {"simulated_seconds": 2.0 * row["round"], "download_bytes": row["upload_bytes"]}
    for row in rows("fedavg", [[0.1, 0.6, 0.7], [0.1, 0.6, 0.5], [0.1, 0.2, 0.3]], flops=1e9)
    + rows("other", [[0.1, 0.2, 0.6], [0.1, 0.6, 0.8], [0.1, 0.7, NAN]], flops=2e9)
]


TABLES = {  # the lines of FedAvg and of the other method, and the first columns
    "fedgbo": (
        "FedAvg | 30.0..70.0 | 53.3 | 20 | 2.0 | 20.0 | 20 | 2.0 | 20.0 | 0/3",
        # other's mean curve is .1, .5 and, as a seed has diverged, nothing
        "other | 20.0..70.0 | 70.0 | 10 | 1.0 | 20.0 | 10 | 1.0 | 20.0 | 1/3",
        "method | best (%) | best of seeds (%) | rounds | upload (kB) | flops (GFLOP) | rounds ",
    ),
    "fedlga --target 0.6": (
        "FedAvg | 10* | 1.50* | 0.100 | 30.0..70.0 | 2/3 | 0/3",
        "other | 13.3333 | 2.00 | 0.100 | 60.0..80.0 | 3/3 | 1/3",
        "method | rounds | time (s) | time of a round (s) | best (%) | reached | diverged",
    ),
    "ghbm": (
        # the windows of all rounds but 0: fedavg .65, .55, .25; the target is .48333
        "FedAvg | 25.0..65.0 | 20* | 1 | 4.0* | 0.0 | 2.00* | 0.0 | 2/3 | 0/3",
        "other | 1/3 diverged | 13.3333 | 1 | 2.7 | 33.3 | 1.33 | 33.3 | 3/3 | 1/3",
        "method | final (%) | rounds | overhead | traffic (kB) | traffic saved (%) | time (s) | ",
    ),
    "fedcompass --target 0.6 --reference fedavg": (
        "FedAvg | 20* | 1.00 | 2/3 | 53.3 | 20.8 | 2/3 | 0/3",
        # 40, 20 and 20 seconds; on the common seeds 60 / 40
        "other | 26.6667 | 1.50 | 2/3 | 70.0 | 10.0 | 3/3 | 1/3",
        "method | simulated time (s) | relative | common seeds | best (%) | deviation (%) | ",
    ),
}


@pytest.mark.parametrize("paper", TABLES)
def test_the_columns_of_each_paper(paper, here):
    write_folder(Path("some"), PAPER_ROWS)
    out = command(paper, "some", "--format", "markdown")
    heading, _, *lines = (line[2:-2] for line in out.splitlines() if line.startswith("| "))
    *expected, columns = TABLES[paper]
    assert heading.startswith(columns)
    assert [line.replace("\\", "") for line in lines] == expected
    assert ("\n\\*: " in out) == ("*" in expected[0])
    assert "chosen on test data" in out or "final" in heading
