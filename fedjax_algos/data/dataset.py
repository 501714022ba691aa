"""Data sets in memory, and checks of their arrays."""

from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import describe
from fedjax_algos.core import Batch
from fedjax_algos.core.checks import check_whole

MAX_CLASSES = 2**20  # larger labels are treated as errors
SAME_EXAMPLES = "the test examples are the training examples"
_MAX_EMPTY_CLASSES = 1000  # if labels imply more, and more than there are examples, we refuse them


class Dataset(NamedTuple):
    """Labelled examples on the host: dicts of "x" [examples, ...] and "y" int32[examples].

    Attributes:
      train, test: the examples.
      num_classes: the number of classes.
      users: int32[train examples]: the natural client of each example, from 0, if there are any.
      notes: what the reader left out, one line each.
    """

    train: Batch
    test: Batch
    num_classes: int
    users: np.ndarray | None = None
    notes: tuple[str, ...] = ()

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of one example's "x"."""
        return self.train["x"].shape[1:]

    @property
    def example_dtype(self) -> np.dtype:
        """The dtype of the examples' "x"."""
        return self.train["x"].dtype

    def __repr__(self) -> str:
        x = self.train["x"]
        facts: dict[str, object] = {"train": len(x), "test": len(self.test["x"])}
        facts |= {"x": f"{x.dtype}{list(self.example_shape)}", "num_classes": self.num_classes}
        if self.users is not None:
            facts["natural_clients"] = len(np.unique(self.users))
        return describe(self, **facts)


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
    """Checks arrays and makes a data set of them.

    Contiguous arrays are neither copied nor converted; images stay uint8.

    Args:
      x_train, x_test: [examples, ...], integers or floats, both of the same shape and dtype.
      y_train, y_test: [examples], whole numbers from 0; returned as int32.
      users: [train examples], integers or strings: the natural client of each example. Clients are
        numbered from 0 in sorted order. None without natural clients.
      num_classes: one more than the largest label if None. It must be given if it exceeds both 1000
        and the number of examples.
      notes: what a reader left out, one line each.
      source: the name of the data in error messages.

    Raises:
      ValueError: for empty sets, unequal lengths or shapes, anything but numbers, NaN or infinity,
        64-bit numbers that the device cannot hold, and labels that are not whole or out of range.
    """
    x_train = checked_examples(x_train, f"{source}: x_train")
    x_test = checked_examples(x_test, f"{source}: x_test")
    one, other = (f"{x.dtype}{list(x.shape[1:])}" for x in (x_train, x_test))
    found = f"{source}: examples are {one} in x_train and {other} in x_test"
    require(one == other, f"{found}; give both one shape and type")
    if num_classes is not None:
        check_whole("from_arrays: num_classes", num_classes)
    limit = num_classes or MAX_CLASSES
    y_train = checked_labels(y_train, len(x_train), limit, f"{source}: y_train")
    y_test = checked_labels(y_test, len(x_test), limit, f"{source}: y_test")
    if not num_classes:
        labels, number = np.unique(np.concatenate([y_train, y_test])), len(y_train) + len(y_test)
        num_classes, more = count_classes(labels)
        found = f"{source}: the largest label of {number} examples is {num_classes - 1}"
        fix = "number the classes from 0, or give num_classes if most of them are empty"
        require(num_classes <= max(_MAX_EMPTY_CLASSES, number), f"{found}; {fix}")
        alone = np.setdiff1d(y_test, y_train)
        unseen = f"no training example has the labels {_listed(alone)} of the test"
        notes += more + (unseen,) * bool(alone.size)
    if x_train.shape == x_test.shape and np.array_equal(x_train, x_test):
        notes += (SAME_EXAMPLES,)
    if users is not None:
        users = np.asarray(users)
        fits = users.shape == (len(x_train),) and users.dtype.kind in "uiUS"
        fix = f"give a whole number or string for each of {len(x_train)} training examples"
        require(fits, f"{source}: users are {users.dtype}{list(users.shape)}; {fix}")
        users = np.unique(users, return_inverse=True)[1].astype(np.int32)
    train, test = {"x": x_train, "y": y_train}, {"x": x_test, "y": y_test}
    return Dataset(train, test, num_classes, users, notes)


def divide(
    x: np.ndarray,
    y: np.ndarray,
    test_share: float,
    users: np.ndarray | None = None,
    *,
    seed: int = 0,
    source: object = "arrays",
) -> Dataset:
    """Divides examples into training and test examples at random, and makes a data set.

    Args:
      x, y, users, source: as in `from_arrays`, of all examples.
      test_share: the share of test examples, above 0 and below 1. Their number is rounded, and both
        parts have at least one example.
      seed: the seed of the draw, which is uniform.

    Raises:
      ValueError: for a share out of range, fewer than two examples, and as in `from_arrays`.
    """
    require(0 < test_share < 1, f"test_share={test_share!r}; give a number above 0 and below 1")
    x, y, owners = np.asarray(x), np.asarray(y), np.asarray(y if users is None else users)
    lengths = f"{source}: there are {len(x)} x, {len(y)} y and {len(owners)} users"
    require(len(x) == len(y) == len(owners), f"{lengths}; give one of each for an example")
    number = min(max(round(test_share * len(x)), 1), len(x) - 1)
    order = np.random.default_rng(seed).permutation(len(x))
    test, train = np.sort(order[:number]), np.sort(order[number:])
    users = None if users is None else owners[train]
    return from_arrays(x[train], y[train], x[test], y[test], users, source=source)


def count_classes(labels: np.ndarray) -> tuple[int, tuple[str, ...]]:
    """Returns one more than the largest label, and a note about classes without an example."""
    num_classes = 1 + int(labels.max())
    empty = np.setdiff1d(np.arange(num_classes), labels).tolist()
    note = f"no example has the labels {_listed(empty)} of {num_classes} classes"
    return num_classes, (note,) * bool(empty)


def _listed(labels):
    return ", ".join(map(str, labels[:5])) + ", ..." * (len(labels) > 5)


def checked_examples(x: np.ndarray, name: str) -> np.ndarray:
    """Checks examples [n, ...] for `from_arrays`; makes them contiguous, in native byte order."""
    x = np.asarray(x)
    fits = x.dtype.kind in "uif" and x.dtype.itemsize <= 8 and x.ndim >= 2 and x.size
    fix = "give numbers [examples, ...], such as uint8 or float32, of at least one example"
    require(fits, f"{name} is {x.dtype}{list(x.shape)}; {fix}")
    if x.dtype.kind == "f" or x.dtype.itemsize == 8:
        check_range(x, name, finite=True)
    x = x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    return x if x.flags.c_contiguous else np.ascontiguousarray(x)


def checked_labels(y: np.ndarray, count: int, limit: int, name: str) -> np.ndarray:
    """Returns labels as int32[count]; raises ValueError unless all are whole and below `limit`."""
    y = np.asarray(y)
    found = f"{name} is {y.dtype}{list(y.shape)} for {count} examples"
    fits = y.shape == (count,) and y.dtype.kind in "uif"
    require(fits, f"{found}; give whole numbers from 0, [{count}]")
    valid = (y >= 0) & (y < limit) & (np.floor(y) == y)
    if not valid.all():
        bad = int(valid.argmin())
        fix = f"give whole numbers from 0 to {limit - 1}"
        raise ValueError(f"{name} has label {y[bad]} in example {bad}; {fix}")
    return y.astype(np.int32)


def check_range(x: np.ndarray, name: str, *, finite: bool) -> None:
    """Raises ValueError for numbers that need 64 bits (without x64) and, if `finite`, for NaN."""
    kind = jax.dtypes.canonicalize_dtype(x.dtype.newbyteorder("="))
    if not finite and kind.itemsize == x.dtype.itemsize:
        return
    limits: Any = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
    compared: Any = True if finite else np.isfinite(x)
    low, high = (extreme(x, initial=0, where=compared) for extreme in (np.min, np.max))
    if limits.min <= low and high <= limits.max:  # False for NaN
        return
    wrong = ~((x >= limits.min) & (x <= limits.max)) & compared
    place = np.unravel_index(wrong.argmax(), x.shape)
    found = f"{name} has {x[place]} in example {place[0]}, which is out of range of {kind}"
    fix = "clean or scale the data, or enable x64: jax.config.update('jax_enable_x64', True)"
    raise ValueError(f"{found}; {fix if np.isfinite(x[place]) else 'clean the data'}")
