"""Clipped sums with noise: golden values, the law of the noise, and what a client can change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import by_kind, quadratics, run, small_network
from scipy import stats
from wrapper_helpers import (
    ALL,
    LOST,
    NETWORK_LOCAL,
    VECTORS,
    D,
    later,
    moves,
    rounds_of,
    sends,
    traced,
)

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core.algorithm import contribution_of
from fedjax_algos.core.options import options
from fedjax_algos.core.types import with_arrays
from fedjax_algos.wrappers import wrap
from fedjax_algos.wrappers.privacy.central import clipped, gaussian

pytestmark = pytest.mark.usefixtures("x64")
TOY = small_network()


@pytest.mark.parametrize(
    ("vectors", "clip", "options", "expected"),
    [
        ([[3, 4]], 1, {}, [[0.6, 0.8]]),
        ([[3, 4]], 10, {}, [[3, 4]]),
        ([[0, 0]], 1, {}, [[0, 0]]),
        ([[3], [4]], 1, {"by": "leaf"}, [[0.5**0.5], [0.5**0.5]]),
        ([[3], [0.5]], 1, {"by": "vector"}, [[0.5**0.5], [0.5]]),
        ([[3], [40]], 1, {"ratio": 10}, [[0.6], [0.8]]),
        ([[3, -1]], 1, {"order": 1}, [[0.75, -0.25]]),
        ([[3], [1]], 1, {"order": 1, "by": "leaf"}, [[0.5], [0.5]]),
        ([[np.nan, 4], [1, 1]], 1, {}, [[0, 0], [0, 0]]),
        ([[1, 1], [np.inf, 4]], 1, {"by": "leaf"}, [[0, 0], [0, 0]]),
    ],
)
def test_golden_values_of_clipping(vectors, clip, options, expected):
    found, longer = clipped([jnp.array(v, float) for v in vectors], clip, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    finite = np.isfinite(np.concatenate(vectors)).all()
    assert not finite or longer == (clip == 1 and np.any(vectors))


def test_the_denominator_is_fixed_and_noise_comes_without_updates():
    """In the third round no update arrives; one update of the second is not finite."""
    vectors = VECTORS.copy()
    vectors[1, 1, 2] = np.nan
    clear = moves(gaussian(sends(vectors), clip=1.5, noise=0))
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    shorter = np.nan_to_num(vectors * np.minimum(1, 1.5 / lengths))
    shorter[1, 1] = 0
    expected = [shorter[~LOST, 0].sum(0) / 7, shorter[:, 1].sum(0) / 7, np.zeros(D)]
    np.testing.assert_allclose(clear, expected, rtol=1e-6, atol=1e-12)
    private = gaussian(sends(vectors), clip=1.5, noise=2)
    noises = [moves(private, seed=seed) - clear for seed in (0, 1)]
    assert len(np.unique(np.round(noises, 9))) == 2 * 3 * D


@pytest.mark.parametrize(
    ("spec", "law", "layout"),
    [
        ("gaussian:clip=0.3,noise=2", stats.norm(scale=0.6 / 7), "vmapped"),
        *later(("gaussian:clip=0.3,noise=2", stats.norm(scale=0.6 / 7), "sequential")),
        *later(("gaussian:clip=0.3,noise=2", stats.norm(scale=0.6 / 7), 2)),
        ("laplace:clip=0.3,noise=2", stats.laplace(scale=0.6 / 7), "vmapped"),
    ],
)
def test_the_noise_has_the_stated_law(spec, law, layout):
    """100,000 entries in five rounds, also without updates; each layout draws the same noise."""
    vectors = np.zeros((7, 5, 20_000))
    arrives = np.tile([[True], [False]], (3, 7))[:5]
    states = rounds_of(wrap(sends(vectors), spec), [ALL] * 5, 7, layout, arrives=arrives)
    noise = -np.diff([np.zeros(20_000), *(state.server.params["x"] for state in states)], axis=0)
    assert stats.kstest(noise.ravel(), law.cdf).pvalue > 1e-3
    statistic = (noise**2).sum() / law.var()  # chi-square for normal noise
    assert abs(statistic / noise.size - 1) < 4 * np.sqrt(5 / noise.size)
    assert abs(np.corrcoef(noise)[np.triu_indices(5, 1)]).max() < 5 / np.sqrt(20_000)
    if layout != "vmapped":
        states = rounds_of(wrap(sends(vectors), spec), [ALL] * 5, 7, arrives=arrives)
        np.testing.assert_allclose(noise[:1], -states[0].server.params["x"][None], rtol=1e-12)


def test_the_norm_follows_a_quantile():
    """Golden values of Andrew et al.'s rule; the bit's noise is as good as none."""
    lengths = np.array([1e3] * 5 + [1e-3] * 2)  # the share of short ones: 0, 0, 1/7, 2/7
    vectors = np.zeros((7, 4, 1))
    vectors[:, :2], vectors[:, 3, 0] = 1e3, lengths
    vectors[:, 2, 0] = [1e3] * 6 + [1e-3]
    algorithm = gaussian(sends(vectors), clip=0.1, noise=1e-6, quantile=0.5, bit_noise=1e-5)
    states = rounds_of(algorithm, [ALL] * 4, 7)
    shares = np.array([0, 0, 1 / 7, 2 / 7])
    expected = 0.1 * np.exp(np.cumsum(0.2 * (0.5 - shares)))
    norms = [algorithm.report(state.server)["clip_norm"] for state in states]
    np.testing.assert_allclose(norms, expected, rtol=1e-4)
    np.testing.assert_allclose(expected[:2], [0.110517, 0.122140], atol=5e-7)
    assert [float(algorithm.report(s.server)["clipped"]) for s in states[:2]] == [1, 1]


@pytest.mark.parametrize(("size", "noise"), [(20, 1.15470), (50, 1.02062), (100, 1.00504)])
def test_a_quantile_takes_its_share_of_the_noise(size, noise):
    """With sigma_b = M / 20; all clients send 0."""
    algorithm = gaussian(sends(np.zeros((size, 1, 50_000))), clip=1, noise=1, quantile=0.5)
    (state,) = rounds_of(algorithm, [range(size)], size)
    found = state.server.params["x"].std() * size
    assert abs(found / noise - 1) < 4 / np.sqrt(2 * 50_000)


def private_cases():
    """The cases that `gaussian` takes, with equal weights; `test_kinds.py` names the others."""
    from wrappers.test_kinds import EVERY, reason_of

    return by_kind([case for case in EVERY if not reason_of(case, "gaussian")])


def worst_examples(rng, data):
    """Examples of clients that a norm may not survive: huge, tiny, equal and not finite."""
    sizes = 10.0 ** rng.integers(-3, 9, size=(16, 1))
    x, y = data.examples["x"], data.examples["y"]
    more_x = sizes[:, :, None] * rng.normal(size=(16, *x.shape))
    more_y = sizes * rng.normal(size=(16, *y.shape))
    more_y[0, :2], more_y[1], more_x[2, 0] = np.nan, np.inf, np.inf
    return {"x": jnp.asarray(more_x), "y": jnp.asarray(more_y)}


@pytest.mark.parametrize("case", private_cases())
def test_a_client_moves_the_estimate_by_its_norm_at_most_and_nothing_else(case):
    """A search over examples of a client, for each algorithm.

    What a client sends is used only as a summand of at most C, which some examples reach. So a
    client that comes or goes moves the estimate by C / M, and one that changes by twice as much.
    """
    clip = 0.05
    given = {"weighting": "uniform"} if "weighting" in options(algorithms[case.name]) else {}
    base = algorithms[case.name](TOY.problem, NETWORK_LOCAL, **case.hyperparameters | given)
    algorithm = gaussian(base, clip=clip, noise=1)
    round_fn = fa.pure_round(algorithm)
    state = round_fn.init(0, fa.Population(4, 4, 17))
    cohorts = fa.participation.Cohorts(TOY.data.counts(), NETWORK_LOCAL, cohort_size=4, seed=0)
    one = with_arrays(jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 0]), cohorts.dispatches(1)))

    from fedjax_algos.engine import exchange

    def contributed(examples):
        data = TOY.data._replace(examples=examples)
        shared = exchange.shared_of(state)
        drawn = exchange.draw(NETWORK_LOCAL.batches, state.seed, one.client, one.number)
        row = jax.tree.map(lambda leaf: leaf[one.client], state.clients)
        row = exchange.initialised_row(algorithm, shared, one.client, row, jnp.bool_(False))
        view = exchange.view_of(shared, data, one, drawn)
        received = algorithm.broadcast(state.server, jnp.int32(0))
        _, message, _ = algorithm.client_update(received, row, view, one, drawn.key)
        decoded = algorithm.decode(message)
        return contribution_of(algorithm, decoded, one, jnp.int32(0), state.server)

    worst = worst_examples(np.random.default_rng(0), TOY.data)
    sent = jax.jit(jax.vmap(contributed))(worst)
    vectors, _ = sent.summand
    norms = np.sqrt(sum((leaf**2).reshape(16, -1).sum(1) for leaf in jax.tree.leaves(vectors)))
    assert np.isfinite(norms).all()
    assert norms.max() <= clip * (1 + 1e-9)
    assert norms.max() >= clip * (1 - 1e-9)

    sums = jax.tree.map(lambda leaf: leaf[3], sent)
    others = jax.tree.map(lambda leaf: leaf + jnp.ones((), leaf.dtype), (sums.shares, sums.weights))
    changed = sums._replace(shares=others[0], weights=others[1])
    step = jax.jit(algorithm.server_update)
    after = [
        step(state.server, s, jnp.int32(n), jnp.int32(0)) for s, n in ((sums, 1), (changed, 3))
    ]
    for one_leaf, other in zip(*(jax.tree.leaves(each.inner) for each in after), strict=True):
        np.testing.assert_array_equal(one_leaf, other)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: fa.algorithms.fedavg(TOY.problem, NETWORK_LOCAL), "num_examples.*uniform, or"),
        (
            lambda: fa.algorithms.fedgbo(TOY.problem, fa.Local(4, 0.1, epochs=1.0)),
            "weights, but clients' depend on their num_steps",
        ),
    ],
)
def test_weights_that_tell_of_the_data_are_refused(make, reason):
    with pytest.raises(ValueError, match=reason):
        traced(gaussian(make(), clip=1, noise=1))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            "gaussian:clip=1",
            "noise=None and epsilon=None; give the noise multiplier or epsilon, one of the two",
        ),
        ("gaussian:clip=1,noise=1,epsilon=2", "one of the two"),
        ("gaussian:clip=1,noise=1,bit_noise=2", "are for a quantile; give quantile=0.5"),
        (
            "gaussian:clip=1,epsilon=2",
            r"rounds are not known; give sampling=Sampling",
        ),
        ("afl+gaussian:clip=1,noise=1", "afl compares updates before noise.*leave one of the two"),
        ("gaussian:clip=1,noise=1+mean", "gaussian replaces all updates already"),
        ("laplace:clip=0,noise=1", "clip=0 is out of range"),
    ],
)
def test_what_has_no_bound_is_refused(spec, reason):
    with pytest.raises(ValueError, match=reason):
        wrap(sends(VECTORS), spec)


def test_a_quantile_needs_noise_for_its_bit():
    for noise in (0, 0.7):
        algorithm = gaussian(sends(VECTORS), clip=1, noise=noise, quantile=0.5)
        with pytest.raises(ValueError, match=r"more than 0 and less than 0.7"):
            rounds_of(algorithm, [ALL], 7)


def test_batch_statistics_are_refused():
    from helpers import with_statistics

    problem = with_statistics(TOY.problem)
    algorithm = fa.algorithms.fedavg(problem, NETWORK_LOCAL, weighting="uniform")
    with pytest.raises(ValueError, match="the model has statistics"):
        gaussian(algorithm, clip=1, noise=1)


@pytest.mark.all
def test_a_vector_without_entries_changes_nothing():
    """FedMuon's second vector has only matrices, and this model has none."""
    toy = quadratics([[1, 2], [0.5]], [[1, -1], [3]])
    bare = fa.algorithms.fedmuon(toy.problem, NETWORK_LOCAL)
    found = [run(each, toy.data, [(0, 1)]) for each in (bare, gaussian(bare, clip=1e9, noise=0))]
    np.testing.assert_allclose(found[1][0]["x"], found[0][0]["x"], rtol=1e-12)
    assert found[0][0]["x"] != 0.5


def test_a_ratio_needs_a_second_vector():
    with pytest.raises(ValueError, match="ratio=2 is for a second vector"):
        rounds_of(gaussian(sends(VECTORS), clip=1, noise=1, ratio=2), [ALL], 7)
