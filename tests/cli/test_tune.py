"""The command `tune`, and `compare` with what it wrote or with an earlier run's config.json."""

import importlib
import json

import numpy as np
import pytest
from same_runs import folder_content

from fedjax_algos.cli import main
from fedjax_algos.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("compiled_once", "quick_pictures")
OPTIONS = "--model linear --clients 10 --cohort 4 --rounds 4 --eval-every 2 --local-steps 2"
SMALL = OPTIONS.split()
TUNE = ("tune", "fedavg", "fedgbo:optimizer=adam", "--grid", "client_learning_rate=0.03,0.3")


@pytest.mark.all
def test_tune_then_compare_then_repeat(command, here):
    out = command(*TUNE, *SMALL, "--seeds", "20,21", "--out", "tuned")
    assert "fedgbo  client_learning_rate=0." in out
    assert "test data are not used" in out
    assert "Each method: 2 settings for 4 rounds, with seeds 20, 21;" in out
    assert "\ngo on with: fedjax-algos compare --config tuned/tuned.toml\n" in out
    trials = (here / "tuned" / "trials.csv").read_text().splitlines()
    assert trials[0].startswith("method,setting,stage,length,score,score_seed_20,score_seed_21")
    assert len(trials) == 5
    compared = command("compare", "--config", "tuned/tuned.toml", "--seeds", "20,3")
    assert "The methods were tuned without test data, with seeds 20, 21, of which 20" in compared
    config = json.loads((here / "results" / "compare" / "config.json").read_text())
    assert config["tuning"]["seeds"] == [20, 21]
    assert config["settings"]["rounds"] == 4
    assert config["methods"]["fedgbo"]["optimizer"] == "adam"
    again = command("compare", "--config", "results/compare/config.json")
    assert "with seeds 20, 21, of which 20" in again
    results = here / "results"
    assert folder_content(results / "compare") == folder_content(results / "compare-2")


def test_a_target_of_another_metric(command, refused, here):
    line = ["--grid", "client_learning_rate=0.1,1", *SMALL, "--seeds", "1,"]
    dice = ["--metrics", "balanced_accuracy", "--target-metric", "balanced_accuracy"]
    out = command("tune", "ditto+identity", *line, *dice, "--target", "0.01", "--out", "tuned")
    assert "\nditto+identity: the score is that of the global model, not of the clients' own" in out
    assert "score: balanced accuracy in % on 20% of each client's training examples" in out
    written = (here / "tuned" / "tuned.toml").read_text()
    assert 'score = "mean balanced_accuracy on the validation examples' in written
    assert "+identity" in written
    again = ["compare", "--config", "tuned/tuned.toml", "--seeds", "3,", "--out", "compared"]
    out = command(*again)
    assert "(of all clients): to a test balanced accuracy of 1%." in out
    assert "tuned without test data" in out
    kept = json.loads((here / "compared" / "config.json").read_text())["settings"]
    assert (kept["target"], kept["target_metric"]) == (0.01, "balanced_accuracy")
    assert command("table", "compared").splitlines()[0] in out
    command("report", "compared")
    page = (here / "compared" / "report.html").read_text()
    assert "to a test balanced accuracy of 1%." in page
    assert page.index('"test_balanced_accuracy"') < page.index('"test_accuracy"')
    message = "target_metric='balanced' is not measured; choose accuracy, balanced_accuracy, "
    assert message in refused(*again[:-1], "other", "--target-metric", "balanced")
    assert "'loss' is lower for better" in refused("compare", "--target-metric", "loss")


CLOCK = (*SMALL[:4], "--local-steps", "2", "--seconds", "2", "--evaluations", "2")


@pytest.mark.all
@pytest.mark.parametrize("small", [SMALL, CLOCK])
def test_tuning_does_not_see_the_test_data(command, here, monkeypatch, small):
    """Other labels and images of the test set change nothing that tuning writes."""
    line = ["tune", "fedavg", "--grid", "client_learning_rate=0.03,0.3", "--seeds", "1"]
    command(*line, *small, "--out", "one")
    load = Settings.load

    def other_test(settings):
        dataset = load(settings)
        test = {"x": 0 * dataset.test["x"], "y": np.roll(dataset.test["y"], 1)}
        return dataset._replace(test=test)

    monkeypatch.setattr(Settings, "load", other_test)
    command(*line, *small, "--out", "two")
    for name in ("tuned.toml", "trials.csv", "scores.json"):
        assert (here / "one" / name).read_bytes() == (here / "two" / name).read_bytes()


@pytest.mark.parametrize(
    ("seeds", "shown"), [("20", "each of 20 seeds: 320"), ("9,", "one seed: 16")]
)
def test_the_budget_is_shown_before_the_start(capsys, monkeypatch, seeds, shown):
    def stop(*arguments):
        raise SystemExit

    monkeypatch.setattr(importlib.import_module("fedjax_algos.cli.tune"), "run_tuning", stop)
    line = "tune fedavg --halving 2 --grid client_learning_rate=0.1,0.2,0.3,0.4 --seeds"
    with pytest.raises(SystemExit):
        main([*line.split(), seeds, *SMALL])
    budget = "each method: 4 settings for 2 rounds, then 2 settings for 4 rounds, on"
    assert f"{budget} {shown} rounds in all" in capsys.readouterr().err


TUNED = """
methods = ["fedavg:client_learning_rate=0.3", "fedprox:mu=0.1"]
rounds = 7
layout = "sequential"

[tuning]
seeds = [1000]
"""


@pytest.fixture
def used(monkeypatch):
    """What a line of `compare` uses of a file."""

    def compare(*line):
        files = []
        train = "fedjax_algos.cli.training.train"
        monkeypatch.setattr(train, lambda *arguments: files.append(arguments[-1]))
        main(["compare", *line])
        return files[0]

    return compare


@pytest.mark.parametrize(
    ("line", "tuned"),
    [
        ("", True),
        ("--seeds 3 --target 0.5 --reference fedprox --eval-every 2 --out a", True),
        ("--layout vmapped --devices 2 --client-state host --examples sharded", True),
        ("--evaluate-clients held_out --held-out 0.1 --personal-steps 2", True),
        ("--rounds 7 --track tensorboard", True),
        ("--rounds 8", False),
        ("--client-learning-rate 0.1", False),
        ("--model linear", False),
        ("--non-finite keep", False),
        ("fedavg:client_learning_rate=0.001 scaffold", False),
        ("fedavg:client_learning_rate=0.3", False),
    ],
)
def test_what_was_not_tuned_is_not_called_tuned(used, here, line, tuned):
    (here / "tuned.toml").write_text(TUNED)
    file = used("--config", "tuned.toml", *line.split())
    assert file.tuning == ({"seeds": [1000]} if tuned else None)


def test_what_names_no_methods_is_not_called_tuned(used, here):
    (here / "tuned.toml").write_text("[tuning]\nseeds = [1]\n")
    assert used("--config", "tuned.toml").tuning is None


@pytest.mark.all
def test_a_run_on_the_virtual_clock_is_repeated(command, here):
    line = "fedavg fedbuff:alpha=0.5@buffered:size=2 --seconds 3 --clients 4 --seeds 1"
    command("compare", *line.split(), *SMALL[:2], *SMALL[-2:], "--evaluations", "2")
    command("compare", "--config", "results/compare/config.json")
    results = here / "results"
    assert folder_content(results / "compare") == folder_content(results / "compare-2")


def configuration(**changes):
    content = {
        "command": ["compare", "fedavg"],
        "settings": {"rounds": 3, "seeds": [0], "target": None},
        "methods": {"fedavg": {"algorithm": "fedavg", "client_learning_rate": 0.1}},
    }
    return content | changes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "config='a.json' is no JSON file: "),
        ("[]", "config='a.json' has no settings and methods of a run; name the config.json of"),
        ({"settings": {}}, "config='a.json' has no settings and methods of a run"),
        (configuration(methods={}), "config='a.json' has no methods; name the config.json of"),
        (configuration(grid={}), "config='a.json' is of a search, which compare cannot repeat; its "
         "command was fedjax-algos compare fedavg"),
        (configuration(settings={"roundz": 3}), "a.json: unknown setting 'roundz'; did you mean"),
        (configuration(settings={"rounds": 0}), "a.json: rounds=0 is out of range"),
        (configuration(methods={"fedavg": {"mu": 1}}), "a.json: {'mu': 1} is no method"),
        (configuration(methods={"a": {"algorithm": "fedavg", "weighting": []}}), "is no method"),
        (configuration(methods={"a": {"algorithm": "fedavgg"}}), "unknown algorithm 'fedavgg'"),
        (configuration(tuning={"seeds": "x"}), "a.json: tuning={'seeds': 'x'} is not what tune"),
    ],
)  # fmt: skip
def test_wrong_files_of_results(refused, here, content, message):
    text = content if isinstance(content, str) else json.dumps(content)
    (here / "a.json").write_text(text)
    assert message in refused("compare", "--config", "a.json")
