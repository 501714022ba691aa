"""The names of PyTorch's weights, such as torchvision's and timm's, for this package's networks."""

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

from fedjax_algos.core import Problem
from fedjax_algos.core.files import PathLike
from fedjax_algos.models.resizing import resize_positions
from fedjax_algos.models.weights import Head, Names, Weights, pretrained

Stages: TypeAlias = Sequence[Any]  # each with a number of blocks and an expansion


def with_weights(
    problem: Problem, weights: PathLike | Weights | None, head: Head, names: Sequence[Names]
) -> Problem:
    """The problem with the weights of a file, or unchanged without one.

    Args:
      problem: of a network.
      weights: the file, or the tensors by name; None for none.
      head: as for `pretrained`.
      names: as for `pretrained`.

    Raises:
      ValueError: for a new head without weights, where all params are new.
    """
    if weights is not None:
        return pretrained(problem, weights, names, head=head)
    if head != "loaded":
        raise ValueError(f"head={head!r} has no effect without weights; give weights=FILE, too")
    return problem


def mobilenet_v2_names(stages: Stages) -> list[Names]:
    """The names of torchvision's and of timm's MobileNetV2.

    Args:
      stages: of the network.
    """
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
    """The names of torchvision's and of timm's EfficientNet.

    Args:
      stages: of the network.
    """
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
    """The names for `VisionTransformer`: torchvision's, and timm's.

    Args:
      depth: number of encoder blocks.
      grid: rows and columns of the patches, to which the positions are resized.
    """
    positions = functools.partial(resize_positions, grid=grid)
    torchvision: dict[str, Any] = {
        "class_token": "class_token",
        "position_embedding": ("encoder.pos_embedding", positions),
        "patch_embedding/kernel": ("conv_proj.weight", _rows_of_patches),
        "patch_embedding/bias": "conv_proj.bias",
        "LayerNorm_0": "encoder.ln",
        "head": "heads.head",
    }
    timm: dict[str, Any] = {
        "class_token": "cls_token",
        "position_embedding": ("pos_embed", positions),
        "patch_embedding/kernel": ("patch_embed.proj.weight", _rows_of_patches),
        "patch_embedding/bias": "patch_embed.proj.bias",
        "LayerNorm_0": "norm",
        "head": "head",
    }
    # both have the rows of queries, keys and values one after the other, each head by head
    packed = "SelfAttention_0/query_key_value"
    for index in range(depth):
        ours, theirs = f"EncoderBlock_{index}", f"encoder.layers.encoder_layer_{index}"
        torchvision |= {
            f"{ours}/LayerNorm_0": f"{theirs}.ln_1",
            f"{ours}/{packed}/kernel": f"{theirs}.self_attention.in_proj_weight",
            f"{ours}/{packed}/bias": f"{theirs}.self_attention.in_proj_bias",
            f"{ours}/SelfAttention_0/projection": f"{theirs}.self_attention.out_proj",
            f"{ours}/LayerNorm_1": f"{theirs}.ln_2",
            f"{ours}/Dense_0": f"{theirs}.mlp.0",
            f"{ours}/Dense_1": f"{theirs}.mlp.3",
        }
        theirs = f"blocks.{index}"
        timm |= {
            f"{ours}/LayerNorm_0": f"{theirs}.norm1",
            f"{ours}/{packed}": f"{theirs}.attn.qkv",
            f"{ours}/SelfAttention_0/projection": f"{theirs}.attn.proj",
            f"{ours}/LayerNorm_1": f"{theirs}.norm2",
            f"{ours}/Dense_0": f"{theirs}.mlp.fc1",
            f"{ours}/Dense_1": f"{theirs}.mlp.fc2",
        }
    return [torchvision, timm]


def unet_3d_names(levels: int) -> Names:
    """The names for `UNet3D` of the package `unet` and of FLamby.

    Args:
      levels: number of sizes of the volume.
    """
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
    """The names for `ResidualNetwork`, which torchvision and timm share.

    Args:
      blocks: of each stage.
      convolutions: of a block, without that of its shortcut.
    """
    names = {"Conv_0": "conv1", "Normalisation_0": "bn1", "head": "fc"}
    kind = {2: "Block", 3: "Bottleneck"}[convolutions]
    number = 0
    for stage, count in enumerate(blocks, 1):
        for block in range(count):
            ours, theirs = f"{kind}_{number}", f"layer{stage}.{block}"
            for index in range(convolutions):
                names[f"{ours}/Conv_{index}"] = f"{theirs}.conv{index + 1}"
                names[f"{ours}/Normalisation_{index}"] = f"{theirs}.bn{index + 1}"
            names[f"{ours}/Conv_{convolutions}"] = f"{theirs}.downsample.0"
            names[f"{ours}/Normalisation_{convolutions}"] = f"{theirs}.downsample.1"
            number += 1
    return [names]


def _unit(ours: str, convolution: str, normalisation: str = "") -> dict[str, Any]:
    """Of a convolution and its normalisation; by default the two parts of one module."""
    if not normalisation:
        convolution, normalisation = f"{convolution}.0", f"{convolution}.1"
    return {f"{ours}/convolution": convolution, f"{ours}/normalisation": normalisation}


def _rows_of_patches(weight):
    """[width, channels, rows, columns] to [inputs, width], in the order of the patches' pixels."""
    return weight.transpose(2, 3, 1, 0).reshape(-1, weight.shape[0])
