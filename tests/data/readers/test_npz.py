"""NumPy files: exact values, natural clients, JPEG images, and every kind of damage."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from bad_input_helpers import refused
from image_helpers import encoded
from PIL import Image

from fedjax_algos.core import files
from fedjax_algos.data import datasets
from fedjax_algos.data.readers.npz import npz

SHARED = Path(__file__).parents[4] / "shared" / "data"
RNG = np.random.default_rng(0)
GOOD = {
    "x_train": RNG.integers(0, 256, (5, 4, 3), np.uint8),
    "y_train": np.array([2, 0, 1, 2, 2], np.int64),
    "x_test": RNG.integers(0, 256, (2, 4, 3), np.uint8),
    "y_test": np.array([0.0, 3.0]),
}


def save(folder, **arrays):
    path = folder / "some.npz"
    np.savez(path, **arrays)
    return path


def packed(images):
    files = [image if isinstance(image, bytes) else encoded(image, "JPEG") for image in images]
    offsets = np.cumsum([0, *map(len, files)])
    return np.frombuffer(b"".join(files), np.uint8), offsets


@pytest.mark.parametrize("save_with", [np.savez, np.savez_compressed])
def test_npz_is_read_exactly(tmp_path, save_with):
    path = tmp_path / "some.npz"
    save_with(path, **GOOD, writer_train=np.array([30, 7, 7, 30, 9], np.int16))
    data = datasets.make(f"npz:{path}")
    for part in ("train", "test"):
        x, y = getattr(data, part)["x"], getattr(data, part)["y"]
        np.testing.assert_array_equal(x, GOOD[f"x_{part}"])
        np.testing.assert_array_equal(y, GOOD[f"y_{part}"])
        assert (x.dtype, y.dtype) == (np.uint8, np.int32)
    assert data.num_classes == 4
    assert data.example_shape == (4, 3)
    assert data.users.tolist() == [2, 0, 0, 2, 1]
    assert data.users.dtype == np.int32


def test_npz_users_by_name(tmp_path):
    names = np.array(["b", "a", "b", "c", "a"])
    path = save(tmp_path, **GOOD, speaker=names, writer_train=np.arange(5))
    assert npz(path=path, users="speaker").users.tolist() == [1, 0, 1, 2, 0]
    assert npz(path=path).users.tolist() == [0, 1, 2, 3, 4]
    assert npz(path=save(tmp_path, **GOOD)).users is None
    assert npz(path=path, num_classes=9).num_classes == 9


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3)])
def test_npz_of_jpeg_files(tmp_path, shape):
    images = RNG.integers(0, 256, (4, *shape), np.uint8)
    train, test = packed(images[:3]), packed(images[3:])
    arrays = {"jpeg_train": train[0], "offset_train": train[1], "y_train": np.arange(3)}
    arrays |= {"jpeg_test": test[0], "offset_test": test[1], "y_test": np.arange(1)}
    data = npz(path=save(tmp_path, **arrays))
    decoded = [np.asarray(Image.open(io.BytesIO(encoded(image, "JPEG")))) for image in images]
    np.testing.assert_array_equal(data.train["x"], decoded[:3])
    np.testing.assert_array_equal(data.test["x"], decoded[3:])
    assert data.train["x"].dtype == np.uint8


FLOATS = {k: v.astype(np.float32) for k, v in GOOD.items()}
WRONG = [
    {"x_test": GOOD["x_test"][:0], "y_test": np.empty(0)},
    *({"y_train": np.array([0, 1, 1, value, 0])} for value in (-1, 0.5, np.nan, np.inf, 2**40)),
    {"y_train": GOOD["y_train"][:4]},
    {"y_train": GOOD["y_train"][:, None]},
    {"y_test": np.array(["a", "b"])},
    {"x_test": GOOD["x_test"][:, :3]},
    {"x_test": GOOD["x_test"].astype(float)},
    {"x_train": np.zeros(5)},
    {"x_train": GOOD["x_train"][:0]},
    {"x_train": np.full((5, 2), "a")},
    {"x_train": GOOD["x_train"] > 9},
    {"x_train": GOOD["x_train"] * 1j},
    {"x_train": np.array([None] * 5)},
    *(FLOATS | {"x_train": np.full((5, 4, 3), v, np.float32)} for v in (np.nan, -np.inf)),
    {"user_train": np.arange(4)},
    {"user_train": np.arange(5.0)},
]


def test_npz_rejects_wrong_arrays(tmp_path):
    lacking = [{k: v for k, v in GOOD.items() if k != name} for name in ("x_train", "y_test")]
    for arrays in (*lacking, *(GOOD | wrong for wrong in WRONG)):
        path = save(tmp_path, **arrays)
        with refused(path):
            npz(path=path)
    for options in ({"num_classes": 3}, {"users": "who"}):
        with refused(save(tmp_path, **GOOD)):
            npz(path=path, **options)


def _changed(content, place, value):
    return content[:place] + value + content[place + len(value) :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-5],
        lambda content: b"??" + content[2:],
        lambda content: _changed(content, content.index(b"x_train.npy") + 40, b"\xff" * 20),
        lambda content: _changed(content, content.index(b"\x93NUMPY") + 140, b"\xf3" * 9),
        *(  # in both headers of a member: encrypted, another compression or version, patched
            lambda content, local=local, central=central, value=value: _changed(
                _changed(content, content.index(b"PK\x03\x04") + local, value),
                content.index(b"PK\x01\x02") + central,
                value,
            )
            for local, central, value in ((6, 8, b"\1"), (8, 10, b"c"), (4, 6, b"c"), (6, 8, b" "))
        ),
    ],
)
def test_npz_rejects_damaged_files(tmp_path, damage):
    path = save(tmp_path, **GOOD)
    path.write_bytes(damage(path.read_bytes()))
    with refused(path):
        npz(path=path)


GREY = RNG.integers(0, 256, (3, 8, 8), np.uint8)


def save_images(folder, files, change=lambda offsets: offsets):
    content, offsets = packed(files)
    labels = {"y_train": np.zeros(len(offsets) - 1, int), "y_test": GOOD["y_test"]}
    images = {"jpeg_train": content, "offset_train": change(offsets)}
    return save(folder, x_test=GOOD["x_test"], **labels, **images)


def jpeg_of_size(height, width):
    """A JPEG file whose header declares another size than it has."""
    damaged = bytearray(encoded(GREY[0], "JPEG"))
    start = damaged.index(b"\xff\xc0") + 5
    damaged[start : start + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(damaged)


@pytest.mark.parametrize(
    ("files", "change"),
    [
        ([*GREY[:2], GREY[2][:5]], None),
        ([*GREY[:2], encoded(GREY[2], "JPEG")[:-60]], None),
        ([GREY[0], b"no image", GREY[2]], None),
        ([jpeg_of_size(60_000, 60_000)], None),
        (GREY, lambda offsets: offsets[:-1]),
        (GREY, lambda offsets: offsets + 1),
        (GREY, lambda offsets: offsets[[0, 2, 1, 3]]),
        (GREY, lambda offsets: offsets.astype(float)),
    ],
)
@pytest.mark.usefixtures("bounded")
def test_npz_rejects_wrong_jpeg_files(tmp_path, files, change):
    path = save_images(tmp_path, files, change or (lambda offsets: offsets))
    with refused(path):
        npz(path=path)


SMALL = {
    "x_train": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "y_train": np.arange(3),
    "x_test": np.zeros((2, 4), np.uint8),
    "y_test": np.arange(2),
}


def archive(path, members, **changes):
    """An archive of arrays and of members that are given as bytes."""
    with zipfile.ZipFile(path, "w") as file:
        for name, value in [*(SMALL | changes).items(), *members]:
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


SHAPES = ["(10**13, 4)", "(3, 5)", "(3, 3)", "(-3, -4)", "(-1,)", "(3.0, 4)", "[3, 4]", "3"]
SHAPES += ["(3, 'a')", "(None,)"]
SHAPES += ["(9" + "9" * 99 + ",)", f"({'1, ' * 99})"]
KINDS = ["<U999999999", "|V99999999999", "f8,f8", "<f16", "|O", "M8[s]", "?", "", "x"]
HEADERS = ["", "[]", "\x00", "(" * 9000, "-" * 9000 + "1", "{" * 5000, "[" * 150 + "]" * 150]
HEADERS += ["{1: ", "{'descr': '|u1'}", "9" * 9999]
HEADERS += ["{'descr': [['a', 1]], 'fortran_order': 0, 'shape': ()}"]


@pytest.mark.usefixtures("bounded")
def test_headers_of_arrays_that_are_not_there(tmp_path):
    """NumPy would allocate what a header says, or overflow the stack of Python's parser."""
    path = archive(tmp_path / "a.npz", [], x_train=member(header(), bytes(range(12))))
    np.testing.assert_array_equal(npz(path=path).train["x"], SMALL["x_train"])
    of_kinds = (header(shape=shape) for shape in SHAPES), (header(kind=kind) for kind in KINDS)
    for text in (*of_kinds[0], *of_kinds[1], *HEADERS):
        archive(path, [], x_train=member(text))
        with refused(path):
            npz(path=path)


@pytest.mark.usefixtures("bounded")
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_sizes_and_names_of_arrays(tmp_path, monkeypatch):
    """80 MB of zeros in 80 kB on a machine of 150 MB; arrays twice; names of many characters."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("y_train", "x_test", "y_test"):
            with file.open(f"{name}.npy", "w") as part:
                np.save(part, SMALL[name])
        with file.open("x_train.npy", "w") as part:
            part.write(member(header(shape="(80000000, 1)"), b""))
            for _ in range(80):
                part.write(bytes(10**6))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(files, "host_memory", lambda: 150 * 10**6)
    with pytest.raises(ValueError, match="its arrays would need 80 MB, more than half of the mem"):
        npz(path=path)
    with refused(archive(path, [("x_train", SMALL["x_train"])])):
        npz(path=path)
    np.savez(path, **{"\x1b[31mred\n": np.zeros(3), "long" * 5000: np.zeros(3)})
    with pytest.raises(ValueError, match=r"\\x1b\[31mred\\n") as error:
        npz(path=path)
    assert len(str(error.value)) < 500 + len(str(path))
    path = save_images(tmp_path, [GREY[0], *[b"0"] * 9998])
    monkeypatch.setattr(files, "host_memory", lambda: 10**6)
    with pytest.raises(ValueError, match="its images would need 640 kB, more than half of the me"):
        npz(path=path)


@pytest.mark.skipif(not SHARED.exists(), reason="the data are not beside this checkout")
def test_shared_mnist():
    data = npz(path=SHARED / "mnist.npz")
    assert data.train["x"].shape == (60000, 28, 28)
    assert data.train["x"].dtype == np.uint8
    assert data.train["y"][:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    assert (data.num_classes, len(data.test["y"])) == (10, 10000)
    sizes = np.bincount(data.users)
    assert (len(sizes), sizes.min(), sizes.max(), np.median(sizes)) == (539, 19, 131, 116)


MEASURE = """
import sys
import jax.numpy as jnp
import fedjax_algos as fa
from fedjax_algos.data import partitions
from fedjax_algos.data.readers.npz import npz

def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))

jnp.ones((3, 4)).block_until_ready()  # starts the backend
before = status("VmRSS")
data = npz(path=sys.argv[1])
store = fa.federate(data.train, partitions["dirichlet"](data.train["y"], 10, 0))
store.examples["x"].block_until_ready()
held = data.train["x"].nbytes + data.test["x"].nbytes
print((status("VmHWM") - before) / held)
"""


@pytest.mark.all
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_npz_is_held_once_on_the_host_and_once_on_the_device(tmp_path):
    """Peak memory of loading, partitioning and the transfer to the device, without imports."""
    count = 160 * 2**20 // (3072 * 4)
    x, y = np.broadcast_to(np.arange(3072, dtype=np.float32), (count, 3072)), np.arange(count) % 10
    path = tmp_path / "some.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[: count // 8], y_test=y[: count // 8])
    command = [sys.executable, "-c", MEASURE, str(path)]
    ratio = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    path.unlink()
    assert 0.95 < ratio < 2.2
