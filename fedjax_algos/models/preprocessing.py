"""Augmentation and normalisation of images on the device, inside the compiled client step.

An image's draws depend only on the step's key and on the image's place in the batch, so they are
the same in all layouts.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp

from fedjax_algos.base.errors import require
from fedjax_algos.core import Key, Problem
from fedjax_algos.core.checks import check_whole
from fedjax_algos.models.adapters import scale_pixels

# (images [batch, height, width, channels], key, training) -> images
Preprocess: TypeAlias = Callable[[jax.Array, Key, bool], jax.Array]

# CIFAR-10's, which the code of FedGBO and of GHBM also uses for CIFAR-100
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2023, 0.1994, 0.2010)
# ImageNet's, which the weights of torchvision and of timm expect
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_ATTEMPTS = 10  # to draw a box that fits, as in torchvision


def normalise(mean: Sequence[float], std: Sequence[float]) -> Preprocess:
    """Maps images to `(x - mean) / std`, in training and in evaluation.

    uint8 is divided by 255 in JAX's default float type; floats must be in the units of `mean` and
    keep their dtype.

    Args:
      mean, std: one number for each channel; `std` is above 0.

    Raises:
      ValueError: for a `std` that is not above 0; when the result is called, if these do not fit
        the channels of the images.
    """
    fix = "give one mean and one standard deviation above 0 for every channel"
    require(min(std, default=0) > 0, f"normalise: std={std} is out of range; {fix}")

    def preprocess(images, key, training):
        number = images.shape[-1]
        fits = number == len(mean) == len(std)
        require(fits, f"images have {number} channels, but mean={mean} and std={std}; {fix}")
        images = scale_pixels(jnp.asarray(images))  # NumPy would make float64 of uint8
        channels = (1,) * (images.ndim - 1) + (-1,)
        middle, spread = (jnp.asarray(each, images.dtype).reshape(channels) for each in (mean, std))
        return (images - middle) / spread

    return preprocess


def random_crop(padding: int = 4, *, per_batch: bool = False) -> Preprocess:
    """Pads each image with zeros and crops it to its original size at a random offset.

    Both offsets are uniform on 0..2 * padding; the dtype is kept. Evaluation leaves images
    unchanged. If it comes before `normalise`, as usual in torchvision, the border is black.

    Args:
      padding: pixels added to each side, at least 0.
      per_batch: draws one offset for the whole batch, as in the code of FedGBO and of GHBM; the
        papers imply one for each image.

    Raises:
      ValueError: for a padding below 0; when the result is called, for images that are not
        [batch, height, width, channels].
    """
    check_whole("random_crop: padding", padding, 0)

    def preprocess(images, key, training):
        _check_images(images)
        if not training or not padding:
            return images
        padded = jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))

        def crop(image, key):  # [..., height, width, channels]
            offset = jax.random.randint(key, (2,), 0, 2 * padding + 1, jnp.int32)
            first = jnp.zeros_like(offset[0])  # of its type, also with x64
            start = (first,) * (image.ndim - 3) + (offset[0], offset[1], first)
            return jax.lax.dynamic_slice(image, start, images.shape[-image.ndim :])

        return crop(padded, key) if per_batch else jax.vmap(crop)(padded, _keys(key, images))

    return preprocess


def random_resized_crop(
    size: int | None = None,
    *,
    area: tuple[float, float] = (0.08, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
) -> Preprocess:
    """Cuts a random box out of each image and resizes it, like torchvision's `RandomResizedCrop`.

    The box's share of the image and the ratio of its sides are drawn from `area` and `aspect`. It
    is resized by bilinear interpolation with antialiasing. The dtype is kept: integers are rounded,
    halves to even. For images that are not tensors, torchvision uses Pillow, which rounds after
    each axis, so single values may differ by 1.

    Evaluation cuts out the middle. After the readers' scaling this is torchvision's evaluation.

    Szegedy et al., "Going Deeper with Convolutions", CVPR 2015, https://arxiv.org/abs/1409.4842,
    section 6.

    Args:
      size: pixels of both sides of the result, at least 1; None keeps the height and the width.
      area: the smallest and the largest share of the area, above 0 and at most 1.
      aspect: the smallest and the largest ratio of a box's width to its height, above 0.

    Raises:
      ValueError: for values out of range, and for images that are not [batch, height, width,
        channels].
      TypeError: in evaluation, for images that are smaller than `size`.
    """
    in_range = 0 < area[0] <= area[1] <= 1 and 0 < aspect[0] <= aspect[1]
    found = f"size={size}, area={area} and aspect={aspect} do not fit"
    fix = "give a size of at least 1, shares of at most 1 and ratios, both in order and above 0"
    require(in_range and (size is None or size > 0), f"{found}; {fix}")

    def preprocess(images, key, training):
        _check_images(images)
        height, width = images.shape[1:3]
        rows, columns = (height, width) if size is None else (size, size)
        if not training:
            top, left = (height - rows) // 2, (width - columns) // 2
            ends = len(images), top + rows, left + columns, images.shape[3]
            return jax.lax.slice(images, (0, top, left, 0), ends)  # refuses smaller images

        def crop(image, key):
            top, left, *sides = draw_box(key, height, width, area, aspect)
            down = linear_weights(top, sides[0], height, rows)
            across = linear_weights(left, sides[1], width, columns)
            return jnp.einsum("rh,hwc,sw->rsc", down, image.astype(down.dtype), across)

        cut = jax.vmap(crop)(jnp.asarray(images), _keys(key, images))
        integers = jnp.issubdtype(images.dtype, jnp.integer)
        return (jnp.round(cut) if integers else cut).astype(images.dtype)

    return preprocess


def random_flip(*, per_batch: bool = False) -> Preprocess:
    """Mirrors each image left to right with probability 1/2; evaluation leaves images unchanged.

    Args:
      per_batch: makes one decision for the whole batch, as for `random_crop`.

    Raises:
      ValueError: for images that are not [batch, height, width, channels].
    """

    def preprocess(images, key, training):
        _check_images(images)
        if not training:
            return images
        keys = key[None] if per_batch else _keys(key, images)
        mirrored = jax.vmap(jax.random.bernoulli)(keys).reshape(-1, 1, 1, 1)
        return jnp.where(mirrored, images[:, :, ::-1], images)

    return preprocess


def chain(*parts: Preprocess) -> Preprocess:
    """Applies the parts one after another, each with its own key.

    Args:
      *parts: the functions; without any, `chain` is the identity.
    """

    def preprocess(images, key, training):
        for number, part in enumerate(parts):
            images = part(images, jax.random.fold_in(key, number), training)
        return images

    return preprocess


def preprocessed(problem: Problem, preprocess: Preprocess, field: str = "x") -> Problem:
    """Returns a problem that passes images through `preprocess` first, with keys of their own.

    Args:
      problem: a problem whose batches are dicts.
      preprocess: makes inputs from images, such as a `chain`.
      field: name of the images in a batch, [batch, height, width, channels].
    """

    def apply(model, batch, key, training):
        preprocess_key, key = jax.random.split(key)
        images = preprocess(batch[field], preprocess_key, training)
        return problem.apply(model, {**batch, field: images}, key, training)

    return problem._replace(apply=apply)


Augmentation = Literal[
    "none", "normalised", "cifar", "cifar_by_batch",
    "imagenet_normalised", "imagenet_flipped", "imagenet_cropped",
]  # fmt: skip
_CIFAR = normalise(CIFAR10_MEAN, CIFAR10_STD)
_IMAGENET = normalise(IMAGENET_MEAN, IMAGENET_STD)
_PIPELINES = {
    "normalised": _CIFAR,
    "cifar": chain(random_crop(), random_flip(), _CIFAR),
    "cifar_by_batch": chain(random_crop(per_batch=True), random_flip(per_batch=True), _CIFAR),
    "imagenet_normalised": chain(_IMAGENET),
    "imagenet_flipped": chain(random_flip(), _IMAGENET),
    "imagenet_cropped": chain(random_resized_crop(), random_flip(), _IMAGENET),
}


def augmented(problem: Problem, augmentation: Augmentation) -> Problem:
    """Adds the pipeline that a model's option `augmentation` names, for colour images."""
    return problem if augmentation == "none" else preprocessed(problem, _PIPELINES[augmentation])


def draw_box(
    key: Key, height: int, width: int, area: tuple[float, float], aspect: tuple[float, float]
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Draws top, left, height, width, int32, as in torchvision's `RandomResizedCrop.get_params`."""
    # Takes the first of ten boxes that fits, with uniform shares in `area` and log-uniform ratios.
    # If none fits, takes the largest box in the middle with a ratio within `aspect`.
    area_key, aspect_key, place_key = jax.random.split(key, 3)
    shares = jax.random.uniform(area_key, (_ATTEMPTS,), minval=area[0], maxval=area[1])
    logs = [math.log(each) for each in aspect]
    ratios = jnp.exp(jax.random.uniform(aspect_key, (_ATTEMPTS,), minval=logs[0], maxval=logs[1]))
    pixels = shares * (height * width)
    sides = jnp.stack([jnp.sqrt(pixels / ratios), jnp.sqrt(pixels * ratios)])
    sides = jnp.round(sides).astype(jnp.int32)  # [2, attempts]
    limits = jnp.array([height, width], jnp.int32)
    fits = jnp.all((sides > 0) & (sides <= limits[:, None]), 0)
    # the whole image if its own ratio is allowed
    ratio = min(max(width / height, aspect[0]), aspect[1])
    middle = min(height, round(width / ratio)), min(width, round(height * ratio))
    box = jnp.where(fits.any(), sides[:, jnp.argmax(fits)], jnp.array(middle, jnp.int32))
    left_over = limits - box
    place = jax.random.randint(place_key, (2,), 0, left_over + 1, jnp.int32)
    place = jnp.where(fits.any(), place, left_over // 2)
    return place[0], place[1], box[0], box[1]


def linear_weights(start: jax.Array, length: jax.Array, pixels: int, outputs: int) -> jax.Array:
    """Computes antialiased bilinear weights, float[outputs, pixels], as in Pillow and PyTorch."""
    scale = length / outputs
    centres = start + (jnp.arange(outputs)[:, None] + 0.5) * scale
    pixel = jnp.arange(pixels)[None]
    distances = jnp.abs(pixel + 0.5 - centres) / jnp.maximum(scale, 1)
    inside = (pixel >= start) & (pixel < start + length)
    weights = jnp.where(inside, jnp.maximum(1 - distances, 0), 0)
    return weights / weights.sum(1, keepdims=True)


def _keys(key, images):
    """Makes a key for each row, independent of the number of rows."""
    rows = jnp.arange(images.shape[0], dtype=jnp.uint32)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, rows)


def _check_images(images):
    text = f"images have shape {images.shape}; give [batch, height, width, channels]"
    require(images.ndim == 4, text)
