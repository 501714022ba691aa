"""Models in files .npz: the last models of runs, and `save_model` and `load_model`.

Such a file is an archive of plain arrays, by their place in the model, such as
`params/Dense_0/kernel`; nothing in it is pickled, and NumPy alone can read it. The archive has a
checksum (CRC-32) of each array. Types that NumPy does not have, such as bfloat16, are stored as a
record of one field, whose name is the type and whose value has its bits.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Model, Params
from fedjax_algos.core.checks import check_kind
from fedjax_algos.core.files import written
from fedjax_algos.core.reprs import printable
from fedjax_algos.data.readers.npz import read_arrays
from fedjax_algos.engine.state import FederatedState

T = TypeVar("T")
_SUFFIX = ".npz"
_MAX_NAMED = 3  # arrays in a message
_FIX = "copy it again, or save the model again"


def save_model(path: str | Path, model: Params | Model, *, overwrite: bool = False) -> None:
    """Writes params or a model to one file, of which `load_model` gives back every bit.

    The file is written beside its place and renamed, so it is whole or not there.

    Args:
      path: the file, with the suffix .npz.
      model: params (any tree of arrays), or a `Model`, such as `state.model`.
      overwrite: whether a file that exists is replaced.

    Raises:
      TypeError: for a state, or what is no array.
      ValueError: for another suffix, a file that exists or cannot be written, and two arrays with
        one name.
    """
    place = _path_of(path)
    check_kind("overwrite", overwrite, bool, "give True or False")
    if not overwrite and place.exists():
        raise ValueError(f"path={str(place)!r} exists; name another file, or give overwrite=True")
    arrays: dict[str, Any] = {name: _stored(name, leaf) for name, leaf in _leaves(model)[0].items()}
    with written(place) as beside, beside.open("wb") as file:
        np.savez(file, **{name: array for name, array in arrays.items() if array.size})


def load_model(path: str | Path, like: T) -> T:
    """Reads params or a model that `save_model` or a run has written.

    Args:
      path: the file, such as `results/compare/runs/01-fedavg/seed-0/model.npz`.
      like: params or a model with the same structure, shapes and dtypes, of which nothing else is
        read: `jax.eval_shape(problem.init, jax.random.key(0))` is the model of a problem.

    Returns:
      The tree with the values of the file: jax arrays with the sharding of those of `like`, and
      NumPy arrays where `like` has others.

    Raises:
      TypeError: for a state.
      ValueError: for a file that is missing or damaged, and for arrays whose names, shapes or
        dtypes are not those of `like`, which are named.
    """
    place = _path_of(path)
    wanted, structure = _leaves(like)
    found = read_arrays(place, "a saved model", _FIX)
    _check_same(place, wanted, found)
    leaves = []
    for name, leaf in wanted.items():
        empty = np.zeros(np.shape(leaf), _dtype(leaf))  # arrays without entries are not stored
        array = found[name].view(empty.dtype) if empty.size else empty
        is_placed = isinstance(leaf, jax.Array)
        leaves.append(jax.device_put(array, leaf.sharding) if is_placed else array)
    model: Any = Model(**jax.tree.unflatten(structure, leaves))
    return model if isinstance(like, Model) else model.params


def _path_of(path: str | Path) -> Path:
    place = Path(path)
    if place.suffix != _SUFFIX:
        shown = printable(os.fspath(place))
        raise ValueError(f"path={shown!r} has not the suffix {_SUFFIX}; give MODEL{_SUFFIX}")
    return place


def _leaves(model: Any) -> tuple[dict[str, Any], Any]:
    """The leaves of a model by name, and its structure."""
    if isinstance(model, FederatedState):
        raise TypeError("a state is given where a model is needed; give state.model")
    tree = (model if isinstance(model, Model) else Model(model))._asdict()
    pairs, structure = jax.tree.flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in pairs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(
            f"two arrays of the model have the name {twice[0]!r}; give the parts of the model "
            "names without '/'"
        )
    return dict(zip(names, (leaf for _, leaf in pairs), strict=True)), structure


def _dtype(leaf: Any) -> np.dtype:
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


def _storage(dtype: Any) -> np.dtype | None:
    """The type in which an array is stored; None for what is no number."""
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return None
    if dtype.kind in "biufc":
        return dtype
    is_number = jnp.issubdtype(dtype, np.number)
    return np.dtype([(dtype.name, f"u{dtype.itemsize}")]) if is_number else None


def _stored(name: str, leaf: Any) -> np.ndarray:
    is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
    storage = None if is_shape else _storage(_dtype(leaf))
    if storage is None:
        raise TypeError(
            f"{name} is of type {type(leaf).__name__ if is_shape else _dtype(leaf)}, which has no "
            "numbers to save; give arrays, such as jax.random.key_data(key) of a key"
        )
    return np.asarray(leaf, order="C").view(storage)


def _check_same(path: Path, wanted: Mapping[str, Any], found: Mapping[str, np.ndarray]) -> None:
    """Raises ValueError unless the file has the arrays that are wanted."""
    stored = {name: leaf for name, leaf in wanted.items() if np.size(leaf)}
    place, named = printable(os.fspath(path)), "give `like` as it was saved"
    if missing := [name for name in stored if name not in found]:
        raise ValueError(f"{place}: has no {_listed(missing)}; it has {_listed([*found])}; {named}")
    if surplus := [name for name in found if name not in stored]:
        fix = "give a Model" if all(name.startswith("params") for name in wanted) else named
        raise ValueError(f"{place}: has {_listed(surplus)}, which `like` has not; {fix}")
    for name, leaf in stored.items():
        array, dtype = found[name], _dtype(leaf)
        if array.shape != np.shape(leaf) or array.dtype != _storage(dtype):
            kind = array.dtype.names[0] if array.dtype.names else array.dtype
            raise ValueError(
                f"{place}: {name!r} is {kind}{list(array.shape)} and "
                f"{dtype}{list(np.shape(leaf))} in `like`; {named}"
            )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return printable(", ".join(map(repr, names[:_MAX_NAMED]))) + more or "no arrays"
