"""Depthwise convolution and pooling that are fast when each client has its own weights.

A sum of shifted images, each times one weight per channel, stays elementwise if it is mapped
over clients. So does the maximum of shifted images. On a CPU, `lax.conv_general_dilated` with a
group for each channel is slow, and so is the gradient of a window's maximum in a loop. Accelerators
use these two.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.core.options import check_choice
from fedjax_algos.models.layers import convolution, native
from fedjax_algos.models.layers.convolution import Padding, Sizes

DepthwiseImplementation = Literal["auto", "shifts", "lax"]


def shifted(images: jax.Array, window: Sizes, strides: Sizes) -> Iterator[jax.Array]:
    """Yields the pixels under each entry of the window, [batch, rows, columns, channels]."""
    rows, columns = convolution.output_size(images.shape[1:3], window, strides, [(0, 0)] * 2)
    down, right = strides
    for i, j in itertools.product(*map(range, window)):
        ends = i + (rows - 1) * down + 1, j + (columns - 1) * right + 1
        yield images[:, i : ends[0] : down, j : ends[1] : right]


def convolve_depthwise(
    images: jax.Array,
    kernel: jax.Array,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: Padding = "SAME",
    implementation: DepthwiseImplementation = "auto",
) -> jax.Array:
    """Two-dimensional convolution of each channel with a filter of its own.

    Args:
      images, strides, padding: as for `convolve`.
      kernel: float[height, width, 1, channels], as Flax has it for as many groups as channels.
      implementation: "shifts" adds products of shifted images and weights; "lax" is
        `lax.conv_general_dilated`. "auto" is lax on a GPU or TPU, oneDNN's on a CPU as in
        `convolve`, and otherwise shifts; FLOPs are counted as for shifts. Results agree up to
        rounding. Only "lax" supports `jax.jvp`.

    Returns:
      float[batch, rows, columns, channels].

    Raises:
      ValueError: for an unknown padding or implementation, another kernel shape, and images smaller
        than the window.
    """
    check_choice("implementation", implementation, get_args(DepthwiseImplementation))
    shapes = f"kernel has shape {kernel.shape}, and the images have {images.shape[-1]} channels"
    fits = kernel.ndim == 4 and kernel.shape[2:] == (1, images.shape[-1])
    require(fits, f"{shapes}; give a kernel [height, width, 1, {images.shape[-1]}]")
    static = convolution.geometry(images, kernel, strides, padding)
    if implementation == "auto":
        on_cpu = native.convolve if native.applies(images, kernel) else None
        form = convolution.by_platform(_by_padded_shifts, native.by_lax, on_cpu, **static)
        return form(images, kernel)
    form = native.by_lax if implementation == "lax" else _by_padded_shifts
    return form(images, kernel, **static)


def _by_padded_shifts(images, kernel, strides, sides, whole):
    padded = jnp.pad(images, ((0, 0), *sides, (0, 0))) if any(map(any, sides)) else images
    return _by_shifts(padded, kernel, strides)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _by_shifts(images, kernel, strides):
    """Convolves padded images."""
    images = jax.lax.optimization_barrier(images)  # otherwise each weight would pad them again
    weights = kernel[:, None, :, None]  # [height, 1, width, 1, 1, channels]
    places = itertools.product(*map(range, kernel.shape[:2]))
    parts = zip(shifted(images, kernel.shape[:2], strides), places, strict=True)
    return functools.reduce(jnp.add, (part * weights[i, :, j] for part, (i, j) in parts))


def _backward(strides, residuals, gradient):
    images, kernel = residuals
    to_kernel = _kernel_gradient(images, gradient, kernel.shape[:2], strides)
    # to the images: the gradient, spread by the strides, convolved with the mirrored kernel
    sides = [(0, 0, 0)]
    for axis in (1, 2):
        extent, stride = kernel.shape[axis - 1], strides[axis - 1]
        rest = (images.shape[axis] - extent) % stride  # inputs that no window reaches
        sides.append((extent - 1, extent - 1 + rest, stride - 1))
    spread = jax.lax.pad(gradient, jnp.zeros((), gradient.dtype), [*sides, (0, 0, 0)])
    return _by_shifts(spread, kernel[::-1, ::-1], (1, 1)), to_kernel.astype(kernel.dtype)


def _kernel_gradient(images, gradient, window, strides):
    """Sums shifted images times the gradient over batch, rows and columns."""
    # a CPU adds arrays several times as fast as it sums over inner axes, and longer ones faster
    channels = images.shape[-1]
    count, shape = window[0] * window[1], gradient.shape[1:]
    long = (-1, shape[1] * channels) if strides[1] == 1 else (-1, *shape[1:])

    def add(totals, example):
        image, of_outputs = example
        parts = shifted(image[None], window, strides)
        own = of_outputs.reshape(long)
        return [t + p.reshape(long) * own for t, p in zip(totals, parts, strict=True)], None

    start = [jnp.zeros(gradient[0].reshape(long).shape, gradient.dtype)] * count
    totals, _ = jax.lax.scan(add, start, (images, gradient))
    sums = [total.reshape(-1, channels).sum(0) for total in totals]
    return jnp.stack(sums).reshape(*window, 1, channels)


_by_shifts.defvjp(lambda *inputs: (_by_shifts(*inputs), inputs[:2]), _backward)


class DepthwiseConv(nn.Module):
    """`flax.linen.Conv` with as many features and groups as channels: one filter for each channel.

    Fields, parameters and results are the same; `implementation` is as in `convolve_depthwise`.
    """

    kernel_size: tuple[int, int]
    strides: int | tuple[int, int] = 1
    padding: Padding = "SAME"
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Callable = nn.initializers.lecun_normal()
    bias_init: Callable = nn.initializers.zeros_init()
    implementation: DepthwiseImplementation = "auto"

    @nn.compact
    def __call__(self, images):
        shape = (*self.kernel_size, 1, images.shape[-1])
        return convolution.apply_layer(self, images, shape, convolve_depthwise)


def max_pool(
    images: jax.Array,
    window_shape: tuple[int, int],
    strides: tuple[int, int] | None = None,
    padding: Padding = "VALID",
) -> jax.Array:
    """`flax.linen.max_pool` for images, with a gradient that is fast in loops.

    The first of several largest entries receives the gradient, as in Flax. Forward mode (`jax.jvp`)
    is not supported.

    Args:
      images, padding: as for `convolve`.
      window_shape: height and width of the window.
      strides: strides of the window along both axes; (1, 1) if None.

    Returns:
      float[batch, rows, columns, channels].
    """
    window, stride = tuple(window_shape), tuple(strides or (1, 1))
    sides = convolution.pads(padding, images.shape[1:3], window, stride)
    static = {"window_shape": window, "strides": stride, "padding": tuple(map(tuple, sides))}
    return convolution.by_platform(_pool_padded, nn.max_pool, **static)(images)


def _pool_padded(images, window_shape, strides, padding):
    if any(map(any, padding)):
        images = jnp.pad(images, ((0, 0), *padding, (0, 0)), constant_values=-jnp.inf)
    elif strides == window_shape:  # windows without overlap are separated by reshaping
        return _pool(images, window_shape)
    return _pool_shifted(images, window_shape, strides)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _pool(images, window):
    return functools.reduce(jnp.maximum, _corners(images, window))


def _corners(images, window):
    """Returns [batch, rows, columns, channels] for each position in the windows."""
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
    """Gives each entry the gradients of all windows where it is the first largest entry."""
    images, largest = residuals
    first = jnp.full(largest.shape, -1, jnp.int32)  # position in its window
    for position, entry in reversed(list(enumerate(shifted(images, window, strides)))):
        first = jnp.where(entry == largest, position, first)
    size = [-(-images.shape[1 + axis] // strides[axis]) for axis in (0, 1)]
    before = [(window[axis] - 1) // strides[axis] for axis in (0, 1)]
    sides = [(before[axis], size[axis] - largest.shape[1 + axis]) for axis in (0, 1)]
    sides = ((0, 0), *sides, (0, 0))
    first = jax.lax.optimization_barrier(jnp.pad(first, sides, constant_values=-1))
    gradient = jax.lax.optimization_barrier(jnp.pad(gradient, sides))

    def of_remainders(*remainders):  # these entries have the same positions in their windows
        total = jnp.zeros((len(images), *size, images.shape[3]), gradient.dtype)
        for i, j in itertools.product(*map(range, remainders, window, strides)):
            top, left = before[0] - i // strides[0], before[1] - j // strides[1]
            at = np.s_[:, top : top + size[0], left : left + size[1]]
            total += jnp.where(first[at] == i * window[1] + j, gradient[at], 0)
        return total

    down, right = strides
    rows = [jnp.stack([of_remainders(i, j) for j in range(right)], 3) for i in range(down)]
    shape = len(images), size[0] * strides[0], size[1] * strides[1], images.shape[3]
    return (jnp.stack(rows, 2).reshape(shape)[:, : images.shape[1], : images.shape[2]],)


_pool_shifted.defvjp(_shifted_forward, _shifted_backward)
