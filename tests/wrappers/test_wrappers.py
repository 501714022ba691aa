"""Wrappers: the identity of every algorithm is the same program; what does not fit is refused.

That the mean gives the results of every algorithm is in tests/algorithms/test_every_algorithm.py.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, LAYOUTS, dispatches_of, one_round, run, small_network

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import FixedSystem, immediate
from fedjax_algos.core.algorithm import kinds
from fedjax_algos.core.randomness import server_key
from fedjax_algos.engine.exchange import count_transfer
from fedjax_algos.engine.federated_round import looking, run_rounds
from fedjax_algos.engine.fingerprint import algorithm_fingerprint

pytestmark = pytest.mark.usefixtures("x64")
LOCAL = fa.Local(batch_size=4, learning_rate=0.1, steps=2)
SETS = [(0, 1, 2), (3, 2, 0)]
POPULATION = fa.Population(4, 3, 17)
ONE_EACH = list({case.name: case for case in CASES}.values())


def dispatches():
    """Two rounds of three clients, of which two do a part of their work."""
    both = dispatches_of(small_network().data, LOCAL, SETS)
    return both._replace(num_steps=np.array([[2, 1, 2], [2, 2, 1]], np.int32))


@pytest.mark.all
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_the_identity_is_the_same_program_and_is_lowered_for_accelerators(case):
    """Rounds in one program, in a layout in turn, for CUDA and TPU, without callbacks and float64.

    Bytes and FLOPs are the same, and the fingerprint by which a checkpoint knows the algorithm.
    """
    with jax.enable_x64(False):
        data, both = small_network().data, dispatches()
        first, found = one_round(both, 0), []
        bare = case.build(small_network().problem, LOCAL)
        for algorithm in (bare, fa.wrappers.identity(bare)):
            round_fn = fa.pure_round(algorithm, LAYOUTS[ONE_EACH.index(case) % 3])
            state = jax.eval_shape(lambda init=round_fn.init: init(0, POPULATION))
            rounds = jax.jit(functools.partial(run_rounds, looking(round_fn)))
            traced = rounds.trace(state, data, both, np.int32(2))
            program = traced.lower(lowering_platforms=("cuda", "tpu")).as_text()
            fingerprint = algorithm_fingerprint(algorithm, state, data, one_round(first, 0))
            transfer = count_transfer(algorithm, state, data, first)
            flops = fa.count_flops(algorithm, state, data).of(first)
            found.append((program, fingerprint, transfer, flops.tolist()))
    assert found[0] == found[1]
    assert "f64" not in program
    assert "callback" not in program


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
    dtype = frame._replace(client_update=in_whole_numbers, traits=fa.Traits("vector"))
    for wrong, reason in ((structure, "the update is"), (dtype, "a vector has int64 entries")):
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


def drawn(seed, step, params):
    key = server_key(seed, step)
    return jax.tree.map(lambda leaf: jax.random.normal(key, leaf.shape), params)


def noisy(algorithm):
    """A server rule that adds random numbers, drawn by (seed, server step)."""

    def init(params, population):
        inner = algorithm.init(params, population)
        return Noisy(params, inner, jnp.asarray(population.seed), jnp.int32(0))

    def server_update(server, sums, count, group):
        inner = algorithm.server_update(server.inner, sums, count, group)
        noise = drawn(server.seed, server.step, inner.params)
        params = jax.tree.map(jnp.add, inner.params, noise)
        return Noisy(params, inner._replace(params=params), server.seed, server.step + 1)

    return algorithm._replace(
        init=init,
        server_update=server_update,
        broadcast=lambda server, group: algorithm.broadcast(server.inner, group),
    )


def test_a_server_rule_draws_by_seed_and_step():
    toy, seed, before = small_network(), 7, None
    bare = fa.algorithms.fedavg(toy.problem, LOCAL._replace(batches="full"))
    for step, after in enumerate(run(noisy(bare), toy.data, SETS, seed=seed)):
        (plain,) = run(bare, toy.data, SETS[step : step + 1], seed=seed, params=before)
        expected = jax.tree.map(jnp.add, plain, drawn(seed, step, plain))
        chex.assert_trees_all_close(after, expected, rtol=1e-10)
        before = after
