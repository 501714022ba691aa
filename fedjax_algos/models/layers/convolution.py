"""Convolution that is fast when each client has its own weights.

Mapped over clients, `lax.conv` becomes one grouped convolution, and on a CPU its gradient inside a
loop takes a path that is tens of times slower. If patches are gathered by slices and multiplied
with the kernel, the gradient consists of matrix products and additions only, mapped or not, in a
loop or not. The same holds for Winograd's form, which has fewer products.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from fedjax_algos.core.options import check_choice
from fedjax_algos.models.layers.products import multiply
from fedjax_algos.models.layers.windows import Padding, output_size, pads, pair
from fedjax_algos.models.layers.winograd import winograd

Implementation = Literal["auto", "patches", "winograd", "lax"]
_MIN_WINOGRAD_CHANNELS = 16  # channels and features from which "auto" uses Winograd's form


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
      strides: of the window along both axes.
      padding: as for `pads`.
      pool: height and width of a following pool without padding, whose strides are its size.
        Outputs that the pool ignores are not computed, such as the last of an odd number of rows
        for a pool of 2.
      implementation: "patches" gathers patches and multiplies them; "winograd" needs fewer
        products, for 3x3 kernels with strides of 1 (`winograd.py`); "lax" is
        `lax.conv_general_dilated`. "auto" is winograd on a CPU for float32 and float64 if that form
        applies and there are at least 16 channels and 16 features, and otherwise patches; costs are
        counted as those of patches on all platforms. Results agree up to rounding. Only "lax" has
        forward-mode derivatives (`jax.jvp`).

    Returns:
      float[batch, height, width, features], cut to whole pools.

    Raises:
      ValueError: for an unknown padding or implementation, an image that is too small for one pool
        of outputs, and "winograd" for other kernels or strides.
    """
    check_choice("implementation", implementation, get_args(Implementation))
    size, window = images.shape[1:3], kernel.shape[:2]
    sides = pads(padding, size, window, strides)
    outputs = output_size(size, window, strides, sides)
    whole = [length // extent * extent for length, extent in zip(outputs, pool, strict=True)]
    if min(whole) < 1:
        raise ValueError(
            f"images of {size} are too small: a convolution of {window} leaves {outputs}, and a "
            f"pool of {pool} nothing; give larger images or a model with fewer layers"
        )
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
    if implementation == "winograd" and not winograd_applies:
        raise ValueError(
            f"a kernel of {window} with strides of {strides} has no winograd form; give a kernel "
            "of (3, 3) with strides of 1, or implementation='auto'"
        )
    if implementation == "winograd":
        return winograd
    precise = jnp.result_type(dtype, kernel) in (jnp.float32, jnp.float64)  # its sums need the bits
    large = min(kernel.shape[2:]) >= _MIN_WINOGRAD_CHANNELS
    if implementation == "auto" and winograd_applies and precise and large:
        return _by_platform
    return functools.partial(_by_patches, strides=strides)


@jax.custom_vjp
def _by_platform(images, kernel):
    """Selects the form at compile time, so that traces and counted costs do not depend on it."""
    return jax.lax.platform_dependent(images, kernel, cpu=winograd, default=_by_patches)


def _by_platform_forward(images, kernel):
    return _by_platform(images, kernel), (images, kernel)


def _by_platform_backward(residuals, gradient):
    """Recomputes each form's residuals; otherwise those of both forms would be stored.

    The compiler removes the repeated computation.
    """

    def gradient_of(form):
        return lambda images, kernel, gradient: jax.vjp(form, images, kernel)[1](gradient)

    return jax.lax.platform_dependent(
        *residuals, gradient, cpu=gradient_of(winograd), default=gradient_of(_by_patches)
    )


_by_platform.defvjp(_by_platform_forward, _by_platform_backward)


def _by_patches(images, kernel, strides=(1, 1)):
    patches = _patches(images, kernel.shape[:2], strides)
    rows, weights = patches.reshape(-1, patches.shape[-1]), kernel.reshape(-1, kernel.shape[-1])
    return multiply(rows, weights).reshape(*patches.shape[:-1], -1)


def _patches(images, window, strides):
    """float[batch, height, width, window * channels]: the inputs of each output pixel.

    Neighbouring columns, as many as the stride, are one slice without gaps: it is copied faster.
    """
    rows, columns = output_size(images.shape[1:3], window, strides, [(0, 0)] * 2)
    (down, right), channels = strides, images.shape[3]
    rest = -images.shape[2] % right
    if rest:
        images = jnp.pad(images, ((0, 0), (0, 0), (0, rest), (0, 0)))
    grouped = images.reshape(*images.shape[:2], -1, right * channels)
    shifted = [
        grouped[
            :,
            i : i + (rows - 1) * down + 1 : down,
            j // right : j // right + columns,
            : min(right, window[1] - j) * channels,
        ]
        for i in range(window[0])
        for j in range(0, window[1], right)
    ]
    return shifted[0] if len(shifted) == 1 else jnp.concatenate(shifted, axis=-1)


class Conv(nn.Module):
    """`flax.linen.Conv` for images, with the same parameters and the same results.

    The fields have the meaning that they have in Flax, except for `pool` and `implementation`,
    which are those of `convolve`.
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
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        bias = None
        if self.use_bias:
            bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype)
        images, kernel, bias = promote_dtype(images, kernel, bias, dtype=self.dtype)
        outputs = convolve(
            images,
            kernel,
            strides=pair(self.strides),
            padding=self.padding,
            pool=self.pool,
            implementation=self.implementation,
        )
        return outputs if bias is None else outputs + bias.reshape(1, 1, 1, -1)
