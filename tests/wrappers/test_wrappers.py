"""Wrappers of every algorithm: the identity is the same program, and the mean gives its results."""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, LAYOUTS, fixed, one_round, small_network

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import FixedSystem, immediate
from fedjax_algos.core.algorithm import kinds
from fedjax_algos.core.randomness import server_key
from fedjax_algos.engine.exchange import count_transfer
from fedjax_algos.engine.federated_round import FederatedRound
from fedjax_algos.engine.fingerprint import algorithm_fingerprint
from fedjax_algos.engine.slots import Placement, fill_slots
from fedjax_algos.participation import Cohorts

pytestmark = pytest.mark.usefixtures("x64")
LOCAL = fa.Local(batch_size=4, learning_rate=0.1, steps=2)
SETS = [(0, 1, 2), (3, 2, 0)]
POPULATION = fa.Population(4, 3, 17)
ONE_EACH = list({case.name: case for case in CASES}.values())


@functools.cache
def dispatches():
    """Two rounds of three clients, of which two do a part of their work."""
    cohorts = Cohorts(
        small_network().data.counts(), LOCAL, cohort_size=3, seed=0, sampler=fixed(SETS)
    )
    both = cohorts.dispatches(2)
    return both._replace(num_steps=np.array([[2, 1, 2], [2, 2, 1]], np.int32))


def lowered_round(algorithm, layout, rows_are_table):
    """The text of the program of a round."""
    toy, placement = small_network(), Placement(layout)
    state = fa.pure_round(algorithm, layout).init(0, POPULATION)
    first = one_round(dispatches(), 0)
    slots = fill_slots(first, placement.slot_order(first.num_steps), 4)
    rounds = FederatedRound(algorithm, placement, rows_are_table)

    def of_round(state, data, slots):
        rows = state.clients
        if not rows_are_table:
            rows = jax.tree.map(lambda leaf: leaf[slots.client], rows)
        cohort = rounds.run_cohort(rows, state, data, slots)
        return rounds.run_round(state, data, slots) if rows_are_table else cohort

    return jax.jit(of_round).lower(state, toy.data, slots).as_text()


@pytest.mark.sampled
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_the_identity_is_the_same_program(case):
    """In a layout, with rows in tables or without, in turn; with the same bytes and FLOPs.

    A checkpoint knows the algorithm by its fingerprint, which is the same, too.
    """
    toy = small_network()
    bare = case.build(toy.problem, LOCAL)
    wrapped = fa.wrappers.identity(bare)
    place = ONE_EACH.index(case)
    arguments = LAYOUTS[place % 3], bool(place % 2)
    assert lowered_round(bare, *arguments) == lowered_round(wrapped, *arguments)
    state = fa.pure_round(bare, 2).init(0, POPULATION)
    first = one_round(dispatches(), 0)
    one = jax.tree.map(lambda leaf: leaf[0], first)
    fingerprints = {algorithm_fingerprint(each, state, toy.data, one) for each in (bare, wrapped)}
    assert len(fingerprints) == 1
    costs = [
        (count_transfer(each, state, toy.data, first), fa.count_flops(each, state, toy.data))
        for each in (bare, wrapped)
    ]
    assert costs[0][0] == costs[1][0]
    np.testing.assert_array_equal(*(flops.of(first) for _, flops in costs))


@pytest.mark.sampled
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_mean_gives_the_results_of_the_algorithm(case):
    """To rounding, with unequal numbers of examples and steps; or it refuses, with the reason."""
    toy = small_network()
    bare = case.build(toy.problem, LOCAL)
    reasons = {"fedlga": "compares the updates", "ifca": "choose what they train"}
    if case.name in reasons:
        with pytest.raises(ValueError, match=reasons[case.name]):
            fa.wrappers.mean(bare)
        return

    @jax.jit
    def two_rounds(data, given):
        ends = []
        for algorithm in (bare, fa.wrappers.mean(bare)):
            step = fa.pure_round(algorithm, 2)
            start = step.init(0, POPULATION)
            state, _ = jax.lax.scan(lambda s, of, step=step: step(s, data, of), start, given)
            ends.append((state.server, state.clients))
        return ends

    bare_end, mean_end = two_rounds(toy.data, dispatches())
    chex.assert_trees_all_close(bare_end, mean_end, rtol=1e-9, atol=1e-11)


def test_every_declared_part_is_one_of_the_kinds():
    known = {"delta", "change", "model", "vector", "moments", "count", "choice"}
    for case in CASES:
        algorithm = case.build(small_network().problem, LOCAL)
        assert set(kinds(algorithm.traits.parts)) <= known


def test_parts_that_do_not_fit_are_refused():
    frame = fa.algorithms.fedavg(small_network().problem, LOCAL)

    def in_whole_numbers(*arguments):
        row, update, report = frame.client_update(*arguments)
        return row, jax.tree.map(lambda leaf: leaf.astype(int), update), report

    structure = frame._replace(traits=fa.Traits(parts={"a": "delta"}))
    dtype = frame._replace(client_update=in_whole_numbers)
    for wrong, reason in ((structure, "the update is"), (dtype, "a delta has int64 entries")):
        step = fa.pure_round(fa.wrappers.mean(wrong), 2)
        with pytest.raises(ValueError, match=rf"parts=.*{reason}.*give Traits\(parts="):
            step(step.init(0, POPULATION), small_network().data, one_round(dispatches(), 0))


def test_wrappers_in_rounds_only_are_refused_on_the_virtual_clock():
    algorithm = fa.wrappers.mean(fa.algorithms.fedavg(small_network().problem, LOCAL))
    with pytest.raises(ValueError, match='reduce="stack"'):
        fa.make_executor(algorithm)


@pytest.mark.parametrize("name", ["fedasync", "scaffold"])
def test_the_identity_on_the_virtual_clock_has_the_same_bits(name):
    toy = small_network()
    bare = algorithms[name](toy.problem, LOCAL)
    ends = [
        fa.simulate_async(
            fa.make_executor(algorithm),
            toy.data,
            immediate(steps=2),
            lambda seed, **transfer: FixedSystem([1.0, 1.5, 2.0, 2.5]),
            seconds=6.0,
            evaluations=1,
            seed=0,
        ).state[:3]
        for algorithm in (bare, fa.wrappers.identity(bare))
    ]
    chex.assert_trees_all_equal(*ends)


class Noisy(NamedTuple):
    params: object
    inner: object
    seed: jax.Array
    step: jax.Array


def noisy(algorithm):
    """A server rule that draws random numbers by (seed, server step)."""

    def init(params, population):
        inner = algorithm.init(params, population)
        return Noisy(params, inner, jnp.asarray(population.seed), jnp.int32(0))

    def server_update(server, sums, count, group):
        inner = algorithm.server_update(server.inner, sums, count, group)
        key = server_key(server.seed, server.step)
        params = jax.tree.map(lambda leaf: leaf + jax.random.normal(key, leaf.shape), inner.params)
        inner = inner._replace(params=params)
        return Noisy(params, inner, server.seed, server.step + 1)

    return algorithm._replace(
        init=init,
        server_update=server_update,
        broadcast=lambda server, group: algorithm.broadcast(server.inner, group),
    )


def test_a_server_rule_draws_by_seed_and_step():
    toy = small_network()
    algorithm = noisy(fa.algorithms.fedavg(toy.problem, LOCAL))
    ends = {}
    for layout in LAYOUTS:
        engine = fa.make_engine(algorithm, layout)
        for seed in (0, 7):
            state = engine.init(seed, POPULATION)
            assert int(state.server.seed) == seed
            state, _ = engine.rounds(state, toy.data, dispatches())
            ends[layout, seed] = jax.device_get(state.server.params)
    for layout in LAYOUTS[1:]:
        for seed in (0, 7):
            chex.assert_trees_all_close(ends[layout, seed], ends[LAYOUTS[0], seed], rtol=1e-10)
    step = fa.pure_round(algorithm, 2)
    state = step.init(7, POPULATION)
    for index in range(2):
        state, _ = step(state, toy.data, one_round(dispatches(), index))
    chex.assert_trees_all_close(state.server.params, ends[2, 7], rtol=1e-10)
    draws = [jax.random.normal(server_key(7, step), (3,)) for step in range(2)]
    assert np.abs(draws[0] - draws[1]).min() > 1e-3
