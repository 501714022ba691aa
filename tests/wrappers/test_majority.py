"""Majority vote: votes, ties, weights, zeros, bits, and clients that are left out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from codec_helpers import decoded, words
from wrapper_helpers import rounds_of, sends

import fedjax_algos as fa
from fedjax_algos.core.trees import sent_bytes
from fedjax_algos.wrappers.compression.signs import sign_codec

V = np.array([[3, -1, 0.5, -4, 2], [1, 2, -0.5, -1, 3], [-2, -3, -1, -2, 1], [1e-3, 5, -9, 1, 4]])


def step(vectors, cohort, algorithm=None):
    """What the server has subtracted after a round."""
    algorithm = fa.wrappers.majority(algorithm or sends(vectors[:, None]), magnitude=0.25)
    (state,) = rounds_of(algorithm, [cohort], len(vectors))
    return -state.server.params["x"]


def test_the_majority_has_the_sign_and_ties_are_0():
    np.testing.assert_array_equal(step(V, (0, 1, 2)), [0.25, -0.25, -0.25, -0.25, 0.25])
    np.testing.assert_array_equal(step(V, (0, 1, 2, 3)), [0.25, 0, -0.25, -0.25, 0.25])
    np.testing.assert_array_equal(step(V, (3,)), 0.25 * np.sign(V[3]))


def test_votes_count_by_the_weights_of_the_algorithm():
    def contribute(update, dispatch, staleness):
        weight = 1.0 + 2 * (dispatch.client == 3)  # as many as the other three have
        return fa.core.WeightedSum(jax.tree.map(lambda leaf: weight * leaf, update), weight)

    algorithm = sends(V[:, None])._replace(contribute=contribute)
    expected = 0.25 * np.sign(np.sign(V[:3]).sum(0) + 3 * np.sign(V[3]))
    assert 0 in expected
    np.testing.assert_array_equal(step(V, (0, 1, 2, 3), algorithm), expected)


def test_where_an_entry_is_0_the_client_votes_at_random():
    signs = decoded(sign_codec(), np.tile([0, -0.0, 1, -1, 1e-30], (400, 1)))
    np.testing.assert_array_equal(np.abs(signs), np.ones((400, 5)))
    np.testing.assert_array_equal(signs[:, 2:], np.tile([1, -1, 1], (400, 1)))
    assert np.abs(signs[:, :2].mean(0)).max() < 0.2  # four standard deviations
    assert abs((signs[:, 0] * signs[:, 1]).mean()) < 0.2


@pytest.mark.parametrize("d", [1, 31, 32, 1000, 1_663_370])
def test_an_entry_takes_one_bit(d):
    v = jax.ShapeDtypeStruct((d,), jnp.float32)
    message = jax.eval_shape(sign_codec().encode, jax.random.key(0), v)
    assert 8 * sent_bytes(message) == words(d + 1)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_client_whose_update_is_not_finite_has_no_vote(wrong):
    vectors = np.tile(np.where(np.arange(33) % 2, 1.0, -1.0), (3, 1))
    vectors[1:] *= -1
    vectors[1, 5] = wrong
    (state,) = rounds_of(fa.wrappers.majority(sends(vectors[:, None])), [(0, 1, 2)], 3)
    assert (state.excluded.number, state.excluded.client) == (1, 1)
    np.testing.assert_array_equal(state.server.params["x"], np.zeros(33))  # a tie of the others
