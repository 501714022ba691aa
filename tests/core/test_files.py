"""Files from others: pipes and devices are refused, and sizes and depths are bounded."""

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
from fedjax_algos.core.files import Depth, open_regular, parse_json, read_bounded
from fedjax_algos.core.limits import host_memory

QUOTES = st.text(st.sampled_from('"\\[]{}a,:'))  # strings of what has a meaning outside of them
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | QUOTES,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def depth_of(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, list | dict) + max(map(depth_of, inner), default=0)


@pytest.mark.usefixtures("bounded")
def test_only_regular_files_are_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"some")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with open_regular(tmp_path / "file") as file, open_regular(tmp_path / "link") as link:
        assert file.read() == link.read() == b"some"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "to_pipe"):
        with pytest.raises(OSError, match="it is a named pipe, not a regular file"):
            open_regular(tmp_path / name)
    with pytest.raises(OSError, match="it is a device, not a regular file"):
        open_regular("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "s"))
        with pytest.raises(OSError, match="it is a socket, not a regular file"):
            open_regular(tmp_path / "s")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


def test_reading_stops_at_the_limit():
    class Endless(io.RawIOBase):
        served = 0

        def read(self, size=-1):
            self.served += size
            return bytes(size)

    endless = Endless()
    with pytest.raises(ValueError, match=r"it has more than 5 MB, which are too many"):
        read_bounded(endless, 5_000_000)
    assert endless.served < 5_000_000 + 2**20 + 1
    content = bytes(range(256)) * 9000
    assert read_bounded(io.BytesIO(content), len(content)) == content
    packed = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(content, mtime=0)))
    with pytest.raises(ValueError, match=r"more than 2\.3 MB"):
        read_bounded(packed, len(content) - 1)


def test_arrays_may_take_half_of_the_memory():
    half = host_memory() // 2
    files.check_array_bytes("x", half, "give fewer")
    with pytest.raises(
        ValueError, match=r"x would need .*, more than half of the memory.*; give f"
    ):
        files.check_array_bytes("x", half + 1, "give fewer")


@settings(deadline=None, max_examples=50)
@given(VALUES, st.integers(1, 7))
def test_the_depth_is_that_of_the_value(value, size):
    """For chunks of any size, so also where they divide strings and escapes."""
    text = json.dumps(value).encode()
    depth, deepest = Depth(), 0
    for start in range(0, len(text), size):
        depth.feed(text[start : start + size])
        deepest = max(deepest, depth.depth)
    assert depth.depth == 0
    assert deepest <= depth_of(value)
    single, deepest = Depth(), 0
    for byte in text:
        single.feed(bytes([byte]))
        deepest = max(deepest, single.depth)
    assert deepest == depth_of(value)


def test_the_depth_is_bounded():
    at_limit, above = ("[" * n + "]" * n for n in (files.MAX_DEPTH, files.MAX_DEPTH + 1))
    assert depth_of(parse_json(at_limit.encode())) == files.MAX_DEPTH
    for text in (above, "[" * 100_000, '{"a":' * 100_000, '["' + "[" * 99 + '",' + above):
        with pytest.raises(ValueError, match="more than 64 lists or objects within each other"):
            parse_json(text.encode())
    quoted = '["' + '[{\\"' * 1000 + '"]'
    assert parse_json(quoted.encode()) == ['[{"' * 1000]


@settings(deadline=None, max_examples=50)
@given(VALUES)
def test_json_is_parsed_as_ever(value):
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": null}}]'])
def test_a_key_twice_is_refused(text):
    with pytest.raises(ValueError, match="it has the key 'a' twice"):
        parse_json(text.encode())


@settings(deadline=None, max_examples=50)
@given(VALUES, st.data())
def test_damaged_json_is_a_value_error(value, data):
    text = bytearray(json.dumps(value).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        parse_json(bytes(text))
