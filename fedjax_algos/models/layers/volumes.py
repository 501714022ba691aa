"""Convolution, pooling and interpolation of volumes, for clients with their own weights.

On a CPU the gradient of a three-dimensional `lax.conv` in a loop is tens of times slower than
products of patches, and gathered patches are 27 times the volume. Here a loop goes over the planes
of the output. `convolve` makes each from the input's planes that the window touches, as channels.
Accelerators use the three-dimensional `lax.conv`.
"""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_algos.models.layers import convolution, native
from fedjax_algos.models.layers.convolution import Implementation, Padding, convolve
from fedjax_algos.models.layers.shifted import max_pool


def convolve_3d(
    volumes: jax.Array,
    kernel: jax.Array,
    *,
    strides: tuple[int, int, int] = (1, 1, 1),
    padding: Padding = "SAME",
    implementation: Implementation = "auto",
) -> jax.Array:
    """Three-dimensional convolution (cross-correlation, as is usual in deep learning).

    Args:
      volumes: float[batch, depth, height, width, channels].
      kernel: float[depth, height, width, channels, features].
      strides, padding: as for `convolve`, for three axes.
      implementation: how planes are convolved, as for `convolve`; "lax" is one
        `lax.conv_general_dilated`. "auto" is lax on a GPU or TPU, and may be oneDNN's on a CPU.

    Returns:
      float[batch, depth, height, width, features].

    Raises:
      ValueError: for an unknown padding or implementation, a volume that is smaller than the
        window, and "winograd" for kernels that are not 3x3 in a plane or have strides there.
    """
    convolution.check_channels(volumes, kernel)
    static = convolution.geometry(volumes, kernel, strides, padding)
    if implementation == "auto":
        on_cpu = native.convolve if native.applies(volumes, kernel) else None
        return convolution.by_platform(_by_planes, native.by_lax, on_cpu, **static)(volumes, kernel)
    if implementation == "lax":
        return native.by_lax(volumes, kernel, **static)
    return _by_planes(volumes, kernel, **static, implementation=implementation)


def _by_planes(volumes, kernel, strides, sides, whole, implementation="auto"):
    window = kernel.shape[:3]
    # the window's planes become channels: [height, width, depth * channels, features]
    flat = kernel.transpose(1, 2, 0, 3, 4).reshape(*window[1:], -1, kernel.shape[-1])
    planes = jnp.pad(volumes, ((0, 0), sides[0], *[(0, 0)] * 3)).swapaxes(0, 1)
    reach = (whole[0] - 1) * strides[0] + 1
    touched = [planes[i : i + reach : strides[0]] for i in range(window[0])]

    @jax.checkpoint  # else the patches of all planes are kept for the gradient
    def convolve_plane(touched, kernel):
        options = {"strides": strides[1:], "padding": sides[1:], "implementation": implementation}
        return convolve(jnp.concatenate(touched, -1), kernel, **options)

    return jax.lax.map(lambda touched: convolve_plane(touched, flat), touched).swapaxes(0, 1)


class Conv3D(convolution.Layer):
    """`flax.linen.Conv` for volumes, with the same fields, parameters and results.

    `implementation` is as in `convolve_3d`.
    """

    implementation: Implementation = "auto"

    @nn.compact
    def __call__(self, volumes):
        shape = (*self.kernel_size, volumes.shape[-1], self.features)
        return convolution.apply_layer(self, volumes, shape, convolve_3d)


def max_pool_3d(volumes: jax.Array, window: tuple[int, int, int]) -> jax.Array:
    """`flax.linen.max_pool` for volumes, with strides of the window's size and without padding.

    The first of several largest entries receives the gradient, as in Flax.

    Args:
      volumes: float[batch, depth, height, width, channels].
      window: depth, height and width of the window.
    """
    batch, depth, *plane = volumes.shape
    pooled = max_pool(volumes.reshape(batch * depth, *plane), window[1:], window[1:])
    _, height, width, channels = pooled.shape
    columns = pooled.reshape(batch, depth, height * width, channels)
    deep = max_pool(columns, (window[0], 1), (window[0], 1))
    return deep.reshape(batch, -1, height, width, channels)


def upsample_3d(volumes: jax.Array) -> jax.Array:
    """Trilinear interpolation to twice the depth, height and width.

    Along each axis `y_2i = x_(i-1) / 4 + 3 x_i / 4` and `y_(2i+1) = 3 x_i / 4 + x_(i+1) / 4`, where
    the first and the last entry repeat beyond the ends. This is `jax.image.resize(..., "linear")`
    and `torch.nn.Upsample(scale_factor=2, mode="trilinear", align_corners=False)`.

    Args:
      volumes: float[batch, depth, height, width, channels].

    Returns:
      float[batch, 2 * depth, 2 * height, 2 * width, channels].
    """
    for axis in (3, 2, 1):  # the innermost axis first, while the volume is small
        cut = functools.partial(jax.lax.slice_in_dim, volumes, axis=axis)
        last = volumes.shape[axis] - 1
        before = jnp.concatenate([cut(0, 1), cut(0, last)], axis)
        after = jnp.concatenate([cut(1, last + 1), cut(last, last + 1)], axis)
        pairs = [before / 4 + volumes * 0.75, volumes * 0.75 + after / 4]
        shape = (*volumes.shape[:axis], 2 * last + 2, *volumes.shape[axis + 1 :])
        volumes = jnp.stack(pairs, axis + 1).reshape(shape)
    return volumes
