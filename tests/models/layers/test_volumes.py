"""Pooling and interpolation of volumes agree with those of Flax and JAX."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_algos.models import max_pool_3d, upsample_3d

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.slow
def test_pooling_agrees_with_flax_also_for_equal_entries():
    window = (2, 3, 2)
    x = jnp.asarray(np.random.default_rng(0).integers(0, 3, (2, 5, 7, 4, 3)).astype(float))

    @jax.jit
    def results(x):
        total = lambda x, pool: (jnp.arange(pool(x).size) * pool(x).ravel()).sum()  # noqa: E731
        pools = (lambda x: max_pool_3d(x, window), lambda x: nn.max_pool(x, window, window))
        return [(pool(x), jax.grad(total)(x, pool)) for pool in pools]

    chex.assert_trees_all_equal(*results(x))


def test_interpolation_is_that_of_resized_images():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 1, 4, 2)))
    expected = jax.image.resize(x, (2, 6, 2, 8, 2), "linear")
    np.testing.assert_allclose(upsample_3d(x), expected, rtol=0, atol=1e-12)
