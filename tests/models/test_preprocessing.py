"""Crops and flips are uniform and the same in all layouts; boxes are those of torchvision."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_kinds import in_all, nightly
from scipy import stats

import fedjax_algos as fa
from fedjax_algos.models.preprocessing import (
    CIFAR10_MEAN,
    CIFAR10_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    augmented,
    chain,
    draw_box,
    linear_weights,
    normalise,
    preprocessed,
    random_crop,
    random_flip,
    random_resized_crop,
)

KEY = jax.random.key(0)
PLAIN = fa.Problem(None, lambda model, batch, key, training: (batch["x"], ()), None)
PARTS = {
    "batches": chain(random_crop(4, per_batch=True), random_flip(per_batch=True)),
    "all": chain(random_crop(2), random_flip(), normalise(CIFAR10_MEAN, CIFAR10_STD)),
}


def images(count, size=(5, 6)):
    """Images with distinct pixels other than 0, so that a crop determines its offset."""
    pixels = np.random.default_rng(7).permutation(np.arange(1, 1 + math.prod(size)))
    return np.broadcast_to(pixels.reshape(*size, 1), (count, *size, 3)).astype(np.uint8)


def crops(image, padding=4):
    """The offsets of every crop of the padded image, by its content."""
    height, width = image.shape[:2]
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    every = {
        padded[top : top + height, left : left + width].tobytes(): (top, left)
        for top, left in itertools.product(range(2 * padding + 1), repeat=2)
    }
    assert len(every) == (2 * padding + 1) ** 2
    return every


@pytest.mark.parametrize("per_batch", [False, *in_all(True)])
def test_offsets_and_flips_are_uniform_and_independent(per_batch):
    """The same row in successive steps, as for a client; parts of a chain have different keys."""
    batch = images(1, (3, 4))
    both = chain(random_crop(1, per_batch=per_batch), random_flip(per_batch=per_batch))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(1), jnp.arange(4000))
    places = crops(batch[0], 1)
    table = np.zeros((2, 9), int)
    for image in np.asarray(jax.jit(jax.vmap(lambda key: both(batch, key, True)[0]))(keys)):
        mirrored = image.tobytes() not in places
        plain = np.ascontiguousarray(image[:, ::-1]) if mirrored else image
        top, left = places[plain.tobytes()]
        table[int(mirrored), 3 * top + left] += 1
    assert stats.chisquare(table.ravel()).pvalue > 1e-4


@pytest.mark.all
def test_per_batch_uses_one_decision():
    batch = images(16)
    keys = jax.random.split(KEY, 6)
    for kind in (random_crop, random_flip):
        parts = kind(per_batch=True), kind()
        mapped = jax.jit(jax.vmap(lambda key, parts=parts: [f(batch, key, True) for f in parts]))
        joint, each = map(np.asarray, mapped(keys))
        assert (joint == joint[:, :1]).all()
        assert len({seen[0].tobytes() for seen in joint}) > 1
        assert not (each == each[:, :1]).all((1, 2, 3, 4)).any()


def test_evaluation_normalises_and_cuts_the_middle_out_and_parts_without_effect():
    batch = images(6)
    normal = normalise(CIFAR10_MEAN, CIFAR10_STD)(batch, None, True)
    for part, training, expected in (
        (PARTS["batches"], False, batch),
        (PARTS["all"], False, normal),
        (chain(), True, batch),
        (random_crop(0), True, batch),
    ):
        np.testing.assert_array_equal(part(batch, KEY, training), expected)
    whole = np.arange(2 * 8 * 7).reshape(2, 8, 7, 1)
    np.testing.assert_array_equal(random_resized_crop(4)(whole, KEY, False), whole[:, 2:6, 1:5])
    assert random_resized_crop()(whole, KEY, False).shape == whole.shape


@pytest.mark.parametrize("name", [*in_all("all"), *nightly("batches")])
def test_an_image_depends_on_key_and_row_only(name):
    """Not on vmap, jit, the number of rows, or the other images."""
    augment, batch = PARTS[name], images(8)
    keys = jax.random.split(jax.random.key(5), 2)
    compiled = jax.jit(lambda batch, key: augment(batch, key, True))
    alone = [np.asarray(compiled(batch, key)) for key in keys]
    assert (alone[0] != alone[1]).any()
    # compilation may change the rounding of a division by 255
    tolerance = 0 if name == "batches" else 1e-5
    close = partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    close(augment(batch, keys[0], True), alone[0])
    close(compiled(batch[:3], keys[0]), alone[0][:3])
    others = np.concatenate([batch[:4], batch[4:] // 2])
    close(compiled(others, keys[0])[:4], alone[0][:4])
    close(jax.jit(jax.vmap(lambda key: augment(batch, key, True)))(keys), np.stack(alone))


def test_normalise():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 2, 3))
    expected = (pixels / 255 - np.asarray(CIFAR10_MEAN)) / np.asarray(CIFAR10_STD)
    for dtype in (np.uint8, np.int32, np.float32, jnp.bfloat16):
        floats = jnp.issubdtype(dtype, jnp.floating)
        given = jnp.asarray(pixels / 255 if floats else pixels, dtype)
        seen = normalise(CIFAR10_MEAN, CIFAR10_STD)(given, None, False)
        assert seen.dtype == (dtype if floats else np.float32)
        tolerance = 0.05 if dtype == jnp.bfloat16 else 2e-6
        np.testing.assert_allclose(np.asarray(seen, float), expected, atol=tolerance)


def test_imagenet_normalises_and_flips():
    """0, 128 and 255 by torchvision's numbers."""
    images = np.full((64, 3, 2, 3), 7, np.uint8)
    images[:, :, 0] = 0, 128, 255
    for name, flips in (("imagenet_normalised", False), ("imagenet_flipped", True)):
        for training in (False, True):
            apply = augmented(PLAIN, name).apply
            out = np.array(apply(None, {"x": jnp.asarray(images)}, KEY, training)[0])
            mirrored = out[:, 0, 0, 0] > -2.1
            assert mirrored.any() == (flips and training)
            assert not mirrored.all()
            out[mirrored] = out[mirrored, :, ::-1]
            expected = np.broadcast_to([-2.1179, 0.2052, 2.64], (64, 3, 3))
            np.testing.assert_allclose(out[:, :, 0], expected, atol=1e-4)


@pytest.mark.all
def test_imagenet_cuts_boxes_out_before_that_in_training_alone():
    images = np.random.default_rng(2).integers(0, 256, (3, 6, 6, 3)).astype(np.uint8)
    problem, normal = augmented(PLAIN, "imagenet_cropped"), normalise(IMAGENET_MEAN, IMAGENET_STD)
    whole = chain(random_resized_crop(), random_flip(), normal)
    evaluated, _ = problem.apply(None, {"x": images}, KEY, False)
    np.testing.assert_array_equal(evaluated, normal(images, KEY, False))

    @jax.jit
    def both(images):
        trained, _ = problem.apply(None, {"x": images}, KEY, True)
        return trained, whole(images, jax.random.split(KEY)[0], True)

    np.testing.assert_array_equal(*both(images))


def test_invalid_arguments_are_rejected():
    one = images(1)
    for make, message in (
        (lambda: normalise(CIFAR10_MEAN, (1.0,)), r"std=\(1\.0,\)"),
        (lambda: normalise((0.0,), (0.0,)), r"std=\(0\.0,\)"),
        (lambda: normalise((0.5,), (0.5,))(one, KEY, False), "images have 3 channels"),
        (lambda: random_crop(-1), "padding=-1"),
        (lambda: random_crop()(one[0], KEY, True), r"shape \(5, 6, 3\)"),
        (lambda: random_flip()(one[0], KEY, True), r"shape \(5, 6, 3\)"),
        (lambda: random_resized_crop(0), "size=0"),
        (lambda: random_resized_crop(area=(0.0, 1.0)), r"area=\(0.0, 1.0\)"),
        (lambda: random_resized_crop(aspect=(2.0, 1.0)), r"aspect=\(2.0, 1.0\)"),
        (lambda: random_resized_crop(8)(one, KEY, False), r"images of \(5, 6\) .* size=8"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_preprocessed_changes_only_the_images():
    apply = lambda model, batch, key, training: ((batch["x"], batch["y"], key), ())  # noqa: E731
    problem = PLAIN._replace(apply=apply)
    batch = {"x": jnp.asarray(images(40)), "y": jnp.arange(40)}
    wrapped = jax.jit(preprocessed(problem, random_crop(4)).apply, static_argnums=3)
    (x, y, inner), _ = wrapped(None, batch, KEY, True)
    places = crops(images(1)[0])
    assert len({places[np.asarray(image).tobytes()] for image in x}) > 10
    np.testing.assert_array_equal(y, batch["y"])
    assert inner != KEY
    np.testing.assert_array_equal(wrapped(None, batch, KEY, False)[0][0], batch["x"])
    moved = preprocessed(problem, random_crop(4), field="y")
    with pytest.raises(ValueError, match=r"shape \(40,\)"):
        moved.apply(None, batch, KEY, True)


AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
KEYS = jax.random.split(jax.random.key(0), 3000)


def resized(line, outputs):
    """One axis by the loops of Pillow and PyTorch: a triangle over the pixels that it meets."""
    scale, result = len(line) / outputs, []
    support = max(scale, 1.0)
    for output in range(outputs):
        centre = (output + 0.5) * scale
        first = max(int(centre - support + 0.5), 0)
        last = min(int(centre + support + 0.5), len(line))
        offsets = [(j - centre + 0.5) / support for j in range(first, last)]
        weights = np.array([max(0.0, 1 - abs(offset)) for offset in offsets])
        result.append(weights @ line[first:last] / weights.sum())
    return np.array(result)


def test_weights_are_those_of_a_loop_and_of_pillow():
    """Larger, smaller and equal, at both borders and inside; pixels beside it do not count."""
    line = np.random.default_rng(0).normal(size=13)
    weigh = jax.jit(linear_weights, static_argnums=(2, 3))
    for start, length in ((0, 13), (2, 9), (3, 4), (7, 1), (9, 4)):
        weights = np.asarray(weigh(start, length, 13, 4))
        expected = resized(line[start : start + length], 4)
        np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
        np.testing.assert_allclose(weights @ line, expected, atol=1e-6)
    # `Image.resize((3, 2), BILINEAR)` of Pillow 13, in floats
    image = np.arange(20.0).reshape(4, 5) ** 2
    down, across = np.asarray(weigh(0, 4, 4, 2)), np.asarray(weigh(0, 5, 5, 3))
    printed = [[28.489796, 43.730156, 63.510204], [153.08165, 193.0159, 237.48979]]
    np.testing.assert_allclose(down @ image @ across.T, printed, rtol=1e-5)


def boxes(height, width, area=AREA, aspect=ASPECT):
    drawn = jax.jit(jax.vmap(lambda key: draw_box(key, height, width, area, aspect)))(KEYS)
    return np.array(drawn, int)


def torchvision_box(rng, height, width):
    """`RandomResizedCrop.get_params`, without the place."""
    for _ in range(10):
        area = height * width * rng.uniform(*AREA)
        ratio = math.exp(rng.uniform(*map(math.log, ASPECT)))
        columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < columns <= width and 0 < rows <= height:
            return rows, columns
    raise AssertionError


def test_boxes_have_the_distribution_of_torchvision():
    """Also where some boxes do not fit and are drawn again, here of a 32 x 48 image."""
    rng = np.random.default_rng(0)
    _, _, rows, columns = boxes(32, 48)
    expected = np.array([torchvision_box(rng, 32, 48) for _ in range(3000)])
    for own, other in zip((rows, columns), expected.T, strict=True):
        assert stats.ks_2samp(own, other).pvalue > 1e-3
    # without the attempts, no share of the area above 8/9 would be lost
    share = (rows * columns > 1400).mean()
    assert (expected.prod(1) > 1400).mean() == pytest.approx(share, abs=0.02)


def test_places_are_uniform_and_inside():
    top, left, rows, columns = boxes(900, 1000, (0.1, 0.3))
    assert stats.kstest(rows * columns / 9e5, "uniform", (0.1, 0.2)).pvalue > 1e-3
    logs = np.log(columns / rows) / math.log(4 / 3)
    assert stats.kstest(logs, "uniform", (-1, 2)).pvalue > 1e-3
    for start, rest in ((top, 900 - rows), (left, 1000 - columns)):
        assert (start >= 0).all()
        assert (start <= rest).all()
        assert stats.kstest(start / rest, "uniform").pvalue > 1e-3
    assert abs(stats.spearmanr(top, left).statistic) < 0.1


@pytest.mark.all
def test_the_box_if_none_fits():
    for size, aspect, box in ((4, 40), ASPECT, [0, 17, 4, 5]), ((6, 6), (1.2, 4 / 3), [0, 0, 5, 6]):
        assert np.unique(boxes(*size, (1.0, 1.0), aspect), axis=1).ravel().tolist() == box


@pytest.mark.all
def test_images_are_cut_and_resized():
    """Integers are rounded, and an image does not depend on the others of its batch."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (4, 8, 6, 3)).astype(np.uint8)
    crop, key = jax.jit(random_resized_crop(4), static_argnums=2), jax.random.key(3)
    cut = np.asarray(crop(images, key, True))
    assert (cut.shape, cut.dtype) == ((4, 4, 4, 3), np.uint8)
    box = jax.jit(lambda row: draw_box(jax.random.fold_in(key, row), 8, 6, AREA, ASPECT))
    for row, image in enumerate(images):
        top, left, rows, columns = map(int, box(row))
        part = image[top : top + rows, left : left + columns].astype(float)
        down = np.apply_along_axis(resized, 0, part, 4)
        whole = np.apply_along_axis(resized, 1, down, 4)
        assert np.abs(cut[row] - whole).max() < 0.501
    for kind in (np.uint8, np.float32):
        whole = jax.eval_shape(lambda x: random_resized_crop()(x, key, True), images.astype(kind))
        assert (whole.shape, whole.dtype) == (images.shape, kind)
