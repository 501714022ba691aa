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


def test_labels_columns_and_a_file():
    write_folder(Path("a"), BOTH)
    out = command("fedlga --target 0.5", "a", "--label", "other=S", "--format", "markdown")
    assert "| S | 20 | " in out
    line = ["a", "--columns", "rounds,best", "--out", "a.txt"]
    assert command("fedlga --target 0.5", *line) == ""
    assert Path("a.txt").read_text().split("\n")[0].split() == ["method", "rounds", "best"]
    out = command("fedlga --target 0.5", "a", "--format", "csv", "--columns", "rounds")
    assert out.splitlines()[0] == "label,rounds"


@pytest.mark.parametrize(
    "options",
    ["fedlga --target 0.6 --reference fedavg", "ghbm --target 0.6", "fedgbo --target 0.6"]
    + ["fedlga", "fedcompass", "fedgbo --reference c", "fedgbo --format csv --label other=S"],
)
def test_what_a_paper_does_not_have_is_refused(options):
    write_folder(Path("a"), BOTH)
    with pytest.raises(ValueError, match=r"has no|needs a target|unknown|leave --label out"):
        command(options, "a")


@pytest.mark.parametrize(
    "paper", ["fedgbo", "fedlga --target 0.4", "ghbm", "fedcompass --target 0.4 --reference fedavg"]
)
def test_json_has_null_for_what_is_not_finite(paper):
    gone = rows("fedavg", [[NAN] * 12] * 2, download_bytes=1, simulated_seconds=1)
    other = rows("other", [[0.5] * 12] * 2, download_bytes=1, simulated_seconds=1)
    write_folder(Path("some"), gone + other)
    found = json.loads(command(paper, "some", "--format", "json"), parse_constant=pytest.fail)
    assert [line["label"] for line in found] == ["fedavg", "other"]
    assert [line["seeds_diverged"] for line in found] == [2, 0]


PAPER_ROWS = [
    row | {"simulated_seconds": 2.0 * row["round"], "download_bytes": row["upload_bytes"]}
    for row in rows("fedavg", [[0.1, 0.6, 0.7], [0.1, 0.6, 0.5], [0.1, 0.2, 0.3]], flops=1e9)
    + rows("other", [[0.1, 0.2, 0.6], [0.1, 0.6, 0.8], [0.1, 0.7, NAN]], flops=2e9)
]


@pytest.mark.parametrize(
    ("paper", "heading", "lines"),
    [
        (
            "fedgbo",
            "method | best (%) | best of seeds (%) | rounds | upload (kB) | flops (GFLOP) | rounds "
            "to the reference's | upload to the reference's (kB) | flops to the reference's (GFLOP)"
            " | diverged",
            [
                "FedAvg | 30.0..70.0 | 53.3 | 20 | 2.0 | 20.0 | 20 | 2.0 | 20.0 | 0/3",
                # other's mean curve is .1, .5 and, as a seed has diverged, nothing
                "other | 20.0..70.0 | 70.0 | 10 | 1.0 | 20.0 | 10 | 1.0 | 20.0 | 1/3",
            ],
        ),
        (
            "fedlga --target 0.6",
            "method | rounds | time (s) | time of a round (s) | best (%) | reached | diverged",
            [
                "FedAvg | 10* | 1.50* | 0.100 | 30.0..70.0 | 2/3 | 0/3",
                "other | 13.3333 | 2.00 | 0.100 | 60.0..80.0 | 3/3 | 1/3",
            ],
        ),
        (
            "ghbm",
            "method | final (%) | rounds | overhead | traffic (kB) | traffic saved (%) | time (s) "
            "| time saved (%) | reached | diverged",
            [
                # the windows of all rounds but 0: fedavg .65, .55, .25; the target is .48333
                "FedAvg | 25.0..65.0 | 20* | 1 | 4.0* | 0.0 | 2.00* | 0.0 | 2/3 | 0/3",
                "other | 1/3 diverged | 13.3333 | 1 | 2.7 | 33.3 | 1.33 | 33.3 | 3/3 | 1/3",
            ],
        ),
        (
            "fedcompass --target 0.6 --reference fedavg",
            "method | simulated time (s) | relative | common seeds | best (%) | deviation (%) | "
            "reached | diverged",
            [
                "FedAvg | 20* | 1.00 | 2/3 | 53.3 | 20.8 | 2/3 | 0/3",
                # 40, 20 and 20 seconds; on the common seeds 60 / 40
                "other | 26.6667 | 1.50 | 2/3 | 70.0 | 10.0 | 3/3 | 1/3",
            ],
        ),
    ],
)
def test_the_columns_of_each_paper(paper, heading, lines):
    write_folder(Path("some"), PAPER_ROWS)
    out = command(paper, "some", "--format", "markdown")
    table = [line[2:-2].replace("\\", "") for line in out.splitlines() if line.startswith("| ")]
    assert table[0] == heading
    assert table[2:] == lines
    assert ("\n\\*: " in out) == any("*" in line for line in lines)
    assert "chosen on test data" in out or "final" in heading
