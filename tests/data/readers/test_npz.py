"""NumPy files: exact values, natural clients, JPEG images, and every kind of damage."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from bad_input_helpers import refused
from PIL import Image

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


def shared(name):
    if not (SHARED / name).exists():
        pytest.skip(f"the data file {name} is not beside this checkout, in shared/data")
    return SHARED / name


def save(folder, **arrays):
    path = folder / "some.npz"
    np.savez(path, **arrays)
    return path


def jpeg(image):
    content = io.BytesIO()
    Image.fromarray(image).save(content, "JPEG")
    return content.getvalue()


def packed(images):
    files = [image if isinstance(image, bytes) else jpeg(image) for image in images]
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
    path = save(
        tmp_path,
        jpeg_train=train[0],
        offset_train=train[1],
        y_train=np.arange(3),
        jpeg_test=test[0],
        offset_test=test[1],
        y_test=np.arange(1),
    )
    data = npz(path=path)
    decoded = [np.asarray(Image.open(io.BytesIO(jpeg(image)))) for image in images]
    np.testing.assert_array_equal(data.train["x"], decoded[:3])
    np.testing.assert_array_equal(data.test["x"], decoded[3:])
    assert data.train["x"].dtype == np.uint8


def _without(name):
    return {k: v for k, v in GOOD.items() if k != name}


def _with(**changes):
    return GOOD | changes


FLOATS = {k: v.astype(np.float32) for k, v in GOOD.items()}


def _not_finite(value):
    x = FLOATS["x_train"].copy()
    x[3, 1, 2] = value
    return FLOATS | {"x_train": x}


@pytest.mark.parametrize(
    "arrays",
    [
        _without("x_train"),
        _without("y_test"),
        _with(y_train=GOOD["y_train"][:4]),
        _with(y_train=GOOD["y_train"][:, None]),
        _with(y_train=np.array([0, 1, -1, 2, 0])),
        _with(y_train=np.array([0, 1, 1, 2, 0.5])),
        _with(y_train=np.array([0, 1, 1, np.nan, 0])),
        _with(y_train=np.array([0, 1, 1, np.inf, 0])),
        _with(y_train=np.array([0, 1, 2, 3, 2**40])),
        _with(y_test=np.array(["a", "b"])),
        _with(x_test=GOOD["x_test"][:, :3]),
        _with(x_test=GOOD["x_test"].astype(float)),
        _with(x_train=np.zeros(5)),
        _with(x_train=GOOD["x_train"][:0]),
        _with(x_test=GOOD["x_test"][:0], y_test=np.empty(0)),
        _with(x_train=np.full((5, 2), "a")),
        _with(x_train=GOOD["x_train"] > 9),
        _with(x_train=GOOD["x_train"] * 1j),
        _with(x_train=np.array([None] * 5)),
        _not_finite(np.nan),
        _not_finite(-np.inf),
        _with(user_train=np.arange(4)),
        _with(user_train=np.arange(5.0)),
    ],
)
def test_npz_rejects_wrong_arrays(tmp_path, arrays):
    path = save(tmp_path, **arrays)
    with refused(path):
        npz(path=path)


def test_npz_rejects_labels_above_the_classes(tmp_path):
    with pytest.raises(ValueError, match=r"label 3.0 in example 1; give whole .* from 0 to 2"):
        npz(path=save(tmp_path, **GOOD), num_classes=3)
    with pytest.raises(ValueError, match="no array 'who'"):
        npz(path=save(tmp_path, **GOOD), users="who")


def _middle_changed(content):
    middle = content.index(b"\x93NUMPY") + 140  # inside the first array's numbers
    return (
        content[:middle]
        + bytes(255 - b for b in content[middle : middle + 9])
        + content[middle + 9 :]
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"no zip at all",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-5],
        lambda content: b"??" + content[2:],
        _middle_changed,
    ],
)
def test_npz_rejects_damaged_files(tmp_path, damage):
    path = save(tmp_path, **GOOD)
    path.write_bytes(damage(path.read_bytes()))
    with refused(path):
        npz(path=path)


def test_npz_rejects_damaged_compression(tmp_path):
    path = tmp_path / "some.npz"
    np.savez_compressed(path, **GOOD)
    content = bytearray(path.read_bytes())
    start = content.index(b"x_train.npy") + 40
    content[start : start + 20] = b"\xff" * 20
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"not an? .*: "):
        npz(path=path)


@pytest.mark.parametrize(
    ("local", "central", "value", "message"),
    [
        (6, 8, 1, "is encrypted"),  # the flags of a member
        (8, 10, 99, "arrays: That compression method is not supported"),
        (4, 6, 99, "arrays: zip file version 9.9"),
        (6, 8, 1 << 5, "arrays: compressed patched data (flag bit 5)"),
    ],
)
def test_npz_rejects_members_that_zipfile_cannot_open(tmp_path, local, central, value, message):
    path = save(tmp_path, **GOOD)
    content = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        content[content.index(signature) + offset] = value
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        npz(path=path)


def test_npz_rejects_missing_files_and_folders(tmp_path):
    with pytest.raises(ValueError, match=r"none.npz: there is no such file; check the path"):
        npz(path=tmp_path / "none.npz")
    with pytest.raises(ValueError, match=r"cannot be read: Is a directory"):
        npz(path=tmp_path)


GREY = RNG.integers(0, 256, (3, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("files", "change"),
    [
        ([*GREY[:2], GREY[2][:5]], None),
        ([*GREY[:2], jpeg(GREY[2])[:-60]], None),
        ([GREY[0], b"no image", GREY[2]], None),
        (GREY, lambda offsets: offsets[:-1]),
        (GREY, lambda offsets: offsets + 1),
        (GREY, lambda offsets: offsets[[0, 2, 1, 3]]),
        (GREY, lambda offsets: offsets.astype(float)),
    ],
)
def test_npz_rejects_wrong_jpeg_files(tmp_path, files, change):
    content, offsets = packed(files)
    path = save(
        tmp_path,
        **(_without("x_train") | {"y_train": np.zeros(3, int)}),
        jpeg_train=content,
        offset_train=change(offsets) if change else offsets,
    )
    with refused(path):
        npz(path=path)


def test_shared_mnist():
    data = npz(path=shared("mnist.npz"))
    assert data.train["x"].shape == (60000, 28, 28)
    assert data.train["x"].dtype == np.uint8
    assert data.train["y"][:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    assert (data.num_classes, len(data.test["y"])) == (10, 10000)
    sizes = np.bincount(data.users)
    assert (len(sizes), sizes.min(), sizes.max(), np.median(sizes)) == (539, 19, 131, 116)


def test_shared_omniglot():
    data = npz(path=shared("omniglot_small.npz"))
    assert (data.example_shape, data.num_classes) == ((28, 28), 242)
    sizes = np.bincount(data.users)
    assert (len(sizes), sizes.min(), sizes.max()) == (128, 17, 47)


def test_shared_cifar10_jpeg(tmp_path):
    """The first files of each part; decoding all takes too long for a test."""
    names = ("jpeg", "offset", "y")
    with np.load(shared("cifar10_jpeg.npz")) as file:
        whole = {f"{n}_{p}": file[f"{n}_{p}"] for n in names for p in ("train", "test")}
    assert (len(whole["offset_train"]), len(whole["offset_test"])) == (50001, 10001)
    first = {}
    for part, count in (("train", 100), ("test", 50)):
        offsets = whole[f"offset_{part}"][: count + 1]
        first |= {f"offset_{part}": offsets, f"y_{part}": whole[f"y_{part}"][:count]}
        first[f"jpeg_{part}"] = whole[f"jpeg_{part}"][: offsets[-1]]
    data = npz(path=save(tmp_path, **first))
    assert data.train["x"].shape == (100, 32, 32, 3)
    assert data.train["y"][:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    offsets = first["offset_test"]
    last = Image.open(io.BytesIO(first["jpeg_test"][offsets[49] : offsets[50]].tobytes()))
    np.testing.assert_array_equal(data.test["x"][49], np.asarray(last))
    np.testing.assert_allclose(data.train["x"].mean(), 120, atol=10)  # 121 over the whole set
