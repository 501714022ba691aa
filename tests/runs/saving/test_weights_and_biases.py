"""Weights & Biases: what its client is told."""

import sys
import types

import pytest

from fedjax_algos.runs.saving.trackers import TrackedRun, trackers

ROWS = [{"method": "a b", "seed": 3, "round": step, "test_loss": 2.0} for step in (0, 5, 5)]
LOGGED = [({"round": step, "test_loss": 2.0}, count) for count, step in enumerate((0, 5, 5))]


@pytest.fixture
def run(tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    return TrackedRun(tmp_path, "01-a-b/seed-3", "a b", 3, {"mu": 0.5})


@pytest.fixture
def client(monkeypatch):
    """Takes the place of the package, and keeps what it is told."""
    own = types.ModuleType("wandb")
    own.begun, own.logged, own.ended, own.metrics, own.logins = [], [], [], [], []
    own.Error, own.Settings = type("Error", (Exception,), {}), dict
    own.login = lambda: own.logins.append(None)
    own.init = lambda **keywords: own.begun.append(keywords) or own
    own.define_metric = lambda name, step_metric: own.metrics.append((name, step_metric))
    own.log = lambda values, step: own.logged.append((values, step))
    own.finish = lambda exit_code=0: own.ended.append(exit_code)
    monkeypatch.setitem(sys.modules, "wandb", own)
    return own


def track(spec, run):
    with trackers.make(spec)(run) as add_row:
        for row in ROWS:
            add_row(row)


def test_what_the_client_is_told(run, client):
    track("wandb:mode=offline,project=mine,entity=team", run)
    (begun,) = client.begun
    wanted = {"mode": "offline", "project": "mine", "entity": "team", "dir": run.folder}
    wanted |= {"group": "a b", "name": "a b, seed 3"}
    assert begun.items() >= wanted.items()
    assert begun["config"] == {"mu": 0.5, "method": "a b", "seed": 3}
    assert client.metrics == [("*", "round")]
    assert client.logged == LOGGED  # rows of the same round stay apart
    assert (client.ended, client.logins) == ([0], [])


def test_the_mode_and_the_project_of_the_environment(run, client, monkeypatch):
    track("wandb", run)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    track("wandb", run)
    assert len(client.logins) == 1
    told = [(begun["mode"], begun["project"], begun["resume"]) for begun in client.begun]
    assert told == [(None, "fedjax_algos", "allow"), ("offline", "theirs", None)]


def test_a_run_that_begins_again_has_its_id_and_one_folder(run, client, tmp_path):
    track("wandb:mode=offline", run)
    identity = client.begun[0]["id"]
    earlier = tmp_path / "wandb" / f"offline-run-20260101_000000-{identity}"
    other = tmp_path / "wandb" / "offline-run-20260101_000000-other"
    for folder in (earlier, other):
        folder.mkdir()
    for same in ({}, {"name": "01-a-b/seed-4"}, {"folder": tmp_path / "elsewhere"}):
        track("wandb:mode=offline", run._replace(**same))
    ids = [begun["id"] for begun in client.begun]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert (earlier.exists(), other.exists()) == (False, True)


def test_an_error_ends_the_run_as_failed(run, client):
    with pytest.raises(KeyboardInterrupt), trackers.make("wandb:mode=offline")(run):
        raise KeyboardInterrupt
    assert client.ended == [1]


def test_errors_of_the_client_have_a_fix(run, client, monkeypatch):
    def fail(**keywords):
        raise client.Error("no API key")

    monkeypatch.setattr(client, "init", fail)
    with pytest.raises(ValueError, match=r"no API key.*--track wandb:mode=offline"):
        track("wandb:mode=offline", run)
    monkeypatch.setattr(client, "login", fail)
    with pytest.raises(ValueError, match=r"no API key.*run `wandb login`"):
        trackers.make("wandb")
