"""What the command `table` shows of a sweep, of runs with a target, and for the papers."""

import json

import pytest
from summary_helpers import FIRST, NAN, OTHER, rows, write_folder

from fedjax_algos.analysis import tables
from fedjax_algos.cli.method_tables import method_tables


def test_the_foot_says_what_was_chosen_by_test_data(command, here):
    write_folder(here / "swept", rows("fedavg mu=1", FIRST), grid={"mu": ["1"]})
    write_folder(here / "compared", rows("fedavg", FIRST), grid_of="another")
    told = "to choose it by test data. `fedjax-algos tune` chooses on held-out examples"
    assert told in command("table", "swept")
    assert told in command("table", "compared", "swept", "--format", "latex")
    assert told not in command("table", "compared")


def test_a_sweep_is_compared_with_a_reference_only_if_one_is_given(command, here):
    """Its first setting is the best one by test data."""
    write_folder(here / "swept", rows("mu=1", OTHER) + rows("mu=2", FIRST), grid={"mu": ["1", "2"]})
    out = command("table", "swept")
    assert out.splitlines()[0].split() == ["setting", "final", "best", "diverged"]
    assert "compared with" not in out
    assert " reached " in command("table", "swept", "--target", "0.5")
    assert "compared with" not in command("table", "swept", "--target", "0.5")
    assert "compared with mu=2" in command("table", "swept", "--reference", "mu=2")
    assert "reference" not in command("table", "swept", "--format", "csv")
    line = ["table", "swept", "--format", "json", "--reference", "mu=2"]
    assert [each["reference"] for each in json.loads(command(*line))] == ["mu=2", "mu=2"]


def test_the_target_and_the_reference_of_the_runs_hold_in_their_table(command, refused, here):
    both = rows("fedavg", FIRST) + rows("other", OTHER)
    own = {"seeds": [0, 1], "target": 0.65, "reference": "other"}
    write_folder(here / "a", both, settings=own)
    assert command("table", "a") == tables.text(method_tables(both, 0.65, "other"))
    out = command("table", "a", "--target", "0.5", "--reference", "fedavg")
    assert out == tables.text(method_tables(both, 0.5, "fedavg"))
    write_folder(here / "b", both, settings=own | {"target": 0.7})
    write_folder(here / "c", both, settings=own | {"reference": None})
    out = command("table", "b", "a")
    assert "to b: other's best accuracy on the same seed" in out
    assert "compared with b: other" in out
    out = command("table", "a", "c")
    assert "to a test accuracy of 65%" in out
    assert "compared with a: FedAvg" in out
    assert "| other | 20 | " in command("table", "a", "--paper", "fedlga", "--format", "markdown")
    write_folder(here / "bad", both, settings=own | {"target": "high"})
    assert "bad/config.json': target='high' is no number" in refused("table", "bad")


def test_a_target_has_its_metric(command, refused, here):
    both = rows("fedavg", FIRST) + rows("other", OTHER)
    both = [row | {"test_dice_score": 0.9 * row["test_accuracy"]} for row in both]
    own = {"seeds": [0, 1], "target": 0.65, "target_metric": "dice_score"}
    write_folder(here / "a", both, settings=own)
    write_folder(here / "b", both, settings={"seeds": [0, 1], "target": 0.65})
    assert command("table", "a") == tables.text(method_tables(both, 0.65, None, "test_dice_score"))
    # the target of the run is not that of another metric
    out = command("table", "a", "--target-metric", "accuracy")
    assert out == tables.text(method_tables(both))
    assert "to a test accuracy of 65%" in command("table", "b")
    out = command("table", "b", "--target-metric", "dice_score", "--target", "0.5")
    assert "to a test dice score of 50%" in out
    # folders of different metrics share none, and so no target
    assert "to a: FedAvg's best accuracy on the same seed" in command("table", "a", "b")
    assert "72.0, 81.0" in command("table", "a", "--paper", "fedgbo")  # of accuracies .8 and .9
    out = command("table", "a", "--paper", "fedlga")
    assert "each seed's highest test dice score, chosen on test data" in out
    message = "target_metric='dice' is not measured; choose accuracy or dice_score, or name it in"
    assert message in refused("table", "a", "--target-metric", "dice")
    assert "'loss' is lower for better models" in refused("table", "a", "--target-metric", "loss")
    write_folder(here / "bad", both, settings=own | {"target_metric": 5})
    assert "bad/config.json': target_metric=5 is no text; give the name" in refused("table", "bad")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("fedlga --target 0.6 --reference some", "paper=fedlga has no reference, but reference='s"),
        ("ghbm --target 0.6", "paper=ghbm has no target but what the reference reaches; leave tar"),
        ("fedgbo --target 0.6", "the reference reaches; leave target=0.6 out"),
        ("fedgb", "unknown paper 'fedgb'; did you mean fedgbo?"),
    ],
)
def test_what_a_paper_does_not_have_is_refused(refused, here, options, message):
    write_folder(here / "some", rows("fedavg", FIRST))
    assert message in refused("table", "some", "--paper", *options.split())


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
def test_the_papers_columns(command, here, paper, heading, lines):
    write_folder(here / "some", PAPER_ROWS)
    out = command("table", "some", "--format", "markdown", "--paper", *paper.split())
    table = [line[2:-2].replace("\\", "") for line in out.splitlines() if line.startswith("| ")]
    assert table[0] == heading
    assert table[2:] == lines
    assert ("\n\\*: " in out) == any("*" in line for line in lines)
    assert "chosen on test data" in out or "final" in heading
