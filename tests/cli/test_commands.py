"""The commands compare, run, plot and list: what they print and write."""

import csv
import json
import re

import numpy as np
import pytest
from report_helpers import Page, assert_alone

import fedjax_algos
from fedjax_algos.algorithms import algorithms
from fedjax_algos.cli.registries import REGISTRIES
from fedjax_algos.data import Partition

OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 4 --eval-every 3 --local-steps 2"
SMALL = OPTIONS.split()


@pytest.mark.filterwarnings("error")
def test_compare(command, refused, here, read_table):
    methods = ["fedavg", "fedprox:mu=1,client_learning_rate=0.3", "fedgbo:optimizer=adam"]
    unknown = refused("compare", *methods, *SMALL, "--reference", "fedgob")
    assert "reference='fedgob' is unknown; choose fedavg, fedprox or fedgbo" in unknown
    out = command("compare", *methods, *SMALL, "--seeds", "2", "--reference", "fedprox")
    for word in ("FedAvg", "FedProx", "FedGBO", "final", "compared with FedProx", "results/comp"):
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
    assert "metric='speed' is unknown; choose round" in refused("plot", folder, "--metric", "speed")


@pytest.mark.all
@pytest.mark.usefixtures("quick_pictures")
def test_run_twice_gives_the_same_numbers_in_a_new_folder(command, here, read_table):
    options = "run fedgbo --optimizer rmsprop --beta 0.5 --client-learning-rate 0.2 --seeds 3,5"
    options = f"{options} --server-learning-rate 0.25 {OPTIONS.rpartition(' --')[0]}".split()
    command(*options, "--local-epochs", "2", "--batch-size", "50")
    command(*options, "--local-epochs", "2", "--batch-size", "50", "--layout", "2")
    folders = [here / "results" / name for name in ("fedgbo", "fedgbo-2")]
    config = json.loads((folders[0] / "config.json").read_text())
    given = {"client_learning_rate": 0.2, "server_learning_rate": 0.25, "beta": 0.5}
    assert config["methods"]["fedgbo"].items() >= {**given, "optimizer": "rmsprop"}.items()
    assert config["settings"].items() >= {"seeds": [3, 5], "local_epochs": 2}.items()
    assert config["local_steps"] is None
    tables = [read_table(folder / "metrics.csv") for folder in folders]
    losses = [[float(row["test_loss"]) for row in table] for table in tables]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_list_names_what_is_registered(command):
    for what, registry in REGISTRIES.items():
        assert json.loads(command("list", what, "--json")) == sorted(registry)
        shown = command("list", what)
        assert all(name in shown for name in registry if ":" not in name)  # others may be divided


def test_every_algorithm_has_a_command(command):
    listed = command("run", "--help")
    for name in (name for name in algorithms if ":" not in name):  # other tests add files
        assert f"  {name} " in listed
        assert "--client-learning-rate" in command("run", name, "--help")


@pytest.mark.all
@pytest.mark.usefixtures("quick_pictures")
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
    measured = read_table(here / "results/compare/metrics.csv")
    excluded = [row for row in measured if "1e+30" in row["method"]][:3]
    assert [row["excluded_updates"] for row in excluded] == ["0", "2", "4"]
    lost = [row for row in measured if "1e+38" in row["method"] and row["seed"] == "0"]
    assert len(lost) == 2
    assert "seed 0 not finite at round 1 (test_loss=" in "\n".join(lines)


@pytest.mark.all
def test_an_update_that_is_not_finite_may_be_an_error(command, capsys, here):
    small = "--model mlp:8 --clients 12 --cohort 2 --rounds 2 --eval-every 1 --local-steps 2"
    with pytest.raises(SystemExit) as stop:
        command("run", "fedavg:client_learning_rate=1e30", *small.split(), "--non-finite", "error")
    assert stop.value.code == 2
    told = r"fedavg, seed 0: client \d+ made an update that is not finite in round 0"
    assert re.search(f"error: {told}", capsys.readouterr().err)
