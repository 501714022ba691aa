"""Windows that move over an image or a volume, for convolution, pooling and their costs."""

from collections.abc import Sequence
from typing import Any

import jax

Padding = str | int | Sequence[int | tuple[int, int]]  # see `pads`


def pair(each: Any) -> Any:
    """A number for both axes as a pair; any other value unchanged.

    Args:
      each: a number, or what is given for each axis.
    """
    return (each, each) if isinstance(each, int) else each


def pads(
    padding: Padding, size: Sequence[int], window: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """What a padding adds before and after each axis: [(top, bottom), (left, right)] of an image.

    Args:
      padding: "VALID", "SAME", one number for all sides, or for each axis a number or a pair.
      size: height and width of the image, after the depth of a volume.
      window: likewise, of the kernel or the pooling window.
      strides: of the window along each axis.

    Raises:
      ValueError: for any other padding.
    """
    if isinstance(padding, str) and padding.upper() in ("VALID", "SAME"):
        return list(jax.lax.padtype_to_pads(size, window, strides, padding.upper()))
    each = (padding,) * len(size) if isinstance(padding, int) else padding
    if isinstance(each, str) or len(each) != len(size):
        raise ValueError(
            f"padding={padding!r} is unknown; give VALID, SAME, a number, or one for each axis"
        )
    return [(side, side) if isinstance(side, int) else side for side in each]


def output_size(
    size: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    sides: Sequence[tuple[int, int]],
) -> list[int]:
    """The number of outputs along each axis; 0 if the window does not fit.

    Args:
      size: height and width of the image, after the depth of a volume.
      window: likewise, of the kernel or the pooling window.
      strides: of the window along each axis.
      sides: what padding adds, as `pads` returns them.
    """
    return [
        max(0, (length + sum(side) - extent) // stride + 1)
        for length, extent, stride, side in zip(size, window, strides, sides, strict=True)
    ]
