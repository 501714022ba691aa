"""Random boxes of images, and the weights that resize a box, or the positions of patches."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Key

_ATTEMPTS = 10  # as in torchvision


def draw_box(
    key: Key, height: int, width: int, area: tuple[float, float], aspect: tuple[float, float]
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """A random box of an image: torchvision's `RandomResizedCrop.get_params`.

    A box of `a H W` pixels, `a` uniform on `area`, whose width is `r` times its height, `log r`
    uniform between the logarithms of `aspect`, both sides rounded; its place is uniform. Of ten
    such boxes the first one that fits is taken. If none fits, it is the largest box in the middle
    of the image whose `r` is within `aspect`.

    Args:
      key: of the draw.
      height: of the image.
      width: of the image.
      area: the smallest and the largest share of the image's area.
      aspect: the smallest and the largest width over height.

    Returns:
      (top, left, height, width), int32[] each.
    """
    area_key, aspect_key, place_key = jax.random.split(key, 3)
    shares = jax.random.uniform(area_key, (_ATTEMPTS,), minval=area[0], maxval=area[1])
    logs = [math.log(each) for each in aspect]
    ratios = jnp.exp(jax.random.uniform(aspect_key, (_ATTEMPTS,), minval=logs[0], maxval=logs[1]))
    pixels = shares * (height * width)
    sides = jnp.stack([jnp.sqrt(pixels / ratios), jnp.sqrt(pixels * ratios)])
    sides = jnp.round(sides).astype(jnp.int32)  # [2, attempts]
    limits = jnp.array([height, width], jnp.int32)
    fits = jnp.all((sides > 0) & (sides <= limits[:, None]), 0)
    # of the whole image if its own ratio is allowed
    ratio = min(max(width / height, aspect[0]), aspect[1])
    middle = min(height, round(width / ratio)), min(width, round(height * ratio))
    box = jnp.where(fits.any(), sides[:, jnp.argmax(fits)], jnp.array(middle, jnp.int32))
    left_over = limits - box
    place = jax.random.randint(place_key, (2,), 0, left_over + 1, jnp.int32)
    place = jnp.where(fits.any(), place, left_over // 2)
    return place[0], place[1], box[0], box[1]


def linear_weights(start: jax.Array, length: jax.Array, pixels: int, outputs: int) -> jax.Array:
    """The weights of input pixels in output pixels, for a part of one axis of an image.

    Pixel `j` has its centre at `j + 1/2`, and output `o` looks at `c = start + (o + 1/2) s` with
    `s = length / outputs`. The weight is `max(0, 1 - |j + 1/2 - c| / max(s, 1))` for pixels of the
    part, divided by the sum over them: bilinear interpolation with antialiasing, as in Pillow and
    in PyTorch with `antialias=True`. Pixels beside the part have no weight.

    Args:
      start: the first pixel of the part, int[].
      length: its number of pixels, int[], at least 1.
      pixels: number of pixels of the axis.
      outputs: number of pixels of the result.

    Returns:
      float[outputs, pixels] in JAX's default float type; rows have the sum 1.
    """
    scale = length / outputs
    centres = start + (jnp.arange(outputs)[:, None] + 0.5) * scale
    pixel = jnp.arange(pixels)[None]
    distances = jnp.abs(pixel + 0.5 - centres) / jnp.maximum(scale, 1)
    inside = (pixel >= start) & (pixel < start + length)
    weights = jnp.where(inside, jnp.maximum(1 - distances, 0), 0)
    return weights / weights.sum(1, keepdims=True)


def resize_positions(embedding: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """The position embedding of a vision transformer for images of another size.

    Positions of patches are resized as an image, as timm does it: by `jax.image.resize`, bicubic
    with a = -1/2 and antialiasing. That of the class token, the first one, stays. Torchvision's
    `interpolate_embeddings` puts the outer positions on each other (`align_corners=True`) and has
    a = -3/4 without antialiasing, so its result is another one.

    Args:
      embedding: float[1, 1 + patches, width]; the patches are a square, row by row.
      grid: rows and columns of the patches of the new images.

    Returns:
      float[1, 1 + rows * columns, width]; the same array if its patches are this grid already. If
      they are no square, it is returned as it is, too.
    """
    patches = embedding.shape[1] - 1 if embedding.ndim == 3 else 0
    side = math.isqrt(max(patches, 0))
    if side * side != patches or (side, side) == grid or not patches:
        return embedding
    narrow = np.dtype(embedding.dtype).itemsize < 4  # timm interpolates in float32
    dtype = np.float32 if narrow else embedding.dtype
    image = embedding[0, 1:].reshape(side, side, -1).astype(dtype)
    with jax.ensure_compile_time_eval():  # also where a model is made in a function that is traced
        resized = jax.image.resize(image, (*grid, image.shape[-1]), "bicubic")
    resized = np.asarray(resized, dtype).reshape(1, grid[0] * grid[1], -1)
    return np.concatenate([embedding[:, :1].astype(dtype), resized], 1)
