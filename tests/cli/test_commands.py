"""The commands compare, run, sweep and tune from end to end: what they print and write."""

import json
import re

import numpy as np
import pytest
from report_helpers import Page, assert_alone, read_table
from same_runs import folder_content

import fedjax_algos
from fedjax_algos.cli import main
from fedjax_algos.data import Partition
from fedjax_algos.runs.studies.settings import Settings

pytestmark = pytest.mark.usefixtures("compiled_once")
OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 4 --eval-every 3 --local-steps 2"
SMALL = OPTIONS.split()


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("quick_pictures")
def test_compare(command, refused, here):
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
    compiled = config["compilation"]
    assert compiled["programs"] > compiled["from_cache"] == 0
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
    assert [row[0] for row in page.tables["summary.csv"][0]] == ["label", "fedavg", "fedprox"]
    assert all(f"seed {seed}" in page.text for seed in (0, 1))
    picture = [folder, "--metric", "test_loss", "--x", "upload_bytes"]
    assert command("plot", *picture) == f"{folder / 'test_loss-by-upload_bytes.png'}\n"
    assert "exists or is a folder; name a new file" in refused("plot", *picture)
    assert "is not empty; name another folder" in refused(*line, "--out", folder)


@pytest.mark.all
@pytest.mark.usefixtures("quick_pictures")
def test_updates_that_are_not_finite_are_told_or_an_error(command, capsys, here):
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
def test_runs_end_with_their_budget(command, refused, here):
    """At 2.6 kB a client and 4 clients a round, 20 kB are used in two rounds; top-k needs more."""
    options = OPTIONS.replace("--eval-every 3", "--eval-every 1 --seeds 1").split()
    methods = "fedavg", "fedavg+topk:fraction=0.4"
    out = command("compare", *methods, *options, "--budget", "upload_bytes=2e4")
    found = read_table(here / "results" / "compare" / "metrics.csv")
    assert [int(row["round"]) for row in found] == [0, 1, 2, 0, 1, 2, 3, 4]
    assert "last evaluation with at most 20000 upload_bytes" in out
    assert command("table", "results/compare") in out
    line = ["run", "fedavg", "--seconds", "3", "--budget", "upload_bytes=1"]
    assert "budget='upload_bytes=1' is not for the virtual clock" in refused(*line)


@pytest.mark.all
@pytest.mark.filterwarnings("error")
def test_a_sweep_has_the_best_setting_first(command, here):
    """Its picture is a real one."""
    line = ["sweep", "ghbm", "--grid", "tau=1,2", "--grid", "client_learning_rate=1e-9,0.3"]
    out, folder = command(*line, *SMALL, "--seeds", "2", "--devices", "3"), here / "results/sweep"
    summary, metrics = (read_table(folder / f"{name}.csv") for name in ("summary", "metrics"))
    finals = [float(each["final"]) for each in summary]
    assert finals == sorted(finals, reverse=True)
    assert finals[0] > finals[-1]
    assert len(metrics) == 4 * 2 * 3
    assert metrics[0]["method"] == summary[0]["label"]
    labels = [each["label"].replace("ghbm", "GHBM") for each in summary]
    assert re.findall(r"^GHBM tau=\S+ \S+", out, re.M) == labels
    config = json.loads((folder / "config.json").read_text())
    assert config["grid"] == {"tau": ["1", "2"], "client_learning_rate": ["1e-9", "0.3"]}
    assert ["4 runs in a program" in note for note in config["sweep_notes"]] == [True] * 2
    assert config["methods"]["ghbm tau=2 client_learning_rate=0.3"]["tau"] == 2
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.all
@pytest.mark.usefixtures("quick_pictures")
def test_tune_then_compare_then_repeat(command, capsys, here, monkeypatch):
    """Tuning does not read the test data: its losses would not be finite."""

    def without_test_data(settings):
        dataset = load(settings)
        return dataset._replace(test=dataset.test | {"x": np.nan * dataset.test["x"]})

    load, grid = Settings.load, "--grid client_learning_rate=0.03,0.3 --seeds 20,21 --out tuned"
    metric = "--metrics balanced_accuracy --target-metric balanced_accuracy --target 0.01"
    line = f"tune ditto+identity fedgbo:optimizer=adam {OPTIONS} {grid} {metric}"
    with monkeypatch.context() as patch:
        patch.setattr(Settings, "load", without_test_data)
        main(line.split())
    out, notes = capsys.readouterr()
    assert "each method: 2 settings for 4 rounds, on each of 2 seeds: 16 rounds in all" in notes
    assert re.search(r"^fedgbo +client_learning_rate=0\.\d+ ", out, re.M)
    assert "\nditto+identity: the score is the global model's, not the clients' own models'" in out
    assert "score: balanced accuracy in % on 20% of each client's training examples" in out
    assert "Each method: 2 settings for 4 rounds, with seeds 20, 21;" in out
    assert "\ngo on with: fedjax-algos compare --config tuned/tuned.toml\n" in out
    trials = read_table(here / "tuned" / "trials.csv")
    columns = ["method", "setting", "stage", "length", "score", "score_seed_20", "score_seed_21"]
    assert ([*trials[0]], len(trials)) == (columns, 4)
    out = command("compare", "--config", "tuned/tuned.toml", "--seeds", "20,3")
    assert "The methods were tuned without test data, with seeds 20, 21; this comparison" in out
    assert "(of all clients): to a test balanced accuracy of 1%, " in out
    results = here / "results"
    config = json.loads((results / "compare" / "config.json").read_text())
    assert config["tuning"]["seeds"] == [20, 21]
    assert config["settings"]["rounds"] == 4
    assert config["methods"]["fedgbo"]["optimizer"] == "adam"
    assert config["methods"]["ditto+identity"]["wrappers"] == "identity"
    command("report", results / "compare")
    page = (results / "compare" / "report.html").read_text()
    assert "to a test balanced accuracy of 1%, " in page
    assert page.index('"test_balanced_accuracy"') < page.index('"test_accuracy"')
    again = command("compare", "--config", results / "compare" / "config.json")
    assert "with seeds 20, 21; this comparison also uses 20, which" in again
    assert folder_content(results / "compare") == folder_content(results / "compare-2")


def test_private_methods(command, refused, here, capsys):
    """The noise is computed and printed before the runs; epsilon is a column, and a budget."""
    private = "fedavg:weighting=uniform+gaussian:clip=1"
    options = OPTIONS.replace("12 --cohort 4", "5 --cohort 5").replace(
        "every 3", "every 1 --seeds 1"
    )
    options = options.split()
    main(["compare", f"{private},epsilon=3", "fedprox", *options, "--out", "out"])
    printed = capsys.readouterr()
    told = r"epsilon 2.99\d at delta 1e-05 for 4 rounds \(one client zeroed out; gaussian"
    assert re.search(f"fedavg.gaussian: {told}", printed.err)
    assert " 3  " in next(row for row in printed.out.splitlines() if row.startswith("FedAvg"))
    content = json.loads((here / "out/config.json").read_text())
    assert [bool(re.match(told, text)) for text in content["privacy"].values()] == [True]
    rows = [row for row in read_table(here / "out/metrics.csv") if row["method"] != "fedprox"]
    spent = [float(row["epsilon"]) for row in rows]
    assert spent[0] == 0 < spent[1] < spent[2] < spent[3] < spent[4] < 3
    main(["run", f"{private},noise=1", *options, "--out", "run", "--budget", "epsilon=6"])
    ended = [float(row["epsilon"]) for row in read_table(here / "run/metrics.csv")]
    assert ended[-2] < 6 <= ended[-1]
    main(["plot", "out", "--x", "epsilon", "--out", "epsilon.svg"])
    capsys.readouterr()
    line = ["run", f"{private},noise=1", *options, "--sampler", "with_replacement"]
    assert "fedavg: gaussian: no bound on epsilon is known" in refused(*line)
