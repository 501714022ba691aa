"""CIFAR-10 and CIFAR-100 in the binary version, from a folder and from an archive."""

import numpy as np
import pytest
from data_forms import CIFAR10, CIFAR100, COLOURED, PAIRS, tar, write

from fedjax_algos.data import datasets
from fedjax_algos.data.readers.cifar import cifar10, cifar100


def from_archive(folder, files, below):
    tar(folder, files, below)
    return folder / "a.tar.gz"


def from_folder(folder, files, below):
    write(folder, files)
    return folder


@pytest.mark.parametrize("make", [from_folder, from_archive])
def test_both(tmp_path, make):
    path = make(tmp_path, CIFAR100 | {"x.txt": b""}, "cifar-100-binary/")
    data = cifar100(path=path)
    np.testing.assert_array_equal(data.train["x"], COLOURED[:10])
    np.testing.assert_array_equal(data.test["x"], COLOURED[10:])
    assert data.train["x"].flags.c_contiguous
    assert data.train["y"].tolist() == [fine for _, fine in PAIRS]
    assert (data.test["y"].tolist(), data.num_classes) == ([41, 4], 100)
    coarse = datasets.make(f"cifar100:{path},labels=coarse")
    assert coarse.train["y"].tolist() == [coarse for coarse, _ in PAIRS]
    assert coarse.num_classes == 20
    data = cifar10(path=make(tmp_path, CIFAR10, "b/"))
    assert (data.train["y"].tolist(), data.num_classes) == ([1, 9, 2, 9, 3, 9, 4, 9, 5, 9], 10)
    np.testing.assert_array_equal(data.train["x"][::2], COLOURED[1:6])
    np.testing.assert_array_equal(data.test["x"], COLOURED[10:11])
