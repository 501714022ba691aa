"""Weights & Biases: what its client is told."""

import sys
from unittest import mock

import pytest

from fedjax_algos.runs.studies.trackers import TrackedRun, trackers

VALUES = [{"round": number, "test_loss": 2.0} for number in (0, 5, 5)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    return TrackedRun(tmp_path, "01-a-b/seed-3", "a b", 3, {"mu": 0.5})


@pytest.fixture
def client(monkeypatch):
    """Takes the place of the package, and keeps what it is told."""
    own = mock.Mock(Error=type("Error", (Exception,), {}))
    own.init.return_value = own
    monkeypatch.setitem(sys.modules, "wandb", own)
    return own


def track(spec, run):
    with trackers.make(spec)(run) as add_row:
        for values in VALUES:
            add_row({"method": "a b", "seed": 3} | values)


def begun(client, *names):
    """What the client was told of each run."""
    return [tuple(call.kwargs[name] for name in names) for call in client.init.call_args_list]


def test_what_the_client_is_told(run, client):
    track("wandb:mode=offline,project=mine,entity=team", run)
    names = "mode", "project", "entity", "dir", "group", "name", "config"
    config = {"mu": 0.5, "method": "a b", "seed": 3}
    wanted = "offline", "mine", "team", run.folder, "a b", "a b, seed 3", config
    assert begun(client, *names) == [wanted]
    client.define_metric.assert_called_once_with("*", step_metric="round")
    # rows of the same round stay apart
    logged = [mock.call(values, step=step) for step, values in enumerate(VALUES)]
    assert client.log.call_args_list == logged
    client.finish.assert_called_once_with(0)
    client.login.assert_not_called()


def test_the_mode_and_the_project_of_the_environment(run, client, monkeypatch):
    track("wandb", run)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    track("wandb", run)
    client.login.assert_called_once()
    expected = [(None, "fedjax_algos", "allow"), ("offline", "theirs", None)]
    assert begun(client, "mode", "project", "resume") == expected


def test_a_run_that_begins_again_has_its_id_and_one_folder(run, client, tmp_path):
    track("wandb:mode=offline", run)
    names = client.init.call_args.kwargs["id"], "other"
    own, other = (tmp_path / "wandb" / f"offline-run-20260101-{name}" for name in names)
    own.mkdir()
    other.mkdir()
    for same in ({}, {"name": "01-a-b/seed-4"}, {"folder": tmp_path / "elsewhere"}):
        track("wandb:mode=offline", run._replace(**same))
    ids = begun(client, "id")
    assert ids[0] == ids[1]
    assert len({*ids}) == 3
    assert (own.exists(), other.exists()) == (False, True)


def test_errors_have_a_fix_and_end_the_run_as_failed(run, client):
    with pytest.raises(KeyboardInterrupt), trackers.make("wandb:mode=offline")(run):
        raise KeyboardInterrupt
    client.finish.assert_called_once_with(1)
    client.init.side_effect = client.login.side_effect = client.Error("no API key")
    with pytest.raises(ValueError, match=r"no API key.*--track wandb:mode=offline"):
        track("wandb:mode=offline", run)
    with pytest.raises(ValueError, match=r"no API key.*run `wandb login`"):
        trackers.make("wandb")
