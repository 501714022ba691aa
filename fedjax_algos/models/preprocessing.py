"""Augmentation and normalisation of images on the device, inside the compiled client step.

The store keeps images as they came, such as bytes; a `Preprocess` turns a batch of them into what
the model sees, and `preprocessed` puts it before a problem:

    augment = chain(random_crop(), random_flip(), normalise(CIFAR10_MEAN, CIFAR10_STD))
    problem = preprocessed(problem, augment)

What happens to an image depends on the step's key and on its row in the batch alone, so all layouts
see the same images.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp

from fedjax_algos.core import Key, Problem

Preprocess: TypeAlias = Callable[[jax.Array, Key, bool], jax.Array]
"""`(images [batch, height, width, channels], key, training) -> images`, of the same shape."""

# CIFAR-10's, which the FedGBO and GHBM codes use for CIFAR-100 as well
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2023, 0.1994, 0.2010)


def normalise(mean: Sequence[float], std: Sequence[float]) -> Preprocess:
    """`(x - mean) / std` for each channel, in training and in evaluation.

    Integers are divided by 255 first and become jax's default float; floats must be in the units of
    `mean` already and keep their dtype.

    Args:
      mean: one for each channel.
      std: one for each channel, above 0.

    Raises:
      ValueError: for unequal lengths or a `std` that is not above 0; when called, for another
        number of channels.
    """
    if len(mean) != len(std):
        raise ValueError(
            f"there are {len(mean)} means and {len(std)} standard deviations; give one of each for "
            "every channel"
        )
    if min(std) <= 0:
        raise ValueError(f"std={min(std)} is out of range; give standard deviations above 0")

    def preprocess(images, key, training):
        del key, training
        if images.shape[-1] != len(mean):
            raise ValueError(
                f"images have {images.shape[-1]} channels, but there are means for {len(mean)}; "
                "give one mean and one standard deviation for every channel"
            )
        if jnp.issubdtype(images.dtype, jnp.integer):
            images = jnp.asarray(images) / 255  # NumPy would make float64 of bytes
        channels = (1,) * (images.ndim - 1) + (-1,)
        middle, spread = (jnp.asarray(each, images.dtype).reshape(channels) for each in (mean, std))
        return (images - middle) / spread

    return preprocess


def random_crop(padding: int = 4, *, per_batch: bool = False) -> Preprocess:
    """Moves each image: pads all sides with zeros, then cuts the old size out at a random place.

    Both offsets are uniform on 0..2 * padding; the dtype is kept. Only while training.

    Before `normalise`, as in torchvision's usual order (crop, flip, to floats, normalise), the
    border is black. After it, the border is the channel's mean, and crops move floats, not bytes.

    Args:
      padding: pixels added to each side.
      per_batch: one place for the whole batch, as in the released codes of FedGBO and GHBM, whose
        papers imply one for each image.

    Raises:
      ValueError: for a negative padding; when called, for images that are not
        [batch, height, width, channels].
    """
    if padding < 0:
        raise ValueError(f"padding={padding} is out of range; give at least 0")
    sides = ((0, 0), (padding, padding), (padding, padding), (0, 0))

    def place(key):
        return jax.random.randint(key, (2,), 0, 2 * padding + 1, jnp.int32)

    def preprocess(images, key, training):
        _check_images(images)
        if not training or not padding:
            return images
        padded = jnp.pad(images, sides)

        def cut(image, place):  # [..., height, width, channels]
            start = (0,) * (image.ndim - 3) + (place[0], place[1], 0)
            return jax.lax.dynamic_slice(image, start, images.shape[-image.ndim :])

        if per_batch:
            return cut(padded, place(key))
        return jax.vmap(lambda image, own: cut(image, place(own)))(padded, _keys(key, images))

    return preprocess


def random_flip(*, per_batch: bool = False) -> Preprocess:
    """Mirrors each image left to right with probability 1/2. Only while training.

    Args:
      per_batch: one decision for the whole batch, as for `random_crop`.

    Raises:
      ValueError: when called, for images that are not [batch, height, width, channels].
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
    """One after the other, each with a key of its own; without parts, the identity."""

    def preprocess(images, key, training):
        for number, part in enumerate(parts):
            images = part(images, jax.random.fold_in(key, number), training)
        return images

    return preprocess


def preprocessed(problem: Problem, preprocess: Preprocess, field: str = "x") -> Problem:
    """A problem whose model sees its images through `preprocess`.

    The model's own key (for dropout) is another than that of the augmentation.

    Args:
      problem: batches are dicts.
      preprocess: such as a `chain`.
      field: where a batch has its images, [batch, height, width, channels].
    """

    def apply(model, batch, key, training):
        own, key = jax.random.split(key)
        seen = preprocess(batch[field], own, training)
        return problem.apply(model, {**batch, field: seen}, key, training)

    return problem._replace(apply=apply)


Augmentation = Literal["none", "normalised", "cifar", "cifar_by_batch"]


def augmented(problem: Problem, augmentation: Augmentation) -> Problem:
    """A problem behind one of the papers' pipelines for 32x32 colour images.

    "normalised" has CIFAR-10's means and deviations; "cifar" crops and flips each training image
    before that; "cifar_by_batch" gives a whole batch one offset and one decision, as the released
    codes of FedGBO and GHBM do; "none" leaves the problem as it is.
    """
    normal = normalise(CIFAR10_MEAN, CIFAR10_STD)
    if augmentation == "none":
        return problem
    if augmentation == "normalised":
        return preprocessed(problem, normal)
    by_batch = augmentation == "cifar_by_batch"
    parts = random_crop(per_batch=by_batch), random_flip(per_batch=by_batch), normal
    return preprocessed(problem, chain(*parts))


def _keys(key, images):
    """A key for each row, which does not depend on how many rows there are."""
    rows = jnp.arange(images.shape[0], dtype=jnp.uint32)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, rows)


def _check_images(images):
    if images.ndim != 4:
        raise ValueError(f"images have shape {images.shape}; give [batch, height, width, channels]")
