"""Random resized crops: the boxes of torchvision, and Pillow's interpolation; positions of timm."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_algos.models import preprocessing, random_resized_crop
from fedjax_algos.models.resizing import draw_box, linear_weights, resize_positions

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


@pytest.mark.parametrize(("start", "length"), [(0, 13), (2, 9), (3, 4), (7, 1), (0, 4), (9, 4)])
def test_weights_are_those_of_a_loop(start, length):
    """Larger, smaller and equal, at both borders and inside; pixels beside it do not count."""
    line = np.random.default_rng(0).normal(size=13)
    weights = np.asarray(linear_weights(start, length, 13, 4))
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(weights @ line, resized(line[start : start + length], 4), atol=1e-6)


@pytest.mark.slow
def test_values_that_pillow_gives():
    """`Image.resize((3, 2), BILINEAR)` of Pillow 13, in floats."""
    image = np.arange(20.0).reshape(4, 5) ** 2
    down, across = linear_weights(0, 4, 4, 2), linear_weights(0, 5, 5, 3)
    printed = [[28.489796, 43.730156, 63.510204], [153.08165, 193.0159, 237.48979]]
    np.testing.assert_allclose(np.asarray(down @ image @ across.T), printed, rtol=1e-5)


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
    assert (expected.prod(1) > 1400).mean() == pytest.approx(
        (rows * columns > 1400).mean(), abs=0.02
    )


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


@pytest.mark.parametrize(
    ("size", "box"), [((4, 40), (0, 17, 4, 5)), ((40, 4), (17, 0, 5, 4)), ((6, 6), (0, 0, 6, 6))]
)
def test_the_box_if_none_fits(size, box):
    aspect = (1.2, 4 / 3) if size == (6, 6) else ASPECT
    drawn = np.unique(boxes(*size, (1.0, 1.0), aspect), axis=1)
    expected = (0, 0, 5, 6) if size == (6, 6) else box
    assert drawn.ravel().tolist() == list(expected)


@pytest.mark.slow
def test_images_are_cut_and_resized():
    """Integers are rounded, and an image does not depend on the others of its batch."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (5, 8, 6, 3)).astype(np.uint8)
    crop, key = jax.jit(random_resized_crop(4), static_argnums=2), jax.random.key(3)
    cut = np.asarray(crop(images, key, True))
    assert (cut.shape, cut.dtype) == ((5, 4, 4, 3), np.uint8)
    for row, image in enumerate(images):
        top, left, rows, columns = map(
            int, draw_box(jax.random.fold_in(key, row), 8, 6, AREA, ASPECT)
        )
        part = image[top : top + rows, left : left + columns].astype(float)
        down = np.apply_along_axis(resized, 0, part, 4)
        whole = np.apply_along_axis(resized, 1, down, 4)
        assert np.abs(cut[row] - whole).max() < 0.501
    np.testing.assert_array_equal(crop(images[:2], key, True), cut[:2])
    assert random_resized_crop()(images, key, True).shape == images.shape
    floats = jnp.asarray(images, jnp.float32)
    np.testing.assert_allclose(crop(floats, key, True), cut, atol=0.501)


def test_evaluation_cuts_the_middle_out():
    images = np.arange(2 * 8 * 7).reshape(2, 8, 7, 1)
    key = jax.random.key(0)
    np.testing.assert_array_equal(random_resized_crop(4)(images, key, False), images[:, 2:6, 1:5])
    assert random_resized_crop()(images, key, False).shape == images.shape
    with pytest.raises(ValueError, match=r"images of \(8, 7\) are smaller than size=8; give a sma"):
        random_resized_crop(8)(images, key, False)


@pytest.mark.parametrize("option", ["size", "area", "aspect"])
def test_values_out_of_range(option):
    value = {"size": 0, "area": (0.0, 1.0), "aspect": (2.0, 1.0)}[option]
    with pytest.raises(ValueError, match=rf"{option}=.* is out of range; give "):
        random_resized_crop(**{option: value})


@pytest.mark.slow
def test_the_augmentation_of_a_model():
    """Boxes, flips and ImageNet's normalisation in training, the last alone in evaluation."""
    images = np.random.default_rng(2).integers(0, 256, (3, 6, 6, 3)).astype(np.uint8)
    problem = preprocessing.augmented(_Identity, "imagenet_cropped")
    key = jax.random.key(5)
    normal = preprocessing.normalise(preprocessing.IMAGENET_MEAN, preprocessing.IMAGENET_STD)
    evaluated = problem.apply(None, {"x": images}, key, False)
    np.testing.assert_array_equal(evaluated, normal(images, key, False))
    parts = preprocessing.chain(random_resized_crop(), preprocessing.random_flip(), normal)
    expected = parts(images, jax.random.split(key)[0], True)
    np.testing.assert_array_equal(problem.apply(None, {"x": images}, key, True), expected)


class _Identity:
    """A problem whose outputs are its inputs."""

    @staticmethod
    def _replace(apply):
        return type("Problem", (), {"apply": staticmethod(apply)})

    @staticmethod
    def apply(model, batch, key, training):
        return batch["x"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "grid", "printed"),
    [
        # `timm.layers.resample_abs_pos_embed` of k**2 % 11 by torch 2.13; first the token's
        (2, (3, 3), [0, 0.24602, 2.203948, 4.161877, 5.032895, 4.75, 4.467105, 9.819771, 7.296053,
                     4.772334]),
        (3, (2, 4), [0, 5.866066, 4.449078, 2.848407, 2.067535, 9.5695, 4.678286, 2.159489,
                     3.592175]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_positions_are_those_of_timm(side, grid, printed, dtype):
    width = 2 if side == 3 else 1
    values = np.arange((side**2 + 1) * width) ** 2 % 11
    embedding = values.reshape(1, -1, width).astype(dtype)
    resized = resize_positions(embedding, grid)
    assert resized.shape == (1, grid[0] * grid[1] + 1, width)
    assert resized.dtype == (np.float64 if dtype == np.float64 else np.float32)
    np.testing.assert_allclose(resized[0, :, 0], printed, rtol=1e-5)
    assert resize_positions(embedding, (side, side)) is embedding
