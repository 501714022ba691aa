"""Convolution with 3x3 kernels by Winograd's minimal filtering, F(2x2, 3x3).

Two neighbouring outputs y of a filter g of three over inputs d take four products, not six:

    m = (d_0 - d_2) g_0,  (d_1 + d_2) (g_0 + g_1 + g_2) / 2,
        (d_2 - d_1) (g_0 - g_1 + g_2) / 2,  (d_1 - d_3) g_2
    y = m_0 + m_1 + m_2,  m_1 - m_2 - m_3

Along both axes a tile of 2x2 outputs takes 16 products of matrices [tiles, channels] and [channels,
features] instead of 36. Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR
2016, https://arxiv.org/abs/1509.09308.
"""

import functools

import jax
import jax.numpy as jnp

from fedjax_algos.models.layers.products import multiply


def winograd(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """A convolution without padding and with strides of 1.

    In float32 its rounding error is up to a few times that of the direct form.

    Args:
      images: float[batch, height, width, channels].
      kernel: float[3, 3, channels, features].

    Returns:
      float[batch, height - 2, width - 2, features].
    """
    batch, height, width, channels = images.shape
    if height % 2 or width % 2:  # completes the tiles
        images = jnp.pad(images, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)))
    inputs = [part for row in _inputs(images, 1) for part in _inputs(row, 2)]
    filters = [part for row in _filters(kernel) for part in _filters(row)]
    _, down, right, _ = inputs[0].shape
    products = jax.vmap(multiply)(
        jnp.stack([part.reshape(-1, channels) for part in inputs]), jnp.stack(filters)
    )
    rows = _outputs(products.reshape(4, 4, batch, down, right, -1))
    tiles = jnp.stack([jnp.stack(_outputs(row), 3) for row in rows], 2)
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
