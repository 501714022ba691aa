"""Convolution and pooling that stay fast when each client has weights of its own.

Mapped over clients, `lax.conv` becomes one grouped convolution, and on a CPU its gradient inside a
loop takes a path that is tens of times slower. Gathering the patches by slices and multiplying them
with the kernel has a gradient of matrix products and additions only, mapped or not, looped or not;
and so has Winograd's form, with fewer products.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from fedjax_algos.models.winograd import winograd

Implementation = Literal["auto", "patches", "winograd", "lax"]
_WINOGRAD_PAYS = 16  # channels and features, at least
Padding = str | int | Sequence[int | tuple[int, int]]


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
    each = (padding,) * 2 if isinstance(padding, int) else padding
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
        return _by_winograd
    wide = jnp.result_type(dtype, kernel) in (jnp.float32, jnp.float64)  # sums need the bits
    if implementation == "auto" and fits and wide and min(kernel.shape[2:]) >= _WINOGRAD_PAYS:
        return _by_platform
    return functools.partial(_by_patches, strides=strides)


@jax.custom_vjp
def _by_platform(images, kernel):
    """Chosen where it is compiled, so that a trace, and what is counted in it, is the same."""
    return jax.lax.platform_dependent(images, kernel, cpu=_by_winograd, default=_by_patches)


def _by_platform_forward(images, kernel):
    return _by_platform(images, kernel), (images, kernel)


def _by_platform_backward(residuals, gradient):
    """What each form keeps for itself is made again, or the other's would be kept with it.

    The compiler sees that it was there before.
    """

    def back(form):
        return lambda images, kernel, gradient: jax.vjp(form, images, kernel)[1](gradient)

    return jax.lax.platform_dependent(
        *residuals, gradient, cpu=back(_by_winograd), default=back(_by_patches)
    )


_by_platform.defvjp(_by_platform_forward, _by_platform_backward)


def _by_winograd(images, kernel):
    return winograd(images, kernel, _product)


def _by_patches(images, kernel, strides=(1, 1)):
    patches = _patches(images, kernel.shape[:2], strides)
    rows, weights = patches.reshape(-1, patches.shape[-1]), kernel.reshape(-1, kernel.shape[-1])
    return _product(rows, weights).reshape(*patches.shape[:-1], -1)


@jax.custom_vjp
def _product(rows, weights):
    return rows @ weights


def _product_forward(rows, weights):
    return _product(rows, weights), (rows, weights)


def _product_backward(residuals, gradient):
    """As `@` has it, but for the order in which the gradient of the weights is multiplied.

    With the longer side last a CPU is half as fast again; and where `@` leaves the order to XLA, it
    transposes the gradient of all rows first.
    """
    rows, weights = residuals
    over_rows = (((0,), (0,)), ((), ()))
    if rows.shape[1] <= gradient.shape[1]:
        to_weights = jax.lax.dot_general(rows, gradient, over_rows)
    else:
        wide = jax.lax.dot_general(gradient, rows, over_rows)
        to_weights = jax.lax.optimization_barrier(wide).T  # without it XLA swaps them back
    return gradient @ weights.T, to_weights


_product.defvjp(_product_forward, _product_backward)


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
        strides = (self.strides,) * 2 if isinstance(self.strides, int) else self.strides
        outputs = convolve(
            images,
            kernel,
            strides=strides,
            padding=self.padding,
            pool=self.pool,
            implementation=self.implementation,
        )
        return outputs if bias is None else outputs + bias.reshape(1, 1, 1, -1)


def max_pool(
    images: jax.Array,
    window_shape: tuple[int, int],
    strides: tuple[int, int] | None = None,
    padding: Padding = "VALID",
) -> jax.Array:
    """`flax.linen.max_pool` for images; note that both default to strides of 1.

    Windows that neither overlap nor are padded are cut out by reshaping; others fall back to
    `flax.linen.max_pool`. Of several largest entries the first takes the gradient, as there.

    Args:
      images: float[batch, height, width, channels].
      window_shape: height and width.
      strides: 1 if None.
      padding: as for `pads`.
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
    """The entries of each window, one array [batch, rows, columns, channels] for each place."""
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
