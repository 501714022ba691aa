"""Pooling that is fast when it is mapped over clients and differentiated in a loop."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.models.layers.convolution import Padding, pads, shifted


def max_pool(
    images: jax.Array,
    window_shape: tuple[int, int],
    strides: tuple[int, int] | None = None,
    padding: Padding = "VALID",
) -> jax.Array:
    """`flax.linen.max_pool` for images, whose gradient is fast in loops.

    The first of several largest entries receives the gradient, as in Flax. There are no
    forward-mode derivatives (`jax.jvp`).

    Args:
      images, padding: as for `convolve`.
      window_shape: height and width of the window.
      strides: strides of the window along both axes; (1, 1) if None.

    Returns:
      float[batch, rows, columns, channels].
    """
    window, stride = tuple(window_shape), tuple(strides or (1, 1))
    sides = pads(padding, images.shape[1:3], window, stride)
    if any(map(any, sides)):
        images = jnp.pad(images, ((0, 0), *sides, (0, 0)), constant_values=-jnp.inf)
    elif stride == window:  # windows without overlap are separated by reshaping
        return _pool(images, window)
    return _pool_shifted(images, window, stride)


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
    shape = batch, rows * window[0], columns * window[1], channels
    whole = split.transpose(0, 1, 3, 2, 4, 5).reshape(shape)
    rest = [(0, a - b) for a, b in zip(images.shape, whole.shape, strict=True)]
    return (jnp.pad(whole, rest),)


_pool.defvjp(_pool_forward, _pool_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _pool_shifted(images, window, strides):
    images = jax.lax.optimization_barrier(images)  # otherwise each shift would pad them again
    return functools.reduce(jnp.maximum, [*shifted(images, window, strides)])


def _shifted_forward(images, window, strides):
    largest = _pool_shifted(images, window, strides)
    return largest, (images, largest)


def _shifted_backward(window, strides, residuals, gradient):
    """Of each entry, the sum over the windows in which it is the first largest one."""
    images, largest = residuals
    first = jnp.full(largest.shape, -1, jnp.int32)  # position in its window
    entries = list(enumerate(shifted(images, window, strides)))
    for position, entry in reversed(entries):
        first = jnp.where(entry == largest, position, first)
    size = [-(-images.shape[1 + axis] // strides[axis]) for axis in (0, 1)]
    before = [(window[axis] - 1) // strides[axis] for axis in (0, 1)]
    sides = [(before[axis], size[axis] - largest.shape[1 + axis]) for axis in (0, 1)]
    sides = ((0, 0), *sides, (0, 0))
    first = jax.lax.optimization_barrier(jnp.pad(first, sides, constant_values=-1))
    gradient = jax.lax.optimization_barrier(jnp.pad(gradient, sides))

    def of_remainders(remainders):  # these entries have the same positions in their windows
        total = jnp.zeros((len(images), *size, images.shape[3]), gradient.dtype)
        for i, j in itertools.product(
            *(range(r, w, s) for r, w, s in zip(remainders, window, strides, strict=True))
        ):
            top, left = before[0] - i // strides[0], before[1] - j // strides[1]
            at = np.s_[:, top : top + size[0], left : left + size[1]]
            total += jnp.where(first[at] == i * window[1] + j, gradient[at], 0)
        return total

    rows = [
        jnp.stack([of_remainders((row, column)) for column in range(strides[1])], 3)
        for row in range(strides[0])
    ]
    shape = len(images), size[0] * strides[0], size[1] * strides[1], images.shape[3]
    whole = jnp.stack(rows, 2).reshape(shape)
    return (whole[:, : images.shape[1], : images.shape[2]],)


_pool_shifted.defvjp(_shifted_forward, _shifted_backward)
