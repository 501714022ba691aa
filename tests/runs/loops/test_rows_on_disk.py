"""Runs with rows of client state on disk: where a process ends, what a state is, what is told."""

import copy
import gc
import pickle
import tempfile
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from same_runs import assert_same
from sweep_helpers import DECAYING, POPULATION, QUADRATICS, rounds_engine, run_rounds

import fedjax_algos as fa
from fedjax_algos.engine.placed import on_disk as row_files
from fedjax_algos.runs.loops.run import check_room_for_rows

pytestmark = pytest.mark.all
FOLDER = tempfile.TemporaryDirectory()  # of all rows, as of several runs


def engine(place="disk"):
    return rounds_engine("fedhbm", fa.RowsOnDisk(FOLDER.name) if place == "disk" else place)


def run(place="disk", **options):
    return run_rounds(engine(place), **{"rounds": 6, "eval_every": 1} | options)


class Killed(BaseException):
    """Stands for the end of a process."""


@pytest.fixture
def folder():
    """The folder of the rows, without what an earlier test has left."""
    gc.collect()
    path = Path(FOLDER.name)
    for file in path.iterdir():
        file.unlink()
    return path


def test_a_process_that_ends_in_any_write(folder, tmp_path, monkeypatch):
    """Each of six rounds writes two rows, and then the checkpoint writes them to its file."""
    checkpoints = fa.Checkpoints(tmp_path / "checkpoints", every=0, keep=1)
    write, left = row_files._write_at, [0]

    def write_at(file, offset, row):
        left[0] -= 1
        write(file, offset, row if left[0] else row[: len(row) // 2])
        if not left[0]:
            raise Killed

    monkeypatch.setattr(row_files, "_write_at", write_at)
    for number in (2, 4, 7, 3, 12):  # counted from where the run goes on
        left[0] = number
        with pytest.raises(Killed):
            run(checkpoints=checkpoints)
        if not list(checkpoints.folder.glob("*.npz")):
            gc.collect()
            assert list(folder.iterdir()) == []
    # like the run that was never interrupted, which the other rows of a folder are not of
    assert_same(run(checkpoints=checkpoints), run("host"))
    assert len(list(folder.iterdir())) == 1


def test_a_run_goes_on_where_its_rows_are(folder, tmp_path):
    """Not on the host, where its rows are not; the last state is read with its own rows only."""
    for place, other in (("disk", "host"), ("host", "disk")):
        checkpoints = tmp_path / place
        result = run(place, checkpoints=checkpoints)
        told = f"client_state: {place} in the checkpoint, {other} here"
        with pytest.raises(ValueError, match=told):
            run(other, checkpoints=checkpoints)
        with pytest.raises(ValueError, match=r"give the|clients/.* missing"):
            fa.load_state(checkpoints, engine(other).init(0, POPULATION))
        assert_same(fa.load_state(checkpoints, engine(place).init(0, POPULATION)), result)


def test_a_round_consumes_the_rows(folder):
    """Also on their own, taken out of the state before: they are the same files."""
    state, _ = run(rounds=1)
    rows, before = state.clients, repr(state.clients)
    cohorts = fa.participation.Cohorts(QUADRATICS.data.counts(), DECAYING, cohort_size=2, seed=3)
    dispatches = jax.tree.map(lambda leaf: leaf[1], cohorts.dispatches(2))
    with pytest.raises(TypeError, match="use client_states"):
        jax.tree.map(jnp.copy, state)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot"):
            copied(rows)
    new, _ = engine().round(state, QUADRATICS.data, dispatches)
    assert before.startswith(f"DiskClientState(folder={FOLDER.name}, clients=2, row=")
    assert repr(rows) == "DiskClientState(rows=consumed)"
    with pytest.raises(ValueError, match="this state was consumed"):
        engine().round(state, QUADRATICS.data, dispatches)
    for read in (lambda: rows[0], lambda: len(rows), lambda: rows.write([]), lambda: 0 in rows):
        with pytest.raises(ValueError, match="a round consumed these rows"):
            read()
    engine().updates(new, QUADRATICS.data, dispatches)  # consumes nothing
    assert 0 < len(new.clients) == sum(client in new.clients for client in range(-1, 6)) < 5
    blank = jax.tree.leaves(engine().init(0, POPULATION).clients[3])
    assert not any(leaf.any() for leaf in blank)


def test_the_files_end_with_the_state(folder):
    state, _ = run(rounds=2)
    files = weakref.ref(state.clients.files)
    assert list(folder.iterdir()) == []  # it has no name
    scratch = files().scratch
    assert not scratch.closed
    del state
    gc.collect()
    assert files() is None
    assert scratch.closed


def test_room_on_the_disk_is_checked(folder, monkeypatch):
    state = engine().init(0, POPULATION)
    row = state.clients.files.row_bytes
    free = type("Usage", (), {"free": 3 * row})
    monkeypatch.setattr(row_files, "disk_usage", lambda path: free)
    check_room_for_rows(state, 3)
    with pytest.raises(ValueError, match=f"the state of 4 clients would need {4 * row} bytes in"):
        check_room_for_rows(state, 4)
