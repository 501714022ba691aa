"""PowerSGD: printed values, those of the authors' code, exact matrices, errors and bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from wrapper_helpers import rounds_of, sends

import fedjax_algos as fa
from fedjax_algos.core.trees import sent_bytes
from fedjax_algos.wrappers.compression.powersgd import powersgd_codec

RELEASED_Q = [[1, 0], [0, 1], [1, -1], [0.5, 2]]
RELEASED_KERNEL = np.array([[[[3, -1, 0.5], [1, 2, 0]], [[-2, 1, 4], [0.5, -1, 1]]]])
RELEASED = [
    [[3.045595, -0.829016, 0.505699], [0.436269, -0.11399, -0.070466]],
    [[-2.149223, 0.440415, 3.981347], [0.707254, -0.222798, 1.025907]],
]


def decoded(codec, leaves):
    """What the server has of each of several leaves, float64[number, ...]."""
    leaves = jnp.asarray(leaves, jnp.float32)
    run = jax.jit(jax.vmap(lambda key, v: codec.decode(codec.encode(key, v), v.shape)))
    return np.asarray(run(jax.random.split(jax.random.key(0), len(leaves)), leaves), np.float64)


def many(leaf):
    return np.stack([leaf] * 50)


def error(found, leaf):
    """The error relative to the square norm, of each key."""
    axes = tuple(range(1, found.ndim))
    return np.square(found - leaf).sum(axes) / np.square(leaf).sum()


def starting_from(monkeypatch, q):
    monkeypatch.setattr(jax.random, "normal", lambda key, shape, dtype: jnp.asarray(q, dtype))


def test_a_matrix_of_three_rows_has_the_printed_factors(monkeypatch):
    starting_from(monkeypatch, [[1.0], [0.0]])
    leaf = np.array([[1, 2], [3, 4], [5, 6.0]]).T  # the outputs are the last axis
    p, q = powersgd_codec(1, 1, iterations=1).encode(jax.random.key(0), jnp.asarray(leaf))
    sign = np.sign(p[0])
    np.testing.assert_allclose(sign * p[:, 0], np.array([1, 3, 5]) / 35**0.5, rtol=1e-6)
    np.testing.assert_allclose(sign * q[:, 0], [5.9161, 7.4374], rtol=1e-5)
    for iterations, left in ((1, 0.68571), (2, 0.2645087), (9, 0.2645051)):
        found = decoded(powersgd_codec(1, 1, iterations), leaf[None])
        np.testing.assert_allclose(error(found, leaf) * 91, left, rtol=2e-5)


def test_a_kernel_of_a_convolution_is_that_of_the_authors_code(monkeypatch):
    """BasicPowerSGD of epfml/powersgd f07be92, a right and a left step with the same Q, rank 2."""
    starting_from(monkeypatch, RELEASED_Q)
    found = decoded(powersgd_codec(2, 0, iterations=1), RELEASED_KERNEL[None])[0, 0]
    np.testing.assert_allclose(found, RELEASED, atol=2e-5)


@pytest.mark.parametrize("shape", [(2, 3, 2, 9), (9, 12)])
def test_matrices_of_low_rank_are_exact(shape):
    rng, rows = np.random.default_rng(0), int(np.prod(shape[:-1]))
    ones = [np.outer(rng.normal(size=rows), rng.normal(size=shape[-1])) for _ in range(2)]
    leaves = np.stack([0 * ones[0], ones[0], ones[0] + ones[1]]).reshape(-1, *shape)
    found = decoded(powersgd_codec(2), leaves)
    np.testing.assert_allclose(found, leaves, atol=1e-5)
    np.testing.assert_array_equal(found[0], leaves[0])


def test_errors_are_below_their_bound_and_each_iteration_lowers_them():
    """The identity has exactly the error of the bound, 1 - r/n; no vector becomes longer."""
    identity = np.eye(8)
    np.testing.assert_allclose(error(decoded(powersgd_codec(2), many(identity)), identity), 0.75)
    matrix = np.random.default_rng(1).normal(size=(20, 30)) * 0.8 ** np.arange(30)
    best = np.square(np.linalg.svd(matrix)[1][2:]).sum() / np.square(matrix).sum()
    errors = [error(decoded(powersgd_codec(2, 1, i), many(matrix)), matrix) for i in (1, 2, 3)]
    assert np.all(errors[0] <= 1)
    assert errors[0].mean() < 1 - 2 / 20
    assert np.all(np.diff(errors, axis=0) <= 1e-6)
    assert best < errors[2].mean() < 1.1 * best


def test_bits_of_leaves_of_five_shapes():
    """Of vectors and of what would gain less than the rate all entries are sent."""
    codec = powersgd_codec(2, 2)
    for shape, entries in {
        (): 1,
        (1000,): 1000,
        (784, 128): 2 * (784 + 128),
        (3, 3, 16, 32): 2 * (3 * 3 * 16 + 32),
        (1, 1, 4, 1000): 4000,  # 2 * 1004 are not half of it
    }.items():
        leaf = jax.ShapeDtypeStruct(shape, jnp.float32)
        message = jax.eval_shape(codec.encode, jax.random.key(0), leaf)
        assert sent_bytes(message) == 4 * entries
        found = jax.eval_shape(lambda sent, shape=shape: codec.decode(sent, shape), message)
        assert (found.shape, found.dtype) == (shape, jnp.float32)


def test_what_is_lost_is_sent_later():
    """A constant update arrives in the mean of the rounds; its vector at once."""
    rng = np.random.default_rng(2)
    update = {"b": rng.normal(size=7), "w": rng.normal(size=(7, 6))}
    vectors = jax.tree.map(lambda leaf: np.tile(leaf, (1, 30, *[1] * leaf.ndim)), update)
    algorithm = fa.wrappers.powersgd(sends(vectors), rank=1, feedback="ef")
    states = rounds_of(algorithm, [(0,)] * 30, 1)
    arrived = [jax.tree.map(np.negative, state.server.params["x"]) for state in states]
    np.testing.assert_allclose(arrived[0]["b"], update["b"], rtol=1e-6)
    lost = [
        np.linalg.norm(sent["w"] / (index + 1) - update["w"]) for index, sent in enumerate(arrived)
    ]
    assert lost[0] > 0.5 * np.linalg.norm(update["w"])
    assert lost[-1] < 0.25 * lost[0]


def test_a_matrix_that_is_not_finite_is_left_out():
    vectors = np.ones((3, 1, 6, 6))
    vectors[1, 0, 2, 3], vectors[2, 0, 2, 3] = np.nan, np.inf
    (state,) = rounds_of(fa.wrappers.powersgd(sends(vectors), rank=1), [(0, 1, 2)], 3)
    assert (state.excluded.number, state.excluded.client) == (2, 1)
    np.testing.assert_allclose(state.server.params["x"], -np.ones((6, 6)), rtol=1e-6)


def test_a_part_is_no_matrix():
    with pytest.raises(ValueError, match="powersgd: scope=part has no matrices; give scope=leaf"):
        fa.wrappers.wrap(sends(np.zeros((1, 1, 4))), "powersgd:scope=part")
