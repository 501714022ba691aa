"""Pretrained weights: reads files of tensors, and converts PyTorch's names and axes to params."""

import functools
import math
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
from fedjax_algos.base.reprs import printable
from fedjax_algos.core import Model, Problem
from fedjax_algos.core.options import check_choice

Head = Literal["loaded", "new"]
Weights: TypeAlias = Mapping[str, np.ndarray]
Convert: TypeAlias = Callable[[np.ndarray], np.ndarray]
Names: TypeAlias = Mapping[str, str | tuple[str, Convert] | None]  # see `convert_weights`

Stages: TypeAlias = Sequence[Any]  # of a network, each with a number of blocks and an expansion

_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
_LEAVES |= {"bias": "bias", "mean": "running_mean", "var": "running_var"}
_COUNTER = "num_batches_tracked"  # of BatchNorm layers; only torch's cumulative means read it
_SAFETENSORS = {
    "BOOL": np.bool_, "BF16": jnp.bfloat16, "F16": np.float16, "F32": np.float32,
    "F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
    "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64,
}  # fmt: skip


def load_weights(path: PathLike) -> dict[str, np.ndarray]:
    """Reads the tensors of a file by name, such as a state dict of PyTorch.

    Args:
      path: a .safetensors file, which needs the package safetensors (extra `weights`), or a .pth or
        .pt file, which torch reads with `weights_only=True`, so that nothing in it is run. Or a
        Hugging Face folder with one or several .safetensors files; see also `load_config`.

    Raises:
      ValueError: for another suffix; for a file that is missing, damaged, larger than the memory,
        or without tensors by name; for a folder that lacks files or tensors of its index; and if
        the package that reads the file is not installed.
    """
    if os.path.isdir(path):
        return _read_folder(Path(path))
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    readers = {".safetensors": _read_safetensors, ".pth": _read_torch, ".pt": _read_torch}
    unknown = f"{os.fspath(path)}: the suffix {suffix!r} is unknown, and there is no such folder"
    require(suffix in readers, f"{unknown}; give a file .safetensors, .pth or .pt, or a folder")
    return readers[suffix](path)


def load_config(folder: PathLike) -> dict[str, Any]:
    """Reads the settings of a model, such as its sizes, from a Hugging Face folder's `config.json`.

    Args:
      folder: the folder; `load_weights` reads its weights.

    Raises:
      ValueError: for a file that is missing or damaged.
    """
    return _read_json(Path(folder, "config.json"))


def _read_json(path: Path) -> dict[str, Any]:
    with reading(path, "an object of JSON", "fetch it again"):
        content = files.parse_json(files.read_file(path))
        require(isinstance(content, dict), f"it is a {type(content).__name__}")
    return content


def _read_folder(folder: Path) -> dict[str, np.ndarray]:
    """Reads the tensors of the files that the index names, or of all .safetensors files."""
    places: dict[str, str] = {}  # the file of each tensor
    index = folder / "model.safetensors.index.json"
    if index.exists():
        places = _read_json(index).get("weight_map", {})
    with reading(folder, "a folder of weights", "fetch it again"):
        listed = sorted(path.name for path in folder.iterdir())
        names = sorted(set(places.values())) or [n for n in listed if n.endswith(".safetensors")]
        shown = ", ".join(listed)[:200] or "nothing"
        require(names, f"it has no file .safetensors but {shown}; give the folder of the model")
        lacking = next((name for name in names if name not in listed), None)
        require(lacking is None, f"it has no {lacking}, which its index names, but {shown}")
        size = sum((folder / name).stat().st_size for name in names)
        files.check_array_bytes("its tensors", size, "give a smaller model")
        arrays: dict[str, np.ndarray] = {}
        for name in names:
            part = _read_safetensors(folder / name)
            twice = next(iter(arrays.keys() & part.keys()), None)
            require(twice is None, f"{twice!r} is in two of its files; remove one of them")
            arrays |= part
        missing = next((name for name in places if name not in arrays), None)
        require(missing is None, f"its files have no {missing!r}, which its index names")
    return arrays


def _read_safetensors(path: PathLike) -> dict[str, np.ndarray]:
    safetensors = needed("safetensors", "a file .safetensors")
    fix = "write it with safetensors, or fetch it again"
    errors = safetensors.SafetensorError
    with reading(path, "a safetensors file", fix, errors), files.open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        files.check_array_bytes("its tensors", size, "give a smaller file")
        arrays = {}
        for name, tensor in safetensors.deserialize(file.read()):
            kind = tensor["dtype"]
            require(kind in _SAFETENSORS, f"{name!r} has the unsupported type {kind}")
            values = np.frombuffer(tensor["data"], _SAFETENSORS[kind])
            arrays[name] = values.reshape(tensor["shape"])
    return arrays


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

    params = jax.tree_util.tree_map_with_path(converted, model.params)
    statistics: Any = jax.tree_util.tree_map_with_path(  # its paths begin with the collection
        lambda path, leaf: converted(path[1:], leaf), model.statistics
    )
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
    shapes = jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0))
    source = "the weights" if isinstance(weights, Mapping) else printable(os.fspath(weights))
    known = set(tensors) | {name.rpartition(".")[0] for name in tensors}
    given: Sequence[Names] = [names] if isinstance(names, Mapping) else names

    def num_known(names):
        found = (value[0] if isinstance(value, tuple) else value for value in names.values())
        return sum(name in known for name in found)

    try:
        loaded = convert_weights(tensors, max(given, key=num_known), shapes, head=head)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error

    def from_host(own, given):
        if isinstance(given, jax.ShapeDtypeStruct):  # it is not given
            return own
        return jax.pure_callback(lambda: given, jax.ShapeDtypeStruct(given.shape, given.dtype))

    return problem._replace(init=lambda key: jax.tree.map(from_host, problem.init(key), loaded))


def _source(place: str, names: Names) -> tuple[str, Convert] | None:
    """Returns the name of a leaf's tensor, and what converts it; None for a new leaf."""
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
    """[out, in, ...] to [..., in, out]."""
    return weight if weight.ndim < 2 else weight.transpose(*range(2, weight.ndim), 1, 0)


def _checked(name: str, place: str, given: np.ndarray, leaf: Any) -> np.ndarray:
    """Returns the array in the type of the leaf, checked."""
    fix = "for other classes give head='new', which draws a new head"
    fix = fix if place.startswith("head/") else "give the weights of this network"
    becomes = f"{name!r} becomes {list(given.shape)}, but {place} is {list(leaf.shape)}"
    require(given.shape == leaf.shape, f"{becomes}; {fix}")
    narrow = jnp.issubdtype(given.dtype, jnp.floating)
    narrow = narrow and jnp.promote_types(given.dtype, leaf.dtype) == leaf.dtype
    types = f"{name!r} has type {given.dtype}, and {place} {leaf.dtype}"
    require(narrow, f"{types}; convert it to {leaf.dtype}")
    array = np.asarray(given, leaf.dtype, order="C")  # also of a scalar
    finite = np.isfinite(array).all()
    require(finite, f"{name!r} has numbers that are not finite; give other weights")
    return array


def with_weights(
    problem: Problem, weights: PathLike | Weights | None, head: Head, names: Sequence[Names]
) -> Problem:
    """Returns the problem with the weights of a file, or unchanged without one."""
    if weights is not None:
        return pretrained(problem, weights, names, head=head)
    fix = "also give weights=FILE"
    require(head == "loaded", f"head={head!r} has no effect without weights; {fix}")
    return problem


def inverted_residual_names(stages: Stages, squeeze: bool) -> list[Names]:
    """Returns torchvision's and timm's names of EfficientNet, or MobileNetV2 without `squeeze`."""
    blocks = _blocks(stages)
    last = len(stages if squeeze else blocks) + 1
    names = _unit("stem", "features.0") | _unit("last", f"features.{last}")
    for index, (stage, block, ours, units) in enumerate(blocks, 1):
        theirs, count = f"features.{stage + 1}.{block}.block", len(units)
        project = f"{theirs}.{count + 1}", ""
        if squeeze:
            names[f"{ours}/squeeze_excitation/reduce"] = f"{theirs}.{count}.fc1"
            names[f"{ours}/squeeze_excitation/expand"] = f"{theirs}.{count}.fc2"
        else:
            theirs = f"features.{index}.conv"
            project = f"{theirs}.{count}", f"{theirs}.{count + 1}"
        for place, unit in enumerate(units):
            names |= _unit(f"{ours}/{unit}", f"{theirs}.{place}")
        names |= _unit(f"{ours}/project", *project)
    return [names | {"head": "classifier.1"}, _timm_names(blocks)]


def vision_transformer_names(depth: int, grid: tuple[int, int]) -> list[Names]:
    """Returns torchvision's and timm's names of ViT; positions are resized to rows and columns."""
    positions = functools.partial(resize_positions, grid=grid)
    packed = "SelfAttention_0/query_key_value"  # head by head in both libraries
    kernels = [(f"{name}.weight", _rows_of_patches) for name in ("conv_proj", "patch_embed.proj")]
    rows: list[Any] = [
        ("class_token", "class_token", "cls_token"),
        ("position_embedding", ("encoder.pos_embedding", positions), ("pos_embed", positions)),
        ("patch_embedding/kernel", *kernels),
        ("patch_embedding/bias", "conv_proj.bias", "patch_embed.proj.bias"),
        ("LayerNorm_0", "encoder.ln", "norm"),
        ("head", "heads.head", "head"),
    ]
    of_block = [
        ("LayerNorm_0", "ln_1", "norm1"),
        (f"{packed}/kernel", "self_attention.in_proj_weight", "attn.qkv.weight"),
        (f"{packed}/bias", "self_attention.in_proj_bias", "attn.qkv.bias"),
        ("SelfAttention_0/projection", "self_attention.out_proj", "attn.proj"),
        ("LayerNorm_1", "ln_2", "norm2"),
        ("Dense_0", "mlp.0", "mlp.fc1"),
        ("Dense_1", "mlp.3", "mlp.fc2"),
    ]
    for index in range(depth):
        of_torchvision, of_timm = f"encoder.layers.encoder_layer_{index}", f"blocks.{index}"
        rows += [
            (f"EncoderBlock_{index}/{ours}", f"{of_torchvision}.{first}", f"{of_timm}.{second}")
            for ours, first, second in of_block
        ]
    return [{ours: theirs[n] for ours, *theirs in rows} for n in (0, 1)]


def resize_positions(embedding: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Resizes a square of patches, float[1, 1 + patches, width], to a grid; keeps other arrays.

    As in timm: bicubic with a = -1/2 and antialiasing; the class token, the first one, stays.
    """
    patches = embedding.shape[1] - 1 if embedding.ndim == 3 else 0
    side = math.isqrt(max(patches, 0))
    if side * side != patches or (side, side) == grid or not patches:
        return embedding
    narrow = np.dtype(embedding.dtype).itemsize < 4  # timm interpolates in float32
    dtype = np.float32 if narrow else embedding.dtype
    image = embedding[0, 1:].reshape(side, side, -1).astype(dtype)
    with jax.ensure_compile_time_eval():  # also where a model is made in a function that is traced
        resized = jax.image.resize(image, (*grid, image.shape[-1]), "bicubic")
    resized = np.asarray(resized, dtype).reshape(1, grid[0] * grid[1], -1)
    return np.concatenate([embedding[:, :1].astype(dtype), resized], 1)


def unet_3d_names(levels: int) -> Names:
    """Returns the names of `UNet3D` in the package `unet` and in FLamby."""
    blocks = [f"encoder.encoding_blocks.{level}" for level in range(levels - 1)]
    blocks += ["bottom_block", *(f"decoder.decoding_blocks.{n}" for n in range(levels - 1))]
    names: dict[str, Any] = {
        "head/kernel": ("classifier.conv_layer.weight", lambda weight: weight[..., 0, 0, 0].T),
        "head/bias": "classifier.conv_layer.bias",
    }
    for index, layer in enumerate(f"{block}.conv{n}" for block in blocks for n in (1, 2)):
        ours = f"ConvolutionalLayer_{index}"
        names[f"{ours}/Conv3D_0"] = f"{layer}.conv_layer"
        names[f"{ours}/Normalisation_0"] = f"{layer}.norm_layer"
        slope = f"{layer}.activation_layer.weight", lambda weight: weight.reshape(())
        names[f"{ours}/PReLU_0/negative_slope"] = slope
    return names


def _timm_names(blocks: Sequence[Any]) -> Names:
    names = _unit("stem", "conv_stem", "bn1") | _unit("last", "conv_head", "bn2")
    for stage, block, ours, units in blocks:
        theirs, count = f"blocks.{stage}.{block}", len(units)
        kinds = {"expand": "conv_pw", "depthwise": "conv_dw"}
        for place, unit in enumerate(units, 1):
            names |= _unit(f"{ours}/{unit}", f"{theirs}.{kinds[unit]}", f"{theirs}.bn{place}")
        names[f"{ours}/squeeze_excitation/reduce"] = f"{theirs}.se.conv_reduce"
        names[f"{ours}/squeeze_excitation/expand"] = f"{theirs}.se.conv_expand"
        kind = "conv_pwl" if "expand" in units else "conv_pw"
        names |= _unit(f"{ours}/project", f"{theirs}.{kind}", f"{theirs}.bn{count + 1}")
    return names | {"head": "classifier"}


def _blocks(stages: Stages) -> list[tuple[int, int, str, list[str]]]:
    """Lists (stage, block, name of its module, units before the last) of all blocks."""
    return [
        (number, block, f"stage{number}_block{block}", ["expand", "depthwise"][s.expansion == 1 :])
        for number, s in enumerate(stages)
        for block in range(s.blocks)
    ]


def residual_names(blocks: Sequence[int], convolutions: int) -> list[Names]:
    """Returns torchvision's and timm's names; blocks have `convolutions` besides the shortcut's."""
    names = {"Conv_0": "conv1", "Normalisation_0": "bn1", "head": "fc"}
    kind = {2: "Block", 3: "Bottleneck"}[convolutions]
    theirs = [f"layer{stage}.{n}" for stage, count in enumerate(blocks, 1) for n in range(count)]
    for number, block in enumerate(theirs):
        parts = [(f"conv{n}", f"bn{n}") for n in range(1, convolutions + 1)]
        for n, (conv, norm) in enumerate([*parts, ("downsample.0", "downsample.1")]):
            names[f"{kind}_{number}/Conv_{n}"] = f"{block}.{conv}"
            names[f"{kind}_{number}/Normalisation_{n}"] = f"{block}.{norm}"
    return [names]


def _unit(ours: str, convolution: str, normalisation: str = "") -> dict[str, Any]:
    """Names a convolution and its normalisation, by default the two parts of one module."""
    if not normalisation:
        convolution, normalisation = f"{convolution}.0", f"{convolution}.1"
    return {f"{ours}/convolution": convolution, f"{ours}/normalisation": normalisation}


def _rows_of_patches(weight):
    """[width, channels, rows, columns] to [inputs, width], in the order of the patches' pixels."""
    return weight.transpose(2, 3, 1, 0).reshape(-1, weight.shape[0])
