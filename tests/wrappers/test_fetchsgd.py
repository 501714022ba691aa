"""FetchSGD: the count sketch, the rule of the server in NumPy, sparse updates, bits."""

import math
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import LAYOUTS, dispatches_of, one_round, small_network, stored
from wrapper_helpers import LOCAL, rounds_of, sends

import fedjax_algos as fa
from fedjax_algos.engine.exchange import count_transfer
from fedjax_algos.wrappers.compression import fetchsgd
from fedjax_algos.wrappers.compression.fetchsgd import sketch, unsketch

KEY = jax.random.key(zlib.crc32(b"fetchsgd"))
SETS = [(0, 1), (2, 1), (0, 2), (1, 0)]


def test_a_sketch_has_the_printed_entries(monkeypatch):
    hashes = jnp.asarray([0, 1, 0, 1]), jnp.asarray([1.0, -1, 1, 1])
    monkeypatch.setattr(fetchsgd, "_hashes", lambda key, d, columns: hashes)
    table = sketch(KEY, jnp.asarray([3, -1, 0.5, -4]), 1, 2)
    np.testing.assert_array_equal(table, [[3.5, -3]])
    np.testing.assert_array_equal(unsketch(KEY, table, 4), [3.5, 3, 3.5, -3])


def test_a_sketch_is_linear_and_exact_for_a_few_entries():
    a, b = np.random.default_rng(0).normal(size=(2, 400)).astype(np.float32)
    sparse = np.zeros(400, np.float32)
    sparse[[3, 77, 200, 399]] = [3, -1, 0.5, -4]
    wrong = np.where(np.arange(400) == 5, np.inf, sparse)
    tables = jax.jit(jax.vmap(lambda v: sketch(KEY, v, 5, 512)))(
        jnp.stack([a, b, a - 2 * b, sparse, wrong])
    )
    np.testing.assert_allclose(tables[2], tables[0] - 2 * tables[1], atol=1e-4)
    found = jax.jit(jax.vmap(lambda table: unsketch(KEY, table, 400)))(tables[3:])
    np.testing.assert_array_equal(found[0], sparse)
    assert not np.isfinite(found[1]).all()


def rule(vectors, hashes, k, rho, zeroed):
    """What the server subtracts in each round, in NumPy; `hashes` is the sketch of the identity.

    With `zeroed` it is `_server_helper_sketched` of kiddyboots216/CommEfficient 833ca44, with
    virtual momentum and virtual errors, and otherwise Algorithm 1 of the paper.
    """
    momentum, error, numbers, history = 0, 0, [0] * len(vectors), []
    for cohort in SETS:
        arrived = [vectors[i, numbers[i]] for i in cohort]
        for i in cohort:
            numbers[i] += 1
        momentum = rho * momentum + np.einsum("d,drc->rc", np.mean(arrived, 0), hashes)
        error = error + momentum
        estimates = np.median(np.einsum("drc,rc->rd", hashes, error), axis=0)
        largest = np.argsort(-np.abs(estimates), kind="stable")[:k]
        update = np.zeros(len(estimates))
        update[largest] = estimates[largest]
        table = np.einsum("d,drc->rc", update, hashes)
        if zeroed:
            error, momentum = np.where(table, 0, error), np.where(table, 0, momentum)
        else:
            error = error - table
        history.append(update)
    return history


@pytest.mark.parametrize("sent", ["zeroed", "subtracted"])
def test_the_rule_in_numpy(sent):
    """On small integers, so that all sums are exact; the layouts give the same bits."""
    d, rows, columns = 30, 3, 8
    vectors = np.random.default_rng(1).integers(-64, 64, (3, 4, d)).astype(float)
    hashes = np.asarray(jax.vmap(lambda v: sketch(KEY, v, rows, columns))(jnp.eye(d)))
    algorithm = fa.wrappers.fetchsgd(
        sends(vectors), rows=rows, size=rows * columns / d, fraction=0.1, momentum=0.5, sent=sent
    )
    expected = rule(vectors, hashes, 3, 0.5, sent == "zeroed")
    for layout in LAYOUTS if sent == "zeroed" else LAYOUTS[:1]:
        states = rounds_of(algorithm, SETS, 3, layout=layout)
        params = np.array([np.zeros(d)] + [state.server.params["x"] for state in states])
        np.testing.assert_array_equal(params[:-1] - params[1:], expected)
    assert len({tuple(np.flatnonzero(update)) for update in expected}) > 2


def test_sparse_updates_arrive_exactly_with_the_weights_of_the_algorithm():
    """Also in leaves of several shapes; what is left of the tables is 0."""
    vectors = {"b": np.zeros((2, 1, 3)), "w": np.zeros((2, 1, 20, 20))}
    vectors["b"][0, 0, 1], vectors["w"][0, 0, 3, 7] = 5, -2
    vectors["w"][1, 0, 3, 7], vectors["w"][1, 0, 19, 0] = 6, 0.5

    def contribute(update, dispatch, staleness):
        weight = 1.0 + 2 * dispatch.client
        return fa.core.WeightedSum(jax.tree.map(lambda leaf: weight * leaf, update), weight)

    bare = sends(vectors)._replace(contribute=contribute)
    algorithm = fa.wrappers.fetchsgd(bare, size=1, fraction=0.01, sent="subtracted")
    (state,) = rounds_of(algorithm, [(0, 1)], 2)
    for name, leaf in vectors.items():
        expected = -(leaf[0, 0] + 3 * leaf[1, 0]) / 4
        np.testing.assert_allclose(state.server.params["x"][name], expected, rtol=1e-6)
    np.testing.assert_array_equal(state.server.own.error, np.zeros((5, 81)))


@pytest.mark.parametrize("d", [1, 2, 33, 1000, 65537])
def test_a_message_is_the_table(d):
    data = stored([{"b": np.zeros(1)}] * 2)
    algorithm = fa.wrappers.fetchsgd(sends(np.zeros((2, 1, d), np.float32)), rows=3, size=0.1)
    state = jax.eval_shape(lambda: fa.pure_round(algorithm).init(0, fa.Population(2, 2, 2)))
    transfer = count_transfer(
        algorithm, state, data, one_round(dispatches_of(data, LOCAL, [(0, 1)]), 0)
    )
    assert transfer.upload == 4 * 3 * math.ceil(0.1 * d / 3)


def test_an_update_that_is_not_finite_is_left_out():
    vectors = np.ones((2, 1, 4))
    vectors[1, 0, 2] = np.nan
    (state,) = rounds_of(fa.wrappers.fetchsgd(sends(vectors), size=1), [(0, 1)], 2)
    assert (state.excluded.number, state.excluded.client) == (1, 1)
    assert np.isfinite(state.server.params["x"]).all()
    assert np.any(state.server.params["x"])


def test_an_engine_consumes_the_tables_and_broadcasts_of_fewer_leaves_are_encoded():
    toy, sets = small_network(), [(0, 1), (3, 0)]
    bare = fa.algorithms.fedrep(toy.problem, LOCAL, head="out*")
    engine = fa.make_engine(fa.wrappers.wrap(bare, "fetchsgd:size=0.5+qsgd:direction=down"))
    state = engine.init(0, fa.Population(4, 2, 17))
    dispatches = dispatches_of(toy.data, LOCAL, sets)
    for index in range(len(sets)):
        state, _ = engine.round(state, toy.data, one_round(dispatches, index))
    assert np.any(state.server.inner.own.error)
