"""Fair objectives: the factors of the clients, the algorithms that have them, and what they cost.

What is called the authors' code was run as it is released, on the same numbers.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, LAYOUTS, dispatches_of, one_round, quadratics, run, small_network, stored
from wrapper_helpers import sends

import fedjax_algos as fa
from fedjax_algos.core import Algorithm
from fedjax_algos.engine.exchange import count_transfer
from fedjax_algos.wrappers import wrap
from fedjax_algos.wrappers.reweighted import project

pytestmark = pytest.mark.usefixtures("x64")
TOY = small_network()
LOCAL = fa.Local(batch_size=4, learning_rate=0.1, steps=2)
SETS = [(0, 1, 2), (3, 2, 0)]
ONE_EACH = list({case.name: case for case in CASES}.values())
NO_MEAN = "of type .*Sum.*, and no WeightedSum"
REFUSED = {
    **dict.fromkeys(("scaffold", "feddyn", "fedgbo", "fedasync", "fedbuff", "fedcompass"), NO_MEAN),
    **dict.fromkeys(("mime", "mimemom"), "its clients send twice in a round"),
    **dict.fromkeys(("fedrep", "fedbn"), "do not receive the whole global model"),
    "fedlga": "its server looks at single updates",
    "ifca": "its clients choose what they train",
}


def weights_of(spec, losses, counts=None, cohort=None, weighting="uniform", **changes):
    """The weights of the updates: client i sends the vector with a one at i, and its loss is given.

    Of a second round, if there are several cohorts.
    """
    counts = [1] * len(losses) if counts is None else counts
    data = stored([{"b": np.full(n, loss)} for n, loss in zip(counts, losses, strict=True)])
    bare = sends(np.stack([-np.eye(len(losses))] * 3, 1))
    averaging = fa.algorithms.fedavg(bare.problem, bare.local, weighting=weighting)
    algorithm = wrap(bare._replace(contribute=averaging.contribute), spec)
    sets = [range(len(losses))] if cohort is None else cohort
    dispatches = dispatches_of(data, bare.local, sets)._replace(**changes)
    round_fn = fa.pure_round(algorithm)
    state = round_fn.init(0, fa.Population(len(losses), len(sets[0]), sum(counts)))
    for index in range(len(sets)):
        before = state.server.params["x"]
        state, _ = jax.jit(round_fn)(state, data, one_round(dispatches, index))
    return np.asarray(state.server.params["x"] - before)


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (1, (0.047426, 0.952574)),
        (-1, (0.952574, 0.047426)),
        (0.1, (0.425557, 0.574443)),
        (0, (0.5, 0.5)),
        (1000, (0, 1)),
        (-1000, (1, 0)),
    ],
)
def test_tilted_weights(t, expected):
    np.testing.assert_allclose(weights_of(f"term:t={t}", [1.0, 4.0]), expected, atol=5e-7)


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


@pytest.mark.parametrize(("losses", "counts", "theta", "chosen"), SUPERQUANTILES)
def test_superquantiles_by_the_authors_code(losses, counts, theta, chosen):
    found = weights_of(f"superquantile:{theta}", losses, counts, weighting="examples")
    expected = np.where(np.isin(np.arange(6), chosen), counts, 0)
    np.testing.assert_allclose(found, expected / expected.sum(), atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [("superquantile:0.3", (0, 1, 0, 0)), ("term:t=1000", (0, 1, 0, 0)), ("afl", (0.5, 0.5, 0, 0))],
)
def test_updates_that_do_not_arrive_do_not_count(spec, expected):
    """Nor those of empty slots: the client with the highest loss fails, and one is not there."""
    changes = {
        "arrives": np.array([[True, True, False, False]]),
        "client": np.array([[0, 1, 2, 4]]),
    }
    found = weights_of(spec, [1.0, 2.0, 9.0, 5.0], **changes)
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
    rng = np.random.default_rng(0)
    for v in rng.normal(size=(20, 5)):
        point = np.asarray(project(jnp.asarray(v)))
        np.testing.assert_allclose(point.sum(), 1)
        others = rng.dirichlet(np.ones(5), 200)
        assert ((v - point) ** 2).sum() <= ((v - others) ** 2).sum(1).min()


def test_agnostic_weights_after_a_round():
    """lambda = project(1/3 + gamma F), also where a client is not in the second cohort."""
    losses, gamma = np.array([1.0, 2.0, 1.5]), 0.2
    expected = np.asarray(project(jnp.asarray(1 / 3 + gamma * losses)))
    found = weights_of(f"afl:gamma={gamma}", losses, cohort=[(0, 1, 2), (2, 1, 0)])
    np.testing.assert_allclose(found, expected, atol=1e-12)
    found = weights_of(f"afl:gamma={gamma}", losses, [5, 1, 2], [(0, 1), (1, 2)], "examples")
    lambdas = np.asarray(project(jnp.asarray(1 / 3 + gamma * losses * [1, 1, 0])))[1:]
    np.testing.assert_allclose(found, [0, *lambdas / lambdas.sum()], atol=1e-12)


def test_a_cohort_without_weights_moves_nothing():
    found = weights_of("afl:gamma=1", [9.0, 0.1, 0.2], cohort=[(0, 1), (1, 2)])
    np.testing.assert_array_equal(found, 0)


def test_afl_by_the_code_of_flgo():
    """Four clients in all rounds, three full steps of rate .1, gamma .3."""
    toy = quadratics([[1.0], [2.0], [0.5], [1.5]], [[1.0], [-1.0], [3.0], [0.2]])
    local = fa.Local(1, 0.1, steps=3, batches="full")
    algorithm = wrap(fa.algorithms.fedavg(toy.problem, local), "afl:gamma=0.3")
    expected = [0.4110750000, 0.1423046299, -0.0778160049, -0.1188470423, 0.0527995273]
    found = [float(params["x"]) for params in run(algorithm, toy.data, [(0, 1, 2, 3)] * 5)]
    np.testing.assert_allclose(found, expected, atol=5e-11)


@pytest.mark.all
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_equal_factors_give_the_bits_of_every_algorithm_or_it_is_refused(case):
    bare = case.build(TOY.problem, LOCAL)
    if reason := REFUSED.get(case.name):
        with pytest.raises(ValueError, match=f"cannot wrap this algorithm: .*{reason}.*leave"):
            traced(wrap(bare, "superquantile:1"))
        return
    spec = ("superquantile:1", "term:t=0")[ONE_EACH.index(case) % 2]
    assert isinstance(traced(wrap(bare, "afl")), Algorithm)
    found, expected = (run(each, TOY.data, SETS) for each in (wrap(bare, spec), bare))
    chex.assert_trees_all_equal(found, expected)


def traced(algorithm):
    """The algorithm, of which a round was traced."""
    round_fn = fa.pure_round(algorithm)
    state = jax.eval_shape(lambda: round_fn.init(0, fa.Population(4, 3, 17)))
    jax.eval_shape(round_fn, state, TOY.data, one_round(dispatches_of(TOY.data, LOCAL, SETS), 0))
    return algorithm


def test_layouts_and_codecs_inside_and_outside_agree():
    """`cast` sends float64 as it is; the loss is sent beside it."""
    bare = fa.algorithms.fedcm(TOY.problem, LOCAL)
    expected = run(wrap(bare, "term:t=2"), TOY.data, SETS)
    for layout in LAYOUTS[1:]:
        found = run(wrap(bare, "term:t=2"), TOY.data, SETS, layout=layout)
        chex.assert_trees_all_close(found, expected, rtol=1e-12)
    for spec in ("term:t=2+identity", "identity+term:t=2"):
        chex.assert_trees_all_equal(run(wrap(bare, spec), TOY.data, SETS), expected)
    with jax.enable_x64(False):
        ends = [run(wrap(bare, f"{a}+{b}"), TOY.data, SETS) for a, b in (PAIR, PAIR[::-1])]
    chex.assert_trees_all_equal(*ends)


PAIR = ("term:t=2", "topk:fraction=0.3")


def test_one_float_more_is_sent_and_one_pass_is_computed():
    with jax.enable_x64(False):
        bare = fa.algorithms.fedavg(TOY.problem, LOCAL)
        first = one_round(dispatches_of(TOY.data, LOCAL, SETS), 0)
        transfers, counts = [], []
        for algorithm in (bare, wrap(bare, "afl"), wrap(bare, "term")):
            state = fa.make_engine(algorithm).init(0, fa.Population(4, 3, 17))
            transfers.append(count_transfer(algorithm, state, TOY.data, first))
            counts.append(fa.count_flops(algorithm, state, TOY.data))
    assert {transfer.download for transfer in transfers} == {transfers[0].download}
    assert [transfer.upload - transfers[0].upload for transfer in transfers] == [0, 4, 4]
    (step,) = counts[0].loops
    for count in counts[1:]:
        loss, own = count.loops
        assert own.body.fixed == step.body.fixed
        assert 0 < loss.body.fixed < step.body.fixed / 2  # without the gradient
        pieces = loss.length(one_round(dispatches_of(TOY.data, LOCAL, [(0, 1, 2, 3)]), 0))
        assert pieces.tolist() == [2, 1, 2, 1]


def test_agnostic_weights_are_refused_on_the_virtual_clock():
    with pytest.raises(ValueError, match='reduce="stack"'):
        fa.make_executor(wrap(fa.algorithms.fedavg(TOY.problem, LOCAL), "afl"))
