"""Runs with rows of client state on disk: where a process ends, what a state is, what is told."""

import copy
import functools
import gc
import pickle
import tempfile
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, small_network
from same_runs import assert_same

import fedjax_algos as fa
from fedjax_algos.data import StoredData
from fedjax_algos.data.stored.stored_data import source_of
from fedjax_algos.engine.placed import on_disk as row_files
from fedjax_algos.runs.saving.checkpoints import Checkpoints, RunSaver

TOY = small_network()
LOCAL = fa.Local(2, 0.1, steps=2)
FOLDER = tempfile.TemporaryDirectory()  # of all rows, as of several runs
ROUNDS = {"cohort_size": 2, "rounds": 6, "eval_every": 1, "seed": 3}


@functools.cache
def engine(place="disk"):
    place = fa.RowsOnDisk(FOLDER.name) if place == "disk" else place
    return fa.make_engine(Case("fedhbm", {}).build(TOY.problem, LOCAL), client_state=place)


def run(place="disk", data=TOY.data, **options):
    return fa.simulate(engine(place), data, **ROUNDS | options)


@functools.cache
def whole():
    return run("host")


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


def ending_at(write_number, error, checkpoints):
    """A run whose process ends within a write to either file, when half of it has been written."""
    write, number = row_files._write_at, [0]

    def write_at(file, offset, row):
        if number[0] == write_number:
            write(file, offset, row[: len(row) // 2])
            raise error
        number[0] += 1
        write(file, offset, row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "_write_at", write_at)
        run(checkpoints=checkpoints)


def going_on(checkpoints):
    """Ends like the run that was never interrupted, which the other rows of a folder are not of."""
    assert_same(run(checkpoints=checkpoints), whole())


@pytest.mark.all
def test_a_process_that_ends_in_any_write(folder, tmp_path):
    """Each of six rounds writes two rows, and then the checkpoint writes them to its file."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", every=0, keep=1)
    for write_number in (1, 3, 6, 2, 11):  # counted from where the run goes on
        with pytest.raises(Killed):
            ending_at(write_number, Killed, checkpoints)
        if not list(checkpoints.folder.glob("*.checkpoint")):
            gc.collect()
            assert list(folder.iterdir()) == []
    going_on(checkpoints)
    assert len(list(folder.iterdir())) == 1


@pytest.mark.all
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_process_that_ends_beside_a_checkpoint(where, folder, tmp_path, monkeypatch):
    """The rows of the fourth checkpoint are in their file, and those of the third one still are."""
    checkpoints, save = Checkpoints(tmp_path / "checkpoints", every=0, keep=1), RunSaver._save

    def ending(self, checkpoints, position, arrays, facts):
        def arrays_and_end():
            arrays()
            raise Killed

        early = position == 4 and where == "before"
        save(self, checkpoints, position, arrays_and_end if early else arrays, facts)
        if position == 4:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunSaver, "_save", ending)
        with pytest.raises(Killed):
            run(checkpoints=checkpoints)
    names = [path.name for path in checkpoints.folder.iterdir()]
    assert names == ["3.checkpoint" if where == "before" else "4.checkpoint"]
    going_on(checkpoints)


@pytest.mark.all
def test_a_run_goes_on_where_its_rows_are(folder, tmp_path):
    """Not on the host, where its rows are not; the last state is read with its own rows only."""
    for place, other in (("disk", "host"), ("host", "disk"), ("device", "host")):
        checkpoints = tmp_path / place
        state, rows = run(place, checkpoints=checkpoints)
        message = f"client_state: {place} in the checkpoint, {other} here"
        with pytest.raises(ValueError, match=message):
            run(other, checkpoints=checkpoints)
        like = engine(other).init(0, fa.Population(4, 2, 17))
        with pytest.raises(ValueError, match=r"give the|clients/.* missing"):
            fa.load_state(checkpoints, like)
        like = engine(place).init(0, fa.Population(4, 2, 17))
        assert_same(fa.load_state(checkpoints, like), (state, rows))


@pytest.mark.all
def test_a_run_that_goes_on_from_a_state_has_rows_of_its_own_in_another_folder(folder, tmp_path):
    """What the first folder's checkpoint refers to stays."""
    every = {"every": 0, "keep": 1}
    half = run(rounds=3, checkpoints=Checkpoints(tmp_path / "one", **every))
    kept = whole_state(half)
    rest = {"rounds": 3, "start_round": 3, "checkpoints": Checkpoints(tmp_path / "two", **every)}
    end, _ = run(state=half[0], **rest)
    assert_same((end, []), (whole()[0], []))
    assert len(list(folder.glob("*.rows"))) == 2
    like = engine().init(0, fa.Population(4, 2, 17))
    loaded, _ = fa.load_state(tmp_path / "one", like)
    assert_same((loaded, []), (kept, []))
    again, _ = run(state=loaded, **rest | {"checkpoints": None})
    assert_same((again, []), (end, []))


def whole_state(result):
    """A copy of a state with its rows in memory."""
    state, _ = result
    table = engine("host").init(0, fa.Population(4, 2, 17)).clients
    return jax.tree.map(jnp.copy, state._replace(clients=()))._replace(
        clients=table.write(state.clients.items())
    )


@pytest.mark.all
def test_a_round_consumes_the_rows(folder):
    """Also on their own, taken out of the state before: they are the same files."""
    engine_, population = engine(), fa.Population(4, 2, 17)
    state, _ = run(rounds=1)
    rows, before = state.clients, repr(state.clients)
    cohorts = fa.participation.Cohorts(TOY.data.counts(), LOCAL, cohort_size=2, seed=3)
    dispatches = jax.tree.map(lambda leaf: leaf[1], cohorts.dispatches(2))
    with pytest.raises(TypeError, match="take them out with client_states"):
        jax.tree.map(jnp.copy, state)
    new, _ = engine_.round(state, TOY.data, dispatches)
    assert before.startswith(f"DiskClientState(folder={FOLDER.name}, clients=2, row=")
    assert repr(rows) == "DiskClientState(rows=consumed)"
    for read in (lambda: state.clients, lambda: engine_.round(state, TOY.data, dispatches)):
        with pytest.raises(ValueError, match="this state was consumed by the round"):
            read()
    for read in (lambda: rows[0], lambda: len(rows), lambda: rows.write([]), lambda: 0 in rows):
        with pytest.raises(ValueError, match="these rows were consumed by the round"):
            read()
    engine_.updates(new, TOY.data, dispatches)  # consumes nothing
    assert 0 < len(new.clients) == sum(client in new.clients for client in range(-1, 6)) < 5
    blank = jax.tree.leaves(engine_.init(0, population).clients[3])
    assert not any(leaf.any() for leaf in blank)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_rows_on_disk_are_not_copied(copied):
    state, _ = run(rounds=1)
    with pytest.raises(TypeError, match="cannot"):
        copied(state.clients)


@pytest.mark.all
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


@pytest.mark.all
def test_examples_and_rows_on_disk(folder, tmp_path):
    """Both of clients in files, also of a run that goes on."""
    examples = jax.tree.map(np.asarray, TOY.data.examples)
    indices, offsets = (np.asarray(leaf) for leaf in (TOY.data.indices, TOY.data.offsets))
    source = source_of(examples, fa.Partition(indices, offsets), list("abcd"))
    options = {"checkpoints": Checkpoints(tmp_path, every=0)}
    run(data=StoredData(source), on_evaluation=lambda row: row["round"] == 3, **options)
    assert_same(run(data=StoredData(source), **options), whole())


@pytest.mark.all
def test_room_on_the_disk_is_checked_before_the_first_round(folder, monkeypatch):
    state, _ = run(rounds=1)
    row = state.clients.files.row_bytes

    class Usage:
        free = 3 * row

    monkeypatch.setattr(row_files, "disk_usage", lambda path: Usage)
    run(rounds=1)
    with pytest.raises(ValueError, match=f"the state of 4 clients would need {4 * row} bytes in"):
        run(rounds=2)
