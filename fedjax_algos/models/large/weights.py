"""Pretrained weights: reads files of tensors, and converts PyTorch's names and axes to params."""

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base import files
from fedjax_algos.base.errors import needed, require
from fedjax_algos.base.files import PathLike, reading
from fedjax_algos.base.reprs import describe_tree
from fedjax_algos.core import Model, Problem
from fedjax_algos.core.options import check_choice

Head = Literal["loaded", "new"]
Weights: TypeAlias = Mapping[str, np.ndarray]
Convert: TypeAlias = Callable[[np.ndarray], np.ndarray]
Names: TypeAlias = Mapping[str, str | tuple[str, Convert] | None]  # see `convert_weights`

_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
_LEAVES |= {"bias": "bias", "mean": "running_mean", "var": "running_var"}
_COUNTER = "num_batches_tracked"  # of BatchNorm layers; only torch's cumulative means read it
_TYPES = {
    "BOOL": np.bool_, "BF16": jnp.bfloat16, "F16": np.float16, "F32": np.float32,
    "F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
    "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64,
}  # fmt: skip


def load_weights(path: PathLike) -> dict[str, np.ndarray]:
    """Reads the tensors of a file by name, such as a state dict of PyTorch.

    Args:
      path: a .safetensors file, which needs the package safetensors (extra `weights`), or a .pth or
        .pt file, which torch reads with `weights_only=True`, so that nothing in it is run. Or a
        Hugging Face folder, with the file model.safetensors or with the files of an index; see also
        `load_config`.

    Raises:
      ValueError: for another suffix; for a file that is missing, damaged, larger than the memory,
        or without tensors by name; for a folder that lacks files or tensors of its index; and if
        the package that reads the file is not installed.
    """
    if os.path.isdir(path):
        return _read_folder(Path(path))
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    unknown = f"{os.fspath(path)}: the suffix {suffix!r} is unknown, and there is no such folder"
    known = suffix in (".safetensors", ".pth", ".pt")
    require(known, f"{unknown}; give a file .safetensors, .pth or .pt, or a folder")
    return _read_safetensors(path) if suffix == ".safetensors" else _read_torch(path)


def load_config(folder: PathLike) -> dict[str, Any]:
    """Reads the settings of a model, such as its sizes, from a Hugging Face folder's `config.json`.

    Args:
      folder: the folder; `load_weights` reads its weights.

    Raises:
      ValueError: for a file that is missing or damaged.
    """
    path = Path(folder, "config.json")
    with reading(path, "an object of JSON", "fetch it again"):
        content = files.parse_json(files.read_file(path))
        require(isinstance(content, dict), f"it is a {type(content).__name__}")
    return content


def _read_folder(folder: Path) -> dict[str, np.ndarray]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return _read_safetensors(folder / "model.safetensors")
    kind = "a folder with all files and tensors of its index"
    with reading(folder, kind, "fetch it again", KeyError, TypeError, AttributeError):
        places = files.parse_json(files.read_file(index))["weight_map"]  # the file of each tensor
        named = set(places.values())
        require(named, "its index names no tensor")
        paths = [path for path in folder.iterdir() if path.name in named]
        size = sum(path.stat().st_size for path in paths)
        files.check_array_bytes("its tensors", size, "give a smaller model")
        parts = {path.name: _read_safetensors(path) for path in paths}
        return {name: parts[file][name] for name, file in places.items()}


def _read_safetensors(path: PathLike) -> dict[str, np.ndarray]:
    safetensors = needed("safetensors", "a file .safetensors")
    errors = safetensors.SafetensorError, KeyError  # of a type that NumPy does not have
    fix = "write it with safetensors in types of NumPy, or fetch it again"
    with reading(path, "a safetensors file", fix, *errors), files.open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        files.check_array_bytes("its tensors", size, "give a smaller file")
        return {
            name: np.frombuffer(tensor["data"], _TYPES[tensor["dtype"]]).reshape(tensor["shape"])
            for name, tensor in safetensors.deserialize(file.read())
        }


def _read_torch(path: PathLike) -> dict[str, np.ndarray]:
    torch = needed("torch", "a file .pth or .pt", ", or save the weights as safetensors")
    fix = "save the state dict of the model alone, as safetensors"
    # torch raises many types for damaged files: from pickle, from archives, and its own
    with reading(path, "a PyTorch file of tensors", fix, Exception):
        files.require_regular(path)
        files.check_array_bytes("its tensors", os.path.getsize(path), "give a smaller file")
        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:  # its message advises to run the file
            raise ValueError("it is damaged or holds other objects than tensors") from error
        arrays = {}
        for name, tensor in tensors.items():
            is_tensor = isinstance(tensor, torch.Tensor)
            require(is_tensor, f"{name!r} is a {type(tensor).__name__}, not a tensor")
            narrow = tensor.dtype == torch.bfloat16  # NumPy does not know it
            arrays[name] = (tensor.float() if narrow else tensor).detach().numpy()
    return arrays


def convert_weights(
    weights: Weights, names: Names, model: Model, *, head: Head = "loaded"
) -> Model:
    """Returns a model with the weights of a network in PyTorch's names and order of axes.

    A weight [out, in, height, width] becomes a kernel [height, width, in, out], and [out, in]
    becomes [in, out]. Each tensor must have its leaf, and each leaf its tensor, except for
    BatchNorm's counters `num_batches_tracked`, which have no counterpart. Narrower floats are cast
    to the model's type; wider ones are refused.

    Args:
      weights: float[...] by name, as `load_weights` returns them.
      names: the name in `weights` of each module of the model by path, such as
        {"stem/Conv_0": "features.0.0"}. A path stands for all modules below it; PyTorch's names of
        the leaves kernel, scale, bias, embedding, mean and var are added. The path of a leaf takes
        precedence: it has the tensor's whole name, or (name, convert), where `convert` makes the
        leaf from the tensor or a part of it. A module that the weights do not have, such as an
        adapter, has None and keeps the leaves of `model`.
      model: a model of the same structure. Only the shapes and types of its leaves are read, so
        `jax.eval_shape(problem.init, key)` suffices.
      head: "new" leaves the params of the module "head" as in `model`, and ignores its tensors.

    Returns:
      NumPy arrays of the model's types; new heads and paths with None are as in `model`.

    Raises:
      ValueError: for missing, surplus, wrongly shaped and infinite tensors, with their names.
    """
    check_choice("head", head, get_args(Head))
    used: set[str] = set()
    known = ", ".join(sorted(weights)[:3])[:200]

    def converted(path, leaf):
        place = jax.tree_util.keystr(path, simple=True, separator="/")
        source = _source(place, names)
        if source is None:
            return leaf
        name, convert = source
        used.add(name)
        if head == "new" and place.startswith("head/"):
            return leaf
        lacking = f"the weights have no {name!r}, which {place} needs; they have {known} and so on"
        require(name in weights, f"{lacking}; give the weights of this network")
        return _checked(name, place, convert(weights[name]), leaf)

    over_paths: Any = jax.tree_util.tree_map_with_path
    params = over_paths(converted, model.params)  # paths of statistics begin with the collection
    statistics = over_paths(lambda path, leaf: converted(path[1:], leaf), model.statistics)
    surplus = sorted(name for name in set(weights) - used if not name.endswith(_COUNTER))
    listed = f"the weights have {', '.join(map(repr, surplus[:5]))} ({len(surplus)} in all)"
    fix = "give the weights of this network (running means belong to BatchNorm)"
    require(not surplus, f"{listed}, which the model has no place for; {fix}")
    return model._replace(params=params, statistics=statistics)


def pretrained(
    problem: Problem, weights: PathLike | Weights, names: Sequence[Names], *, head: Head = "loaded"
) -> Problem:
    """Returns the problem with given weights in its initial model.

    `init` takes the arrays from the host when it runs, so its program does not contain them.

    Args:
      problem: made by `classifier` or `nnx_classifier`, or another one whose params and statistics
        are nested dicts. Call `freeze` afterwards, and leave out `trainable` of `nnx_classifier`.
      weights: the file, or the tensors by name; they stay in memory.
      names: as for `convert_weights`, one for each naming; the best match is taken.
      head: "new" draws the params of the module "head" as without weights, for other classes.

    Raises:
      ValueError: as `load_weights` and `convert_weights`.
    """
    tensors = weights if isinstance(weights, Mapping) else load_weights(weights)
    known = set(tensors) | {name.rpartition(".")[0] for name in tensors}
    given: Sequence[Names] = [names] if isinstance(names, Mapping) else names

    def num_known(names):
        found = (value[0] if isinstance(value, tuple) else value for value in names.values())
        return sum(name in known for name in found)

    loaded = convert_weights(tensors, max(given, key=num_known), problem.shapes(), head=head)

    def from_host(initial, given):
        if isinstance(given, jax.ShapeDtypeStruct):  # the weights do not have it
            return initial
        return jax.pure_callback(lambda: given, jax.ShapeDtypeStruct(given.shape, given.dtype))

    return problem._replace(init=lambda key: jax.tree.map(from_host, problem.init(key), loaded))


def _source(place: str, names: Names) -> tuple[str, Convert] | None:
    """Returns the name of a leaf's tensor and how to convert it; None for a new leaf."""
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
    raise ValueError(f"names have none for {place}; add its path or its module's path")


def _to_kernel(weight: np.ndarray) -> np.ndarray:
    """Transposes [out, in, ...] to [..., in, out]."""
    return weight if weight.ndim < 2 else weight.transpose(*range(2, weight.ndim), 1, 0)


def _checked(name: str, place: str, given: np.ndarray, leaf: Any) -> np.ndarray:
    """Checks a converted tensor and casts it to the type of its leaf."""
    narrow = jnp.issubdtype(given.dtype, jnp.floating)
    narrow = narrow and jnp.promote_types(given.dtype, leaf.dtype) == leaf.dtype
    becomes = f"{name!r} becomes {describe_tree(given)}, but {place} is {describe_tree(leaf)}"
    fix = "give the weights of this network"
    fix = "for other classes give head='new'" if place.startswith("head/") else fix
    fits = given.shape == leaf.shape and narrow
    require(fits, f"{becomes}; {fix}, or convert them to {leaf.dtype}")
    array = np.asarray(given, leaf.dtype, order="C")  # also of a scalar
    require(np.isfinite(array).all(), f"{name!r} has infinities or NaN; give other weights")
    return array


def with_weights(
    problem: Problem, weights: PathLike | Weights | None, head: Head, names: Sequence[Names]
) -> Problem:
    """Returns the problem with the weights of a file, or unchanged without one."""
    if weights is not None:
        return pretrained(problem, weights, names, head=head)
    require(head == "loaded", f"head={head!r} has no effect without weights; give weights=FILE")
    return problem
