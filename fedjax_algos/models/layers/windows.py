"""Windows that move over an image: what convolution, pooling and their costs agree on."""

from collections.abc import Sequence
from typing import Any

import jax

Padding = str | int | Sequence[int | tuple[int, int]]


def pair(each: Any) -> Any:
    """One number for both axes, twice; what is not a number as it is."""
    return (each, each) if isinstance(each, int) else each


def pads(
    padding: Padding, size: Sequence[int], window: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """The rows and columns that a padding adds, ((top, bottom), (left, right)).

    Args:
      padding: "VALID", "SAME", one number for all sides, or for each axis a number or a pair.
      size: of the image.
      window: of the kernel or the pooling window.
      strides: of the window.

    Raises:
      ValueError: for any other padding.
    """
    if isinstance(padding, str) and padding.upper() in ("VALID", "SAME"):
        return list(jax.lax.padtype_to_pads(size, window, strides, padding.upper()))
    each = pair(padding)
    if isinstance(each, str) or len(each) != 2:
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
    """Rows and columns that a window meets in an image with these pads; none if it does not fit."""
    return [
        max(0, (length + sum(side) - extent) // stride + 1)
        for length, extent, stride, side in zip(size, window, strides, sides, strict=True)
    ]
