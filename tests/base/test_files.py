"""Files from others: pipes and devices are refused, sizes are bounded, and one error."""

import gzip
import io
import os
import socket

import pytest

from fedjax_algos.base import files
from fedjax_algos.base.limits import host_memory


@pytest.mark.usefixtures("bounded")
def test_only_regular_files_are_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"some")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("file", "link"):
        with files.open_regular(tmp_path / name) as file:
            assert file.read() == b"some"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "s"))
        for path in ("pipe", "to_pipe", "s", "/dev/zero"):
            with pytest.raises(OSError, match="it is a pipe or a device, not a regular file"):
                files.open_regular(tmp_path / path)
    with pytest.raises(IsADirectoryError):
        files.open_regular(tmp_path)


def test_reading_stops_at_the_limit():
    class Endless(io.RawIOBase):
        served = 0

        def read(self, size=-1):
            self.served += size
            return bytes(size)

    endless, content = Endless(), bytes(range(256)) * 9000
    with pytest.raises(ValueError, match=r"more than 5 MB"):
        files.read_bounded(endless, 5_000_000)
    assert endless.served < 5_000_000 + 2**20 + 1
    assert files.read_bounded(io.BytesIO(content), len(content)) == content
    packed = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(content, mtime=0)))
    with pytest.raises(ValueError, match=r"more than 2\.3 MB"):
        files.read_bounded(packed, len(content) - 1)


def test_arrays_may_take_half_of_the_memory():
    half = host_memory() // 2
    files.check_array_bytes("x", half, "give fewer")
    with pytest.raises(ValueError, match=r"x would need .* half of the memory.*; give fewer"):
        files.check_array_bytes("x", half + 1, "give fewer")


FIX, LATIN = "fetch it again", KeyError()  # of a library
LATIN.__cause__ = UnicodeDecodeError("utf-8", b"caf\xe9", 2, 3, "a reason")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("a line\nand more"), r"a\x1b.csv: not a table: a line; fetch it again"),
        (RecursionError(), r"a\x1b.csv: not a table: RecursionError; fetch it again"),
        (KeyError("x"), r"a\x1b.csv: not a table: 'x'; fetch it again"),
        (PermissionError(13, "no"), r"a\x1b.csv: cannot be read: no; fetch it again"),
        (FileNotFoundError(2, "no"), r"a\x1b.csv: there is no such file; check the path"),
        (files.TooLargeError("give less"), r"a\x1b.csv: give less"),
        (files.FileError("part: not an image"), "part: not an image"),
        (LATIN, r"a\x1b.csv: not a table: byte 2 is not UTF-8; save it in UTF-8, or " + FIX),
    ],
)
def test_one_error_names_the_file_and_the_fix(error, message):
    shown = files.reading("a\x1b.csv", "a table", FIX, KeyError)
    with pytest.raises(files.FileError) as caught, shown:
        raise error
    assert str(caught.value) == message
    with pytest.raises(TypeError), files.reading("a", "a table", "fetch it again"):
        raise TypeError


def test_the_depth_of_json_is_bounded_and_its_keys_are_unique():
    assert files.parse_json(b'\xef\xbb\xbf[{"b": 1}, {"b": null}]') == [{"b": 1}, {"b": None}]
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" * 10_000 + "]" * 10_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            files.parse_json(text.encode())
    for text in ('{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": null}}]'):
        with pytest.raises(ValueError, match="key 'a' twice"):
            files.parse_json(text.encode())
