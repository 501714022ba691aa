"""What the command `table` shows of a sweep, and of runs with a target."""

import json

from summary_helpers import FIRST, OTHER, rows, write_folder

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
    message = "target_metric='dice' is not measured; choose accuracy or dice_score, or name it in"
    assert message in refused("table", "a", "--target-metric", "dice")
    assert "'loss' is lower for better models" in refused("table", "a", "--target-metric", "loss")
    write_folder(here / "bad", both, settings=own | {"target_metric": 5})
    assert "bad/config.json': target_metric=5 is no text; give the name" in refused("table", "bad")
