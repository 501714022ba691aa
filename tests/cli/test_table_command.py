"""The tables that commands end with, and the command `table` and its formats, by hand."""

import csv
import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from summary_helpers import ALL_DIVERGED, FIRST, HALF_DIVERGED, NAN, OTHER, rows, write_folder

from fedjax_algos.analysis import tables
from fedjax_algos.analysis.tables import Column, ResultTable
from fedjax_algos.cli.method_tables import Goal, method_tables

# t(.975, 4) = 2.776445; deviations of the five seeds: sqrt(2.5), sqrt(9.7) and sqrt(19.2) points
FIVE = rows("fed_avg", [[0.1, 0.50 + seed / 100] for seed in range(5)], upload_bytes=2e6)
LOWER = [[0.1, 0.51 + (seed - 8 * (seed > 1)) / 100] for seed in range(5)]
FIVE += rows("a|b {50%}", LOWER, upload_bytes=2e6)
MARKDOWN = r"""| method | final (%) | best (%) | rounds | upload (MB) | reached | wall time (s) |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
| fed\_avg | **52.0 ± 2.0** | **52.0 ± 2.0** | 10 | 20.0 | 5/5 | 3.00 |
| a\|b {50%} | *48.2 ± 3.9* | *48.2 ± 3.9* | &gt; 10 | &gt; 20.0 | 2/5 | 3.00 |
"""
LATEX = r"""\begin{tabular}{lrrrrrr}
\toprule
method & final (\%) & best (\%) & rounds & upload (MB) & reached & wall time (s) \\
\midrule
fed\_avg & \textbf{52.0 $\pm$ 2.0} & \textbf{52.0 $\pm$ 2.0} & 10 & 20.0 & 5/5 & 3.00 \\
a\textbar{}b \{50\%\} & \textit{48.2 $\pm$ 3.9} & \textit{48.2 $\pm$ 3.9} & $>$ 10 & $>$ 20.0 & 2/5 & 3.00 \\
\bottomrule
\end{tabular}
"""  # noqa: E501
LATEX_PAIRS = r"""\begin{tabular}{lrrrrr}
\toprule
method & final (points) & best (points) & rounds ratio & upload ratio & common seeds \\
\midrule
a\textbar{}b \{50\%\} & $-$3.8 $\pm$ 5.4 & $-$3.8 $\pm$ 5.4 & 1.00 & 1.00 & 2/5 \\
\bottomrule
\end{tabular}
"""
RECORDS = {
    "fed_avg": {
        "final": 0.52, "final_interval": 0.0196324, "rounds": 10, "upload_bytes": 2e7, "seeds": 5,
        "simulated_seconds": None, "reference": "fed_avg", "rounds_ratio": None, "seconds": 3,
    },
    "a|b {50%}": {
        "final_lowest": 0.45, "final_highest": 0.52, "rounds": None, "rounds_at_least": 10,
        "rounds_at_most": None, "upload_bytes_at_least": 2e7, "seeds_reaching": 2,
        "final_difference": -0.038, "final_difference_interval": 0.0544073,
        "final_difference_lowest": -0.07, "final_difference_seeds": 5,
        "final_difference_without": "", "rounds_ratio": 1, "seeds_common": 2,
    },
}  # fmt: skip
BOTH = rows("fedavg", FIRST) + rows("other", OTHER)


@pytest.fixture
def five(here):
    write_folder(here / "five", FIVE)
    return "five"


def test_text_markdown_and_latex(command, five):
    assert command("table", five) == tables.text(method_tables(FIVE))
    out = command("table", five, "--target", "0.525", "--reference", "a|b {50%}")
    assert out == tables.text(method_tables(FIVE, Goal(0.525, "a|b {50%}")))
    assert "\nfed_avg    52.0 ± 2.0 *  52.0 ± 2.0 *    > 10  > 20.0 MB      2/5     3.00 s\n" in out
    note = "best: the highest test accuracy over the evaluations, chosen on test data."
    out = command("table", five, "--format", "markdown")
    assert out.startswith(MARKDOWN)
    assert "\n**compared with fed\\_avg**\n\n| method | final (points) | " in out
    assert f"\n{note}\n" in out
    first, second = command("table", five, "--format", "latex").split("\n\n")
    assert f"{first}\n".endswith(LATEX)
    assert second.endswith(LATEX_PAIRS)
    comments = [line for line in first.split("\n") if line.startswith("%")]
    assert comments[0] == r"% needs \usepackage{booktabs}"
    assert f"% {note}" in comments
    assert len(comments) == len(first.split("\n")) - LATEX.count("\n")


def test_csv_and_json_have_the_same_plain_numbers(command, five):
    found = {row["label"]: row for row in json.loads(command("table", five, "--format", "json"))}
    assert list(found) == list(RECORDS)
    for label, expected in RECORDS.items():
        for name, value in expected.items():
            close = pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
            assert found[label][name] == close, (label, name)
    table = list(csv.reader(io.StringIO(command("table", five, "--format", "csv"))))
    assert table[0] == list(found["fed_avg"])
    for line in table[1:]:
        record = found[line[0]]
        assert line == ["" if value is None else str(value) for value in record.values()]


def test_three_seeds_are_shown_as_a_range():
    three = rows("first", [[0.1, 0.5], [0.1, 0.6], [0.1, 0.7]]) + rows("other", [[0.1, 0.65]] * 3)
    out = tables.latex(method_tables(three))
    assert "first & 50.0 to 70.0 & " in out  # without a mark
    assert "other & $-$5.0 to $+$15.0 & " in out


def test_several_folders_are_one_table(command, refused, here):
    for name in ("a", "b", "deep"):
        write_folder(here / name, rows("fedavg", FIRST))
    write_folder(here / "deep" / "a", rows("fedavg", OTHER))
    labels = [line.split()[:2] for line in command("table", "a", "b").splitlines()[1:3]]
    assert labels == [["a:", "FedAvg"], ["b:", "FedAvg"]]
    out = command("table", "a", "deep/a", "--reference", "deep/a: fedavg")
    assert "a: FedAvg  -20.0, -30.0  -20.0, -20.0 " in out
    write_folder(here / "longer", rows("fedavg", [*FIRST, [0.1, 0.2, 0.3]]))
    assert "'a: fedavg' has no rows on seed 2; give the" in refused("table", "a", "longer")


def test_a_file_is_written_once(command, refused, here, five):
    assert command("table", five, "--format", "latex", "--out", "a.tex") == "a.tex\n"
    assert (here / "a.tex").read_text() == tables.latex(method_tables(FIVE))
    assert "out='a.tex' exists or is a folder; name a new" in refused(
        "table", five, "--out", "a.tex"
    )
    assert "'--format': 'tex' is not one of 'text'," in refused("table", five, "--format", "tex")


@settings(deadline=None, max_examples=10, derandomize=True)
@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=3, unique=True))
def test_any_label_is_balanced_and_one_line(labels):
    table = ResultTable([Column("method", labels), Column("x", range(len(labels)))], ["note\n%"])
    lines = tables.latex([table]).splitlines()
    body = lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")]
    assert len(body) == len(labels)
    for number, line in enumerate(body):
        cells = re.split(r"(?<!\\)&", line)  # where & is no character of the text
        assert (len(cells), cells[-1]) == (2, rf" {number} \\")
        bare = re.sub(r"\\[{}\\]", "", line)
        assert bare.count("{") == bare.count("}")
        assert not re.search(r"(?<!\\)[_%#$]|[\^~]|^[*\[]", line)
    shown = tables.markdown([table]).splitlines()
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in shown[: 2 + len(labels)])


def test_labels_are_those_of_the_papers_or_given(command, refused, here, five):
    write_folder(here / "two", rows("scaffold", FIRST) + rows("fedprox mu=0.1", OTHER))
    out = command("table", "two")
    assert [line.split("  ")[0] for line in out.splitlines()[1:3]] == ["SCAFFOLD", "FedProx mu=0.1"]
    assert "compared with SCAFFOLD" in out
    records = json.loads(command("table", "two", "--format", "json"))
    assert [record["label"] for record in records] == ["scaffold", "fedprox mu=0.1"]
    line = ["table", "two", "--label", "fedprox mu=0.1=Prox", "--label", "scaffold=S"]
    assert [row.split()[0] for row in command(*line).splitlines()[1:3]] == ["S", "Prox"]
    line = ["table", five, "--label", "fed_avg=FedAvg, mine", "--label", "a|b {50%}=FedAvg, mine"]
    assert "would have the same label 'FedAvg, mine'" in refused(*line)
    assert "label is given, but csv has" in refused(*line[:4], "--format", "csv")


def test_columns_are_chosen_with_their_notes(command, refused, five):
    out = command("table", five, "--columns", "rounds,final")
    first, second = out.split("compared with")
    assert first.splitlines()[0].split() == ["method", "rounds", "final"]
    assert second.splitlines()[2].split() == ["method", "final"]
    assert "final, best: test accuracy in %" in out
    assert "rounds, upload (of all clients): to fed_avg's best" in out
    for gone in ("wall time: of", "reached: seeds", "common seeds: those", "best: the highest"):
        assert gone not in out
    assert "compared with" not in command("table", five, "--columns", "wall_time")
    out = command("table", five, "--columns", "seeds,final", "--format", "csv")
    assert out.splitlines()[:2] == ["label,seeds,final", "fed_avg,5,0.52"]
    assert "columns='rest' is unknown" in refused("table", five, "--columns", "final,rest")
    wall_time = ["--columns", "wall time", "--format", "json"]
    assert "columns='wall time' is unknown" in refused("table", five, *wall_time)


@pytest.mark.parametrize(
    ("at", "finals", "ended"),
    [
        ("upload_bytes=2000", ["60.0", "20.0"], "Ended before: costly."),
        ("upload_bytes=3999.5", ["60.0", "20.0"], "Ended before: cheap, costly."),
        ("upload_bytes=1989", ["50.0", "10.0"], ""),
        ("round=10", ["50.0", "20.0"], ""),
        ("round=1e3", ["60.0", "20.0"], "Ended before: cheap, costly."),
    ],
)
def test_methods_are_compared_at_a_cost(command, here, at, finals, ended):
    """The last evaluation with at most so much counts; runs may end at different rounds."""
    costly = [row | {"upload_bytes": 199 * row["round"]} for row in rows("costly", [[0.1, 0.2]])]
    write_folder(
        here / "r",
        rows("cheap", [[0.1, 0.5, 0.6]]) + costly,
        settings={"seeds": [0], "budget": "upload_bytes=1990"},
    )
    out = command("table", "r", "--at", at)
    assert [line.split()[1] for line in out.splitlines()[1:3]] == finals
    assert f"last evaluation with at most {float(at.split('=')[1]):g} {at.split('=')[0]}" in out
    assert ended in out
    assert ("Ended before" in out) == bool(ended)
    records = command("table", "r", "--at", at, "--format", "csv").splitlines()
    assert [float(line.split(",")[1]) * 100 for line in records[1:]] == list(map(float, finals))
    assert "at most 1990 upload_bytes" in command("table", "r")


@pytest.mark.parametrize("at", ["rounds=3", "upload_bytes", "upload_bytes=x", "upload_bytes=0"])
def test_wrong_budgets(refused, five, at):
    assert "budget" in refused("table", five, "--at", at)
    assert "rows have no flops; give a budget" in refused("table", five, "--at", "flops=3")


CLEAR = [[0.1, 0.40 + seed * seed / 1000] for seed in range(5)]  # 12 points below, and varying


def test_the_best_and_what_cannot_be_told_from_it_are_marked():
    own = method_tables(FIVE + rows("clear", CLEAR))
    lines = tables.text(own).splitlines()
    finals = {line.split("  ")[0]: line for line in lines[1:4]}
    assert "52.0 ± 2.0 *" in finals["fed_avg"]
    assert "48.2 ± 3.9 ~" in finals["a|b {50%}"]
    assert "40.6 ± 0.8    40.6 ± 0.8  " in finals["clear"]
    (told,) = [line for line in lines if line.startswith("*: the highest mean over seeds")]
    assert "t test on the same 5 seeds, at 5% over all pairs of methods (Holm" in told
    assert f"\n% {told.replace('*:', 'bold:').replace('~:', 'italic:')}\n" in tables.latex(own)


def test_nothing_is_marked_without_a_test():
    out = tables.markdown(method_tables(BOTH))
    assert "The best is not marked: a test needs at least 5 seeds" in out
    assert "**" not in out.split("compared with")[0].rsplit("**", 1)[0]
    lost = rows("lost", [*CLEAR[:4], [0.1, NAN]])
    out = tables.text(method_tables(FIVE + lost))
    assert "Methods that have diverged on a seed are not compared." in out
    assert "\nlost         1/5 diverged " in out
    out = tables.text(method_tables(lost + [row | {"method": "more"} for row in lost]))
    assert "The best is not marked: " in out
    assert "*:" not in out


def test_a_sweep_is_compared_with_a_reference_only_if_one_is_given(command, here):
    """Its first setting is the best one by test data, which the foot says."""
    write_folder(here / "swept", rows("mu=1", OTHER) + rows("mu=2", FIRST), grid={"mu": ["1", "2"]})
    out, reference = command("table", "swept"), ["--reference", "mu=2"]
    assert "to choose it by test data. `fedjax-algos tune` chooses on held-out examples" in out
    assert out.splitlines()[0].split() == ["setting", "final", "best", "diverged"]
    with_target = command("table", "swept", "--target", "0.5")
    assert " reached " in with_target
    assert "compared with" not in out + with_target
    assert "compared with mu=2" in command("table", "swept", *reference)
    assert "reference" not in command("table", "swept", "--format", "csv")
    records = json.loads(command("table", "swept", "--format", "json", *reference))
    assert [each["reference"] for each in records] == ["mu=2", "mu=2"]


def test_the_target_and_the_reference_of_the_runs_hold_in_their_table(command, refused, here):
    own = {"seeds": [0, 1], "target": 0.65, "reference": "other"}
    changes = {"a": {}, "b": {"target": 0.7}, "c": {"reference": None}, "bad": {"target": "high"}}
    for name, changed in changes.items():
        write_folder(here / name, BOTH, settings=own | changed)
    assert command("table", "a") == tables.text(method_tables(BOTH, Goal(0.65, "other")))
    out = command("table", "a", "--target", "0.5", "--reference", "fedavg")
    assert out == tables.text(method_tables(BOTH, Goal(0.5, "fedavg")))
    out = command("table", "b", "a")
    assert "to b: other's best accuracy on the same seed" in out
    assert "compared with b: other" in out
    out = command("table", "a", "c")
    assert "to a test accuracy of 65%" in out
    assert "compared with a: FedAvg" in out
    assert "bad/config.json: not a file of settings: target='high' is not a number" in refused(
        "table", "bad"
    )


def test_a_target_has_its_metric(command, refused, here):
    both = [row | {"test_dice_score": 0.9 * row["test_accuracy"]} for row in BOTH]
    own = {"seeds": [0, 1], "target": 0.65}
    for name, metric in {"a": "dice_score", "b": "accuracy", "bad": 5}.items():
        write_folder(here / name, both, settings=own | {"target_metric": metric})
    out = command("table", "a")
    assert out == tables.text(method_tables(both, Goal(0.65, None, "test_dice_score")))
    assert "final, best: test dice score in %" in out
    assert "to a test dice score of 65%" in out
    # the target of the run is not that of another metric
    assert command("table", "a", "--target-metric", "accuracy") == tables.text(method_tables(both))
    # folders of different metrics share none, and so no target
    assert "to a: FedAvg's best accuracy on the same seed" in command("table", "a", "b")
    assert "'loss' is lower for better models" in refused("table", "a", "--target-metric", "loss")
    assert "target_metric='5' is not measured; choose accuracy or dice" in refused("table", "bad")


def write_seeds(folder, seeds, curves, grid=None, **settings):
    """A folder with the accuracies of methods on these seeds."""
    measured = [
        row | {"seed": seeds[row["seed"]], "wall_seconds": 1.0}
        for method, by_seed in curves.items()
        for row in rows(method, by_seed)
    ]
    content = {"settings": {"seeds": seeds, **settings}, "methods": {n: {} for n in curves}}
    write_folder(folder, measured, **content, **({"grid": grid} if grid else {}))


def test_seeds_that_are_divided_over_folders_are_one_comparison(command, refused, here):
    first = {name: [[0.1, 0.5 + n / 50, 0.6], [0.1, 0.7, 0.6]] for n, name in enumerate("abc")}
    second = {name: [[0.1, 0.4 + n / 20, 0.7], [0.1, 0.6, 0.8]] for n, name in enumerate("abc")}
    both = {name: first[name] + second[name] for name in first}
    write_seeds(here / "r0", [0, 1], first, reference="b")
    write_seeds(here / "r1", [2, 3], second, reference="b")
    write_seeds(here / "whole", [0, 1, 2, 3], both, reference="b")
    assert command("table", "r0", "r1") == (out := command("table", "whole"))
    assert "compared with b" in out
    write_seeds(here / "other", [0, 1, 2, 3], both, reference="b", rounds=7)
    out = command("table", "r0", "other", "r1")
    labels = [line.split("  ")[0] for line in out.splitlines()[1:7]]
    assert labels == [f"{name}: {label}" for name in ("r0+r1", "other") for label in "abc"]
    assert "compared with r0+r1: b" in out
    write_seeds(here / "longer", [4, 5], second, rounds=7)
    assert "'r0: a' has no rows on seed 4; give" in refused("table", "r0", "longer")
    write_seeds(here / "again", [1, 2], second, reference="b")
    assert "'r0: a' has no rows on seed 2; give" in refused("table", "r0", "again")


def test_a_sweep_with_divided_seeds_is_in_the_order_of_all_of_them(command, here):
    """The mean of b is larger; on seed 0 it is second."""
    write_seeds(here / "r0", [0], {"a": [[0.1, 0.3]], "b": [[0.1, 0.2]]}, grid={"x": ["1"]})
    write_seeds(here / "r1", [1], {"b": [[0.1, 0.9]], "a": [[0.1, 0.3]]}, grid={"x": ["1"]})
    lines = command("table", "r0", "r1").splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["b", "a"]


def printed(measured, **options):
    """The lines of the two tables and of their notes."""
    return tables.text(method_tables(measured, Goal(**options))).splitlines()


def test_a_comparison_by_hand():
    """Seven seeds. t(.975, 6) is 2.446912; standard deviations are .0216, .0398 and .0227."""
    finals = [0.50, 0.51, 0.52, 0.53, 0.54, 0.55, 0.56]
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
    assert "> 20: all that is known, because seeds had not" in table
    assert "best accuracy on the same seed, the lower median over seeds." in table


def test_two_seeds_are_shown_themselves():
    lines = printed(BOTH)
    assert lines[1].split("  ")[1:3] == ["60.0, 60.0", "60.0, 70.0"]
    assert "final, best: test accuracy in %, of each of 2 seeds." in lines
    assert not any("±" in line for line in lines)
    lines = printed(BOTH, target=0.65)
    assert "> 20, 10  > 2.0 kB, 1.0 kB" in lines[1]
    assert (
        "> 20: all that is known, because seeds had not reached the target when their runs ended."
        in lines
    )
    assert any(line.startswith("other   +20.0, +30.0  +20.0, +20.0 ") for line in lines)


def test_one_method_has_costs_only_with_a_target():
    heading, _, *notes = printed(rows("first", FIRST))
    assert not any(name in heading for name in ("rounds", "upload", "reached"))
    assert "Costs to a test accuracy are shown with --target." in notes
    assert "rounds" in printed(rows("first", FIRST), target=0.65)[0]


def test_flops_and_simulated_time_are_shown_where_they_were_measured():
    heading, first, other, *notes = printed(rows("first", FIRST, flops=3.14e11) + BOTH[6:])
    assert heading.split()[5] == "flops"
    assert "3.1 TFLOP" in first
    assert other.split()[-4] == "-"
    assert any("rounds, upload, flops (of all clients): to" in line for line in notes)
    lines = printed([row | {"simulated_seconds": 0.5 * row["round"]} for row in BOTH])
    assert " ".join(lines[1].split()[-13:]) == "20, 10 10 s, 5 s 2.0 kB, 1.0 kB 2/2 1.50 s"
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
    assert any(line.startswith("without: seeds where one of the two") for line in lines)


def test_a_median_that_is_not_known_is_shown_as_its_bounds():
    """Seed 0 has not reached the target at 8 s, before seeds 1 and 2 reach it at 20 s and 18 s."""
    measured = rows("a", [[0.1, 0.2], [0.1, 0.9], [0.1, 0.9]])
    measured += rows("b", [[0.1, 0.2], [0.1, 0.9], [0.1, 0.2]])
    for row in measured:
        row["simulated_seconds"] = (8, 20, 18)[row["seed"]] * (row["round"] > 0)
    table, _ = method_tables(measured, Goal(0.8))
    _, first, other, *notes = tables.text([table]).splitlines()
    assert "  18 s..20 s  " in first
    assert "  > 18 s  " in other
    told = "> 10, 18 s..20 s: all that is known, because seeds had not reached"
    assert any(line.startswith(told) for line in notes)
    assert "& 18 to 20 & " in tables.latex([table])
    measured = [row for row in measured if row["method"] == "b"]
    for row in measured:
        row["simulated_seconds"] *= {0: 1, 1: 0.5, 2: 2}[row["seed"]]  # 8, 10, and 36 seconds
    (table,) = method_tables(measured, Goal(0.8))
    assert "  ≥ 10 s  " in tables.text([table])
    assert r"& $\geq$ 10 & " in tables.latex([table])
