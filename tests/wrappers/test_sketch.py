"""The count sketch: printed values, linearity, and exact estimates of a few entries."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.wrappers.compression import sketch


def test_a_sketch_has_the_printed_entries(monkeypatch):
    hashes = jnp.asarray([0, 1, 0, 1]), jnp.asarray([1.0, -1, 1, 1])
    monkeypatch.setattr(sketch, "_hashes", lambda key, d, columns: hashes)
    key = jax.random.key(0)
    table = sketch.sketch(key, jnp.asarray([3, -1, 0.5, -4]), 1, 2)
    np.testing.assert_array_equal(table, [[3.5, -3]])
    np.testing.assert_array_equal(sketch.unsketch(key, table, 4), [3.5, 3, 3.5, -3])


def test_a_sketch_is_linear_and_exact_for_a_few_entries():
    key, rng = jax.random.key(0), np.random.default_rng(0)
    a, b = jnp.asarray(rng.normal(size=(2, 400)), jnp.float32)
    make = jax.jit(sketch.sketch, static_argnums=(2, 3))
    read = jax.jit(sketch.unsketch, static_argnums=2)
    tables = [make(key, v, 5, 64) for v in (a, b, a - 2 * b)]
    assert tables[0].shape == (5, 64)
    np.testing.assert_allclose(tables[2], tables[0] - 2 * tables[1], atol=1e-4)
    sparse = np.zeros(400, np.float32)
    sparse[[3, 77, 200, 399]] = [3, -1, 0.5, -4]
    exact = read(key, make(key, jnp.asarray(sparse), 5, 512), 400)
    np.testing.assert_array_equal(exact, sparse)
    sparse[5] = np.inf
    assert not np.isfinite(read(key, make(key, jnp.asarray(sparse), 5, 512), 400)).all()
