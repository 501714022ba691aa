"""The command `experiments/papers/paper_table.py`, by hand on a few rows."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from paper_table import main
from summary_helpers import FIRST, NAN, OTHER, rows, write_folder

pytestmark = pytest.mark.usefixtures("here")
BOTH = rows("fedavg", FIRST) + rows("other", OTHER)


def command(paper, *arguments):
    """The output of the command; `paper` may have options."""
    name, *options = paper.split()
    result = CliRunner().invoke(main, [name, *arguments, *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_target_of_the_runs_and_its_metric_hold():
    both = [row | {"test_dice_score": 0.9 * row["test_accuracy"]} for row in BOTH]
    own = {"seeds": [0, 1], "target": 0.65}
    write_folder(Path("a"), both, settings=own | {"reference": "other"})
    assert "| other | 20 | " in command("fedlga", "a", "--format", "markdown")
    write_folder(Path("b"), both, settings=own | {"target_metric": "dice_score"})
    assert "72.0, 81.0" in command("fedgbo", "b")  # of accuracies .8 and .9
    assert "each seed's highest test dice score, chosen on test data" in command("fedlga", "b")


def test_labels_columns_a_file_and_what_a_paper_does_not_have():
    write_folder(Path("a"), BOTH)
    out = command("fedlga --target 0.5", "a", "--label", "other=S", "--format", "markdown")
    assert "| S | 20 | " in out
    assert command("fedlga --target 0.5 --columns rounds,best --out a.txt", "a") == ""
    assert Path("a.txt").read_text().split("\n")[0].split() == ["method", "rounds", "best"]
    out = command("fedlga --target 0.5 --format csv --columns rounds", "a")
    assert out.splitlines()[0] == "label,rounds"
    for options, named in {
        "fedlga --target 0.6 --reference fedavg": "reference",
        "ghbm --target 0.6": "target",
        "fedgbo --target 0.6": "target",
        "fedlga": "needs a target",
        "fedcompass": "needs a target",
        "fedgbo --reference c": "'c' is unknown",
        "fedgbo --format csv --label other=S": "--label",
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
def test_the_columns_of_each_paper(paper):
    """Its JSON has null for what is not finite."""
    write_folder(Path("some"), PAPER_ROWS)
    out = command(paper, "some", "--format", "markdown")
    heading, _, *lines = (line[2:-2] for line in out.splitlines() if line.startswith("| "))
    *expected, columns = TABLES[paper]
    assert heading.startswith(columns)
    assert [line.replace("\\", "") for line in lines] == expected
    assert ("\n\\*: " in out) == ("*" in expected[0])
    assert "chosen on test data" in out or "final" in heading
    gone = rows("fedavg", [[NAN] * 12] * 2, download_bytes=1, simulated_seconds=1)
    other = rows("other", [[0.5] * 12] * 2, download_bytes=1, simulated_seconds=1)
    write_folder(Path("gone"), gone + other)
    found = json.loads(command(paper, "gone", "--format", "json"), parse_constant=pytest.fail)
    assert [line["label"] for line in found] == ["fedavg", "other"]
    assert [line["seeds_diverged"] for line in found] == [2, 0]
