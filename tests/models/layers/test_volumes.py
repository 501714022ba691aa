"""Convolution, pooling and interpolation of volumes agree with those of JAX, Flax and NumPy."""

import functools
import itertools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_algos.models import Conv3D, convolve_3d, max_pool_3d, upsample_3d

pytestmark = pytest.mark.usefixtures("x64")


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


CASES = [
    ("auto", (3, 3, 3), (1, 1, 1), "SAME", 16),  # winograd's form
    ("winograd", (2, 3, 3), (2, 1, 1), 1, 2),
    ("patches", (3, 2, 1), (2, 1, 3), "VALID", 2),
    ("patches", (3, 3, 3), (1, 2, 2), ((0, 2), 1, (1, 0)), 2),
    ("patches", (1, 1, 1), (1, 1, 1), "SAME", 2),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("implementation", "window", "strides", "padding", "channels"), CASES)
def test_each_client_in_a_loop_has_the_gradients_of_lax(
    implementation, window, strides, padding, channels
):
    """Two clients with their own kernels take two steps of gradient descent."""
    x = draw(2, 1, 5, 6, 4, channels)
    kernel = draw(2, *window, channels, channels, seed=1) / channels

    def trained(form, x, kernel):
        convolve = functools.partial(
            convolve_3d, strides=strides, padding=padding, implementation=form
        )

        def step(_, pair):
            gradients = jax.grad(lambda x, kernel: jnp.sin(convolve(x, kernel)).sum(), (0, 1))
            return jax.tree.map(lambda a, g: a - 0.1 * g, pair, gradients(*pair))

        return jax.lax.fori_loop(0, 2, step, (x, kernel))

    actual, expected = (
        jax.jit(jax.vmap(functools.partial(trained, form)))(x, kernel)
        for form in (implementation, "lax")
    )
    chex.assert_trees_all_close(actual, expected, rtol=0, atol=1e-11)


def test_the_gradient_keeps_the_planes_and_not_the_patches():
    x, kernel = jnp.zeros((1, 8, 8, 8, 4)), jnp.zeros((3, 3, 3, 4, 4))
    kept = jax.eval_shape(lambda x, kernel: jax.vjp(convolve_3d, x, kernel)[1], x, kernel)
    assert sum(leaf.size for leaf in jax.tree.leaves(kept)) <= 3.1 * x.size + 2 * kernel.size


@pytest.mark.slow
def test_the_layer_has_the_parameters_and_results_of_flax():
    x, key = jnp.asarray(draw(2, 4, 5, 6, 3)), jax.random.key(0)
    for use_bias, padding in itertools.product((True, False), ("SAME", "VALID")):
        both = [
            kind(4, (3, 3, 3), (1, 2, 1), padding=padding, use_bias=use_bias)
            for kind in (Conv3D, nn.Conv)
        ]
        params = [layer.init(key, x) for layer in both]
        chex.assert_trees_all_equal(*params)
        params = jax.tree.map(lambda leaf: leaf + 0.1, params[0])
        outputs = [layer.apply(params, x) for layer in both]
        np.testing.assert_allclose(*outputs, rtol=0, atol=1e-6)  # params of float32


def test_convolutions_of_bfloat16_stay_in_it():
    x, kernel = (jnp.ones(shape, jnp.bfloat16) for shape in ((1, 3, 3, 3, 2), (3, 3, 3, 2, 2)))
    assert jax.eval_shape(convolve_3d, x, kernel).dtype == jnp.bfloat16


def test_volumes_that_are_too_small_and_unknown_paddings_are_rejected():
    x, kernel = jnp.zeros((1, 2, 5, 5, 1)), jnp.zeros((3, 3, 3, 1, 1))
    with pytest.raises(ValueError, match=r"\(2, 5, 5\) are too small: .* leaves \[0, 3, 3\]"):
        convolve_3d(x, kernel, padding="VALID")
    with pytest.raises(ValueError, match=r"padding=\(1, 1\) is unknown"):
        convolve_3d(x, kernel, padding=(1, 1))
    with pytest.raises(ValueError, match="implementation='fft' is unknown"):
        convolve_3d(x, kernel, implementation="fft")


@pytest.mark.slow
@pytest.mark.parametrize(("size", "window"), [((4, 6, 2), (2, 2, 2)), ((5, 7, 4), (2, 3, 2))])
def test_pooling_agrees_with_flax_also_for_equal_entries(size, window):
    x = jnp.asarray(np.random.default_rng(0).integers(0, 3, (2, *size, 3)).astype(float))

    def results(pool):
        return pool(x), jax.grad(lambda x: (jnp.arange(pool(x).size) * pool(x).ravel()).sum())(x)

    expected = results(lambda x: nn.max_pool(x, window, window))
    chex.assert_trees_all_equal(results(lambda x: max_pool_3d(x, window)), expected)


def test_interpolation_is_that_of_resized_images():
    x = jnp.asarray(draw(2, 3, 1, 4, 2))
    expected = jax.image.resize(x, (2, 6, 2, 8, 2), "linear")
    np.testing.assert_allclose(upsample_3d(x), expected, rtol=0, atol=1e-12)
