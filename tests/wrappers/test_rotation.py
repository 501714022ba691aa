"""The randomised Hadamard transform: Sylvester's matrix, an inverse, and the same for clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import hadamard as sylvester

from fedjax_algos.wrappers.compression.rotation import hadamard, padded_size, rotate, rotate_back


def vector(d):
    return np.random.default_rng(d).normal(size=d).astype(np.float32)


@pytest.mark.parametrize("d", [1, 2, 64, 2048])
def test_the_transform_is_the_product_with_sylvesters_matrix(d):
    v = vector(d)
    np.testing.assert_allclose(
        jax.jit(hadamard)(jnp.asarray(v)), sylvester(d) @ v, atol=1e-5 * d**0.5
    )


@pytest.mark.parametrize(("d", "size"), [(1, 1), (3, 4), (64, 64), (1000, 1024)])
def test_a_rotation_has_an_inverse_and_keeps_the_norm(d, size):
    v, key = vector(d), jax.random.key(d)
    assert padded_size(d) == size
    y = jax.jit(rotate)(key, jnp.asarray(v))
    assert y.shape == (size,)
    np.testing.assert_allclose(np.linalg.norm(y), np.linalg.norm(v), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(rotate_back, static_argnums=2)(key, y, d), v, atol=1e-6)


def test_signs_are_drawn_for_each_key():
    one_hot = jnp.zeros(64).at[3].set(8.0)
    keys = jax.random.split(jax.random.key(0), 200)
    many = jax.jit(jax.vmap(rotate, (0, None)))
    rows = np.asarray(many(keys, one_hot))  # +- a row of H
    signs = rows / sylvester(64)[3]
    assert np.ptp(signs, axis=1).max() == 0
    assert 80 < (signs[:, 0] == 1).sum() < 120  # four standard deviations are 28
    a = jnp.asarray(vector(64))
    np.testing.assert_allclose(many(keys, a)[7], jax.jit(rotate)(keys[7], a), atol=1e-5)
