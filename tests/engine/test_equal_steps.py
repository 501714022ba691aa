"""Dispatches with equal numbers of steps have loops of a fixed length; nothing else changes."""

import chex
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from engine_helpers import ALGORITHM, examples, in_tier, kinds_in_all
from engine_helpers import POPULATION as EIGHT
from helpers import CASES, LAYOUTS, dispatches_of, one_round, small_network

import fedjax_algos as fa
from fedjax_algos.analysis.diagnostics import client_drift
from fedjax_algos.core import EqualSteps
from fedjax_algos.core.randomness import permutation_words
from fedjax_algos.core.types import with_arrays
from fedjax_algos.data.federated_data import client_view
from fedjax_algos.engine.slots import mark_equal_steps
from fedjax_algos.participation import Cohorts
from fedjax_algos.participation.cohorts import common_steps

LOCAL = fa.Local(batch_size=4, learning_rate=0.1, steps=2, batches="persistent")
POPULATION = fa.Population(4, 3, 17)


def full_work(local=LOCAL):
    """The dispatches of a round of three clients that do all their work."""
    return one_round(dispatches_of(small_network().data, local, [(0, 2, 3)]), 0)


def loops(jaxpr, within=()):
    """The loops whose end depends on data, each with the loops around it."""
    found = []
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "while":
            found.append(within)
        inner = (*within, name) if name in ("while", "scan") else within
        for inside in jax.extend.core.jaxprs_in_params(equation.params):
            found += loops(inside, inner)
    return found


def round_of(local, dispatches, layout):
    step = fa.pure_round(fa.algorithms.fedavg(small_network().problem, local), layout)
    data = small_network().data
    return jax.make_jaxpr(lambda state: step(state, data, dispatches))(step.init(0, POPULATION))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_loop_over_steps_ends_by_data_and_one_draws_all_batches(layout):
    work = full_work()
    fixed = loops(round_of(LOCAL, work, layout).jaxpr)
    assert fixed == [()]  # the walk of the permutation, once for all slots and steps
    varied = work._replace(num_steps=np.array([2, 1, 2], np.int32))
    assert len(loops(round_of(LOCAL, varied, layout).jaxpr)) == 2


def test_which_dispatches_are_marked():
    counts, work = small_network().data.counts(), full_work()
    holes = work._replace(client=np.array([0, 4, 3], np.int32))
    short = work._replace(num_steps=np.array([2, 1, 2], np.int32))
    other = work._replace(num_steps=np.ones(3, np.int32))  # equal by chance
    on_device = work._replace(num_steps=jnp.asarray(work.num_steps))
    steps = common_steps(LOCAL, counts)
    assert mark_equal_steps(work, work, steps, 4).num_steps == EqualSteps(2)
    for each in (holes, short, other, on_device):
        assert mark_equal_steps(each, each, steps, 4) is each
    by_epochs = fa.Local(4, 0.1, epochs=3)
    assert common_steps(by_epochs, counts) is None
    assert common_steps(by_epochs, None) is None
    assert common_steps(by_epochs, np.array([9, 9])) == 9


@pytest.mark.parametrize(
    "batches",
    [
        "short",
        "persistent",
        *in_tier(pytest.mark.all, "dropped", "wrapped", "replacement", "poisson"),
    ],
)
def test_batches_that_are_drawn_before_are_those_of_each_step(batches):
    """Unless an algorithm has changed the view."""
    local, steps = fa.Local(3, 0.1, steps=5, batches=batches), jnp.arange(5, dtype=jnp.int32)

    @jax.jit
    def batches_of(data, words, other):
        view = client_view(data, 2, words, first_step=jnp.int32(7))
        same = view.with_drawn(view.draw_batches(5, local))
        changed = same._replace(order=other)

        def of_step(step):
            found = same.local_batch(step, local), changed.local_batch(step, local)
            return found, (view.batch(step, 3, batches), changed.batch(step, 3, batches))

        return jax.vmap(of_step)(steps)

    words, other = (permutation_words(jax.random.key(seed)) for seed in (3, 4))
    found, expected = batches_of(small_network().data, words, other)
    chex.assert_trees_all_equal(found, expected)
    assert (found[0][0]["x"] != found[1][0]["x"]).any()


@pytest.mark.parametrize("case", kinds_in_all(), ids=str)
@pytest.mark.usefixtures("x64")
def test_every_algorithm_has_the_results_of_loops_of_any_length_and_of_batches_in_pieces(case):
    """In a layout in turn, with a slot that only fills up a chunk in one of them."""
    work, ends = full_work(), []
    unmarked = work._replace(num_steps=jnp.asarray(work.num_steps))
    for dispatches, pieces in ((work, 1), (unmarked, 2)):
        of_piece = case.name == "feddecorr"  # its term is of one piece
        local = LOCAL._replace(gradient_accumulation=1 if of_piece else pieces)
        algorithm = case.build(small_network().problem, local)
        step = fa.pure_round(algorithm, LAYOUTS[CASES.index(case) % 3])
        ends.append(jax.jit(step)(step.init(0, POPULATION), small_network().data, dispatches))
    chex.assert_trees_all_close(*ends, rtol=1e-12, atol=1e-15)


@pytest.mark.all
def test_a_scan_over_traced_cohorts_has_loops_of_a_fixed_length():
    """Its results are those of dispatches with arrays, and with bounds there is no branch in it."""
    data = small_network().data
    counts = data.counts()

    def programs(local):
        """Of dispatches with equal steps, and of the same ones with arrays."""
        step = fa.pure_round(fa.algorithms.fedavg(small_network().problem, local))
        drawn = fa.traced_dispatches(0, counts, local, cohort_size=3, rounds=2)
        assert drawn.num_steps == EqualSteps(2)

        def run(dispatches):
            state = step.init(0, POPULATION)
            state, _ = jax.lax.scan(lambda s, each: step(s, data, each), state, dispatches)
            return state.server.params

        both = drawn, with_arrays(drawn)
        chex.assert_trees_all_close(*map(jax.jit(run), both), rtol=1e-6)
        return [jax.make_jaxpr(run)(dispatches).jaxpr for dispatches in both]

    assert [len(loops(program)) for program in programs(LOCAL)] == [1, 2]
    fixed, usual = programs(fa.differentiable(LOCAL, counts))
    assert str(usual).count("cond[") == str(fixed).count("cond[") + 1


@pytest.mark.all
def test_engines_and_counts_take_traced_dispatches():
    """As they did when these were arrays, with the results of dispatches from the host."""
    engine, data, local = fa.make_engine(ALGORITHM), examples(), ALGORITHM.local
    drawn = fa.traced_dispatches(0, data.counts(), local, cohort_size=3, rounds=2)
    expected = Cohorts(data.counts(), local, cohort_size=3, seed=0).dispatches(2)

    def results(dispatches):
        state, first = engine.init(0, EIGHT), one_round(dispatches, 0)
        distance = client_drift(ALGORITHM.problem, local, state.model, data, first)
        counted = engine.transfer(state, data, first)
        flops = fa.count_flops(ALGORITHM, state, data).of(dispatches)
        found = engine.updates(state, data, first).updates, distance, counted, flops
        ends = engine.round(engine.init(0, EIGHT), data, first)
        return found, ends, engine.rounds(state, data, dispatches)

    chex.assert_trees_all_close(results(drawn), results(expected), rtol=1e-6)
