"""Merged runs have, bit for bit, the results of each run alone, in fewer waves."""

import copy
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Case, Compilations, random_rows, small_network, with_statistics
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_algos as fa
from fedjax_algos.asynchrony import buffered, compass, immediate, plan_dispatches, simulated
from fedjax_algos.data.stored.stored_data import StoredData, source_of
from fedjax_algos.engine.asynchronous.call_tables import (
    merge_data,
    merge_plans,
    merge_states,
    state_of_run,
)
from fedjax_algos.engine.asynchronous.executor import InFlightMemory, PlanStop, make_executor
from fedjax_algos.engine.asynchronous.waves import make_waves
from fedjax_algos.runs.clock import simulate_async, simulate_async_seeds

CLIENTS, EXAMPLES, SECONDS = 5, 40, 6
SEEDS = (2, 5, 11)
LOCAL = fa.Local(batch_size=3, learning_rate=lambda version: 0.1 / (1 + 0.1 * version), steps=4)
SYSTEM = simulated(speeds="exponential", dropout=0.1, unavailable_seconds=1, bytes_per_second=2000)
ALWAYS = 2**30
SCHEDULES = {
    "fedasync": immediate(steps=4),
    "fedbuff": buffered(steps=4, size=2),
    "fedcompass": compass(min_steps=2, max_steps=6),
    "scaffold": buffered(steps=4, size=2),
}


@functools.cache
def examples():
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(EXAMPLES, 3)), "y": rng.normal(size=EXAMPLES)}
    return jax.device_put(jax.tree.map(np.float32, arrays))


@functools.cache
def split(seed, num_clients=CLIENTS):
    """Seeds differ in their clients, the clients' sizes, and partly the number of examples."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(EXAMPLES)[: EXAMPLES - seed % 2]
    ends = np.sort(rng.choice(np.arange(1, len(rows)), num_clients - 1, replace=False))
    return fa.federate(examples(), fa.Partition.of(np.split(rows, ends)))


@functools.cache
def algorithm_of(name):
    """With model statistics, and client rows that start from anything but zeros."""
    algorithm = Case(name, {}).build(with_statistics(small_network().problem), LOCAL)
    return algorithm._replace(client_init=random_rows) if name == "scaffold" else algorithm


@functools.cache
def executor_of(name, devices, slots):
    return make_executor(
        algorithm_of(name), slots=slots, layout="sequential", waves_per_call=4, devices=devices
    )


@functools.cache
def evaluate():
    return fa.make_evaluate(algorithm_of("fedasync").problem)


def options(evaluations=3):
    return {
        "seconds": SECONDS,
        "evaluations": evaluations,
        "test": examples(),
        "evaluate": evaluate(),
    }


def untrained(executor):
    def run(state, data, plan, dispatches, *, stops, waves, resume):
        yield PlanStop(len(plan.time), state, {}, None)

    replaced = copy.copy(executor)
    replaced.run = run
    return replaced


def plans_of(planner, system, num_clients, seconds, seeds):
    plans = [planner(system(seed), num_clients, seconds=seconds) for seed in seeds]
    local = fa.Local(batch_size=1, learning_rate=0.1, steps=1)
    dispatches = [plan_dispatches(plan, np.ones(num_clients, int), local) for plan in plans]
    return plans, *merge_plans(plans, dispatches, num_clients)


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "devices", "slots", "number"),
    [("fedbuff", 1, 3, 1), ("fedcompass", 1, 2, 2), ("scaffold", 2, 4, 3)],
)
def test_each_run_has_the_same_bits_as_alone(name, devices, slots, number):
    executor, seeds = executor_of(name, devices, slots), SEEDS[:number]
    reported, memories = [], []
    merged = simulate_async_seeds(
        executor, {seed: split(seed) for seed in seeds}, SCHEDULES[name], SYSTEM, **options(),
        on_evaluation=lambda seed, row: reported.append((seed, row, len(memories))),
        on_memory=memories.append,
        merged_bytes=ALWAYS,
    )  # fmt: skip
    assert list(merged) == list(seeds)
    assert [memory.runs for memory in memories] == [number]
    assert {known for *_, known in reported} == {1}  # before anything is measured
    for seed, result in merged.items():
        alone = simulate_async(
            executor, split(seed), SCHEDULES[name], SYSTEM, seed=seed, **options()
        )
        chex.assert_trees_all_equal(result.plan, alone.plan)
        chex.assert_trees_all_equal(result.state, alone.state)
        rows = [
            [row | {"wall_seconds": None} for row in history]
            for history in (result.rows, alone.rows, [r for s, r, _ in reported if s == seed])
        ]
        assert rows[0] == rows[1] == rows[2]
        assert rows[0][-1]["train_loss"] > 0


@pytest.mark.all
def test_mapped_waves_agree():
    executor = make_executor(algorithm_of("scaffold"), slots=4, layout="vmapped")
    data = {seed: split(seed) for seed in SEEDS[:2]}
    merged, apart = (
        simulate_async_seeds(
            executor, data, SCHEDULES["scaffold"], SYSTEM, **options(1), merged_bytes=size
        )
        for size in (None, 0)  # a vmapped wave is wide, so None merges
    )
    for seed in data:
        states = merged[seed].state, apart[seed].state
        chex.assert_trees_all_close(*states, rtol=1e-5, atol=1e-6)


@given(
    st.sampled_from(["fedasync", "fedbuff", "fedcompass"]),
    st.lists(st.integers(0, 10**6), min_size=2, max_size=4, unique=True),
    st.sampled_from([1, 2, 3, 8, 1000]),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_merged_plan_contains_each_run_s_plan_in_fewer_waves(name, seeds, slots, stateful):
    plans, merged, dispatches = plans_of(SCHEDULES[name], SYSTEM, CLIENTS, SECONDS, seeds)
    assert merged.num_runs == len(seeds)
    assert (np.diff(merged.time) >= 0).all()
    separate = [make_waves(plan, slots, stateful=stateful) for plan in plans]
    waves = make_waves(merged, slots, stateful=stateful)  # which also checks the plan
    assert len(waves.filled) <= sum(len(each.filled) for each in separate)
    for run, plan in enumerate(plans):
        own = merged.client // CLIENTS == run
        np.testing.assert_array_equal(dispatches.client[own], plan.client)
        np.testing.assert_array_equal(dispatches.server_step[own], plan.version)
        steps = np.flatnonzero(merged.run == run)
        np.testing.assert_array_equal(merged.time[steps], plan.time)
        versions = np.concatenate([[run], steps + len(plans)])
        np.testing.assert_array_equal(merged.version[own], versions[plan.version])


@pytest.mark.all
def test_memory_splits_seeds_and_later_calls_compile_nothing():
    executor, memories = executor_of("fedbuff", 1, 3), []
    run = functools.partial(
        simulate_async_seeds, planner=SCHEDULES["fedbuff"], system=SYSTEM,
        **options(), on_memory=memories.append,
    )  # fmt: skip
    data = {seed: split(2) for seed in range(4)}
    run(untrained(executor), data, merged_bytes=0)
    assert memories[-1].runs == 1
    run(untrained(executor), data, merged_bytes=ALWAYS)
    assert memories[-1].runs == 4
    limit = memories[-1].bytes  # too little for the servers
    run(executor, data, merged_bytes=limit)
    assert memories[-1].runs == 2
    assert memories[-1].bytes < limit
    with Compilations() as later:
        run(executor, data, merged_bytes=limit)
    assert later.count == 0
    assert str(InFlightMemory(24, 30_000_000, 20, 8_000_000)) == (
        "at most 24 models and 20 updates in flight, 38 MB"
    )
    assert "of 2 merged runs" in str(memories[-1])


def test_states_of_different_shapes_do_not_share_waves():
    """FedAT keeps a model for each tier, and seeds have different numbers of tiers."""
    executor, memories = make_executor(Case("fedat", {}).build(small_network().problem, LOCAL)), []
    tiers = fa.asynchrony.tiers(steps=4, ratio=1.5)
    data = {seed: split(2) for seed in range(3)}
    results = simulate_async_seeds(
        untrained(executor), data, tiers, SYSTEM, seconds=SECONDS, evaluations=1,
        merged_bytes=ALWAYS, on_memory=memories.append,
    )  # fmt: skip
    assert list(results) == list(data)
    numbers = [int(result.plan.group.max()) for result in results.values()]
    assert sorted(numbers) == [2, 3, 3]
    assert memories[0].runs == 2


def test_runs_that_cannot_be_merged():
    other = split(2)._replace(examples=jax.tree.map(jnp.copy, examples()))
    with pytest.raises(ValueError, match="examples of run 1 are other arrays than those of run 0"):
        merge_data([split(2), other])
    with pytest.raises(ValueError, match="run 1 has 4 clients and run 0 5; give runs with"):
        merge_data([split(2), split(2, 4)])
    rows = [np.arange(3), np.arange(3, 5)]
    files = StoredData(source_of({"x": np.ones((5, 2))}, fa.Partition.of(rows), list("ab")))
    with pytest.raises(ValueError, match="files are not those of merged runs; give what federate"):
        merge_data([files, files])
    executor = executor_of("fedasync", 1, 3)
    first, second = (executor.init(seed, fa.Population(CLIENTS, CLIENTS, 40)) for seed in (0, 1))
    wide = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), second)
    with pytest.raises(ValueError, match="state of run 1 has other shapes than that of run 0"):
        merge_states([first, wide])
    _, merged, dispatches = plans_of(SCHEDULES["fedasync"], SYSTEM, CLIENTS, SECONDS, (0, 1))
    with pytest.raises(ValueError, match="the plan has 2 runs and the state has 1; merge"):
        executor.run(first, split(2), merged, dispatches)
    with pytest.raises(ValueError, match="there are no seeds; give the data of at least one"):
        simulate_async_seeds(executor, {}, SCHEDULES["fedasync"], SYSTEM, seconds=1)
    chex.assert_trees_all_equal(state_of_run(merge_states([first, second]), 1), second)
