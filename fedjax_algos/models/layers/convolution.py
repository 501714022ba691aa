"""Convolution that stays fast when each client has weights of its own.

Mapped over clients, `lax.conv` becomes one grouped convolution, and on a CPU its gradient inside a
loop takes a path that is tens of times slower. Gathering the patches by slices and multiplying them
with the kernel has a gradient of matrix products and additions only, mapped or not, looped or not;
and so has Winograd's form, with fewer products.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from fedjax_algos.models.layers.products import multiply
from fedjax_algos.models.layers.windows import Padding, output_size, pads, pair
from fedjax_algos.models.layers.winograd import winograd

Implementation = Literal["auto", "patches", "winograd", "lax"]
_WINOGRAD_PAYS = 16  # channels and features, at least


def convolve(
    images: jax.Array,
    kernel: jax.Array,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: Padding = "SAME",
    pool: tuple[int, int] = (1, 1),
    implementation: Implementation = "auto",
) -> jax.Array:
    """Two-dimensional convolution (cross-correlation, as everywhere in deep learning).

    Args:
      images: float[batch, height, width, channels].
      kernel: float[height, width, channels, features].
      strides: of the window.
      padding: as for `pads`.
      pool: the window of a pool behind it without padding, with strides of its size: what that
        would leave out, the last row of an odd number of them for a window of 2, is not computed.
      implementation: "patches" gathers and multiplies; "winograd" does so with fewer products, for
        3x3 kernels with strides of 1 (`winograd.py`); "lax" is `lax.conv_general_dilated`. "auto"
        is winograd on a CPU, for 32 bits or more, where it fits and there are 16 channels and
        features or more, and patches else; operations are counted as those of patches everywhere.
        They agree up to rounding. Only "lax" has forward-mode derivatives (`jax.jvp`).

    Returns:
      float[batch, height, width, features], whole pools.

    Raises:
      ValueError: for an unknown padding or implementation, an image in which not even one pool of
        outputs fits, and "winograd" where that form does not fit.
    """
    if implementation not in get_args(Implementation):
        raise ValueError(
            f"implementation={implementation!r} is unknown; choose one of "
            f"{', '.join(get_args(Implementation))}"
        )
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
    seen = jnp.pad(images, ((0, 0), *sides, (0, 0))) if any(map(any, sides)) else images
    if whole != outputs:
        rows, columns = (
            (length - 1) * stride + extent
            for length, stride, extent in zip(whole, strides, window, strict=True)
        )
        seen = seen[:, :rows, :columns]
    return _form(implementation, kernel, strides, seen.dtype)(seen, kernel)


def _form(implementation, kernel, strides, dtype):
    """What convolves images of a dtype, padded, with this kernel."""
    window, strides = kernel.shape[:2], tuple(strides)
    fits = window == (3, 3) and strides == (1, 1)
    if implementation == "winograd" and not fits:
        raise ValueError(
            f"a kernel of {window} with strides of {strides} has no winograd form; give a kernel "
            "of (3, 3) with strides of 1, or implementation='auto'"
        )
    if implementation == "winograd":
        return winograd
    wide = jnp.result_type(dtype, kernel) in (jnp.float32, jnp.float64)  # sums need the bits
    if implementation == "auto" and fits and wide and min(kernel.shape[2:]) >= _WINOGRAD_PAYS:
        return _by_platform
    return functools.partial(_by_patches, strides=strides)


@jax.custom_vjp
def _by_platform(images, kernel):
    """Chosen where it is compiled, so that a trace, and what is counted in it, is the same."""
    return jax.lax.platform_dependent(images, kernel, cpu=winograd, default=_by_patches)


def _by_platform_forward(images, kernel):
    return _by_platform(images, kernel), (images, kernel)


def _by_platform_backward(residuals, gradient):
    """What each form keeps for itself is made again, or the other's would be kept with it.

    The compiler sees that it was there before.
    """

    def back(form):
        return lambda images, kernel, gradient: jax.vjp(form, images, kernel)[1](gradient)

    return jax.lax.platform_dependent(
        *residuals, gradient, cpu=back(winograd), default=back(_by_patches)
    )


_by_platform.defvjp(_by_platform_forward, _by_platform_backward)


def _by_patches(images, kernel, strides=(1, 1)):
    patches = _patches(images, kernel.shape[:2], strides)
    rows, weights = patches.reshape(-1, patches.shape[-1]), kernel.reshape(-1, kernel.shape[-1])
    return multiply(rows, weights).reshape(*patches.shape[:-1], -1)


def _patches(images, window, strides):
    """float[batch, height, width, window * channels]: what each output pixel looks at."""
    rows, columns = output_size(images.shape[1:3], window, strides, [(0, 0)] * 2)
    down, right = strides
    shifted = [
        images[:, i : i + (rows - 1) * down + 1 : down, j : j + (columns - 1) * right + 1 : right]
        for i in range(window[0])
        for j in range(window[1])
    ]
    return shifted[0] if len(shifted) == 1 else jnp.concatenate(shifted, axis=-1)


class Conv(nn.Module):
    """`flax.linen.Conv` for images, with the same parameters and the same results.

    Of its options it has those below; `kernel_size`, `strides` and `padding` mean the same. `pool`
    and `implementation` are those of `convolve`.
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
