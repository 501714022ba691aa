"""Sweeps of settings, in float32, and the command that runs them."""

import csv
import json

import numpy as np
import pytest

from fedjax_algos.cli import main
from fedjax_algos.runs import comparison
from fedjax_algos.runs.settings import Settings, methods_of
from fedjax_algos.runs.sweeps import prepare_sweep, run_sweep

pytestmark = pytest.mark.usefixtures("optimised")

SMALL = Settings(
    model="linear", clients=12, cohort=4, rounds=3, local_steps=2, eval_every=2, seeds=(0, 1)
)
OPTIONS = "--model linear --clients 12 --cohort 4 --rounds 3 --local-steps 2 --eval-every 2"


def same(rows, expected):
    assert len(rows) == len(expected)
    for row, other in zip(rows, expected, strict=True):
        assert list(row) == list(other)  # the same columns in the same order
        for name in other.keys() - {"wall_seconds", "method"}:
            np.testing.assert_allclose(row[name], other[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("method", "grid", "changes", "specs", "programs"),
    [
        (
            "fedprox:weighting=uniform",
            {"mu": ["0.1", "1"], "client_learning_rate": ["0.3"]},
            {"rate_schedule": "exponential:decay=0.5", "partition": "dirichlet:alpha=1"},
            [f"fedprox:weighting=uniform,mu={mu},client_learning_rate=0.3" for mu in (0.1, 1)],
            1,
        ),
        (
            "fedgbo:client_learning_rate=0.2",
            {"optimizer": ["sgdm", "adam"], "beta": [0.5]},
            {"clip_norm": 0.5, "sampler": "cyclic:num_groups=3", "work": "partial"},
            [
                f"fedgbo:optimizer={name},beta=0.5,client_learning_rate=0.2"
                for name in ("sgdm", "adam")
            ],
            2,
        ),
    ],
    ids=["one program", "two"],
)
def test_settings_give_the_numbers_of_a_comparison(method, grid, changes, specs, programs):
    settings = Settings(**vars(SMALL) | changes)
    two = Settings(**vars(settings) | {"devices": 2})
    rows, notes = run_sweep(prepare_sweep(two, method, grid))
    assert len(notes) == programs
    same(rows, comparison.run(comparison.prepare(settings, methods_of(tuple(specs), settings))))


def test_a_client_s_work_is_swept_one_after_another():
    grid = {"local_steps": [1, 3], "rate_schedule": ["inverse"]}
    rows, notes = run_sweep(prepare_sweep(SMALL, "fedavg", grid))
    assert len(notes) == 2
    settings = Settings(**vars(SMALL) | {"local_steps": 3, "rate_schedule": "inverse"})
    same(rows[-6:], comparison.run(comparison.prepare(settings, methods_of(("fedavg",), settings))))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.filterwarnings("error")
def test_the_command_writes_a_results_folder_best_setting_first(capsys, here):
    command = ["sweep", "ghbm", "--grid", "tau=1,2", "--grid", "client_learning_rate=1e-9,0.3,0.1"]
    command += [*OPTIONS.split(), "--seeds", "2", "--devices", "3", "--out", "here"]
    main(command)
    told = capsys.readouterr()
    lines = [line for line in told.out.splitlines() if line.startswith("ghbm tau=")]
    assert len(lines) == 6
    assert lines[-1].split()[2] == "client_learning_rate=1e-09"
    assert "6 runs in a program, 6 in a call, 1 at once on each of 3 devices" in told.err
    summary, metrics = (read(here / "here" / f"{name}.csv") for name in ("summary", "metrics"))
    finals = [float(line["final"]) for line in summary]
    assert finals == sorted(finals, reverse=True)
    assert finals[0] > finals[-1]
    assert [line.split("  ")[0] for line in lines] == [line["label"] for line in summary]
    assert len(metrics) == 6 * 2 * 3
    assert metrics[0]["method"] == summary[0]["label"]
    config = json.loads((here / "here" / "config.json").read_text())
    assert config["grid"] == {"tau": ["1", "2"], "client_learning_rate": ["1e-9", "0.3", "0.1"]}
    assert len(config["sweep_notes"]) == 2
    assert config["methods"]["ghbm tau=2 client_learning_rate=0.3"]["tau"] == 2
    assert (here / "here" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):
        main(command)
    assert "out='here' is not empty; name another folder or remove it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("fedporx --grid mu=1", "unknown algorithm 'fedporx'; did you mean fedprox?"),
        ("fedprox --grid wieghting=uniform", "did you mean weighting?"),
        ("fedprox --grid mu=0.1,-1", "fedprox: mu=-1 is out of range; give a number of at least 0"),
        ("fedprox --grid mu=1 --grid mu=2", "mu stands in two grids; give all its values in one"),
        ("fedprox --grid mu=1,1.0", "fedprox: mu=1 stands twice in the grid; give it once"),
        ("fedprox --grid mu", "grid='mu' has no values; give mu=VALUE,VALUE"),
        ("fedprox:mu=2 --grid mu=1", "mu=2.0 is given beside the grid's values; leave it out"),
        (
            "fedprox:client_learning_rate=1 --grid client_learning_rate=1",
            "client_learning_rate=1.0 is given beside the grid's values",
        ),
        ("fedprox --grid local-steps=5 --local-steps 3", "--local-steps is given beside the grid"),
        ("fedprox --grid local_epochs=1,2 --local-steps 3", "local_epochs=1.0 are both given"),
        ("fedprox --grid mu=1 --seconds 3", "seconds=3 asks for the virtual clock"),
        ("fedprox --grid mu=1 --client-state host", "client_state='host' is not for sweeps"),
        ("fedprox --grid mu=1 --examples sharded", "examples='sharded' is not for sweeps"),
        ("fedprox --grid mu=1 --devices 99", "devices=99 is out of range; give 1 to"),
        ("fedprox --grid mu=1 --at-once 0", "at_once=0 is out of range; give a whole number"),
        ("ghbm --grid beta=0.1", "ghbm needs tau; give ghbm:tau=..."),
    ],
)
def test_what_is_wrong_is_told_in_one_line(capsys, here, arguments, told):
    with pytest.raises(SystemExit) as stop:
        main(["sweep", *arguments.split()])
    shown = capsys.readouterr()
    assert stop.value.code == 2
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert told in shown.err
    assert not (here / "results").exists()
