"""The commands compare, run, sweep and tune from end to end: what they print and write."""

import csv
import json
import re
import sys

import numpy as np
import pytest
from report_helpers import Page, assert_alone
from same_runs import folder_content

import fedjax_algos
from fedjax_algos.cli import main
from fedjax_algos.data import Partition
from fedjax_algos.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("compiled_once")
OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 4 --eval-every 3 --local-steps 2"
SMALL = OPTIONS.split()


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("quick_pictures")
def test_compare(command, refused, here, read_table):
    line = ["compare", "fedavg", "fedprox:mu=1,client_learning_rate=0.3", *SMALL, "--seeds", "2"]
    out = command(*line, "--reference", "fedprox")
    for word in ("FedAvg", "FedProx", "final", "compared with FedProx", "results/compare"):
        assert word in out
    folder = here / "results" / "compare"
    rows = read_table(folder / "metrics.csv")
    assert [row["method"] for row in rows] == ["fedavg"] * 6 + ["fedprox"] * 6
    assert [row["round"] for row in rows] == ["0", "3", "4"] * 4
    assert [row["seed"] for row in rows] == (["0"] * 3 + ["1"] * 3) * 2
    assert float(rows[2]["upload_bytes"]) == 4 * 4 * (64 * 10 + 10) * 4  # rounds, cohort, params
    assert 0 < float(rows[2]["test_accuracy"]) < 1
    assert rows[0]["train_loss"] == ""

    config = json.loads((folder / "config.json").read_text())
    assert config["settings"].items() >= {"clients": 12, "seeds": [0, 1]}.items()
    assert config["local_steps"] == 2
    assert config["methods"]["fedprox"] == {
        "algorithm": "fedprox", "client_learning_rate": 0.3, "client_optimizer": "sgd", "mu": 1.0,
        "server_learning_rate": 1.0, "weighting": "examples",
    }  # fmt: skip
    assert config["environment"]["packages"]["fedjax_algos"] == fedjax_algos.__version__
    assert config["environment"]["backend"] == "cpu"
    compiled = config["compilation"]
    assert compiled["programs"] > compiled["from_cache"] == 0
    phases = ("trace_seconds", "lower_seconds", "backend_seconds")
    assert compiled["seconds"] == pytest.approx(sum(compiled[phase] for phase in phases))
    assert f"{compiled['seconds']:.1f} s to compile {compiled['programs']} programs, " in out
    with np.load(folder / "partitions.npz") as arrays:
        for seed in ("0", "1"):
            partition = Partition(arrays[f"indices_{seed}"], arrays[f"offsets_{seed}"])
            assert partition.digest() == config["partition_sha256"][seed]
            assert partition.num_clients == 12
    assert (folder / "accuracy.png").exists()
    assert config["partition_sha256"]["1"][:12] in (folder / "partition.txt").read_text()

    assert command("table", folder) in out
    command("report", folder)
    page = Page(folder / "report.html")
    assert_alone(page)
    _, shown = page.tables["Methods"]
    printed = [re.split(r" {2,}", line.strip()) for line in out.splitlines()]
    assert [row for row in shown if row not in printed] == []
    with (folder / "summary.csv").open(newline="") as file:
        assert page.tables["summary.csv"] == [list(csv.reader(file))]
    assert all(f"seed {seed}" in page.text for seed in (0, 1))
    picture = [folder, "--metric", "test_loss", "--x", "upload_bytes"]
    assert command("plot", *picture) == f"{folder / 'test_loss-by-upload_bytes.png'}\n"
    assert "exists; name another file or remove it" in refused("plot", *picture)
    assert "is not empty; name another folder" in refused(*line, "--out", folder)


@pytest.mark.all
@pytest.mark.usefixtures("quick_pictures")
def test_updates_that_are_not_finite_are_told_or_an_error(command, capsys, here, read_table):
    line = "run fedavg:client_learning_rate=1e30 --model mlp:8 --clients 12 --cohort 2 --rounds 2"
    line = [*line.split(), "--eval-every", "1", "--local-steps", "2"]
    assert "fedavg: 4 updates of clients were not finite and were left out" in command(*line)
    measured = read_table(here / "results" / "fedavg" / "metrics.csv")
    assert [row["excluded_updates"] for row in measured] == ["0", "2", "4"]
    with pytest.raises(SystemExit, match="2"):
        command(*line, "--non-finite", "error")
    told = r"error: fedavg, seed 0: client \d+ made an update that is not finite in round 0"
    assert re.search(told, capsys.readouterr().err)


@pytest.mark.all
@pytest.mark.filterwarnings("error")
def test_a_sweep_has_the_best_setting_first(command, capsys, here, read_table):
    """Its picture is a real one."""
    line = ["sweep", "ghbm", "--grid", "tau=1,2", "--grid", "client_learning_rate=1e-9,0.3"]
    line += [*SMALL, "--seeds", "2", "--devices", "3", "--out", "here"]
    main(line)
    output = capsys.readouterr()
    assert "4 runs in a program" in output.err
    assert "to choose it by test data. `fedjax-algos tune` chooses on held-out" in output.out
    summary, metrics = (
        read_table(here / "here" / f"{name}.csv") for name in ("summary", "metrics")
    )
    finals = [float(each["final"]) for each in summary]
    assert finals == sorted(finals, reverse=True)
    assert finals[0] > finals[-1]
    assert len(metrics) == 4 * 2 * 3
    assert metrics[0]["method"] == summary[0]["label"]
    labels = [each["label"].replace("ghbm", "GHBM") for each in summary]
    assert re.findall(r"^GHBM tau=\S+ \S+", output.out, re.M) == labels
    config = json.loads((here / "here" / "config.json").read_text())
    assert config["grid"] == {"tau": ["1", "2"], "client_learning_rate": ["1e-9", "0.3"]}
    assert len(config["sweep_notes"]) == 2
    assert config["methods"]["ghbm tau=2 client_learning_rate=0.3"]["tau"] == 2
    assert (here / "here" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    command("report", "here")
    page = Page(here / "here" / "report.html")
    assert "Sweep of 4 settings on digits" in page.text
    assert [row[0] for row in page.tables["Methods"][1][1:]] == labels


@pytest.mark.all
@pytest.mark.usefixtures("quick_pictures")
def test_tune_then_compare_then_repeat(command, here):
    grid = "--grid client_learning_rate=0.03,0.3 --seeds 20,21 --out tuned"
    out = command("tune", "fedavg", "fedgbo:optimizer=adam", *grid.split(), *SMALL)
    assert "fedgbo  client_learning_rate=0." in out
    assert "test data are not used" in out
    assert "Each method: 2 settings for 4 rounds, with seeds 20, 21;" in out
    assert "\ngo on with: fedjax-algos compare --config tuned/tuned.toml\n" in out
    trials = (here / "tuned" / "trials.csv").read_text().splitlines()
    assert trials[0].startswith("method,setting,stage,length,score,score_seed_20,score_seed_21")
    assert len(trials) == 5
    compared = command("compare", "--config", "tuned/tuned.toml", "--seeds", "20,3")
    assert "The methods were tuned without test data, with seeds 20, 21, of which 20" in compared
    results = here / "results"
    config = json.loads((results / "compare" / "config.json").read_text())
    assert config["tuning"]["seeds"] == [20, 21]
    assert config["settings"]["rounds"] == 4
    assert config["methods"]["fedgbo"]["optimizer"] == "adam"
    again = command("compare", "--config", "results/compare/config.json")
    assert "with seeds 20, 21, of which 20" in again
    assert folder_content(results / "compare") == folder_content(results / "compare-2")


@pytest.mark.all
@pytest.mark.usefixtures("quick_pictures")
def test_a_target_of_another_metric(command, refused, here):
    line = ["--grid", "client_learning_rate=0.1,1", *SMALL, "--seeds", "1,"]
    metric = ["--metrics", "balanced_accuracy", "--target-metric", "balanced_accuracy"]
    out = command("tune", "ditto+identity", *line, *metric, "--target", "0.01", "--out", "tuned")
    assert "\nditto+identity: the score is that of the global model, not of the clients' own" in out
    assert "score: balanced accuracy in % on 20% of each client's training examples" in out
    written = (here / "tuned" / "tuned.toml").read_text()
    assert 'score = "mean balanced_accuracy on the validation examples' in written
    assert "+identity" in written
    again = ["compare", "--config", "tuned/tuned.toml", "--seeds", "3,", "--out", "compared"]
    out = command(*again)
    assert "(of all clients): to a test balanced accuracy of 1%." in out
    kept = json.loads((here / "compared" / "config.json").read_text())["settings"]
    assert (kept["target"], kept["target_metric"]) == (0.01, "balanced_accuracy")
    assert command("table", "compared").splitlines()[0] in out
    command("report", "compared")
    page = (here / "compared" / "report.html").read_text()
    assert "to a test balanced accuracy of 1%." in page
    assert page.index('"test_balanced_accuracy"') < page.index('"test_accuracy"')
    message = "target_metric='balanced' is not measured; choose accuracy, balanced_accuracy, "
    assert message in refused(*again[:-1], "other", "--target-metric", "balanced")


@pytest.mark.all
def test_tuning_does_not_see_the_test_data(command, here, monkeypatch):
    """Other labels and images of the test set change nothing that tuning writes."""
    line = ["tune", "fedavg", "--grid", "client_learning_rate=0.03,0.3", "--seeds", "1", *SMALL]
    command(*line, "--out", "one")
    load = Settings.load

    def other_test(settings):
        dataset = load(settings)
        test = {"x": 0 * dataset.test["x"], "y": np.roll(dataset.test["y"], 1)}
        return dataset._replace(test=test)

    monkeypatch.setattr(Settings, "load", other_test)
    command(*line, "--out", "two")
    for name in ("tuned.toml", "trials.csv", "scores.json"):
        assert (here / "one" / name).read_bytes() == (here / "two" / name).read_bytes()


def test_the_budget_is_shown_before_the_start(capsys, monkeypatch):
    def stop(*arguments):
        raise SystemExit

    monkeypatch.setattr(sys.modules["fedjax_algos.cli.tune"], "run_tuning", stop)
    line = "tune fedavg --model linear --clients 10 --local-steps 2 --rounds 4 --eval-every 2"
    line += " --halving 2 --grid client_learning_rate=0.1,0.2,0.3,0.4 --seeds"
    budget = "each method: 4 settings for 2 rounds, then 2 settings for 4 rounds, on"
    for seeds, shown in (("20", "each of 20 seeds: 320"), ("9,", "one seed: 16")):
        with pytest.raises(SystemExit):
            main([*line.split(), seeds])
        assert f"{budget} {shown} rounds in all" in capsys.readouterr().err


@pytest.mark.all
@pytest.mark.usefixtures("quick_pictures")
def test_a_run_on_the_virtual_clock_is_repeated(command, here):
    line = "fedbuff:alpha=0.5@buffered:size=2 --seconds 3 --clients 4 --seeds 1 --local-steps 2"
    command("compare", *line.split(), "--model", "linear", "--evaluations", "2")
    command("compare", "--config", "results/compare/config.json")
    results = here / "results"
    assert folder_content(results / "compare") == folder_content(results / "compare-2")
