"""Weights of clients by their losses and norms; the authors' code was run as it is released."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import dispatches_of, fixed, one_round, small_network, stored
from scipy import optimize
from sweep_helpers import assert_same_rows, separately, sweep_toy
from wrapper_helpers import NETWORK_LOCAL, in_a_round, later, sends, transfer_of

import fedjax_algos as fa
from fedjax_algos.participation import independent
from fedjax_algos.wrappers import wrap
from fedjax_algos.wrappers.optimal_client_sampling import inclusion
from fedjax_algos.wrappers.reweighted import project

pytestmark = pytest.mark.usefixtures("x64")
TOY = small_network()
SAMPLING = "optimal_client_sampling"


def last_moves(spec, vectors, losses, counts, sets, weighting, seeds, **changes):
    """What moves the model in the last round, and the server's own state, for many seeds."""
    data = stored([{"b": np.full(n, loss)} for n, loss in zip(counts, losses, strict=True)])
    bare = sends(np.stack([-vectors] * 3, 1))
    averaging = fa.algorithms.fedavg(bare.problem, bare.local, weighting=weighting)
    round_fn = fa.pure_round(wrap(bare._replace(contribute=averaging.contribute), spec))
    dispatches = dispatches_of(data, bare.local, sets)._replace(**changes)

    def of_seed(seed):
        state = round_fn.init(seed, fa.Population(len(losses), len(sets[0]), sum(counts)))
        for index in range(len(sets)):
            before = state.server.params["x"]
            state, _ = round_fn(state, data, one_round(dispatches, index))
        return state.server.params["x"] - before, state.server.own[0]

    return jax.device_get(jax.jit(jax.vmap(of_seed))(np.arange(seeds, dtype=np.uint32)))


def weights_of(spec, losses, counts=None, cohorts=None, weighting="uniform", **changes):
    """The weights of the updates in the last of some cohorts, by default one of all clients."""
    number = len(losses)
    counts, cohorts = counts or [1] * number, cohorts or [range(number)]
    moves, _ = last_moves(spec, np.eye(number), losses, counts, cohorts, weighting, 1, **changes)
    return moves[0]


@pytest.mark.parametrize(
    ("t", "first"),
    [(1, 0.047426), (0, 0.5), *later((-1, 0.952574), (0.1, 0.425557), (1000, 0), (-1000, 1))],
)
def test_tilted_weights(t, first):
    found = weights_of(f"term:t={t}", [1.0, 4.0])
    np.testing.assert_allclose(found, [first, 1 - first], atol=5e-7)


def test_tilted_weights_are_relative_to_those_of_the_algorithm():
    found = weights_of("term:t=0.5", [1.0, 3.0, 2.0], [4, 1, 2], weighting="examples")
    expected = np.array([4, 1, 2]) * np.exp([0.5, 1.5, 1.0])
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-12)


SUPERQUANTILES = [  # by the authors' code: the losses, the numbers of examples, theta, who counts
    ([1.91, 0.81, 0.12, 0.05, 2.44, 2.74], [3, 4, 5, 4, 4, 3], 0.8, [0, 1, 2, 4, 5]),
    ([2.81, 2.45, 0.01, 2.57, 0.1, 2.19], [5, 1, 1, 5, 1, 3], 0.5, [0, 3]),
    ([0.9, 1.27, 0.08, 0.37, 2.01, 1.94], [2, 4, 4, 2, 3, 5], 0.2, [4, 5]),
    ([2.94, 2.06, 1.95, 2.07, 1.17, 0.41], [3, 4, 5, 3, 2, 2], 0.1, [0]),
    ([1.46, 2.67, 2.8, 2.67, 1.71, 0.97], [4, 3, 3, 2, 4, 2], 0.3, [1, 2, 3]),
]


@pytest.mark.parametrize(
    ("losses", "counts", "theta", "chosen"), [*SUPERQUANTILES[:2], *later(*SUPERQUANTILES[2:])]
)
def test_superquantiles_by_the_authors_code(losses, counts, theta, chosen):
    found = weights_of(f"superquantile:{theta}", losses, counts, weighting="examples")
    expected = np.where(np.isin(np.arange(6), chosen), counts, 0)
    np.testing.assert_allclose(found, expected / expected.sum(), atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [("superquantile:0.3", (0, 1, 0, 0)), ("term:t=1000", (0, 1, 0, 0)), ("afl", (0.5, 0.5, 0, 0))],
)
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_updates_that_do_not_arrive_do_not_count(spec, expected, weighting):
    """Nor those of empty slots: the client with the highest loss fails, and one is not there."""
    empty = {"client": np.array([[0, 1, 2, 4]]), "num_examples": np.array([[1, 1, 1, 0]])}
    empty["arrives"] = np.array([[True, True, False, False]])
    found = weights_of(spec, [1.0, 2.0, 9.0, 5.0], weighting=weighting, **empty)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("v", "expected"),
    [
        ((0.6, 0.9), (0.35, 0.65)),
        ((1.5, 4.5), (0, 1)),
        ((0.2, 0.3, 0.9), (0.2 / 3, 0.5 / 3, 2.3 / 3)),
        ((0.3, 1.5), (0, 1)),  # (0, 1.1) by the authors' code
    ],
)
def test_projections(v, expected):
    np.testing.assert_allclose(project(jnp.array(v)), expected, atol=1e-12)


def test_the_projection_is_the_closest_point():
    vectors = (rng := np.random.default_rng(0)).normal(size=(20, 5))
    for v, point in zip(vectors, np.asarray(jax.jit(jax.vmap(project))(vectors)), strict=True):
        np.testing.assert_allclose(point.sum(), 1)
        others = rng.dirichlet(np.ones(5), 200)
        assert ((v - point) ** 2).sum() <= ((v - others) ** 2).sum(1).min()


@pytest.mark.all
def test_agnostic_weights_after_a_round():
    """lambda = project(1/3 + gamma F), also of other cohorts; without weights nothing moves."""
    losses, gamma = np.array([1.0, 2.0, 1.5]), 0.2
    expected = np.asarray(project(jnp.asarray(1 / 3 + gamma * losses)))
    found = weights_of(f"afl:gamma={gamma}", losses, cohorts=[(0, 1, 2), (2, 1, 0)])
    np.testing.assert_allclose(found, expected, atol=1e-12)
    found = weights_of(f"afl:gamma={gamma}", losses, [5, 1, 2], [(0, 1), (1, 2)], "examples")
    lambdas = np.asarray(project(jnp.asarray(1 / 3 + gamma * losses * [1, 1, 0])))[1:]
    np.testing.assert_allclose(found, [0, *lambdas / lambdas.sum()], atol=1e-12)
    found = weights_of("afl:gamma=1", [9.0, 0.1, 0.2], cohorts=[(0, 1), (1, 2)])
    np.testing.assert_array_equal(found, 0)


def test_one_float_more_is_sent_and_one_pass_is_computed():
    with jax.enable_x64(False):
        bare = fa.algorithms.fedavg(small_network().problem, NETWORK_LOCAL)
        plain, (step,) = transfer_of(bare), fa.count_flops(bare, *in_a_round(bare)[:2]).loops
        for spec in ("afl", "term"):
            algorithm = wrap(bare, spec)
            transfer = transfer_of(algorithm)
            assert transfer._replace(upload=transfer.upload - 4) == plain
            state, data, dispatches = in_a_round(algorithm, cohort=(0, 1, 2, 3))
            own, loss = fa.count_flops(algorithm, state, data).loops
            assert own.body.fixed == step.body.fixed
            assert 0 < loss.body.fixed < step.body.fixed / 2  # without the gradient
            assert loss.length(dispatches).tolist() == [2, 1, 2, 1]  # pieces of 4 examples


@pytest.mark.parametrize(
    ("norms", "uploads", "expected"),
    [
        ((1, 2, 3, 10), 2, (1 / 6, 1 / 3, 1 / 2, 1)),
        ((2, 2, 2, 2, 2), 2, (0.4,) * 5),
        ((1, 1, 8, 9), 3, (0.5, 0.5, 1, 1)),
        ((4, 1, 3), 0.5, (0.25, 0.0625, 0.1875)),
        ((0, 3, 0, 1), 1, (0, 0.75, 0, 0.25)),
        ((0, 3, 0, 1), 2, (0, 1, 0, 1)),
        ((0, 0), 1, (0, 0)),
        ((3, 1, 7), 3, (1, 1, 1)),
        ((3, 1, 7), 9, (1, 1, 1)),
    ],
)
def test_goldens(norms, uploads, expected):
    found = jax.jit(inclusion)(jnp.array(norms, float), uploads)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def bisected(importance, uploads):
    """The same by a search of the factor."""
    excess = lambda c: np.minimum(1, c * importance).sum() - uploads  # noqa: E731
    return np.minimum(1, optimize.brentq(excess, 0, 1e6, xtol=1e-14, rtol=1e-14) * importance)


def test_a_search_of_the_factor_finds_the_same():
    rng = np.random.default_rng(0)
    importance, uploads = np.exp(2 * rng.normal(size=(50, 7))), rng.uniform(0.1, 6.9, 50)
    found = jax.jit(jax.vmap(inclusion))(importance, uploads)
    expected = [bisected(*each) for each in zip(importance, uploads, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


NORMS, WEIGHTS = np.array([3.0, 1.0, 0.5, 6.0, 2.0]), np.array([1, 4, 2, 3, 1])


def sampled(uploads, seeds, **changes):
    """Of five clients: i sends NORMS[i] times the unit vector i, with the weight WEIGHTS[i]."""
    given = np.diag(NORMS), [0.0] * 5, WEIGHTS.tolist(), [range(5)], "examples", seeds
    return last_moves(f"{SAMPLING}:uploads={uploads}", *given, **changes)


def test_each_entry_is_0_or_divided_by_its_probability_and_the_mean_is_unbiased():
    number, p = 20_000, bisected(NORMS * WEIGHTS, 2.5)
    found, uploads = sampled(2.5, number)
    whole = WEIGHTS * NORMS / WEIGHTS.sum()
    sent = found != 0
    np.testing.assert_allclose(found, np.where(sent, whole / p, 0), rtol=1e-5)
    np.testing.assert_array_equal(sent.sum(1), uploads)
    deviation = np.sqrt(p * (1 - p) / number)
    assert (np.abs(sent.mean(0) - p) <= 4 * deviation).all()
    pairs = (sent[:, :, None] & sent[:, None]).mean(0)[np.triu_indices(5, 1)]
    joint = np.outer(p, p)[np.triu_indices(5, 1)]  # independent draws
    assert (np.abs(pairs - joint) <= 4 * np.sqrt(joint * (1 - joint) / number)).all()
    assert abs(uploads.mean() - 2.5) <= 4 * np.sqrt((p * (1 - p)).sum() / number)


def test_who_does_not_answer_is_not_in_the_mean():
    """Two of five answer, so all that do send with three uploads, and weights are theirs."""
    arrives = np.array([True, False, True, False, False])
    found, uploads = sampled(3, 3, arrives=arrives[None])
    whole = np.where(arrives, WEIGHTS * NORMS, 0) / WEIGHTS[arrives].sum()
    np.testing.assert_allclose(found, np.tile(whole, (3, 1)), rtol=1e-12)
    np.testing.assert_array_equal(uploads, 2)


@pytest.mark.parametrize(
    ("before", "each"), [("topk:fraction=0.2+", 4 * (4 + 1)), *later(("", 8 * 20))]
)
def test_what_is_sent_is_counted(before, each):
    """Every client that answers sends its norm, and the chosen ones their message."""
    bare = fa.algorithms.fedavg(TOY.problem, NETWORK_LOCAL)
    algorithm = wrap(bare, f"{before}{SAMPLING}:uploads=1.5")
    how = {"failures": independent(probability=0.3), "sampler": fixed([(0, 1, 2, 3)] * 6)}
    how |= {"cohort_size": 4, "rounds": 6, "eval_every": 3, "seed": 1}
    state, rows = fa.simulate(fa.make_engine(algorithm), TOY.data, **how)
    uploads, answered = int(algorithm.report(state.server)["uploads"]), 24 - rows[-1]["lost"]
    assert 0 < uploads < answered < 24
    assert [row["upload_bytes"] for row in rows[::2]] == [0, 4 * answered + uploads * each]
    assert rows[-1]["download_bytes"] == 24 * 8 * 20


@pytest.mark.all
def test_a_sweep_counts_what_each_run_has_sent():
    def factory(problem, local):
        return wrap(fa.algorithms.fedavg(problem, local), f"{SAMPLING}:uploads=0.8")

    rows, notes = sweep_toy(factory, {"client_learning_rate": [0.05, 0.1]})
    assert len(notes) == 1
    assert_same_rows(rows[:3], separately(factory, 0, 0.05))
    assert_same_rows(rows[-3:], separately(factory, 7, 0.1))
    assert rows[2]["upload_bytes"] != rows[-1]["upload_bytes"]
