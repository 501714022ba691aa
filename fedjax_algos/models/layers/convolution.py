"""Convolution that is fast when each client has its own weights.

Mapped over clients, `lax.conv` becomes one grouped convolution. On a CPU the gradient of that
inside a loop is tens of times slower than the forms here. Gathering patches by slices and
multiplying them with the kernel needs only matrix products and additions; Winograd's form needs
fewer multiplications. Accelerators use `lax.conv`: with a 3x3 kernel, patches take nine times the
memory of the images, which is gigabytes for a large cohort. The package in `native/` has oneDNN's
convolutions for a CPU, which are faster than all of these.
"""

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from fedjax_algos.base.errors import require
from fedjax_algos.core.options import check_choice
from fedjax_algos.models.layers import native

Implementation = Literal["auto", "patches", "winograd", "lax"]
Convolutions = Literal["auto", "patches", "lax"]  # for layers of any shape
# VALID, SAME, a number for all sides, or for each axis a number or a pair
Padding = str | int | Sequence[int | tuple[int, int]]
Sizes = Sequence[int]  # one for each axis
Sides = Sequence[tuple[int, int]]  # entries added before and after, for each axis
Form = Callable[..., jax.Array]  # a function of arrays: one way to compute a layer
_MIN_WINOGRAD_CHANNELS = 16  # channels and features; "auto" uses Winograd's form from there on
_ACCELERATORS = ("cuda", "rocm", "tpu")


@functools.cache  # so that layers share traces
def by_platform(reference: Form, accelerator: Form, cpu: Form | None = None, **static: Any) -> Form:
    """Joins several forms of one function; the compiler selects the platform's form.

    Traces do not depend on the platform. FLOPs are counted for `reference`, which a CPU also uses
    if `cpu` is None. In reverse mode, each platform uses the gradient of its own form. All forms
    get the options `static`.
    """
    forms = {**dict.fromkeys(_ACCELERATORS, accelerator), "default": reference}
    forms |= {} if cpu is None else {"cpu": cpu}

    def traced_once(change):
        changed = {form: jax.jit(change(partial(form, **static))) for form in forms.values()}
        return {name: changed[form] for name, form in forms.items()}

    def gradient_of(form):
        return lambda inputs, gradient: jax.vjp(form, *inputs)[1](gradient)

    values, gradients = traced_once(lambda form: form), traced_once(gradient_of)
    selected = jax.custom_vjp(lambda *inputs: jax.lax.platform_dependent(*inputs, **values))
    selected.defvjp(
        lambda *inputs: (selected(*inputs), inputs),
        # runs the form again, without the unused parts; else residuals of all forms would be stored
        lambda inputs, gradient: jax.lax.platform_dependent(inputs, gradient, **gradients),
    )

    def apply(*inputs):
        return selected(*(each.astype(jnp.result_type(*inputs)) for each in inputs))

    return apply


def pads(padding: Padding, size: Sizes, window: Sizes, strides: Sizes) -> list[tuple[int, int]]:
    """Returns the padding of each axis, such as [(top, bottom), (left, right)] of an image."""
    if isinstance(padding, str) and padding.upper() in ("VALID", "SAME"):
        return list(jax.lax.padtype_to_pads(size, window, strides, padding.upper()))
    sides = (padding,) * len(size) if isinstance(padding, int) else padding
    if isinstance(sides, str) or len(sides) != len(size):
        fix = "give VALID, SAME, a number, or one for each axis"
        raise ValueError(f"padding={padding!r} is unknown; {fix}")
    return [(side, side) if isinstance(side, int) else side for side in sides]


def output_size(size: Sizes, window: Sizes, strides: Sizes, sides: Sides) -> list[int]:
    """Returns the number of outputs along each axis; 0 if the window does not fit."""
    return [
        max(0, (length + sum(side) - extent) // stride + 1)
        for length, extent, stride, side in zip(size, window, strides, sides, strict=True)
    ]


def check_channels(inputs: jax.Array, kernel: jax.Array) -> None:
    """Checks that a kernel takes the inputs' channels; `lax` would divide them into groups."""
    given, expected = inputs.shape[-1], kernel.shape[-2]
    require(given == expected, f"inputs have {given} channels, but the kernel needs {expected}")


def geometry(
    inputs: jax.Array, kernel: jax.Array, strides: Sizes, padding: Padding, pool: Sizes = ()
) -> dict[str, Any]:
    """Returns strides, padding and the output size, cut to whole pools; ValueError if it is 0."""
    size, window = inputs.shape[1:-1], kernel.shape[:-2]
    sides = pads(padding, size, window, strides)
    outputs = output_size(size, window, strides, sides)
    pool = pool or (1,) * len(size)
    whole = tuple(length // extent * extent for length, extent in zip(outputs, pool, strict=True))
    small = f"inputs of {size} are too small: a window of {window} leaves {outputs} for a pool of"
    require(min(whole) > 0, f"{small} {pool}; give larger inputs, or a model with fewer layers")
    return {"strides": tuple(strides), "sides": tuple(map(tuple, sides)), "whole": whole}


def apply_layer(layer: Any, inputs: jax.Array, shape: Sizes, convolve: Any, **more: Any) -> Any:
    """Applies a layer with Flax's fields and a kernel of this shape; makes its params."""
    kernel = layer.param("kernel", layer.kernel_init, shape, layer.param_dtype)
    bias = None
    if layer.use_bias:
        bias = layer.param("bias", layer.bias_init, shape[-1:], layer.param_dtype)
    inputs, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=layer.dtype)
    strides = layer.strides
    strides = (strides,) * len(layer.kernel_size) if isinstance(strides, int) else strides
    options = {"padding": layer.padding, "implementation": layer.implementation}
    outputs = convolve(inputs, kernel, strides=strides, **more, **options)
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
      padding: "VALID", "SAME", a number for all sides, or for each axis a number or
        (before, after).
      pool: height and width of a following pool without padding, whose strides are its size.
        Outputs that the pool ignores are not computed.
      implementation: "patches" gathers patches and multiplies them; "winograd" needs fewer
        products, for 3x3 kernels with strides of 1; "lax" is `lax.conv_general_dilated`. "auto" is
        lax on a GPU or TPU. On a CPU it is the first that applies: oneDNN's (float32, if the
        package in `native/` is installed), winograd (float32 or float64, at least 16 channels and
        16 features), or patches. FLOPs are counted as for patches. Results agree up to rounding; in
        float32 winograd's error is up to a few times the others'. Only "lax" supports forward mode
        (`jax.jvp`).

    Returns:
      float[batch, height, width, features], cut to whole pools.

    Raises:
      ValueError: for an unknown padding or implementation, an image that is too small for one pool
        of outputs, and "winograd" for other kernels or strides.
    """
    check_channels(images, kernel)
    static = geometry(images, kernel, strides, padding, pool)
    forms: dict[str, Form] = {"patches": _by_patches, "lax": native.by_lax}
    if kernel.shape[:2] == (3, 3) and static["strides"] == (1, 1):
        forms["winograd"] = _winograd
    check_choice("implementation", implementation, ("auto", *forms))
    if implementation != "auto":
        return forms[implementation](images, kernel, **static)
    dtype = jnp.result_type(images, kernel)
    precise = dtype in (jnp.float32, jnp.float64)  # 16 bits are too few for Winograd's sums
    large = min(kernel.shape[2:]) >= _MIN_WINOGRAD_CHANNELS
    on_cpu = forms.get("winograd") if precise and large else None
    on_cpu = native.convolve if native.applies(images, kernel) else on_cpu
    return by_platform(_by_patches, native.by_lax, on_cpu, **static)(images, kernel)


def _padded(images, window, strides, sides, whole):
    """Pads images, and cuts rows and columns that no output in a whole pool reads."""
    outputs = output_size(images.shape[1:3], window, strides, sides)
    if any(map(any, sides)):
        images = jnp.pad(images, ((0, 0), *sides, (0, 0)))
    if [*whole] == outputs:
        return images
    triples = zip(whole, strides, window, strict=True)
    rows, columns = ((length - 1) * stride + extent for length, stride, extent in triples)
    return images[:, :rows, :columns]


def _by_patches(images, kernel, strides, sides, whole):
    padded = _padded(images, kernel.shape[:2], strides, sides, whole)
    patches = _patches(padded, kernel.shape[:2], strides)
    rows, weights = patches.reshape(-1, patches.shape[-1]), kernel.reshape(-1, kernel.shape[-1])
    return _multiply(rows, weights).reshape(*patches.shape[:-1], -1)


def _patches(images, window, strides):
    """Gathers the inputs of each output, float[batch, height, width, window * channels]."""
    rows, columns = output_size(images.shape[1:3], window, strides, [(0, 0)] * 2)
    (down, right), channels = strides, images.shape[3]
    if rest := -images.shape[2] % right:
        images = jnp.pad(images, ((0, 0), (0, 0), (0, rest), (0, 0)))
    # groups of `right` neighbouring columns are copied as one slice without gaps, which is faster
    grouped = images.reshape(*images.shape[:2], -1, right * channels)
    parts = []
    for i in range(window[0]):
        lines = slice(i, i + (rows - 1) * down + 1, down)
        for j in range(0, window[1], right):
            pixels = slice(j // right, j // right + columns)
            parts.append(grouped[:, lines, pixels, : min(right, window[1] - j) * channels])
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


@jax.custom_vjp
def _multiply(rows, weights):
    """Computes float[n, k] @ float[k, m], with another order in the gradient."""
    return rows @ weights


def _multiply_backward(residuals, gradient):
    """Computes the gradient of `@`, longer axes last: on a CPU this is 1.5 times as fast."""
    rows, weights = residuals
    over_rows = (((0,), (0,)), ((), ()))
    if rows.shape[1] <= gradient.shape[1]:
        to_weights = jax.lax.dot_general(rows, gradient, over_rows)
    else:
        wide = jax.lax.dot_general(gradient, rows, over_rows)
        # with the barrier XLA does not restore the other order
        forms: Any = {"cpu": jax.lax.optimization_barrier, "default": lambda wide: wide}
        to_weights = jax.lax.platform_dependent(wide, **forms).T
    return gradient @ weights.T, to_weights


_multiply.defvjp(lambda *inputs: (_multiply(*inputs), inputs), _multiply_backward)


def _winograd(images, kernel, strides, sides, whole):
    """Convolves with strides of 1 by Winograd's minimal filtering, F(2, 3).

    Two neighbouring outputs y of a filter g of three over inputs d take four products, not six:

        m = (d_0 - d_2) g_0,  (d_1 + d_2) (g_0 + g_1 + g_2) / 2,
            (d_2 - d_1) (g_0 - g_1 + g_2) / 2,  (d_1 - d_3) g_2
        y = m_0 + m_1 + m_2,  m_1 - m_2 - m_3

    A tile of 2x2 outputs takes 16 products instead of 36. Over all tiles these are 16 products of
    matrices [tiles, channels] and [channels, features]. Lavin and Gray, "Fast Algorithms for
    Convolutional Neural Networks", CVPR 2016, https://arxiv.org/abs/1509.09308.
    """
    images = _padded(images, (3, 3), strides, sides, whole)
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


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _inputs(images, axis):
    """Returns each tile's four sums of inputs; tiles start at every second index of an axis."""
    reach = images.shape[axis] - 3  # from the first tile to the last
    d = [jax.lax.slice_in_dim(images, i, i + reach, 2, axis) for i in range(4)]
    return d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]


def _inputs_backward(axis, _, gradients):
    """Sums even and odd indices separately; scattering each into zeros would be slower."""
    first, plus, minus, last = gradients

    def padded(part, before, after):
        sides = [(0, 0)] * part.ndim
        sides[axis] = before, after
        return jnp.pad(part, sides)

    even = padded(first, 0, 1) + padded(plus + minus - first, 1, 0)
    odd = padded(plus - minus + last, 0, 1) - padded(last, 1, 0)
    shape = list(even.shape)
    shape[axis] *= 2
    return (jnp.stack([even, odd], axis + 1).reshape(shape),)


_inputs.defvjp(lambda images, axis: (_inputs(images, axis), None), _inputs_backward)


class Layer(nn.Module):
    """The fields of `flax.linen.Conv`."""

    features: int
    kernel_size: Sizes
    strides: int | Sizes = 1
    padding: Padding = "SAME"
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Callable = nn.initializers.lecun_normal()
    bias_init: Callable = nn.initializers.zeros_init()


class Conv(Layer):
    """`flax.linen.Conv` for images, with the same fields, parameters and results.

    `pool` and `implementation` are as in `convolve`.
    """

    pool: tuple[int, int] = (1, 1)
    implementation: Implementation = "auto"

    @nn.compact
    def __call__(self, images):
        shape = (*self.kernel_size, images.shape[-1], self.features)
        return apply_layer(self, images, shape, convolve, pool=self.pool)
