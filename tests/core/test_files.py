"""Files from others: pipes and devices are refused, sizes are bounded, and one error."""

import contextlib
import gzip
import io
import json
import os
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.core import files
from fedjax_algos.core.files import (
    FileError,
    TooLargeError,
    open_regular,
    parse_json,
    read_bounded,
    reading,
)
from fedjax_algos.core.limits import host_memory

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.usefixtures("bounded")
def test_only_regular_files_are_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"some")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with open_regular(tmp_path / "file") as file, open_regular(tmp_path / "link") as link:
        assert file.read() == link.read() == b"some"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "s"))
        for path in ("pipe", "to_pipe", "s", "/dev/zero"):
            with pytest.raises(OSError, match="it is a pipe or a device, not a regular file"):
                open_regular(tmp_path / path)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


def test_reading_stops_at_the_limit():
    class Endless(io.RawIOBase):
        served = 0

        def read(self, size=-1):
            self.served += size
            return bytes(size)

    endless, content = Endless(), bytes(range(256)) * 9000
    with pytest.raises(ValueError, match=r"more than 5 MB"):
        read_bounded(endless, 5_000_000)
    assert endless.served < 5_000_000 + 2**20 + 1
    assert read_bounded(io.BytesIO(content), len(content)) == content
    packed = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(content, mtime=0)))
    with pytest.raises(ValueError, match=r"more than 2\.3 MB"):
        read_bounded(packed, len(content) - 1)


def test_arrays_may_take_half_of_the_memory():
    half = host_memory() // 2
    files.check_array_bytes("x", half, "give fewer")
    with pytest.raises(ValueError, match=r"x would need .* half of the memory.*; give fewer"):
        files.check_array_bytes("x", half + 1, "give fewer")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("a line\nand more"), r"a\x1b.csv: not a table: a line; fetch it again"),
        (RecursionError(), r"a\x1b.csv: not a table: RecursionError; fetch it again"),
        (KeyError("x"), r"a\x1b.csv: not a table: 'x'; fetch it again"),
        (PermissionError(13, "no"), r"a\x1b.csv: cannot be read: no; fetch it again"),
        (FileNotFoundError(2, "no"), r"a\x1b.csv: there is no such file; check the path"),
        (TooLargeError("give less"), r"a\x1b.csv: give less"),
        (FileError("part: not an image"), "part: not an image"),
    ],
)
def test_one_error_names_the_file_and_the_fix(error, message):
    shown = reading("a\x1b.csv", "a table", "fetch it again", KeyError)
    with pytest.raises(FileError) as caught, shown:
        raise error
    assert str(caught.value) == message
    with pytest.raises(TypeError), reading("a", "a table", "fetch it again"):
        raise TypeError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("[" * 10_000 + "]" * 10_000, "nested too deeply"),
        ('{"a": 1, "a": 1}', "key 'a' twice"),
        ('[{"b": {"a": 1, "c": 2, "a": null}}]', "key 'a' twice"),
    ],
    ids=range(5),
)
def test_the_depth_of_json_is_bounded_and_its_keys_are_unique(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text.encode())


@settings(deadline=None, max_examples=20)
@given(VALUES, st.data())
def test_damaged_json_is_a_value_error(value, data):
    text = bytearray(json.dumps(value).encode())
    assert parse_json(bytes(text)) == value
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        parse_json(bytes(text))
