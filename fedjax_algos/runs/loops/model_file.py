"""Models in files .npz: the last models of runs, and `save_model` and `load_model`.

Such a file is an archive of plain arrays, by their place in the model, such as
`params/Dense_0/kernel`; nothing in it is pickled, and NumPy alone can read it. The archive has a
checksum (CRC-32) of each array. Types that NumPy does not have, such as bfloat16, are stored as a
record of one field, whose name is the type and whose value has its bits.
"""

from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.files import written
from fedjax_algos.base.reprs import printable
from fedjax_algos.core import Model, Params
from fedjax_algos.core.checks import check_kind
from fedjax_algos.data.readers.npz import read_arrays
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.runs.loops.checkpoints import fill, flat_arrays

T = TypeVar("T")
_SUFFIX = ".npz"
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
    arrays: Any = {name: _stored(name, leaf) for name, leaf in flat_arrays(_tree(model)).items()}
    with written(place) as beside, beside.open("wb") as file:
        np.savez(file, **arrays)


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
    place, tree = _path_of(path), _tree(like)
    wanted, found = flat_arrays(tree), read_arrays(place, "a saved model", _FIX)
    named, fix = printable(place), "give `like` as it was saved"
    if surplus := [name for name in found if name not in wanted]:
        fix = "give a Model" if all(name.startswith("params") for name in wanted) else fix
        raise ValueError(f"{named}: has {surplus[0]!r}, which `like` has not; {fix}")
    for name, array in found.items():
        dtype = wanted[name].dtype
        found[name] = array.view(dtype) if array.dtype == _storage(dtype) else array
    model: Any = Model(**fill(tree, found, places=("`like`", named), fix=fix))
    return model if isinstance(like, Model) else model.params


def _path_of(path: str | Path) -> Path:
    place = Path(path)
    if place.suffix != _SUFFIX:
        shown = printable(place)
        raise ValueError(f"path={shown!r} has not the suffix {_SUFFIX}; give MODEL{_SUFFIX}")
    return place


def _tree(model: Any) -> dict[str, Any]:
    """The fields of a model, with leaves that have a dtype."""
    if isinstance(model, FederatedState):
        raise TypeError("a state is given where a model is needed; give state.model")
    tree = (model if isinstance(model, Model) else Model(model))._asdict()
    return jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else np.asarray(leaf), tree)


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
    storage = None if is_shape else _storage(leaf.dtype)
    if storage is None:
        kind = type(leaf).__name__ if is_shape else leaf.dtype
        fix = "give arrays, such as jax.random.key_data(key) of a key"
        raise TypeError(f"{name} is of type {kind}, which has no numbers to save; {fix}")
    return np.asarray(leaf, order="C").view(storage)
