"""Rows on disk: what is read is what was written, and no row of a checkpoint is overwritten."""

import contextlib
import errno
import io
import os
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from same_runs import assert_same_bits

from fedjax_algos.base.errors import DamagedError
from fedjax_algos.engine.placed import on_disk
from fedjax_algos.engine.placed.on_disk import DiskClientState, RowFiles

SIZE = 7  # bytes of a row


def row_of(value):
    return bytes([value % 256] * SIZE)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def opened(folder, owner, position, tables, num_clients=6):
    rows = RowFiles(folder, SIZE, num_clients)
    rows.open_saved(owner, position, tables)
    return rows


def content(rows):
    return {client: bytes(rows.read(client)) for client in rows.written().tolist()}


KINDS = "write", "write and save", "fail to save", "save elsewhere", "resume"
STEP = st.tuples(st.sampled_from(KINDS), st.integers(0, 2))  # and the client that is written


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEP, min_size=10, max_size=30), keep=st.integers(1, 3))
def test_every_checkpoint_that_is_kept_can_be_read(steps, keep, tmp_path_factory):
    """After writes, saves, saves that fail or have no checkpoint, and going on from the last."""
    folder = tmp_path_factory.mktemp("rows")
    rows, expected, last = RowFiles(folder, SIZE, 3), {}, None
    checkpoints = {"a": {}, "b": {}}  # by owner and position: the tables, and what they stand for

    def check():
        assert content(rows) == expected
        for owner, own in checkpoints.items():
            for position, (tables, meant) in own.items():
                assert content(opened(folder, owner, position, tables)) == meant

    for number, (step, client) in enumerate(steps):
        if step in KINDS[:3]:
            expected[client] = row_of(number)
            rows.write(client, expected[client])
        if step == "fail to save":
            with pytest.MonkeyPatch.context() as patch, contextlib.suppress(ValueError):
                limited(patch, number % 3)
                rows.save("a", number, list(checkpoints["a"]))
        elif "save" in step and expected:
            owner = "b" if step == "save elsewhere" else "a"
            own = checkpoints[owner]
            own[number] = rows.save(owner, number, list(own)), dict(expected)
            check()  # a process may end before old checkpoints are removed
            for old in sorted(own)[:-keep]:
                del own[old]
            last = owner, number
        elif step == "resume" and last is not None:
            tables, meant = checkpoints[last[0]][last[1]]
            rows, expected = opened(folder, *last, tables), dict(meant)
        check()
    for path in folder.iterdir():  # the last two rows of each client, and those that are saved
        assert path.stat().st_size <= 3 * (keep + 4) * SIZE


def limited(patch, writes):
    """Lets so many rows be written before the disk is full; the next one is written in part."""
    left = [writes]
    write = on_disk._write_at

    def write_at(file, offset, row):
        left[0] -= 1
        if left[0] < 0:
            write(file, offset, row[: SIZE // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, offset, row)

    patch.setattr(on_disk, "_write_at", write_at)


@pytest.fixture
def rows(tmp_path):
    return RowFiles(tmp_path, SIZE, 6)


def test_only_rows_that_have_changed_are_written_again(tmp_path, monkeypatch):
    rows, written, write = RowFiles(tmp_path, SIZE, 1000), [], on_disk._write_at
    assert sum(t.nbytes for t in vars(rows).values() if isinstance(t, np.ndarray)) == 8_000
    for client in range(500, 900):
        rows.write(client, row_of(client))
    rows.save("a", 0, [])
    rows.write(700, row_of(1))
    monkeypatch.setattr(
        on_disk, "_write_at", lambda *given: written.append(given[1]) or write(*given)
    )
    tables = rows.save("a", 1, [0])
    assert written == [400 * SIZE]
    assert tables["ids"].tolist() == list(range(500, 900))


def test_a_first_save_that_fails_leaves_no_file(rows, tmp_path, monkeypatch):
    for client in (0, 1):
        rows.write(client, row_of(client))
    with monkeypatch.context() as patch:
        limited(patch, 1)
        with pytest.raises(ValueError, match=r"rows' .*\(No space left on device"):
            rows.save("a", 0, [])
    assert names(tmp_path) == []
    rows.save("a", 0, [])
    assert content(rows) == {0: row_of(0), 1: row_of(1)}
    rows.remove()
    assert names(tmp_path) == []


def test_a_system_that_writes_in_parts():
    class InParts(io.BytesIO):
        def write(self, row):
            return super().write(row[:2])

    on_disk._write_at(file := InParts(), 1, row_of(5))
    assert file.getvalue() == b"\0" + row_of(5)


@pytest.fixture
def saved(rows, tmp_path):
    """The tables and the file of a checkpoint with two rows."""
    for client in (1, 4):
        rows.write(client, row_of(client))
    return rows.save("c", 3, []), next(tmp_path.glob("*.rows"))


def test_a_saved_file_that_was_changed_or_cut_off(saved, tmp_path):
    """Before it is opened, or after that, when a row is read."""
    (tables, path), whole = saved, saved[1].read_bytes()
    rows = opened(tmp_path, "c", 3, tables)
    message = rf"client 4 in '.*{path.name}'"
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match=message):
            opened(tmp_path, "c", 3, tables)
    assert bytes(rows.read(1)) == row_of(1)
    with pytest.raises(ValueError, match=message):
        rows.read(4)
    with pytest.raises(ValueError, match="client 4"):  # so it is not copied either
        rows.save("elsewhere", 0, [])
    assert names(tmp_path) == [path.name]
    with pytest.raises(ValueError, match=r"No such file .* folder of client state"):
        opened(tmp_path / "other", "c", 3, tables)


def test_two_that_go_on_from_one_checkpoint(saved, tmp_path):
    """What has not been saved is of its own; who reads what another has replaced is told."""
    one, other = (opened(tmp_path, "c", 3, saved[0]) for _ in range(2))
    one.write(1, row_of(10))
    other.write(1, row_of(20))
    assert (bytes(one.read(1)), bytes(other.read(1))) == (row_of(10), row_of(20))
    one.save("c", 4, [3])
    assert content(other) == {1: row_of(20), 4: row_of(4)}
    one.write(4, row_of(30))
    one.save("c", 5, [3, 4])
    one.write(1, row_of(11))
    one.save("c", 6, [5])  # 3 is gone
    assert content(one) == {1: row_of(11), 4: row_of(30)}
    assert bytes(other.read(1)) == row_of(20)
    with pytest.raises(ValueError, match="went on from the same checkpoint"):
        opened(tmp_path, "c", 3, saved[0]).read(1)


# as trees of any dtypes

SHAPES = {  # of odd sizes, so that most arrays are not aligned in a row
    "flag": jax.ShapeDtypeStruct((), jnp.bool_),
    "half": jax.ShapeDtypeStruct((3,), jnp.bfloat16),
    "nothing": jax.ShapeDtypeStruct((0, 4), jnp.float32),
    "number": jax.ShapeDtypeStruct((), jnp.int32),
    "wide": (jax.ShapeDtypeStruct((2, 3), np.float64), jax.ShapeDtypeStruct((5,), jnp.uint8)),
}


def random_row(rng):
    return jax.tree.map(lambda leaf: rng.integers(0, 200, leaf.shape).astype(leaf.dtype), SHAPES)


def test_rows_of_any_dtype_keep_their_bits(tmp_path):
    """Written in two orders of memory, replaced, saved, and read from a checkpoint."""
    rng = np.random.default_rng(0)
    rows = [random_row(rng) for _ in range(4)]
    table = DiskClientState(tmp_path, SHAPES, 6).write([(5, rows[0]), (2, rows[1])])
    turned = jax.tree.map(np.asfortranarray, rows[2])
    table = table.write([(np.int32(5), turned), (0, rows[3])])
    expected = {0: rows[3], 2: rows[1], 5: rows[2]}

    def check(table):
        assert list(table) == [0, 2, 5]
        for client in range(6):
            zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), SHAPES)
            assert_same_bits(table[client], expected.get(client, zeros))

    check(table)
    tables = table.save("checkpoints", 1, [])
    assert_same_bits(tables.pop("blank"), table.blank)
    loaded = DiskClientState(str(tmp_path), SHAPES, 6)
    loaded.files.open_saved("checkpoints", 1, tables)
    check(loaded)


def test_memory_holds_one_row_at_a_time(tmp_path):
    """40 MB of rows are written, read, and saved."""
    row, number = {"x": np.arange(100_000, dtype=np.float32)}, 100
    table = DiskClientState(tmp_path, row, 10_000)
    tracemalloc.start()
    table = table.write((client, row) for client in range(number))
    assert sum(int(table[client]["x"][-1]) for client in range(number)) == 99_999 * number
    table.save("checkpoints", 1, [])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * row["x"].nbytes
