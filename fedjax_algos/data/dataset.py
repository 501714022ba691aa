"""What a data set is, its checks, and the readers' registry; readers are the modules beside it."""

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np

from fedjax_algos.core import Batch
from fedjax_algos.core.registry import Range, Registry

datasets = Registry("dataset")

PathLike: TypeAlias = str | os.PathLike[str]
Count = Annotated[int, Range(1)]
Fraction = Annotated[float, Range(0, 1, low_open=True, high_open=True)]

_MOST_CLASSES = 2**20  # labels above are taken for a mistake
_CHUNK = 2**20  # elements that are checked at a time


class Dataset(NamedTuple):
    """Labelled examples on the host: dicts of "x" [examples, ...] and "y" int32[examples]."""

    train: Batch
    test: Batch
    num_classes: int
    users: np.ndarray | None = None  # int32[train examples]: each one's natural client, from 0
    notes: tuple[str, ...] = ()  # what the reader left out, a line each

    @property
    def example_shape(self) -> tuple[int, ...]:
        return self.train["x"].shape[1:]


def from_arrays(
    x_train: np.ndarray,
    y_train: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    users: np.ndarray | None = None,
    *,
    num_classes: int | None = None,
    notes: tuple[str, ...] = (),
    source: object = "arrays",
) -> Dataset:
    """A data set of the caller's arrays, checked.

    Examples are held once: contiguous arrays are neither copied nor converted, and floats are
    searched for NaN in chunks. So images stay uint8.

    Args:
      x_train, x_test: [examples, ...], of one shape and type; integers or floats.
      y_train, y_test: integral[examples], from 0; returned as int32.
      users: integers or strings [train examples]; numbered from 0 in their sorted order.
      num_classes: one more than the largest label where None.
      notes: what a reader left out.
      source: what the messages name.

    Raises:
      ValueError: for empty sets, unequal lengths or shapes, types other than numbers, NaN or
        infinity, and labels that are not whole or out of range.
    """
    x_train, x_test = (
        _checked_examples(x, f"{source}: x_{part}")
        for part, x in (("train", x_train), ("test", x_test))
    )
    if (x_train.shape[1:], x_train.dtype) != (x_test.shape[1:], x_test.dtype):
        raise ValueError(
            f"{source}: examples are {x_train.dtype}{list(x_train.shape[1:])} in x_train and "
            f"{x_test.dtype}{list(x_test.shape[1:])} in x_test; give both one shape and type"
        )
    y_train, y_test = (
        _checked_labels(y, len(x), num_classes or _MOST_CLASSES, f"{source}: y_{part}")
        for part, y, x in (("train", y_train, x_train), ("test", y_test, x_test))
    )
    num_classes = num_classes or 1 + int(max(y_train.max(), y_test.max()))
    if users is not None:
        users = _numbered(users, len(x_train), f"{source}: users")
    train, test = {"x": x_train, "y": y_train}, {"x": x_test, "y": y_test}
    return Dataset(train, test, num_classes, users, notes)


def _checked_examples(x: np.ndarray, name: str) -> np.ndarray:
    x = np.asarray(x)
    if x.dtype.kind not in "uif" or x.dtype.itemsize > 8:
        raise ValueError(f"{name} is of type {x.dtype}; give numbers, such as uint8 or float32")
    if x.ndim < 2:
        raise ValueError(f"{name} has shape {list(x.shape)}; give [examples, ...]")
    if not x.size:
        raise ValueError(f"{name} is empty, of shape {list(x.shape)}; give at least one example")
    if x.dtype.kind == "f":
        rows = max(1, _CHUNK * len(x) // x.size)
        for start in range(0, len(x), rows):
            if not np.isfinite(part := x[start : start + rows]).all():
                finite = np.isfinite(part).all(axis=tuple(range(1, x.ndim)))
                bad = start + int(finite.argmin())
                raise ValueError(f"{name} has NaN or infinity in example {bad}; clean it first")
    x = x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    return x if x.flags.c_contiguous else np.ascontiguousarray(x)


def _checked_labels(y: np.ndarray, count: int, limit: int, name: str) -> np.ndarray:
    y = np.asarray(y)
    if y.shape != (count,):
        raise ValueError(f"{name} has shape {list(y.shape)} for {count} examples; give [{count}]")
    if y.dtype.kind not in "uif":
        raise ValueError(f"{name} is of type {y.dtype}; give whole numbers from 0")
    right = (y >= 0) & (y < limit)
    if y.dtype.kind == "f":
        right &= np.floor(y) == y
    if not right.all():
        bad = int(right.argmin())
        raise ValueError(
            f"{name} has label {y[bad]} in example {bad}; give whole numbers from 0 to {limit - 1}"
        )
    return y.astype(np.int32)


def _numbered(users: np.ndarray, count: int, name: str) -> np.ndarray:
    users = np.asarray(users)
    if users.shape != (count,):
        raise ValueError(
            f"{name} has shape {list(users.shape)} for {count} training examples; give [{count}]"
        )
    if users.dtype.kind not in "uiUS":
        raise ValueError(f"{name} is of type {users.dtype}; give whole numbers or strings")
    return np.unique(users, return_inverse=True)[1].astype(np.int32)


@contextlib.contextmanager
def reading(path: PathLike, fix: str, *damage: type[Exception]) -> Iterator[None]:
    """Turns what a missing or damaged file raises into a ValueError of one line.

    Args:
      path: the file.
      fix: how to get a good one.
      damage: what the format's own parser raises, besides OSError, EOFError and ValueError.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise ValueError(f"{os.fspath(path)}: there is no such file; check the path") from error
    except Exception as error:
        if not isinstance(error, (OSError, EOFError, ValueError, *damage)):
            raise
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        told = getattr(error, "strerror", None) or first
        raise ValueError(f"{os.fspath(path)}: cannot be read ({told}); {fix}") from error


@datasets
def digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels, scaled to 0..1; no download.

    Every fifth example of each class, in the order of the file, is the test set (362 examples), so
    the split is the same for all seeds.
    """
    from sklearn.datasets import load_digits  # heavy to import, and only needed here

    images, labels = load_digits(return_X_y=True)
    test = np.zeros(len(labels), bool)
    for label in range(10):
        test[np.flatnonzero(labels == label)[::5]] = True
    examples = {"x": (images / 16).astype(np.float32), "y": labels.astype(np.int32)}
    train, held_out = ({k: v[rows] for k, v in examples.items()} for rows in (~test, test))
    return Dataset(train, held_out, num_classes=10)
