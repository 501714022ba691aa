"""Executed plans equal a run whose clients train one after another, bit for bit; waves, slots."""

import copy
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_helpers import ALGORITHM, PLANNERS, POPULATION, SEED, examples, in_files, plan_of
from helpers import Case, Compilations, one_round
from naive_rounds import Naive
from same_runs import assert_close, host, without_time

import fedjax_algos as fa
from fedjax_algos.asynchrony import buffered, simulated, tiers
from fedjax_algos.asynchrony.plan import LOST, plan_dispatches
from fedjax_algos.engine.asynchronous import call_tables
from fedjax_algos.engine.asynchronous.executor import InFlightMemory, PlanStop, make_executor
from fedjax_algos.engine.asynchronous.in_flight import InFlightState, MovedRows
from fedjax_algos.engine.asynchronous.waves import make_waves
from fedjax_algos.engine.non_finite import NonFiniteUpdateError
from fedjax_algos.runs.loops.clock import simulate_async_seeds

ROWS = 15  # of versions and of updates, so that all plans share a program
NAIVE = Naive(ALGORITHM)
CLIENTS = POPULATION.num_clients
IN_ALL = pytest.mark.all


def dispatches_of(plan, spoiled=(), data=None):
    """The plan's dispatches, of which some are spoiled by the rate NaN."""
    dispatches = plan_dispatches(plan, (data or examples()).counts(), ALGORITHM.local)
    nan = np.isin(np.arange(len(plan.client)), spoiled)
    return dispatches._replace(learning_rate=np.where(nan, np.nan, dispatches.learning_rate))


@functools.cache
def executor_of(slots, layout="sequential", devices=None, non_finite="keep"):
    """The check of finite numbers may change the last bit of programs that are not optimised."""
    how = {"slots": slots, "layout": layout, "devices": devices, "non_finite": non_finite}
    return make_executor(ALGORITHM, waves_per_call=4, **how)


def with_rows(waves):
    assert max(waves.num_version_rows, waves.num_update_rows) <= ROWS
    return waves._replace(num_version_rows=ROWS, num_update_rows=ROWS)


def execute(executor, plan, stops=(), spoiled=()):
    """The stops in NumPy arrays."""
    state, data = executor.init(SEED, POPULATION), executor.put_data(examples())
    how = {"stops": stops, "waves": with_rows(executor.waves(state, plan))}
    calls = executor.run(state, data, plan, dispatches_of(plan, spoiled), **how)
    return [stop._replace(**host(stop._asdict())) for stop in calls]


def by_hand(plan, spoiled=(), seed=SEED, data=None):
    """What there is after each server step."""
    arrivals = []
    for step, group in enumerate(plan.group):
        here = plan.step == step
        arrivals.append((group, [*zip(plan.dispatch[here], plan.staleness[here], strict=True)]))
    given = data or examples(), dispatches_of(plan, spoiled, data), arrivals, POPULATION
    return [*NAIVE.steps(*given, seed=np.uint32(seed))]


@functools.cache
def ten_plans():
    """Plans, and what there is after each of their server steps."""
    plans = [plan_of(kind, seed) for kind in PLANNERS for seed in (2, 1)]
    return [(plan, by_hand(plan)) for plan in plans]


def check_loss(metrics, steps, run=()):
    total = sum(float(after.loss.total) for after in steps)
    assert float(metrics["train_loss"].total[run]) == pytest.approx(total, rel=1e-5, abs=1e-5)


def check_model(state, after, same=chex.assert_trees_all_equal):
    same(host((state.server, state.statistics)), host((after.server, after.statistics)))


def check_rows(state, plan, end, same=chex.assert_trees_all_equal):
    """Dispatches that are lost or in flight at the end write none."""
    known = np.isin(range(CLIENTS), plan.client[plan.dispatch])
    same(host(state.clients), np.where(known, end.clients, 0))
    states = fa.client_states(executor_of(3), state)
    assert state.dispatched.tolist() == np.asarray(states.dispatched).tolist() == known.tolist()
    same(host(states.rows), end.clients)


@pytest.mark.parametrize(
    ("slots", "layout", "devices"),
    [
        (3, "sequential", None),
        pytest.param(1, "sequential", None, marks=IN_ALL),
        pytest.param(8, "sequential", None, marks=IN_ALL),
        pytest.param(6, "sequential", 3, marks=IN_ALL),
        pytest.param(6, "vmapped", 2, marks=IN_ALL),
    ],
)
def test_slots_and_devices_change_no_bit(slots, layout, devices):
    """Models, losses and rows at server steps in waves and at their ends; mapped up to rounding."""
    executor = executor_of(slots, layout, devices)
    same = chex.assert_trees_all_equal if layout == "sequential" else assert_close
    for plan, expected in ten_plans():
        made, number = make_waves(plan, slots).steps, len(expected)
        stops = sorted({1, number // 2, int(made[-2])} - {0, number})
        found = execute(executor, plan, stops)
        assert [stop.server_steps for stop in found] == [*stops, number]
        before = 0
        for done, state, metrics, _ in found:
            check_model(state, expected[done - 1], same)
            check_loss(metrics, expected[before:done])
            before = done
        check_rows(found[-1].state, plan, expected[-1], same)


def test_the_plans_cover_the_cases():
    plans = [plan for plan, _ in ten_plans()]
    for plan in plans[:6]:
        assert {1, 4} <= set(plan.num_steps[plan.dispatch])
        assert plan.staleness.max() >= 2
    assert any((plan.fate[plan.number == 0] == LOST).any() for plan in plans)
    assert any(len(set(plan.client[plan.dispatch])) < CLIENTS for plan in plans)  # without a row
    assert {0, 1} == set(plan_of("groups").group)
    stops = make_waves(plan_of("each arrival"), 3).steps
    assert set(range(1, 31)) - set(stops)  # some server steps are made inside of waves


@pytest.mark.usefixtures("any_rate")
@pytest.mark.parametrize(
    ("layout", "non_finite"),
    [("sequential", "keep"), pytest.param("vmapped", "exclude", marks=IN_ALL)],
)
def test_merged_plans_are_the_runs_of_their_seeds(layout, non_finite):
    """Each has its own clients, keys and rows, and its losses since a stop of its own."""
    seeds, stop, keeps = (3, 4), 6, non_finite == "keep"
    same = chex.assert_trees_all_equal if keeps else assert_close
    data = [examples(seed) for seed in seeds]
    executor = executor_of(3, layout, non_finite=non_finite)
    plans = [plan_of("buffers of 3"), plan_of("groups", 1)]
    which = [[] if keeps else plan.dispatch[::4] for plan in plans]
    plan, dispatches = call_tables.merge_plans(
        plans, [*map(dispatches_of, plans, which, data)], CLIENTS
    )
    states = call_tables.merge_states([executor.init(seed, POPULATION) for seed in seeds])
    merged = call_tables.merge_data(data)
    *_, end = executor.run(states, merged, plan, dispatches, stops=[stop])
    for run, seed in enumerate(seeds):
        expected = by_hand(plans[run], which[run], seed, data[run])
        state = host(call_tables.state_of_run(end.state, run))
        check_model(state, expected[-1], same)
        check_rows(state, plans[run], expected[-1], same)
        assert keeps or int(state.excluded.number) == len(which[run]) > 0
        before = (plan.run[:stop] == run).sum() if plan.run[stop - 1] == run else 0
        check_loss(end.metrics, expected[before:], run)


@pytest.mark.usefixtures("any_rate")
@pytest.mark.parametrize("layout", ["sequential", pytest.param("vmapped", marks=IN_ALL)])
def test_contributions_that_are_not_finite_are_left_out(layout):
    """Of all clients modulo 4, and all contributions of a server step, which changes nothing."""
    plan = plan_of("buffers of 3")
    these = [*plan.dispatch[plan.step == 2], *plan.dispatch[[1, 11, 14, 17]]]
    assert {0, 1, 2, 3} == set(plan.client[these] % 4)
    expected = by_hand(plan, these)
    before, after, end = execute(executor_of(3, layout, non_finite="exclude"), plan, [2, 3], these)
    for stop in (before, after, end):
        check_model(stop.state, expected[stop.server_steps - 1], assert_close)
    chex.assert_trees_all_equal(before.state.server, after.state.server)
    assert int(before.state.excluded.number) + 3 == int(after.state.excluded.number)
    first = plan.dispatch[1]
    excluded = [len(these), plan.version[first], plan.client[first]]
    assert [int(leaf) for leaf in end.state.excluded] == excluded
    check_rows(end.state, plan, expected[-1], assert_close)
    check_loss(end.metrics, expected[3:])


@pytest.mark.all
@pytest.mark.usefixtures("any_rate")
def test_an_update_that_is_not_finite_is_an_error_on_request():
    plan = plan_of("buffers of 3")
    spoiled = plan.dispatch[[4]]
    with pytest.raises(NonFiniteUpdateError, match=f"client {plan.client[spoiled[0]]} made an"):
        execute(executor_of(3, non_finite="error"), plan, spoiled=spoiled)


@pytest.mark.parametrize("slots", [3, pytest.param(1, marks=IN_ALL), pytest.param(8, marks=IN_ALL)])
def test_a_run_goes_on_with_other_waves(slots):
    """From what was in flight after any stop, with the bits of the run that did not stop."""
    executor, plan = executor_of(slots), plan_of("groups")
    *stops, end = execute(executor_of(3), plan, range(1, len(plan.time)))
    for stop in stops[:: 1 if slots == 3 else 4]:
        start, made = executor.init(SEED, POPULATION), int(stop.server_steps)
        begun = executor_of(3).waves(start, plan).rows_after(made, plan)
        waves = with_rows(executor.waves(start, plan, begun))

        def moved(path, leaf, begun=begun, waves=waves):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            return MovedRows({name: leaf}, begun, waves)[name]

        def resume(in_flight, metrics, stop=stop, made=made, moved=moved):
            tree = jax.tree_util.tree_map_with_path(moved, stop.in_flight._asdict())
            return made, InFlightState(**tree), stop.metrics

        how = {"stops": [made], "waves": waves, "resume": resume}
        *_, found = executor.run(start, examples(), plan, dispatches_of(plan), **how)
        chex.assert_trees_all_equal(host(found.state), end.state)


def test_memory_is_the_bytes_of_all_rows():
    executor, plan = executor_of(3), plan_of("groups")
    dispatches, state = dispatches_of(plan), executor.init(SEED, POPULATION)
    assert repr(executor).startswith("Executor(slots=3, layout=sequential, devices=1, algorithm=")
    waves = executor.waves(state, plan)
    memory = executor.memory(state, examples(), dispatches, waves)
    assert waves.num_version_rows < memory.version_rows <= 1.5 * waves.num_version_rows + 1
    assert waves.num_update_rows <= memory.update_rows <= 1.5 * waves.num_update_rows
    assert memory.version_bytes == memory.version_rows * 2 * 4  # the model and its statistics
    facts = sum(leaf.itemsize for leaf in jax.tree.leaves(dispatches)) + 2 * 4  # and train_loss
    assert memory.update_bytes == memory.update_rows * (2 * 4 + facts)


def test_arguments_that_cannot_be_executed():
    plan, executor = plan_of("groups"), executor_of(1)
    given, drawn = (executor.init(SEED, POPULATION), examples(), plan), dispatches_of(plan)
    make, run = functools.partial(make_executor, ALGORITHM), functools.partial(executor.run, *given)
    for call, named in (
        (lambda: make(layout="rows"), "layout='rows' is unknown"),
        (lambda: make(slots=0), "slots=0"),
        (lambda: make(slots=3, devices=2), "slots=3 do not divide over 2 devices"),
        (lambda: run(drawn, stops=[3, 2]), f"server steps from 1 to {len(plan.time)}"),
        (lambda: run(one_round(drawn, slice(3))), "given are 1 runs, 3 dispatches"),
    ):
        with pytest.raises(ValueError, match=named):
            call()


# merged runs

SYSTEM = simulated(speeds="exponential", dropout=0.1, unavailable_seconds=1, bytes_per_second=2000)
ALWAYS = 2**30


def untrained(executor):
    def run(state, data, plan, dispatches, *, stops, waves, resume):
        yield PlanStop(len(plan.time), state, {}, None)

    replaced = copy.copy(executor)
    replaced.run = run
    return replaced


def together(executor, planner, seeds, **options):
    data = {seed: examples(seed) for seed in seeds}
    options = {"seconds": 6, "evaluations": 3, "test": examples().examples} | options
    return simulate_async_seeds(executor, data, planner, SYSTEM, **options)


@pytest.mark.all
def test_merged_runs_have_the_bits_of_each_alone():
    seeds, reported, memories = (2, 5), [], []
    told = {"on_evaluation": lambda seed, row: reported.append((seed, row, len(memories)))}
    evaluate = fa.make_evaluate(ALGORITHM.problem)
    run = functools.partial(together, executor_of(3), PLANNERS["groups"], evaluate=evaluate)
    merged = run(seeds, merged_bytes=ALWAYS, on_memory=memories.append, **told)
    assert list(merged) == list(seeds)
    assert [memory.runs for memory in memories] == [len(seeds)]
    assert {known for *_, known in reported} == {1}  # before anything is measured
    for seed, result in merged.items():
        (alone,) = run([seed]).values()
        chex.assert_trees_all_equal((result.plan, result.state), (alone.plan, alone.state))
        expected = without_time(alone.rows)
        assert without_time(result.rows) == expected
        assert without_time([row for each, row, _ in reported if each == seed]) == expected
        assert result.rows[-1]["train_loss"] != 0
    with Compilations() as later:
        run(seeds, merged_bytes=ALWAYS)
    assert later.count == 0


def test_memory_splits_seeds():
    memories, seeds = [], (2, 5, 7, 8)
    how = buffered(steps=4, size=2), seeds

    def last(executor, **options):
        together(untrained(executor), *how, on_memory=memories.append, **options)
        return memories[-1]

    assert last(executor_of(3), merged_bytes=0).runs == 1
    whole = last(executor_of(3), merged_bytes=ALWAYS)
    assert whole.runs == 4
    split = last(executor_of(3), merged_bytes=whole.bytes)  # too little for the servers
    assert split.runs == 2
    assert split.bytes < whole.bytes
    assert last(executor_of(8, "vmapped")).runs == 4  # waves are wide
    memory = InFlightMemory(24, 30_000_000, 20, 8_000_000)
    assert str(memory) == "at most 24 models and 20 updates in flight, 38 MB"
    assert "of 2 merged runs" in str(memory._replace(runs=2))


def test_states_of_different_shapes_do_not_share_waves():
    """FedAT keeps a model for each tier, and seeds have different numbers of tiers."""
    executor, memories = (
        make_executor(Case("fedat", {}).build(ALGORITHM.problem, ALGORITHM.local)),
        [],
    )
    how = tiers(steps=4, ratio=1.5), (1, 2, 3)
    options = {"merged_bytes": ALWAYS, "on_memory": memories.append}
    results = together(untrained(executor), *how, **options)
    assert list(results) == [1, 2, 3]
    assert len({int(result.plan.group.max()) for result in results.values()}) == 2
    assert memories[0].runs == 2


def test_runs_that_cannot_be_merged():
    other = examples()._replace(examples=jax.tree.map(jnp.copy, examples().examples))
    fewer = examples()._replace(offsets=examples().offsets[:-1])
    executor, plan = executor_of(3), plan_of("groups")
    first, second = (executor.init(seed, POPULATION) for seed in (0, 1))
    wide = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), second)
    merged = call_tables.merge_plans([plan] * 2, [dispatches_of(plan)] * 2, CLIENTS)
    for call, named in (
        (lambda: call_tables.merge_data([examples(), other]), "or different examples"),
        (lambda: call_tables.merge_data([examples(), fewer]), r"\[8, 7\] clients"),
        (lambda: call_tables.merge_data([in_files()] * 2), "none in files"),
        (lambda: call_tables.merge_states([first, wide]), "state of run 1 .* run 0"),
        (lambda: executor.run(first, examples(), *merged), "2 runs, .* given are 1 runs"),
        (lambda: together(executor, PLANNERS["groups"], []), "the number of seeds=0"),
    ):
        with pytest.raises(ValueError, match=named):
            call()
    states = call_tables.merge_states([first, second])
    chex.assert_trees_all_equal(call_tables.state_of_run(states, 1), second)
