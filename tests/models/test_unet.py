"""The U-Net: masked rows, sizes, and the problem of the labels of voxels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_algos as fa
from fedjax_algos.models import losses, segmenter, unet_3d
from fedjax_algos.models.segmentation import UNet3D

SHAPE, KEY = (2, 4, 6, 1), jax.random.key(0)


@functools.cache
def small(norm):
    return unet_3d(SHAPE, 3, levels=2, features=2, norm=norm, groups=2)


def volumes(number, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(number, *SHAPE)), jnp.float32)


@functools.cache
def outputs_of(norm):
    problem = small(norm)
    model = jax.jit(problem.init)(KEY)
    return jax.jit(
        lambda x, mask: problem.apply(model, {"x": x, "mask": mask}, KEY, True), inline=True
    )


def test_masked_rows_change_nothing_and_the_others_are_mixed():
    x = volumes(3)
    for mask in (jnp.ones(3, bool), jnp.array([True, True, False])):
        (first, statistics), (second, same) = (
            outputs_of("batch")(rows, mask) for rows in (x, x.at[2].set(5.0))
        )
        mixed = float(jnp.abs(first.logits[:2] - second.logits[:2]).max())
        assert mixed > 1e-3 if mask[2] else mixed == 0
    jax.tree.map(np.testing.assert_array_equal, statistics, same)


def test_batch_norm_moves_its_statistics_by_a_tenth():
    """The first normalised layer, by hand: its mean over examples and voxels."""
    problem, x = small("batch"), volumes(3)
    model = jax.jit(problem.init)(KEY)
    _, statistics = outputs_of("batch")(x, jnp.ones(3, bool))
    layers = model.params["ConvolutionalLayer_0"], model.params["ConvolutionalLayer_1"]
    y = fa.models.convolve_3d(x, layers[0]["Conv3D_0"]["kernel"], implementation="lax")
    y = y + layers[0]["Conv3D_0"]["bias"].reshape(1, 1, 1, 1, -1)
    y = jnp.where(y > 0, y, 0.25 * y)
    y = fa.models.convolve_3d(y, layers[1]["Conv3D_0"]["kernel"], implementation="lax")
    own = statistics["batch_stats"]["ConvolutionalLayer_1"]["Normalisation_0"]["BatchNorm_0"]
    np.testing.assert_allclose(own["mean"], 0.1 * y.mean((0, 1, 2, 3)), rtol=1e-4, atol=1e-6)
    expected = 0.9 + 0.1 * y.var((0, 1, 2, 3))
    np.testing.assert_allclose(own["var"], expected, rtol=1e-4)


def test_a_segmenter_takes_a_loss():
    module = UNet3D(2, 1, 2, "group", 2, "auto")
    problem = segmenter(module, (2, 2, 2), loss=losses["dice"])
    assert problem.loss is losses["dice"]
    assert fa.models.with_loss(small("group"), "dice").loss is losses["dice"]
