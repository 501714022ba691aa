"""Rows in files: what is read is what was written, and no row of a checkpoint is overwritten."""

import contextlib
import errno
import gc
import os
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.core.files import DamagedError
from fedjax_algos.engine.placed import row_files
from fedjax_algos.engine.placed.row_files import RowFiles

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


clients = st.integers(0, 2)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), clients),
        st.tuples(st.just("write and save"), clients),
        st.tuples(st.just("fail to save"), clients),
        st.just(("save elsewhere", None)),
        st.just(("resume", None)),
    ),
    min_size=10,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(steps=steps, keep=st.integers(1, 3))
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
        if client is not None:
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
    write = row_files._write_at

    def write_at(file, offset, row):
        left[0] -= 1
        if left[0] < 0:
            write(file, offset, row[: SIZE // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, offset, row)

    patch.setattr(row_files, "_write_at", write_at)


@pytest.mark.parametrize(("changed", "most"), [((6, 6), 18), ((6, 1, 1), 13)])
def test_the_saved_file_does_not_grow_with_the_number_of_checkpoints(changed, most, tmp_path):
    """It has six rows, and those that the two checkpoints that are kept have beside them."""
    rows, kept = RowFiles(tmp_path, SIZE, 6), []
    for position in range(20):
        for client in range(changed[position % len(changed)]):
            rows.write(client, row_of(position + client))
        rows.save("a", position, kept)
        kept = [*kept, position][-2:]
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == most * SIZE


def test_only_rows_that_have_changed_are_written_again(tmp_path, monkeypatch):
    rows = RowFiles(tmp_path, SIZE, 1000)
    for client in range(500, 900):
        rows.write(client, row_of(client))
    rows.save("a", 0, [])
    rows.write(700, row_of(1))
    written, write = [], row_files._write_at
    monkeypatch.setattr(
        row_files, "_write_at", lambda *given: written.append(given[1]) or write(*given)
    )
    tables = rows.save("a", 1, [0])
    assert written == [400 * SIZE]
    assert tables["ids"].tolist() == list(range(500, 900))


def test_nothing_is_left_without_a_checkpoint(tmp_path):
    folder = tmp_path / "deep" / "rows"
    rows = RowFiles(folder, SIZE, 6)
    assert not folder.parent.exists()
    rows.write(3, row_of(5))
    assert rows.written().tolist() == [3]
    assert [rows.has(client) for client in (-1, 2, 3, 6)] == [False, False, True, False]
    del rows
    gc.collect()
    assert names(folder) == []


def test_a_first_save_that_fails_leaves_no_file(tmp_path, monkeypatch):
    rows = RowFiles(tmp_path, SIZE, 6)
    rows.write(0, row_of(1))
    rows.write(1, row_of(2))
    with monkeypatch.context() as patch:
        limited(patch, 1)
        with pytest.raises(ValueError, match=r"rows' cannot be written \(No space left on device"):
            rows.save("a", 0, [])
    assert names(tmp_path) == []
    rows.save("a", 0, [])
    assert content(rows) == {0: row_of(1), 1: row_of(2)}
    rows.remove()
    assert names(tmp_path) == []


def test_a_full_disk_while_a_row_is_written(tmp_path, monkeypatch):
    rows = RowFiles(tmp_path, SIZE, 6)
    rows.write(0, row_of(1))
    limited(monkeypatch, 0)
    with pytest.raises(ValueError, match=r"' cannot be written \(No space left on device\); what"):
        rows.write(0, row_of(2))
    with pytest.raises(ValueError, match=r"the row of client 0 in .* is not as it was written"):
        rows.read(0)


def test_a_system_that_writes_and_reads_in_parts(tmp_path):
    class InParts:
        def __init__(self, file):
            self.file, self.seek = file, file.seek

        def write(self, row):
            return self.file.write(row[:2])

        def readinto(self, row):
            return self.file.readinto(row[:3])

    rows = RowFiles(tmp_path, SIZE, 6)
    rows.write(0, row_of(1))
    rows.scratch = InParts(rows.scratch)
    rows.write(1, bytes(range(SIZE)))
    assert content(rows) == {0: row_of(1), 1: bytes(range(SIZE))}


def saved(folder):
    rows = RowFiles(folder, SIZE, 6)
    for client in (1, 4):
        rows.write(client, row_of(client))
    tables = rows.save("the checkpoints", 3, [])
    return tables, next(folder.glob("*.rows"))


def test_a_saved_file_that_was_changed(tmp_path):
    """Before it is opened, or after that, when a row is read."""
    tables, path = saved(tmp_path)
    rows = opened(tmp_path, "the checkpoints", 3, tables)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    message = rf"client 4 in '.*{path.name}' is not as it was written"
    with pytest.raises(DamagedError, match=message):
        opened(tmp_path, "the checkpoints", 3, tables)
    assert bytes(rows.read(1)) == row_of(1)
    with pytest.raises(ValueError, match=message):
        rows.read(4)
    with pytest.raises(ValueError, match="client 4"):  # so it is not copied either
        rows.save("elsewhere", 0, [])
    assert names(tmp_path) == [path.name]


def test_a_saved_file_that_was_cut_off(tmp_path):
    tables, path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    message = rf"client 4 in '.*{path.name}' is not as .* damaged or cut off"
    with pytest.raises(DamagedError, match=message):
        opened(tmp_path, "the checkpoints", 3, tables)


def test_a_saved_file_that_is_in_another_folder(tmp_path):
    tables, _ = saved(tmp_path)
    with pytest.raises(ValueError, match=r"No such file .* give the folder of client state that"):
        opened(tmp_path / "other", "the checkpoints", 3, tables)


def test_two_that_go_on_from_one_checkpoint(tmp_path):
    """What has not been saved is of its own; who reads what another has replaced is told."""
    tables, _ = saved(tmp_path)
    one, other = (opened(tmp_path, "c", 3, tables) for _ in range(2))
    one.write(1, row_of(10))
    other.write(1, row_of(20))
    assert (one.read(1), other.read(1)) == (row_of(10), row_of(20))
    one.save("c", 4, [3])
    assert content(other) == {1: row_of(20), 4: row_of(4)}
    one.write(4, row_of(30))
    one.save("c", 5, [3, 4])
    one.write(1, row_of(11))
    one.save("c", 6, [5])  # 3 is gone
    assert content(one) == {1: row_of(11), 4: row_of(30)}
    assert bytes(other.read(1)) == row_of(20)
    with pytest.raises(ValueError, match="a run that went on from the same checkpoint"):
        opened(tmp_path, "c", 3, tables).read(1)


def test_a_disk_without_room(tmp_path, monkeypatch):
    rows = RowFiles(tmp_path / "new", SIZE, 6)
    rows.write(0, row_of(0))
    monkeypatch.setattr(row_files, "disk_usage", lambda path: types.SimpleNamespace(free=5 * SIZE))
    rows.check_room("the state of 6 clients", 6)
    with pytest.raises(ValueError, match=r"of 7 clients would need 42 bytes in .* are 35"):
        rows.check_room("the state of 7 clients", 7)


def test_tables_are_small():
    rows = RowFiles("nowhere", 10**9, 1000)
    assert sum(t.nbytes for t in vars(rows).values() if isinstance(t, np.ndarray)) == 12_000
