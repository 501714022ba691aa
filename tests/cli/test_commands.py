"""The commands compare, run, plot and list: what they print and write."""

import csv
import json
import re

import numpy as np
import pytest
from report_helpers import Page, assert_alone

import fedjax_algos
from fedjax_algos.algorithms import algorithms
from fedjax_algos.data import Partition

OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 4 --eval-every 3 --local-steps 2"
SMALL = OPTIONS.split()


@pytest.mark.filterwarnings("error")
def test_compare(command, refused, here, read_table):
    methods = ["fedavg", "fedprox:mu=1,client_learning_rate=0.3", "fedgbo:optimizer=adam"]
    unknown = refused("compare", *methods, *SMALL, "--reference", "fedgob")
    assert "reference='fedgob' is unknown; choose fedavg, fedprox or fedgbo" in unknown
    out = command("compare", *methods, *SMALL, "--seeds", "2", "--reference", "fedprox")
    for word in (
        "FedAvg",
        "FedProx",
        "FedGBO",
        "final",
        "compared with FedProx",
        "results/compare",
    ):
        assert word in out
    folder = here / "results" / "compare"
    rows = read_table(folder / "metrics.csv")
    assert len(rows) == 3 * 2 * 3
    assert [row["round"] for row in rows[:3]] == ["0", "3", "4"]
    assert {row["method"] for row in rows} == {"fedavg", "fedprox", "fedgbo"}
    parameters = 64 * 10 + 10
    assert float(rows[2]["upload_bytes"]) == 4 * 4 * parameters * 4
    gbo = [row for row in rows if row["method"] == "fedgbo"]
    assert float(gbo[2]["download_bytes"]) == 3 * float(gbo[2]["upload_bytes"])
    assert 0 < float(rows[2]["test_accuracy"]) < 1
    assert rows[0]["train_loss"] == ""

    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["clients"] == 12
    assert config["settings"]["seeds"] == [0, 1]
    assert config["local_steps"] == 2
    assert config["methods"]["fedprox"] == {
        "algorithm": "fedprox",
        "client_learning_rate": 0.3,
        "client_optimizer": "sgd",
        "mu": 1.0,
        "server_learning_rate": 1.0,
        "weighting": "examples",
    }
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
    for picture in ("accuracy.png", "partition.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    description = (folder / "partition.txt").read_text()
    assert config["partition_sha256"]["1"][:12] in description
    assert len(read_table(folder / "summary.csv")) == 3

    command("report", folder)
    page = Page(folder / "report.html")
    assert_alone(page)
    _, shown = page.tables["Methods"]
    printed = [re.split(r" {2,}", line.strip()) for line in out.splitlines()]
    assert [row for row in shown if row not in printed] == []
    with (folder / "summary.csv").open(newline="") as file:
        assert page.tables["summary.csv"] == [list(csv.reader(file))]
    assert all(f"seed {seed}" in page.text for seed in (0, 1))

    out = command("plot", folder, "--metric", "test_loss", "--x", "upload_bytes")
    assert out.strip() == str(folder / "test_loss-by-upload_bytes.png")
    again = refused("plot", folder, "--metric", "test_loss", "--x", "upload_bytes")
    assert "exists; name another file or remove it" in again
    assert "metric='speed' is unknown; choose round, " in refused(
        "plot", folder, "--metric", "speed"
    )


@pytest.mark.slow
def test_run_twice_gives_the_same_numbers_in_a_new_folder(command, here, read_table):
    options = ["run", "fedgbo", "--optimizer", "rmsprop", "--beta", "0.5", *SMALL]
    command(*options)
    command(*options, "--layout", "2")
    first, second = (
        read_table(here / "results" / name / "metrics.csv") for name in ("fedgbo", "fedgbo-2")
    )
    config = json.loads((here / "results" / "fedgbo" / "config.json").read_text())
    assert config["methods"]["fedgbo"]["optimizer"] == "rmsprop"
    assert config["methods"]["fedgbo"]["beta"] == 0.5
    for a, b in zip(first, second, strict=True):
        assert float(a["test_loss"]) == pytest.approx(float(b["test_loss"]), rel=1e-5)


@pytest.mark.slow
def test_epochs_and_rates_are_shared_options(command, here):
    settings = "--clients 12 --cohort 4 --rounds 1 --local-epochs 2 --batch-size 50 --model mlp:8"
    rates = "--client-learning-rate 0.5 --server-learning-rate 0.25 --seeds 3,5"
    command("run", "fedavg", *settings.split(), *rates.split(), "--out", "here")
    config = json.loads((here / "here" / "config.json").read_text())
    assert config["methods"]["fedavg"]["client_learning_rate"] == 0.5
    assert config["methods"]["fedavg"]["server_learning_rate"] == 0.25
    assert config["settings"]["seeds"] == [3, 5]
    assert config["local_steps"] is None
    assert config["settings"]["local_epochs"] == 2


@pytest.mark.parametrize(
    ("what", "one"),
    [
        ("algorithms", "fedgbo"),
        ("client_optimizers", "adam"),
        ("datasets", "digits"),
        ("losses", "focal"),
        ("models", "mlp"),
        ("partitions", "iid"),
        ("rate_schedules", "exponential"),
        ("samplers", "cyclic"),
        ("local_works", "deadline"),
        ("planners", "buffered"),
        ("system_models", "simulated"),
    ],
)
def test_list_json_is_an_array_of_names_and_nothing_else(command, what, one):
    names = json.loads(command("list", what, "--json"))
    assert names == sorted(names)
    assert one in names
    registered = [name for name in names if ":" not in name]  # other tests add files of their own
    assert all(name in command("list", what) for name in registered)


def test_every_algorithm_has_a_command(command):
    listed = command("run", "--help")
    for name in (name for name in algorithms if ":" not in name):  # other tests add files
        assert f"  {name} " in listed
        assert "--client-learning-rate" in command("run", name, "--help")


@pytest.mark.slow
def test_a_method_that_diverges_is_shown_as_such(command, here, read_table):
    """In contrast to one whose updates were all left out: its model is finite, but not trained."""
    small = "--model mlp:8 --clients 12 --cohort 2 --rounds 2 --eval-every 1 --local-steps 2"
    methods = ["fedavg:server_learning_rate=1e38", "fedavg:client_learning_rate=1e30", "fedavg"]
    lines = command("compare", *methods, *small.split(), "--seeds", "2").splitlines()
    first, *_ = [line for line in lines if line.startswith("FedAvg server_learning_rate=1e+38")]
    assert re.search(r" client_learning_rate=0.1 +diverged +[\d.]+, [\d.]+ +- +- +- +0/0 ", first)
    assert "without seeds 0, 1, on which the reference has diverged: no target." in lines
    others = [line for line in lines if re.search(r" none \(without seeds 0, 1\) ", line)]
    assert len(others) == 2
    told = ": 8 updates of clients were not finite and were left out"
    (told_of,) = [line.partition(told)[0] for line in lines if told in line]
    assert told_of.split()[-1] == "client_learning_rate=1e+30"
    summary = read_table(here / "results/compare/summary.csv")
    assert [row["seeds_diverged"] for row in summary] == ["2", "0", "0"]
    assert [row["seeds_without_target"] for row in summary] == ["0 1"] * 3
    assert summary[1]["final_lowest"] == summary[1]["best_lowest"]


@pytest.mark.slow
def test_updates_and_models_that_are_not_finite_are_told(command, capsys, here, read_table):
    small = "--model mlp:8 --clients 12 --cohort 2 --rounds 2 --eval-every 1 --local-steps 2"
    out = command("run", "fedavg", *small.split(), "--client-learning-rate", "1e30")
    assert "fedavg: 4 updates of clients were not finite and were left out" in out
    measured = read_table(here / "results/fedavg/metrics.csv")
    assert [row["excluded_updates"] for row in measured] == ["0", "2", "4"]
    out = command("run", "fedavg", *small.split(), "--server-learning-rate", "1e38")
    assert "fedavg: seed 0 not finite at round 1 (test_loss=" in out
    assert len(read_table(here / "results/fedavg-2/metrics.csv")) == 2
    options = ["--client-learning-rate", "1e30", "--non-finite", "error"]
    with pytest.raises(SystemExit) as stop:
        command("run", "fedavg", *small.split(), *options)
    assert stop.value.code == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert re.search(
        r"fedavg, seed 0: client \d+ made an update that is not finite in round 0", error
    )


def test_a_full_folder_is_not_overwritten(refused, here):
    (here / "full").mkdir()
    (here / "full" / "thesis.txt").write_text("mine")
    error = refused("run", "fedavg", "--out", "full")
    assert "out='full' is not empty; name another folder or remove it" in error
    assert [path.name for path in (here / "full").iterdir()] == ["thesis.txt"]
