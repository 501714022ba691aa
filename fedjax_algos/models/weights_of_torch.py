"""The names of torchvision's and timm's weights for the modules of this package's networks."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from fedjax_algos.core import Problem
from fedjax_algos.data.dataset import PathLike
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
