"""Saves and loads models in .npz files (see `base.arrays`), such as the last models of runs.

The arrays are named by their places in the model, such as `params/Dense_0/kernel`.
"""

from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.arrays import ArrayFile, write_arrays
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import written
from fedjax_algos.base.reprs import printable
from fedjax_algos.core import Model, Params
from fedjax_algos.core.checks import check_kind
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.runs.loops.checkpoints import fill, flat_arrays

T = TypeVar("T")
_FIX = "copy it again, or save the model again"


def save_model(path: str | Path, model: Params | Model, *, overwrite: bool = False) -> None:
    """Writes params or a model to one file; `load_model` returns it bit for bit.

    The file is written under another name and renamed, so it is never incomplete.

    Args:
      path: the file, with the suffix .npz.
      model: params (any tree of arrays), or a `Model`, such as `state.model`.
      overwrite: whether to replace an existing file.

    Raises:
      TypeError: for a state, or a leaf that is not an array.
      ValueError: for another suffix, a file that exists or cannot be written, and two arrays with
        one name.
    """
    check_kind("overwrite", overwrite, bool, "give True or False")
    file_path, tree = _path_of(path, is_new=not overwrite), _tree(model)
    arrays = {name: np.asarray(leaf) for name, leaf in flat_arrays(tree).items()}
    for name, array in arrays.items():
        if not (array.dtype == bool or jnp.issubdtype(array.dtype, np.number)):
            raise TypeError(f"{name} is of type {array.dtype}, not numbers; give arrays of numbers")
    with written(file_path) as beside, beside.open("wb") as file:
        write_arrays(file, arrays)


def load_model(path: str | Path, like: T) -> T:
    """Reads params or a model that `save_model` or a run has written.

    Args:
      path: the file, such as `results/compare/runs/01-fedavg/seed-0/model.npz`.
      like: params or a model with the same structure, shapes and dtypes; its values are not read.
        `jax.eval_shape(problem.init, jax.random.key(0))` is the model of a problem.

    Returns:
      The tree with the values of the file. Where `like` has a jax array, so has the tree, with the
      same sharding; elsewhere it has NumPy arrays.

    Raises:
      TypeError: for a state.
      ValueError: for a file that is missing or damaged, and for arrays whose names, shapes or
        dtypes differ from `like`; the message names them.
    """
    file, tree = _path_of(path), _tree(like)
    expected, arrays = flat_arrays(tree), ArrayFile(file, "a saved model", _FIX)
    arrays.check_memory(arrays)
    place, fix = printable(file), "give `like` as it was saved"
    if surplus := [name for name in arrays if name not in expected]:
        fix = "give a Model" if all(name.startswith("params") for name in expected) else fix
        raise ValueError(f"{place}: has {surplus[0]!r}, which `like` does not have; {fix}")
    model: Any = Model(**fill(tree, arrays, places=("`like`", place), fix=fix))
    return model if isinstance(like, Model) else model.params


def _path_of(path: str | Path, *, is_new: bool = False) -> Path:
    file = Path(path)
    exists = is_new and file.exists()
    found = f"path={printable(file)!r} is not {'a new' if is_new else 'a'} file MODEL.npz"
    fix = f"name one{', or give overwrite=True' if exists else ''}"
    require(file.suffix == ".npz" and not exists, f"{found}; {fix}")
    return file


def _tree(model: Any) -> dict[str, Any]:
    """Returns the fields of a model; leaves without a dtype become arrays."""
    if isinstance(model, FederatedState):
        raise TypeError("a state is given where a model is needed; give state.model")
    tree = (model if isinstance(model, Model) else Model(model))._asdict()
    return jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else np.asarray(leaf), tree)
