"""Pretrained weights: files of tensors, and their conversion to the params of a model."""

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Model, Problem
from fedjax_algos.core.files import (
    PathLike,
    check_array_bytes,
    needed,
    open_regular,
    reading,
    require,
    require_regular,
)
from fedjax_algos.core.options import check_choice
from fedjax_algos.core.reprs import printable

Head = Literal["loaded", "new"]
Weights: TypeAlias = Mapping[str, np.ndarray]
Convert: TypeAlias = Callable[[np.ndarray], np.ndarray]
Names: TypeAlias = Mapping[str, str | tuple[str, Convert] | None]  # see `convert_weights`

_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
_LEAVES |= {"bias": "bias", "mean": "running_mean", "var": "running_var"}
_COUNTER = "num_batches_tracked"  # of BatchNorm layers; only torch's cumulative means read it
_SAFETENSORS = {
    "BOOL": np.bool_, "BF16": jnp.bfloat16, "F16": np.float16, "F32": np.float32,
    "F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
    "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64,
}  # fmt: skip


def load_weights(path: PathLike) -> dict[str, np.ndarray]:
    """The tensors of a file by name, such as a state dict of PyTorch.

    Args:
      path: a file .safetensors, which needs the package safetensors (extra `weights`), or .pth or
        .pt, which needs torch. Torch reads it with `weights_only=True`, so that nothing in it is
        run.

    Raises:
      ValueError: for another suffix, a file that is missing, damaged, too large for the memory, or
        holds something else than tensors by name, and if the package that reads the file is not
        installed.
    """
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    readers = {".safetensors": _read_safetensors, ".pth": _read_torch, ".pt": _read_torch}
    if suffix not in readers:
        raise ValueError(
            f"{printable(os.fspath(path))}: the suffix {printable(suffix)!r} is unknown; give a "
            "file .safetensors, .pth or .pt"
        )
    return readers[suffix](path)


def _read_safetensors(path: PathLike) -> dict[str, np.ndarray]:
    safetensors = needed("safetensors", "a file .safetensors")
    fix = "write it with safetensors, or fetch it again"
    errors = safetensors.SafetensorError
    with reading(path, "a safetensors file", fix, errors), open_regular(path) as file:
        check_array_bytes("its tensors", os.fstat(file.fileno()).st_size, "give a smaller file")
        arrays = {}
        for name, tensor in safetensors.deserialize(file.read()):
            kind = tensor["dtype"]
            require(kind in _SAFETENSORS, f"{name!r} has the unsupported type {kind}")
            arrays[name] = np.frombuffer(tensor["data"], _SAFETENSORS[kind])
            arrays[name] = arrays[name].reshape(tensor["shape"])
    return arrays


def _read_torch(path: PathLike) -> dict[str, np.ndarray]:
    torch = needed("torch", "a file .pth or .pt", ", or save the weights as safetensors")
    fix = "save the state dict of the model alone, as safetensors"
    # torch raises many types for damaged files: those of pickle, of archives, and its own
    with reading(path, "a PyTorch file of tensors", fix, Exception):
        require_regular(path)
        check_array_bytes("its tensors", os.path.getsize(path), "give a smaller file")
        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:  # its message advises to run the file
            raise ValueError("it is damaged or holds other objects than tensors") from error
        held = f"it holds a {type(tensors).__name__}, not tensors by name"
        require(isinstance(tensors, Mapping), held)
        arrays = {}
        for name, tensor in tensors.items():
            is_tensor = isinstance(name, str) and isinstance(tensor, torch.Tensor)
            require(is_tensor, f"{name!r} is a {type(tensor).__name__}, not a tensor")
            narrow = tensor.dtype == torch.bfloat16  # NumPy does not know it
            arrays[name] = (tensor.float() if narrow else tensor).detach().numpy()
    return arrays


def convert_weights(
    weights: Weights, names: Names, model: Model, *, head: Head = "loaded"
) -> Model:
    """A model with the weights of a network that has PyTorch's names and order of axes.

    A weight [out, in, height, width] becomes a kernel [height, width, in, out], and [out, in]
    becomes [in, out]. Each tensor must have its place, and each place its tensor, except for
    BatchNorm's counters `num_batches_tracked`, which have no counterpart. Narrower floats become
    those of the model; wider ones are refused.

    Args:
      weights: float[...] by name, as `load_weights` returns them.
      names: the name in `weights` of each module of the model by path, such as
        {"stem/Conv_0": "features.0.0"}; a path stands for all modules below it, and the leaves
        kernel, scale, bias, embedding, mean and var have PyTorch's names. A path of a single leaf
        goes before: its whole name, or (name, convert), where `convert` makes the leaf of the
        tensor, also of a part of it. The path of a module that the weights do not have, such as an
        adapter, has None: its leaves are those of `model`.
      model: a model of the same structure. Only the shapes and types of its leaves are read, so
        `jax.eval_shape(problem.init, key)` suffices.
      head: "new" leaves the params of the module "head" as `model` has them, and ignores the
        tensors that belong to it.

    Returns:
      NumPy arrays of the model's types; the leaves of a new head, and of paths with None, are those
      of `model`.

    Raises:
      ValueError: for missing, surplus, wrongly shaped and infinite tensors, which are named.
    """
    check_choice("head", head, get_args(Head))
    used: set[str] = set()

    def converted(path, leaf):
        place = jax.tree_util.keystr(path, simple=True, separator="/")
        source = _source(place, names)
        if source is None:
            return leaf
        name, convert = source
        used.add(name)
        if head == "new" and place.startswith("head/"):
            return leaf
        if name not in weights:
            known = printable(", ".join(sorted(weights)[:3]), longest=200)
            raise ValueError(
                f"the weights have no {name!r}, which {place} needs; they have {known} and so on; "
                "give the weights of this network"
            )
        return _checked(name, place, convert(weights[name]), leaf)

    params = jax.tree_util.tree_map_with_path(converted, model.params)
    statistics: Any = jax.tree_util.tree_map_with_path(
        lambda path, leaf: converted(path[1:], leaf),
        model.statistics,  # without the collection
    )
    surplus = sorted(name for name in set(weights) - used if not name.endswith(_COUNTER))
    if surplus:
        raise ValueError(
            f"the weights have {', '.join(map(repr, surplus[:5]))} ({len(surplus)} in all), for "
            "which the model has no place; give the weights of this network (running means belong "
            "to BatchNorm)"
        )
    return model._replace(params=params, statistics=statistics)


def pretrained(
    problem: Problem, weights: PathLike | Weights, names: Sequence[Names], *, head: Head = "loaded"
) -> Problem:
    """The problem whose initial model has given weights.

    `init` takes the arrays from the host when its program runs, so they are no part of the program.

    Args:
      problem: made by `classifier` or `nnx_classifier`, or another one whose params and statistics
        are nested dicts. `freeze` comes after, and `trainable` of `nnx_classifier` is left out.
      weights: the file, or the tensors by name; they stay in memory.
      names: as for `convert_weights`, one for each naming that the weights may have. The one with
        most names in `weights` is taken.
      head: "new" draws the params of the module "head" as without weights, for other classes.

    Raises:
      ValueError: as `load_weights` and `convert_weights`.
    """
    tensors = weights if isinstance(weights, Mapping) else load_weights(weights)
    shapes = jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0))
    source = "the weights" if isinstance(weights, Mapping) else printable(os.fspath(weights))
    known = set(tensors) | {name.rpartition(".")[0] for name in tensors}

    def num_known(names):
        found = (value[0] if isinstance(value, tuple) else value for value in names.values())
        return sum(name in known for name in found)

    try:
        loaded = convert_weights(tensors, max(names, key=num_known), shapes, head=head)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error

    def from_host(own, given):
        if isinstance(given, jax.ShapeDtypeStruct):  # it is not given
            return own
        return jax.pure_callback(lambda: given, jax.ShapeDtypeStruct(given.shape, given.dtype))

    return problem._replace(init=lambda key: jax.tree.map(from_host, problem.init(key), loaded))


def _source(place: str, names: Names) -> tuple[str, Convert] | None:
    """The name of the tensor of a leaf, and what makes the leaf of it; None for a new leaf."""
    exact, path = names.get(place), place.split("/")
    if isinstance(exact, tuple):
        return exact
    convert = _to_kernel if path[-1] == "kernel" else np.asarray
    if exact is not None:
        return exact, convert
    for length in range(len(path), 0, -1):
        module = names.get("/".join(path[:length]), ())
        if module is None:
            return None
        if isinstance(module, str) and path[-1] in _LEAVES:
            return f"{module}.{_LEAVES[path[-1]]}", convert
    raise ValueError(f"names have none for {place}; add its path or that of its module")


def _to_kernel(weight: np.ndarray) -> np.ndarray:
    """[out, in, ...] to [..., in, out]."""
    return weight if weight.ndim < 2 else weight.transpose(*range(2, weight.ndim), 1, 0)


def _checked(name: str, place: str, given: np.ndarray, leaf: Any) -> np.ndarray:
    """The array in the type of the leaf."""
    if given.shape != leaf.shape:
        fix = "for other classes give head='new', which draws a new head"
        fix = fix if place.startswith("head/") else "give the weights of this network"
        raise ValueError(
            f"{name!r} becomes {list(given.shape)}, but {place} is {list(leaf.shape)}; {fix}"
        )
    floating = jnp.issubdtype(given.dtype, jnp.floating)
    if not floating or jnp.promote_types(given.dtype, leaf.dtype) != leaf.dtype:
        raise ValueError(
            f"{name!r} has type {given.dtype}, and {place} {leaf.dtype}; convert it to {leaf.dtype}"
        )
    array = np.asarray(given, leaf.dtype, order="C")  # also of a scalar
    if not np.isfinite(array).all():
        raise ValueError(f"{name!r} has numbers that are not finite; give other weights")
    return array
