"""What a data set in memory is, and the checks of its arrays."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Batch
from fedjax_algos.core.limits import MAX_INT32
from fedjax_algos.core.reprs import describe

_ELEMENTS_PER_CHECK = 2**20  # bounds the memory of a search
_MAX_CLASSES = 2**20  # larger labels are treated as errors
_MAX_EMPTY_CLASSES = 1000  # of a set with fewer examples, where labels alone tell the classes


class Dataset(NamedTuple):
    """Labelled examples on the host: dicts of "x" [examples, ...] and "y" int32[examples].

    Attributes:
      train: leaves [train examples, ...].
      test: leaves [test examples, ...].
      num_classes: the number of classes.
      users: int32[train examples]: natural client of each, from 0.
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
        """The type of the examples' "x"."""
        return self.train["x"].dtype

    def __repr__(self) -> str:
        x = self.train["x"]
        facts: dict[str, object] = {"train": len(x), "test": len(self.test["x"])}
        facts["x"] = f"{x.dtype}{list(self.example_shape)}"
        facts["num_classes"] = self.num_classes
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
    """Makes a data set of the caller's arrays, and checks them.

    Examples are held in memory once: contiguous arrays are neither copied nor converted, and floats
    are searched for NaN in chunks. For example, images stay uint8.

    Args:
      x_train, x_test: [examples, ...], of one shape and type; integers or floats.
      y_train, y_test: [examples], whole numbers from 0; returned as int32.
      users: [train examples], integers or strings: the natural client of each example; numbered
        from 0 in sorted order. None if there are no natural clients.
      num_classes: one more than the largest label if None; it must be given if it is more than 1000
        and than the number of examples.
      notes: what a reader left out, one line each.
      source: the name of the data in error messages.

    Raises:
      ValueError: for empty sets, unequal lengths or shapes, types other than numbers, NaN or
        infinity, 64-bit numbers that the type on the device cannot hold, and labels that are not
        whole or out of range.
    """
    x_train = checked_examples(x_train, f"{source}: x_train")
    x_test = checked_examples(x_test, f"{source}: x_test")
    if (x_train.shape[1:], x_train.dtype) != (x_test.shape[1:], x_test.dtype):
        raise ValueError(
            f"{source}: examples are {x_train.dtype}{list(x_train.shape[1:])} in x_train and "
            f"{x_test.dtype}{list(x_test.shape[1:])} in x_test; give both one shape and type"
        )
    limit = num_classes or _MAX_CLASSES
    if limit > MAX_INT32:
        raise ValueError(f"{source}: num_classes={limit} is out of range; give 1 to {MAX_INT32}")
    y_train = checked_labels(y_train, len(x_train), limit, f"{source}: y_train")
    y_test = checked_labels(y_test, len(x_test), limit, f"{source}: y_test")
    if not num_classes:
        num_classes = 1 + int(max(y_train.max(), y_test.max()))
        if num_classes > max(_MAX_EMPTY_CLASSES, len(y_train) + len(y_test)):
            raise ValueError(
                f"{source}: the largest label is {num_classes - 1}, which would make {num_classes} "
                f"classes of {len(y_train) + len(y_test)} examples; number the classes from 0, or "
                "give num_classes if most of them are empty"
            )
    if users is not None:
        users = _numbered(users, len(x_train), f"{source}: users")
    train, test = {"x": x_train, "y": y_train}, {"x": x_test, "y": y_test}
    return Dataset(train, test, num_classes, users, notes)


def checked_examples(x: np.ndarray, name: str) -> np.ndarray:
    """Examples [n, ...] after the checks of `from_arrays`, contiguous and in native byte order."""
    x = np.asarray(x)
    if x.dtype.kind not in "uif" or x.dtype.itemsize > 8:
        raise ValueError(f"{name} is of type {x.dtype}; give numbers, such as uint8 or float32")
    if x.ndim < 2:
        raise ValueError(f"{name} has shape {list(x.shape)}; give [examples, ...]")
    if not x.size:
        raise ValueError(f"{name} is empty, of shape {list(x.shape)}; give at least one example")
    if x.dtype.kind == "f" or x.dtype.itemsize == 8:
        check_range(x, name, finite=True)
    x = x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    return x if x.flags.c_contiguous else np.ascontiguousarray(x)


def checked_labels(y: np.ndarray, count: int, limit: int, name: str) -> np.ndarray:
    """Labels as int32[count]; ValueError for what is not a whole number below `limit`."""
    y = np.asarray(y)
    if y.shape != (count,):
        raise ValueError(f"{name} has shape {list(y.shape)} for {count} examples; give [{count}]")
    if y.dtype.kind not in "uif":
        raise ValueError(f"{name} is of type {y.dtype}; give whole numbers from 0")
    valid = (y >= 0) & (y < limit)
    if y.dtype.kind == "f":
        valid &= np.floor(y) == y
    if not valid.all():
        bad = int(valid.argmin())
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


def check_range(x: np.ndarray, name: str, *, finite: bool) -> None:
    """Raises ValueError for numbers out of the range of the type that they have on a device.

    64-bit numbers become 32-bit ones unless x64 is enabled: larger integers would be other ones,
    and larger floats infinite. With `finite`, NaN and infinity are refused, too.
    """
    kind = np.dtype(x.dtype.newbyteorder("="))
    if kind.itemsize == 8 and jnp.result_type(float) == np.float32:  # without x64
        kind = np.dtype(f"{kind.kind}4")
    elif not finite:
        return
    limits: Any = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
    rows = max(1, _ELEMENTS_PER_CHECK * len(x) // max(1, x.size))
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        part = part.reshape(len(part), -1)
        inside = (part >= limits.min) & (part <= limits.max)  # which NaN is not
        if not finite:
            inside |= ~np.isfinite(part)
        if inside.all():
            continue
        row, column = divmod(int(inside.argmin()), part.shape[1])
        value = part[row, column]
        if np.isfinite(value):
            raise ValueError(
                f"{name} has {value} in example {start + row}, which is out of range of {kind}; "
                "scale it, or enable x64: jax.config.update('jax_enable_x64', True)"
            )
        raise ValueError(f"{name} has NaN or infinity in example {start + row}; clean it first")
