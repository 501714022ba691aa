"""The names of PyTorch's weights, such as torchvision's and timm's, for this package's networks."""

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from fedjax_algos.core import Problem
from fedjax_algos.core.files import PathLike
from fedjax_algos.models.large.weights import Head, Names, Weights, pretrained

Stages: TypeAlias = Sequence[Any]  # each with a number of blocks and an expansion


def with_weights(
    problem: Problem, weights: PathLike | Weights | None, head: Head, names: Sequence[Names]
) -> Problem:
    """The problem with the weights of a file, or unchanged without one."""
    if weights is not None:
        return pretrained(problem, weights, names, head=head)
    if head != "loaded":
        raise ValueError(f"head={head!r} has no effect without weights; give weights=FILE, too")
    return problem


def mobilenet_v2_names(stages: Stages) -> list[Names]:
    """The names of torchvision's and of timm's MobileNetV2."""
    blocks = _blocks(stages)
    names = _unit("stem", "features.0") | _unit("last", f"features.{len(blocks) + 1}")
    for index, (_, _, ours, units) in enumerate(blocks, 1):
        theirs = f"features.{index}.conv"
        for place, unit in enumerate(units):
            names |= _unit(f"{ours}/{unit}", f"{theirs}.{place}")
        project = f"{theirs}.{len(units)}", f"{theirs}.{len(units) + 1}"
        names |= _unit(f"{ours}/project", *project)
    return [names | {"head": "classifier.1"}, _timm_names(blocks)]


def efficientnet_names(stages: Stages) -> list[Names]:
    """The names of torchvision's and of timm's EfficientNet."""
    blocks = _blocks(stages)
    names = _unit("stem", "features.0") | _unit("last", f"features.{len(stages) + 1}")
    for stage, block, ours, units in blocks:
        theirs, count = f"features.{stage + 1}.{block}.block", len(units)
        for place, unit in enumerate(units):
            names |= _unit(f"{ours}/{unit}", f"{theirs}.{place}")
        names[f"{ours}/squeeze_excitation/reduce"] = f"{theirs}.{count}.fc1"
        names[f"{ours}/squeeze_excitation/expand"] = f"{theirs}.{count}.fc2"
        names |= _unit(f"{ours}/project", f"{theirs}.{count + 1}")
    return [names | {"head": "classifier.1"}, _timm_names(blocks)]


def vision_transformer_names(depth: int, grid: tuple[int, int]) -> list[Names]:
    """The names of torchvision's and of timm's ViT; positions are resized to rows and columns."""
    positions = functools.partial(resize_positions, grid=grid)
    packed = "SelfAttention_0/query_key_value"  # each head by head, in both of them, too
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
    """float[1, 1 + patches, width], with a square of patches, for another grid; others unchanged.

    As in timm, patches' positions are resized as an image, bicubic with a = -1/2 and antialiasing;
    that of the class token, the first one, stays. Torchvision's `interpolate_embeddings` has
    `align_corners=True` and a = -3/4 without antialiasing.
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
    """The names for `UNet3D` of the package `unet` and of FLamby."""
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
    """(stage, block, name of its module, units before the last) of all blocks."""
    return [
        (number, block, f"stage{number}_block{block}", ["expand", "depthwise"][s.expansion == 1 :])
        for number, s in enumerate(stages)
        for block in range(s.blocks)
    ]


def residual_names(blocks: Sequence[int], convolutions: int) -> list[Names]:
    """torchvision's and timm's for blocks of some convolutions, without their shortcut's."""
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
    """Of a convolution and its normalisation; by default the two parts of one module."""
    if not normalisation:
        convolution, normalisation = f"{convolution}.0", f"{convolution}.1"
    return {f"{ours}/convolution": convolution, f"{ours}/normalisation": normalisation}


def _rows_of_patches(weight):
    """[width, channels, rows, columns] to [inputs, width], in the order of the patches' pixels."""
    return weight.transpose(2, 3, 1, 0).reshape(-1, weight.shape[0])
