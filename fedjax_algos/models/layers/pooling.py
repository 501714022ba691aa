"""Pooling that is fast when it is mapped over clients and differentiated in a loop."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_algos.models.layers.windows import Padding, pads


def max_pool(
    images: jax.Array,
    window_shape: tuple[int, int],
    strides: tuple[int, int] | None = None,
    padding: Padding = "VALID",
) -> jax.Array:
    """`flax.linen.max_pool` for images; strides default to 1, as in Flax.

    Windows without overlap and padding are separated by reshaping; others fall back to
    `flax.linen.max_pool`. The first of several largest entries receives the gradient, as in Flax.

    Args:
      images: float[batch, height, width, channels].
      window_shape: height and width of the window.
      strides: of the window along both axes; (1, 1) if None.
      padding: as for `pads`.

    Returns:
      float[batch, rows, columns, channels].
    """
    strides = strides or (1, 1)
    sides = pads(padding, images.shape[1:3], window_shape, strides)
    if tuple(strides) == tuple(window_shape) and not any(map(any, sides)):
        return _pool(images, tuple(window_shape))
    return nn.max_pool(images, window_shape, strides, sides)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _pool(images, window):
    return functools.reduce(jnp.maximum, _corners(images, window))


def _corners(images, window):
    """The entries at each position of all windows, each [batch, rows, columns, channels]."""
    batch, height, width, channels = images.shape
    rows, columns = height // window[0], width // window[1]
    whole = images[:, : rows * window[0], : columns * window[1]]
    split = whole.reshape(batch, rows, window[0], columns, window[1], channels)
    return [split[:, :, i, :, j] for i in range(window[0]) for j in range(window[1])]


def _pool_forward(images, window):
    largest = _pool(images, window)
    return largest, (images, largest)


def _pool_backward(window, residuals, gradient):
    images, largest = residuals
    taken = jnp.zeros(largest.shape, bool)
    parts = []
    for corner in _corners(images, window):
        first = (corner == largest) & ~taken
        taken |= first
        parts.append(jnp.where(first, gradient, 0))
    batch, rows, columns, channels = largest.shape
    split = jnp.stack(parts, axis=3).reshape(batch, rows, columns, *window, channels)
    whole = split.transpose(0, 1, 3, 2, 4, 5).reshape(
        batch, rows * window[0], columns * window[1], channels
    )
    rest = [(0, a - b) for a, b in zip(images.shape, whole.shape, strict=True)]
    return (jnp.pad(whole, rest),)


_pool.defvjp(_pool_forward, _pool_backward)
