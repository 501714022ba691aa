"""Crops and flips are uniform and the same in all layouts; boxes are those of torchvision."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_kinds import in_all
from scipy import stats

import fedjax_algos as fa
from fedjax_algos.models import chain, normalise, preprocessed, random_crop, random_flip
from fedjax_algos.models import preprocessing as pre
from fedjax_algos.models.preprocessing import draw_box, random_resized_crop

KEY = jax.random.key(0)
PLAIN = fa.Problem(None, lambda model, batch, key, training: (batch["x"], ()), None)
MEAN, STD = pre.CIFAR10_MEAN, pre.CIFAR10_STD
CIFAR, IMAGENET = normalise(MEAN, STD), normalise(pre.IMAGENET_MEAN, pre.IMAGENET_STD)
PIPELINES = {
    "imagenet_flipped": [random_flip(), IMAGENET],
    "normalised": [CIFAR],
    "cifar": [random_crop(4), random_flip(), CIFAR],
    "cifar_by_batch": [random_crop(4, per_batch=True), random_flip(per_batch=True), CIFAR],
    "imagenet_normalised": [IMAGENET],
    "imagenet_cropped": [random_resized_crop(), random_flip(), IMAGENET],
}


def images(count, size=(5, 6)):
    """Images with distinct pixels other than 0, so that a crop determines its offset."""
    pixels = np.random.default_rng(7).permutation(np.arange(1, 1 + math.prod(size)))
    return np.broadcast_to(pixels.reshape(*size, 1), (count, *size, 3)).astype(np.uint8)


def crops(image, padding=4):
    """A number for every crop of the padded image, by its content."""
    (height, width, _), extent = image.shape, range(2 * padding + 1)
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    every = itertools.product(extent, repeat=2)
    every = [padded[top : top + height, left : left + width].tobytes() for top, left in every]
    assert len(set(every)) == len(every)
    return {content: number for number, content in enumerate(every)}


@pytest.mark.parametrize("per_batch", [False, *in_all(True)])
def test_offsets_and_flips_are_uniform_and_independent(per_batch):
    """The same row in successive steps, as for a client; `per_batch` has the same for both rows."""
    batch = images(2, (3, 4))
    both = chain(random_crop(1, per_batch=per_batch), random_flip(per_batch=per_batch))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(1), jnp.arange(2000))
    places, drawn = crops(batch[0], 1), []
    seen = np.asarray(jax.jit(jax.vmap(lambda key: both(batch, key, True)))(keys))
    for image in seen.reshape(-1, 3, 4, 3):
        mirrored = image.tobytes() not in places
        plain = np.ascontiguousarray(image[:, ::-1]) if mirrored else image
        drawn.append((int(mirrored), places[plain.tobytes()]))
    first, second = np.array(drawn).reshape(-1, 2, 2).transpose(1, 2, 0)
    assert stats.chisquare(np.bincount(9 * first[0] + first[1], minlength=18)).pvalue > 1e-4
    same = [np.array_equal(*each) for each in zip(first, second, strict=True)]
    assert same == [per_batch, per_batch]


@pytest.mark.parametrize("name", ["imagenet_flipped", *in_all(*[*PIPELINES][1:])])
def test_pipelines(name):
    """The parts in order, with the keys of a chain; evaluation only normalises."""
    parts, pixels = PIPELINES[name], np.arange(8 * 36 * 3).reshape(8, 6, 6, 3).astype(np.uint8)
    apply = pre.augmented(PLAIN, name).apply

    @jax.jit
    def both(x):
        trained, _ = apply(None, {"x": x}, KEY, True)
        key = jax.random.split(KEY)[0]
        for number, part in enumerate(parts):
            x = part(x, jax.random.fold_in(key, number), True)
        return trained, x

    np.testing.assert_array_equal(*both(pixels))
    evaluated, _ = apply(None, {"x": pixels}, KEY, False)
    np.testing.assert_array_equal(evaluated, parts[-1](pixels, None, False))


def test_parts_without_effect_and_the_middle_in_evaluation():
    batch = images(6)
    for part in (chain(), random_crop(0)):
        np.testing.assert_array_equal(part(batch, KEY, True), batch)
    whole = np.arange(2 * 8 * 7).reshape(2, 8, 7, 1)
    np.testing.assert_array_equal(random_resized_crop(4)(whole, KEY, False), whole[:, 2:6, 1:5])
    assert random_resized_crop()(whole, KEY, False).shape == whole.shape


@pytest.mark.all
def test_an_image_depends_on_key_and_row_only():
    """Not on vmap, jit, the number of rows, or the other images."""
    augment, batch = chain(*PIPELINES["cifar"]), images(8)
    keys = jax.random.split(jax.random.key(5), 2)
    compiled = jax.jit(lambda batch, key: augment(batch, key, True))
    alone = [np.asarray(compiled(batch, key)) for key in keys]
    assert (alone[0] != alone[1]).any()
    # compilation may change the rounding of a division by 255
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    close(augment(batch, keys[0], True), alone[0])
    close(compiled(batch[:3], keys[0]), alone[0][:3])
    others = np.concatenate([batch[:4], batch[4:] // 2])
    close(compiled(others, keys[0])[:4], alone[0][:4])
    close(jax.jit(jax.vmap(lambda key: augment(batch, key, True)))(keys), np.stack(alone))


def test_normalise():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 2, 3))
    expected = (pixels / 255 - MEAN) / STD
    for dtype in (np.uint8, np.float32, jnp.bfloat16):
        floats = jnp.issubdtype(dtype, jnp.floating)
        given = jnp.asarray(pixels / 255 if floats else pixels, dtype)
        seen = CIFAR(given, None, False)
        assert seen.dtype == (dtype if floats else np.float32)
        tolerance = 0.05 if dtype == jnp.bfloat16 else 2e-6
        np.testing.assert_allclose(np.asarray(seen, float), expected, atol=tolerance)
    with pytest.raises(ValueError, match=r"examples are int32.*; divide them"):
        CIFAR(jnp.asarray(pixels, jnp.int32), None, False)


def test_normalised_pixels_of_torchvision():
    pixels = np.array([[0] * 3, [128] * 3, [255] * 3], np.uint8)
    printed = [-2.1179, -2.0357, -1.8044], [0.0741, 0.2052, 0.4265], [2.2489, 2.4286, 2.64]
    np.testing.assert_allclose(IMAGENET(pixels[None], None, False)[0], printed, atol=1e-4)


def test_invalid_arguments_are_rejected():
    one = images(1)
    for make, message in (
        (lambda: normalise(MEAN, (1.0,))(one, KEY, False), r"std=\(1\.0,\)"),
        (lambda: normalise((0.5,) * 3, (0.0,) * 3), r"normalise: std=\(0\.0, 0"),
        (lambda: normalise((0.5,), (0.5,))(one, KEY, False), "images have 3 channels"),
        (lambda: random_crop(-1), "padding=-1 is out of range"),
        (lambda: random_crop()(one[0], KEY, True), r"shape \(5, 6, 3\)"),
        (lambda: random_flip()(one[0], KEY, True), r"shape \(5, 6, 3\)"),
        (lambda: random_resized_crop(0), "size=0"),
        (lambda: random_resized_crop(area=(0.0, 1.0)), r"area=\(0.0, 1.0\)"),
        (lambda: random_resized_crop(aspect=(2.0, 1.0)), r"aspect=\(2.0, 1.0\)"),
        (lambda: random_resized_crop(8)(one, KEY, False), "slice .*operand shape"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            make()


def test_preprocessed_changes_only_the_images():
    apply = lambda model, batch, key, training: ((batch["x"], batch["y"], key), ())  # noqa: E731
    wrapped = preprocessed(PLAIN._replace(apply=apply), random_crop(4)).apply
    batch = {"x": jnp.asarray(images(40)), "y": jnp.arange(40)}
    (x, y, inner), _ = jax.jit(wrapped, static_argnums=3)(None, batch, KEY, True)
    places = crops(images(1)[0])
    assert len({places[np.asarray(image).tobytes()] for image in x}) > 10
    np.testing.assert_array_equal(y, batch["y"])
    assert inner != KEY
    moved = preprocessed(PLAIN, random_crop(4), field="y")
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
    weigh = jax.jit(pre.linear_weights, static_argnums=(2, 3))
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
