"""Depthwise convolution that is fast when each client has its own weights.

As a sum of shifted images, each times one weight for each channel, it stays elementwise if it is
mapped over clients. `lax.conv_general_dilated` with a group for each channel is slow on a CPU.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_algos.core.options import check_choice
from fedjax_algos.models.layers.convolution import (
    Padding,
    apply_layer,
    pads,
    pair,
    shifted,
    whole_outputs,
)

DepthwiseImplementation = Literal["shifts", "lax"]


def convolve_depthwise(
    images: jax.Array,
    kernel: jax.Array,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: Padding = "SAME",
    implementation: DepthwiseImplementation = "shifts",
) -> jax.Array:
    """Two-dimensional convolution of each channel with a filter of its own.

    Args:
      images, strides, padding: as for `convolve`.
      kernel: float[height, width, 1, channels], as Flax has it for as many groups as channels.
      implementation: "shifts" adds the products of shifted images and weights; "lax" is
        `lax.conv_general_dilated`. Results agree up to rounding. Only "lax" has forward-mode
        derivatives (`jax.jvp`).

    Returns:
      float[batch, rows, columns, channels].

    Raises:
      ValueError: for an unknown padding or implementation, a kernel of another shape, and an image
        that is smaller than the window.
    """
    check_choice("implementation", implementation, get_args(DepthwiseImplementation))
    if kernel.ndim != 4 or kernel.shape[2:] != (1, images.shape[-1]):
        raise ValueError(
            f"kernel has shape {kernel.shape}, and the images have {images.shape[-1]} channels; "
            f"give a kernel [height, width, 1, {images.shape[-1]}]"
        )
    size, window = images.shape[1:3], kernel.shape[:2]
    sides = pads(padding, size, window, strides)
    whole_outputs(size, window, strides, sides, (1, 1))
    if implementation == "lax":
        return jax.lax.conv_general_dilated(
            images, kernel, strides, sides, dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=images.shape[-1],
        )  # fmt: skip
    padded = jnp.pad(images, ((0, 0), *sides, (0, 0))) if any(map(any, sides)) else images
    return _by_shifts(padded, kernel, tuple(strides))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _by_shifts(images, kernel, strides):
    """The convolution of padded images."""
    images = jax.lax.optimization_barrier(images)  # otherwise each weight would pad them again
    weights = kernel[:, None, :, None]  # [height, 1, width, 1, 1, channels]
    places = itertools.product(*map(range, kernel.shape[:2]))
    parts = zip(shifted(images, kernel.shape[:2], strides), places, strict=True)
    return functools.reduce(jnp.add, (part * weights[i, :, j] for part, (i, j) in parts))


def _forward(images, kernel, strides):
    return _by_shifts(images, kernel, strides), (images, kernel)


def _backward(strides, residuals, gradient):
    images, kernel = residuals
    to_kernel = _kernel_gradient(images, gradient, kernel.shape[:2], strides)
    return _image_gradient(images, kernel, gradient, strides), to_kernel.astype(kernel.dtype)


def _image_gradient(images, kernel, gradient, strides):
    """The convolution of the gradient, spread by the strides, with the mirrored kernel."""
    sides = [(0, 0, 0)]
    for axis in (1, 2):
        extent, stride = kernel.shape[axis - 1], strides[axis - 1]
        rest = (images.shape[axis] - extent) % stride  # inputs that no window reaches
        sides.append((extent - 1, extent - 1 + rest, stride - 1))
    spread = jax.lax.pad(gradient, jnp.zeros((), gradient.dtype), [*sides, (0, 0, 0)])
    return _by_shifts(spread, kernel[::-1, ::-1], (1, 1))


def _kernel_gradient(images, gradient, window, strides):
    """The sums over batch, rows and columns of shifted images times the gradient."""
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


_by_shifts.defvjp(_forward, _backward)


class DepthwiseConv(nn.Module):
    """`flax.linen.Conv` with as many features and groups as channels: one filter for each channel.

    It has the same fields, parameters and results; `implementation` is that of
    `convolve_depthwise`.
    """

    kernel_size: tuple[int, int]
    strides: int | tuple[int, int] = 1
    padding: Padding = "SAME"
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Callable = nn.initializers.lecun_normal()
    bias_init: Callable = nn.initializers.zeros_init()
    implementation: DepthwiseImplementation = "shifts"

    @nn.compact
    def __call__(self, images):
        shape = (*self.kernel_size, 1, images.shape[-1])
        return apply_layer(self, images, shape, convolve_depthwise, strides=pair(self.strides))
