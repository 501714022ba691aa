"""Rules on the server: FetchSGD's sketches, the majority's votes, MIFA's mean, AFL's weights."""

import math
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from codec_helpers import decoded
from helpers import quadratics, run
from wrapper_helpers import later, one_example_each, rounds_of, sends, transfer_of, weighted

import fedjax_algos as fa
from fedjax_algos.core.trees import scale
from fedjax_algos.wrappers import fetchsgd, majority, wrap
from fedjax_algos.wrappers.compression import fetchsgd as of_fetchsgd
from fedjax_algos.wrappers.compression.fetchsgd import sketch, unsketch
from fedjax_algos.wrappers.compression.signs import sign_codec
from fedjax_algos.wrappers.linear import owners

KEY = jax.random.key(zlib.crc32(b"fetchsgd"))
SETS = [(0, 1), (2, 1), (0, 2), (1, 0)]
V = np.array([[3, -1, 0.5, -4, 2], [1, 2, -0.5, -1, 3], [-2, -3, -1, -2, 1], [1e-3, 5, -9, 1, 4]])


def test_a_sketch_has_the_printed_entries(monkeypatch):
    hashes = jnp.asarray([0, 1, 0, 1]), jnp.asarray([1.0, -1, 1, 1])
    monkeypatch.setattr(of_fetchsgd, "_hashes", lambda key, d, columns: hashes)
    table = sketch(KEY, jnp.asarray([3, -1, 0.5, -4]), 1, 2)
    np.testing.assert_array_equal(table, [[3.5, -3]])
    np.testing.assert_array_equal(unsketch(KEY, table, 4), [3.5, 3, 3.5, -3])


def test_a_sketch_is_linear_and_exact_for_a_few_entries():
    a, b = np.random.default_rng(0).normal(size=(2, 400)).astype(np.float32)
    sparse = np.zeros(400, np.float32)
    sparse[[3, 77, 200, 399]] = [3, -1, 0.5, -4]
    wrong = np.where(np.arange(400) == 5, np.inf, sparse)

    @jax.jit
    @jax.vmap
    def there_and_back(v):
        table = sketch(KEY, v, 5, 512)
        return table, unsketch(KEY, table, 400)

    tables, found = there_and_back(jnp.stack([a, b, a - 2 * b, sparse, wrong]))
    np.testing.assert_allclose(tables[2], tables[0] - 2 * tables[1], atol=1e-4)
    np.testing.assert_array_equal(found[3], sparse)
    assert not np.isfinite(found[4]).all()


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


ZEROED = [("zeroed", "sequential"), *later(("zeroed", 2), ("zeroed", "vmapped"))]


@pytest.mark.parametrize(("sent", "layout"), [*ZEROED, ("subtracted", "vmapped")])
def test_the_rule_of_fetchsgd_in_numpy(sent, layout):
    """On small integers, so that all sums are exact; the layouts give the same bits."""
    d, rows, columns = 30, 3, 8
    vectors = np.random.default_rng(1).integers(-64, 64, (3, 4, d)).astype(float)
    hashes = np.asarray(jax.jit(jax.vmap(lambda v: sketch(KEY, v, rows, columns)))(jnp.eye(d)))
    size = rows * columns / d
    options = {"rows": rows, "size": size, "fraction": 0.1, "momentum": 0.5, "sent": sent}
    expected = rule(vectors, hashes, 3, 0.5, sent == "zeroed")
    states = rounds_of(fetchsgd(sends(vectors), **options), SETS, 3, layout=layout)
    params = np.array([np.zeros(d)] + [state.server.params["x"] for state in states])
    np.testing.assert_array_equal(params[:-1] - params[1:], expected)
    assert len({tuple(np.flatnonzero(update)) for update in expected}) > 2


def test_sparse_updates_arrive_exactly_with_the_weights_of_the_algorithm():
    """Also in leaves of several shapes; what is left of the tables is 0."""
    vectors = {"b": np.zeros((2, 1, 3)), "w": np.zeros((2, 1, 20, 20))}
    vectors["b"][0, 0, 1], vectors["w"][0, 0, 3, 7] = 5, -2
    vectors["w"][1, 0, 3, 7], vectors["w"][1, 0, 19, 0] = 6, 0.5
    bare = weighted(sends(vectors), lambda client: 1.0 + 2 * client)
    algorithm = fetchsgd(bare, size=1, fraction=0.01, sent="subtracted")
    (state,) = rounds_of(algorithm, [(0, 1)], 2)
    for name, leaf in vectors.items():
        expected = -(leaf[0, 0] + 3 * leaf[1, 0]) / 4
        np.testing.assert_allclose(state.server.params["x"][name], expected, rtol=1e-6)
    np.testing.assert_array_equal(state.server.own[0].error, np.zeros((5, 81)))


@pytest.mark.parametrize("d", [1, 33, 65537])
def test_a_message_is_the_table(d):
    algorithm = fetchsgd(sends(np.zeros((2, 1, d), np.float32)), rows=3, size=0.1)
    assert transfer_of(algorithm, one_example_each(2)).upload == 4 * 3 * math.ceil(0.1 * d / 3)


ENTRIES = "it multiplies the entries of the update by different numbers"
LEAVES = "it multiplies the leaves of one vector by different numbers"
SINGLE = {  # what a contribution makes of the vectors {"a": [3, 2], "b": bfloat16[3]} and c, [1]
    lambda v, w: (scale(w, v[0]), scale(-2 * w, v[1]), jnp.exp(w)): "",
    lambda v, w: jax.jit(lambda v: scale(jnp.where(w > 0, w, 1) / 3, v))(v): "",
    lambda v, w: jax.tree.map(lambda leaf: leaf / jnp.full_like(leaf, w), v): "",
    lambda v, w: (
        scale(w, v[0]) | {"square": optax.tree.norm(v, squared=True)}
    ): "'square' of the update",
    lambda v, w: v[0]["b"] * jnp.arange(3.0): ENTRIES,
    lambda v, w: (w * v[0]["a"], w.astype(int) * v[0]["b"]): LEAVES,
    lambda v, w: v[0]["a"] + w: "'add' of the update",
    lambda v, w: v[0]["b"].astype(int): "'convert_element_type' of the update",
    lambda v, w: w / v[1]: "'div' of the update",
}


@pytest.mark.parametrize("contribute", SINGLE)
def test_a_rule_needs_one_weight_for_each_vector(contribute):
    vectors = [{"a": jnp.ones((3, 2)), "b": jnp.ones(3, jnp.bfloat16)}, jnp.ones(1)]
    found = owners(contribute, vectors, jnp.float32(2))
    assert (found * isinstance(found, str) or "").removeprefix("it computes ") == SINGLE[contribute]


@pytest.mark.parametrize(
    ("cohort", "votes", "expected"),
    [
        ((0, 1, 2), 1.0, [1, -1, -1, -1, 1]),
        ((0, 1, 2, 3), 1.0, [1, 0, -1, -1, 1]),
        # client 3 has as many votes as the other three
        ((0, 1, 2, 3), 3.0, np.sign(np.sign(V[:3]).sum(0) + 3 * np.sign(V[3]))),
    ],
)
def test_the_majority_has_the_sign_and_ties_are_0(cohort, votes, expected):
    bare = weighted(sends(V[:, None]), lambda client: 1.0 + (votes - 1) * (client == 3))
    (state,) = rounds_of(majority(bare, magnitude=0.25), [cohort], 4)
    np.testing.assert_array_equal(-state.server.params["x"], 0.25 * np.asarray(expected))
    assert len(cohort) == 3 or 0 in expected


def test_where_an_entry_is_0_the_client_votes_at_random():
    signs = decoded(sign_codec(), np.tile([0, -0.0, 1, -1, 1e-30], (400, 1)))
    np.testing.assert_array_equal(np.abs(signs), np.ones((400, 5)))
    np.testing.assert_array_equal(signs[:, 2:], np.tile([1, -1, 1], (400, 1)))
    assert np.abs(signs[:, :2].mean(0)).max() < 0.2  # four standard deviations
    assert abs((signs[:, 0] * signs[:, 1]).mean()) < 0.2


AFL = [0.4110750000, 0.1423046299, -0.0778160049, -0.1188470423, 0.0527995273]
MIFA = [0.2017500000, 0.1844654688, 0.1965059589, 0.2065131653, 0.2142405021]


@pytest.mark.parametrize(
    ("spec", "sets", "expected", "atol"),
    [
        ("afl:gamma=0.3", [(0, 1, 2, 3)] * 5, AFL, 5e-11),
        # its option c is 0: the model moves before all clients have been seen
        ("mifa", [(0, 1), (1, 2), (0, 2), (3, 1), (2, 0)], MIFA, 1e-6),
    ],
)
def test_models_by_the_code_of_flgo(spec, sets, expected, atol, x64):
    """Three full steps of rate .1."""
    toy = quadratics([[1.0], [2.0], [0.5], [1.5]], [[1.0], [-1.0], [3.0], [0.2]])
    local = fa.Local(1, 0.1, steps=3, batches="full")
    bare = fa.algorithms.fedavg(toy.problem, local, weighting="uniform")
    found = [float(params["x"]) for params in run(wrap(bare, spec), toy.data, sets)]
    np.testing.assert_allclose(found, expected, atol=atol)
