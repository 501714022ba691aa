"""CIFAR-10 and CIFAR-100 in the binary version, from a folder and from an archive."""

import gzip
import io
import tarfile

import numpy as np
import pytest
from bad_input_helpers import refused

from fedjax_algos.data import datasets
from fedjax_algos.data.readers import cifar
from fedjax_algos.data.readers.cifar import cifar10, cifar100

RNG = np.random.default_rng(0)
# Two coarse labels with their fine ones, as cifar-100-binary's class names have them.
AQUATIC_MAMMALS, FISH = (0, (4, 30, 55, 72, 95)), (1, (1, 32, 67, 73, 91))


def record(labels, image):
    """The bytes of a record: labels, then the red, green and blue pixels by rows."""
    colours = [image[..., colour].tobytes() for colour in range(3)]
    return bytes(labels) + b"".join(colours)


def images(count):
    return RNG.integers(0, 256, (count, 32, 32, 3), np.uint8)


TRAIN, TEST = images(10), images(2)
PAIRS = [(coarse, fine) for coarse, many in (AQUATIC_MAMMALS, FISH) for fine in many]
FILES_100 = {
    "train.bin": b"".join(map(record, PAIRS, TRAIN)),
    "test.bin": b"".join(map(record, [(19, 41), (0, 4)], TEST)),
}
FILES_10 = {
    **{f"data_batch_{n}.bin": record([n], TRAIN[n]) + record([9], TRAIN[0]) for n in range(1, 6)},
    "test_batch.bin": record([7], TEST[0]),
}


def write(folder, files):
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def archive(path, files, folder="cifar-100-binary/", kind=tarfile.REGTYPE):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(folder + name)
            member.size, member.type, member.linkname = len(content), kind, "/etc/hostname"
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("make", [write, lambda p, f: archive(p / "a.tar.gz", f | {"x.txt": b""})])
def test_cifar100(tmp_path, make):
    path = make(tmp_path, FILES_100)
    data = cifar100(path=path)
    np.testing.assert_array_equal(data.train["x"], TRAIN)
    np.testing.assert_array_equal(data.test["x"], TEST)
    assert data.train["x"].flags.c_contiguous
    assert data.train["y"].tolist() == [fine for _, fine in PAIRS]
    assert data.test["y"].tolist() == [41, 4]
    assert data.num_classes == 100
    coarse = datasets.make(f"cifar100:{path},labels=coarse")
    assert coarse.train["y"].tolist() == [coarse for coarse, _ in PAIRS]
    assert coarse.num_classes == 20


@pytest.mark.parametrize("make", [write, lambda p, f: archive(p / "a.tar.gz", f, "b/")])
def test_cifar10(tmp_path, make):
    data = cifar10(path=make(tmp_path, FILES_10))
    assert (data.train["y"].tolist(), data.num_classes) == ([1, 9, 2, 9, 3, 9, 4, 9, 5, 9], 10)
    np.testing.assert_array_equal(data.train["x"][::2], TRAIN[1:6])
    np.testing.assert_array_equal(data.test["x"], TEST[:1])


def test_damaged_files_are_refused(tmp_path):
    for name, content in (
        ("train.bin", FILES_100["train.bin"][:-1]),
        ("test.bin", b""),
        ("train.bin", record((0, 100), TRAIN[0])),
        ("test.bin", record((20, 4), TRAIN[0])),
        ("train.bin", record((1, 4), TRAIN[0])),
        ("train.bin", FILES_10["test_batch.bin"]),
    ):
        write(tmp_path, FILES_100 | {name: content})
        with refused(tmp_path):
            cifar100(path=tmp_path)
    (tmp_path / "train.bin").unlink()
    with pytest.raises(ValueError, match=r"train.bin: there is no such file; check the path"):
        cifar100(path=tmp_path)


def test_damaged_archives_are_refused(tmp_path, monkeypatch):
    path = archive(tmp_path / "a.tar.gz", FILES_100)
    content = path.read_bytes()
    for damaged in (content[:-9], content[:900], gzip.compress(b"no archive" * 99)):
        path.write_bytes(damaged)
        with refused(path):
            cifar100(path=path)
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
        archive(path, dict.fromkeys(FILES_100, b""), kind=kind)
        with pytest.raises(ValueError, match=r"it has no file train.bin"):
            cifar100(path=path)
    twice, one = {"train.bin": b"", "a/train.bin": b""}, {"train.bin": b"a"}
    for members, message in (
        (twice, "has the file train.bin twice"),
        (one, "has no file test.bin"),
    ):
        with pytest.raises(ValueError, match=message):
            cifar100(path=archive(path, members))
    monkeypatch.setattr(cifar, "MAX_BYTES", 5000)
    with pytest.raises(ValueError, match=r"it has more than 5 kB, which are too many"):
        cifar100(path=archive(path, FILES_100))
