"""Files that ask for too much: each is refused in one line, in bounded time and memory."""

import gzip
import io
import json
import os
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedjax_algos.core import files
from fedjax_algos.data.readers.client_files.texts import roles
from fedjax_algos.data.readers.npz import npz

pytestmark = pytest.mark.usefixtures("bounded")
GOOD = {
    "x_train": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "y_train": np.arange(3),
    "x_test": np.zeros((2, 4), np.uint8),
    "y_test": np.arange(2),
}
PIPE = "it is a pipe or a device, not a regular file"


def small_memory(monkeypatch, size):
    monkeypatch.setattr(files, "host_memory", lambda: size)


def refusal(reader, path, **options):
    """The error of a reader; it is one line that begins with the path."""
    with pytest.raises(ValueError, match=r"; ") as error:
        reader(path=path, **options)
    text = str(error.value)
    assert text.isprintable()
    assert text.startswith(str(path))
    return text


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("reader", [npz, roles])
def test_pipes_and_devices_are_refused(reader, pipe):
    assert PIPE in refusal(reader, pipe)
    assert PIPE in refusal(reader, "/dev/zero")


def archive(path, members, **changes):
    """An archive of arrays and of members that are given as bytes."""
    with zipfile.ZipFile(path, "w") as file:
        for name, value in [*(GOOD | changes).items(), *members]:
            content = io.BytesIO()
            if not isinstance(value, bytes):
                np.save(content, value)
            file.writestr(f"{name}.npy", value if isinstance(value, bytes) else content.getvalue())
    return path


def member(header, content=bytes(12)):
    """A file of NumPy's format 1.0 with any header."""
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


def header(kind="|u1", shape="(3, 4)"):
    return f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}}}"


def test_a_header_by_hand_is_read(tmp_path):
    """What the next test changes."""
    path = archive(tmp_path / "a.npz", [], x_train=member(header(), bytes(range(12))))
    np.testing.assert_array_equal(npz(path=path).train["x"], GOOD["x_train"])


SHAPES = ["(10**13, 4)", "(3, 5)", "(3, 3)", "(-3, -4)", "(-1,)", "(3.0, 4)"]
SHAPES += ["[3, 4]", "3", "(9" + "9" * 99 + ",)", f"({'1, ' * 99})", "(3, 'a')", "(None,)"]
KINDS = [
    "<U999999999",
    "|V99999999999",
    "f8,f8",
    "<f16",
    "|O",
    "M8[s]",
    "?",
    "",
    "x",
]
HEADERS = [
    "",
    "[]",
    "\x00",
    "(" * 9000,
    "-" * 9000 + "1",
    "{" * 5000,
    "[" * 150 + "]" * 150,
    "{1: ",
]
HEADERS += [
    "{'descr': '|u1'}",
    "{'descr': [['a', 1]], 'fortran_order': 0, 'shape': ()}",
    "9" * 9999,
]


@pytest.mark.parametrize(
    "text",
    [*(header(shape=s) for s in SHAPES), *(header(kind=k) for k in KINDS), *HEADERS],
    ids=lambda text: text[:60],
)
def test_headers_of_arrays_that_are_not_there(tmp_path, text):
    """NumPy would allocate what a header says, or overflow the stack of Python's parser."""
    refusal(npz, archive(tmp_path / "a.npz", [], x_train=member(text)))


def test_the_size_of_compressed_arrays_is_known_before_they_are_read(tmp_path, monkeypatch):
    """80 MB of zeros in 80 kB, on a machine of 150 MB."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("y_train", "x_test", "y_test"):
            with file.open(f"{name}.npy", "w") as part:
                np.save(part, GOOD[name])
        with file.open("x_train.npy", "w") as part:
            part.write(member(header(shape="(80000000, 1)"), b""))
            for _ in range(80):
                part.write(bytes(10**6))
    assert path.stat().st_size < 100_000
    small_memory(monkeypatch, 150 * 10**6)
    assert ": its arrays would need 80 MB, more than half of the memory, 75 MB" in refusal(
        npz, path
    )


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_arrays_twice_and_names_of_arrays(tmp_path):
    path = archive(tmp_path / "a.npz", [("x_train", GOOD["x_train"])])
    refusal(npz, path)
    path = tmp_path / "b.npz"
    np.savez(path, **{"\x1b[31mred\n": np.zeros(3), "long" * 5000: np.zeros(3)})
    text = refusal(npz, path)
    assert r"\x1b[31mred\n" in text
    assert len(text) < 500 + len(str(path))


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=9), st.booleans())
def test_damaged_archives_are_refused_or_read(tmp_path_factory, changes, compressed):
    content = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(content, **GOOD)
    damaged = bytearray(content.getvalue())
    for place, value in changes:
        damaged[place % len(damaged)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    path.write_bytes(damaged)
    try:
        npz(path=path)
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017, it may also be read


def jpeg_of_size(height, width):
    """A JPEG file whose header declares another size than it has."""
    content = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(content, "JPEG")
    damaged = bytearray(content.getvalue())
    start = damaged.index(b"\xff\xc0") + 5
    damaged[start : start + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return np.frombuffer(bytes(damaged), np.uint8)


@pytest.mark.parametrize("side", [10_000, 60_000])
@pytest.mark.filterwarnings("error")
def test_pixels_of_images_are_bounded(tmp_path, side):
    image = jpeg_of_size(side, side)
    arrays = {k: v for k, v in GOOD.items() if k != "x_train"} | {"y_train": np.zeros(1, int)}
    path = tmp_path / "a.npz"
    np.savez(path, **arrays, jpeg_train=image, offset_train=np.array([0, len(image)]))
    text = refusal(npz, path)
    assert f"jpeg_train, image 0: not a JPEG image: Image size ({side**2} pixels) exceeds" in text


def test_the_memory_of_all_images_is_computed_from_the_first(tmp_path, monkeypatch):
    image = jpeg_of_size(8, 8)
    arrays = {k: v for k, v in GOOD.items() if k != "x_train"} | {"y_train": np.zeros(9999, int)}
    files_of_images = np.concatenate([image, np.zeros(9998, np.uint8)])
    offsets = np.concatenate([[0], np.arange(len(image), len(files_of_images) + 1)])
    path = tmp_path / "a.npz"
    np.savez(path, **arrays, jpeg_train=files_of_images, offset_train=offsets)
    small_memory(monkeypatch, 10**6)
    assert "its images would need 640 kB, more than half of the memory" in refusal(npz, path)


def test_compressed_text_is_bounded(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(gzip.compress(b'{"A": "' + bytes([97]) * 30 * 10**6 + b'"}', mtime=0))
    small_memory(monkeypatch, 64 * 5_000_000)
    assert "it has more than 5 MB, which are too many" in refusal(roles, path)


def test_the_memory_of_windows_is_computed(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"A": "a" * 1_000_000}))
    small_memory(monkeypatch, 10**9)
    text = refusal(roles, path, window=100_000, min_lines=1)
    assert "800001 windows of 100000 characters would need 80 GB, more than half of the" in text


@pytest.mark.parametrize(
    "text",
    [
        '{"A": "a", "A": "b"}',
        '{"A": ' + "[" * 100_000 + "]" * 100_000 + "}",
        "[" * 100_000,
        '{"A": ' + "9" * 5000 + "}",
        '{"A\\u001b": {"\\u202e": 1}}',
    ],
    ids=["twice", "deep", "open", "number", "kind"],
)
def test_roles_of_hostile_json(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    refusal(roles, path)
