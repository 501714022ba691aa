"""Convolution that is fast when each client has its own weights.

Mapped over clients, `lax.conv` becomes one grouped convolution, whose gradient inside a loop on a
CPU is tens of times slower. If patches are gathered by slices and multiplied with the kernel, it
has matrix products and additions only. So has Winograd's form, with fewer products.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from fedjax_algos.core.files import require
from fedjax_algos.core.options import check_choice

Implementation = Literal["auto", "patches", "winograd", "lax"]
Convolutions = Literal["auto", "patches", "lax"]  # for layers of any shape
# VALID, SAME, a number for all sides, or for each axis a number or a pair
Padding = str | int | Sequence[int | tuple[int, int]]
Sizes = Sequence[int]  # one for each axis
Sides = Sequence[tuple[int, int]]  # entries added before and after, for each axis
_MIN_WINOGRAD_CHANNELS = 16  # channels and features from which "auto" uses Winograd's form


def pair(each: Any) -> Any:
    """A number for both axes as a pair; any other value unchanged."""
    return (each, each) if isinstance(each, int) else each


def pads(padding: Padding, size: Sizes, window: Sizes, strides: Sizes) -> list[tuple[int, int]]:
    """What a padding adds to each axis: [(top, bottom), (left, right)] of an image."""
    if isinstance(padding, str) and padding.upper() in ("VALID", "SAME"):
        return list(jax.lax.padtype_to_pads(size, window, strides, padding.upper()))
    each = (padding,) * len(size) if isinstance(padding, int) else padding
    if isinstance(each, str) or len(each) != len(size):
        fix = "give VALID, SAME, a number, or one for each axis"
        raise ValueError(f"padding={padding!r} is unknown; {fix}")
    return [(side, side) if isinstance(side, int) else side for side in each]


def output_size(size: Sizes, window: Sizes, strides: Sizes, sides: Sides) -> list[int]:
    """The number of outputs along each axis with the `pads`; 0 if the window does not fit."""
    return [
        max(0, (length + sum(side) - extent) // stride + 1)
        for length, extent, stride, side in zip(size, window, strides, sides, strict=True)
    ]


def whole_outputs(
    size: Sizes, window: Sizes, strides: Sizes, sides: Sides, pool: Sizes
) -> tuple[list[int], list[int]]:
    """`output_size`, and how many outputs are in whole pools; ValueError for none."""
    outputs = output_size(size, window, strides, sides)
    whole = [length // extent * extent for length, extent in zip(outputs, pool, strict=True)]
    small = f"inputs of {size} are too small: a window of {window} leaves {outputs} for a pool of"
    fix = "give larger inputs, or a model with fewer layers"
    require(min(whole) > 0, f"{small} {pool}; {fix}")
    return outputs, whole


def apply_layer(layer: Any, inputs: jax.Array, shape: Sizes, convolve: Any, **more: Any) -> Any:
    """The outputs of a layer with Flax's fields, and a kernel of a shape; its params and bias."""
    kernel = layer.param("kernel", layer.kernel_init, shape, layer.param_dtype)
    bias = None
    if layer.use_bias:
        bias = layer.param("bias", layer.bias_init, shape[-1:], layer.param_dtype)
    inputs, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=layer.dtype)
    options = {"padding": layer.padding, "implementation": layer.implementation}
    outputs = convolve(inputs, kernel, **more, **options)
    return outputs if bias is None else outputs + bias.reshape(*(1,) * (outputs.ndim - 1), -1)


def convolve(
    images: jax.Array,
    kernel: jax.Array,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: Padding = "SAME",
    pool: tuple[int, int] = (1, 1),
    implementation: Implementation = "auto",
) -> jax.Array:
    """Two-dimensional convolution (cross-correlation, as is usual in deep learning).

    Args:
      images: float[batch, height, width, channels].
      kernel: float[height, width, channels, features].
      strides: strides of the window along both axes.
      padding: "VALID", "SAME", a number for all sides, or for each axis one or (before, after).
      pool: height and width of a following pool without padding, whose strides are its size.
        Outputs that the pool ignores are not computed.
      implementation: "patches" gathers patches and multiplies them; "winograd" needs fewer
        products, for 3x3 kernels with strides of 1; "lax" is `lax.conv_general_dilated`. "auto" is
        winograd on a CPU for float32 and float64 if that form applies and there are at least 16
        channels and 16 features, and otherwise patches; costs are counted as those of patches.
        Results agree up to rounding; in float32 winograd's error is up to a few times the others'.
        Only "lax" has forward-mode derivatives (`jax.jvp`).

    Returns:
      float[batch, height, width, features], cut to whole pools.

    Raises:
      ValueError: for an unknown padding or implementation, an image that is too small for one pool
        of outputs, and "winograd" for other kernels or strides.
    """
    check_choice("implementation", implementation, get_args(Implementation))
    size, window = images.shape[1:3], kernel.shape[:2]
    sides = pads(padding, size, window, strides)
    outputs, whole = whole_outputs(size, window, strides, sides, pool)
    if implementation == "lax":
        convolved = jax.lax.conv_general_dilated(
            images, kernel, strides, sides, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return convolved[:, : whole[0], : whole[1]]
    padded = jnp.pad(images, ((0, 0), *sides, (0, 0))) if any(map(any, sides)) else images
    if whole != outputs:
        rows, columns = (
            (length - 1) * stride + extent
            for length, stride, extent in zip(whole, strides, window, strict=True)
        )
        padded = padded[:, :rows, :columns]
    return _select(implementation, kernel, strides, padded.dtype)(padded, kernel)


def _select(implementation, kernel, strides, dtype):
    """The function that convolves padded images of a dtype with this kernel."""
    window, strides = kernel.shape[:2], tuple(strides)
    winograd_applies = window == (3, 3) and strides == (1, 1)
    if implementation == "winograd":
        wrong = f"a kernel of {window} with strides of {strides} has no winograd form"
        fix = "give a kernel of (3, 3) with strides of 1, or implementation='auto'"
        require(winograd_applies, f"{wrong}; {fix}")
        return _winograd
    precise = jnp.result_type(dtype, kernel) in (jnp.float32, jnp.float64)  # its sums need the bits
    large = min(kernel.shape[2:]) >= _MIN_WINOGRAD_CHANNELS
    if implementation == "auto" and winograd_applies and precise and large:
        return _by_platform
    return functools.partial(_by_patches, strides=strides)


@jax.custom_vjp
def _by_platform(images, kernel):
    """Selects the form at compile time, so that traces and counted costs do not depend on it."""
    return jax.lax.platform_dependent(images, kernel, cpu=_winograd, default=_by_patches)


def _by_platform_forward(images, kernel):
    return _by_platform(images, kernel), (images, kernel)


def _by_platform_backward(residuals, gradient):
    """Recomputes each form's residuals, which the compiler removes; else both would be stored."""

    def gradient_of(form):
        return lambda images, kernel, gradient: jax.vjp(form, images, kernel)[1](gradient)

    forms = {"cpu": gradient_of(_winograd), "default": gradient_of(_by_patches)}
    return jax.lax.platform_dependent(*residuals, gradient, **forms)


_by_platform.defvjp(_by_platform_forward, _by_platform_backward)


def _by_patches(images, kernel, strides=(1, 1)):
    patches = _patches(images, kernel.shape[:2], strides)
    rows, weights = patches.reshape(-1, patches.shape[-1]), kernel.reshape(-1, kernel.shape[-1])
    return _multiply(rows, weights).reshape(*patches.shape[:-1], -1)


def _patches(images, window, strides):
    """float[batch, height, width, window * channels]: the inputs of each output pixel."""
    rows, columns = output_size(images.shape[1:3], window, strides, [(0, 0)] * 2)
    (down, right), channels = strides, images.shape[3]
    if rest := -images.shape[2] % right:
        images = jnp.pad(images, ((0, 0), (0, 0), (0, rest), (0, 0)))
    # as many columns as the stride are one slice without gaps, which is copied faster
    grouped = images.reshape(*images.shape[:2], -1, right * channels)
    parts = [
        grouped[
            :,
            i : i + (rows - 1) * down + 1 : down,
            j // right : j // right + columns,
            : min(right, window[1] - j) * channels,
        ]
        for i in range(window[0])
        for j in range(0, window[1], right)
    ]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


@jax.custom_vjp
def _multiply(rows, weights):
    """`rows @ weights`, float[n, k] and float[k, m], with another order in its gradient."""
    return rows @ weights


def _multiply_forward(rows, weights):
    return _multiply(rows, weights), (rows, weights)


def _multiply_backward(residuals, gradient):
    """The gradient of `@`; with the longer side of the weights last, a CPU is 1.5 times as fast."""
    rows, weights = residuals
    over_rows = (((0,), (0,)), ((), ()))
    if rows.shape[1] <= gradient.shape[1]:
        to_weights = jax.lax.dot_general(rows, gradient, over_rows)
    else:
        wide = jax.lax.dot_general(gradient, rows, over_rows)
        to_weights = jax.lax.optimization_barrier(wide).T  # else XLA restores the other order
    return gradient @ weights.T, to_weights


_multiply.defvjp(_multiply_forward, _multiply_backward)


def _winograd(images, kernel):
    """A convolution without padding and with strides of 1 by Winograd's minimal filtering, F(2, 3).

    Two neighbouring outputs y of a filter g of three over inputs d take four products, not six:

        m = (d_0 - d_2) g_0,  (d_1 + d_2) (g_0 + g_1 + g_2) / 2,
            (d_2 - d_1) (g_0 - g_1 + g_2) / 2,  (d_1 - d_3) g_2
        y = m_0 + m_1 + m_2,  m_1 - m_2 - m_3

    Along both axes a tile of 2x2 outputs takes 16 products of matrices [tiles, channels] and
    [channels, features] instead of 36. Lavin and Gray, "Fast Algorithms for Convolutional Neural
    Networks", CVPR 2016, https://arxiv.org/abs/1509.09308.
    """
    batch, height, width, channels = images.shape
    if height % 2 or width % 2:  # completes the tiles
        images = jnp.pad(images, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)))
    inputs = [part for row in _inputs(images, 1) for part in _inputs(row, 2)]
    filters = [part for row in _filters(kernel) for part in _filters(row)]
    _, down, right, _ = inputs[0].shape
    rows = jnp.stack([part.reshape(-1, channels) for part in inputs])
    products = jax.vmap(_multiply)(rows, jnp.stack(filters))
    tile_rows = _outputs(products.reshape(4, 4, batch, down, right, -1))
    tiles = jnp.stack([jnp.stack(_outputs(row), 3) for row in tile_rows], 2)
    return tiles.reshape(batch, 2 * down, 2 * right, -1)[:, : height - 2, : width - 2]


def _filters(kernel):
    first, middle, last = kernel
    outer = first + last
    return first, (outer + middle) / 2, (outer - middle) / 2, last


def _outputs(products):
    first, plus, minus, last = products
    return first + plus + minus, plus - minus - last


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _inputs(images, axis):
    """The four sums of all tiles, which start at every second index of an axis."""
    reach = images.shape[axis] - 3  # from the first tile to the last
    d = [jax.lax.slice_in_dim(images, i, i + reach, 2, axis) for i in range(4)]
    return d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]


def _inputs_forward(images, axis):
    return _inputs(images, axis), None


def _inputs_backward(axis, _, gradients):
    """Even and odd indices are summed separately; scattering each into zeros would be slower."""
    first, plus, minus, last = gradients

    def padded(part, before, after):
        sides = [(0, 0)] * part.ndim
        sides[axis] = before, after
        return jnp.pad(part, sides)

    even = padded(first, 0, 1) + padded(plus + minus - first, 1, 0)
    odd = padded(plus - minus + last, 0, 1) - padded(last, 1, 0)
    pairs = jnp.stack([even, odd], axis + 1)
    shape = list(even.shape)
    shape[axis] *= 2
    return (pairs.reshape(shape),)


_inputs.defvjp(_inputs_forward, _inputs_backward)


class Conv(nn.Module):
    """`flax.linen.Conv` for images, with the same fields, parameters and results.

    `pool` and `implementation` are those of `convolve`.
    """

    features: int
    kernel_size: tuple[int, int]
    strides: int | tuple[int, int] = 1
    padding: Padding = "SAME"
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Callable = nn.initializers.lecun_normal()
    bias_init: Callable = nn.initializers.zeros_init()
    pool: tuple[int, int] = (1, 1)
    implementation: Implementation = "auto"

    @nn.compact
    def __call__(self, images):
        shape = (*self.kernel_size, images.shape[-1], self.features)
        strides = pair(self.strides)
        return apply_layer(self, images, shape, convolve, strides=strides, pool=self.pool)
