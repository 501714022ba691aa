"""Weights & Biases: what its client is told, and that offline it needs no network."""

import importlib.util
import os
import socket
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


class Client(types.ModuleType):
    """Takes the place of the package."""

    class Error(Exception):
        pass

    Settings = dict

    def __init__(self):
        super().__init__("wandb")
        self.begun, self.logged, self.ended, self.metrics, self.logins = [], [], [], [], 0

    def login(self):
        self.logins += 1

    def init(self, **keywords):
        self.begun.append(keywords)
        return self

    def define_metric(self, name, step_metric):
        self.metrics.append((name, step_metric))

    def log(self, values, step):
        self.logged.append((values, step))

    def finish(self, exit_code=0):
        self.ended.append(exit_code)


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", own := Client())
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
    assert client.ended == [0]
    assert client.logins == 0


def test_the_mode_and_the_project_of_the_environment(run, client, monkeypatch):
    track("wandb", run)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    track("wandb", run)
    assert client.logins == 1
    told = [(begun["mode"], begun["project"], begun["resume"]) for begun in client.begun]
    assert told == [(None, "fedjax_algos", "allow"), ("offline", "theirs", None)]


def test_a_run_that_begins_again_has_its_id_and_one_folder(run, client, tmp_path):
    track("wandb:mode=offline", run)
    identity = client.begun[0]["id"]
    earlier = tmp_path / "wandb" / f"offline-run-20260101_000000-{identity}"
    other = tmp_path / "wandb" / "offline-run-20260101_000000-other"
    for folder in (earlier, other):
        folder.mkdir()
    track("wandb:mode=offline", run)
    track("wandb:mode=offline", run._replace(name="01-a-b/seed-4"))
    track("wandb:mode=offline", run._replace(folder=tmp_path / "elsewhere"))
    ids = [begun["id"] for begun in client.begun]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert not earlier.exists()
    assert other.exists()


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


@pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None,
    reason="wandb, an optional package of 60 MB, is not installed",
)
def test_offline_nothing_connects(run, tmp_path, monkeypatch):
    """The service would be this test, which sees each connection."""
    with socket.create_server(("127.0.0.1", 0)) as service:
        service.setblocking(False)
        port = service.getsockname()[1]
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        track("wandb:mode=offline", run)
        importlib.import_module("wandb").teardown()  # else it may write after the end of a run
        with pytest.raises(BlockingIOError):
            service.accept()
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    for text in (b"a b, seed 3", b"test_loss", b"mu"):
        assert text in content
    assert not os.path.exists(tmp_path / "home")
