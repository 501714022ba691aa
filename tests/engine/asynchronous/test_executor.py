"""Executed plans equal a run whose clients train one after another, bit for bit; waves, slots."""

import copy
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_helpers import (
    ALGORITHM,
    CLIENTS,
    COMPASS,
    LOCAL,
    PLANNERS,
    POPULATION,
    SEED,
    Run,
    examples,
    in_files,
    plan_of,
    rows_of,
)
from helpers import Case, Compilations, one_round
from same_runs import host, without_time

import fedjax_algos as fa
from fedjax_algos.asynchrony import buffered, simulated, tiers
from fedjax_algos.asynchrony.plan import LOST, plan_dispatches
from fedjax_algos.engine.asynchronous.call_tables import (
    merge_data,
    merge_plans,
    merge_states,
    state_of_run,
)
from fedjax_algos.engine.asynchronous.executor import InFlightMemory, PlanStop, make_executor
from fedjax_algos.engine.asynchronous.in_flight import InFlightState, MovedRows
from fedjax_algos.engine.asynchronous.waves import make_waves
from fedjax_algos.engine.non_finite import NonFiniteUpdateError
from fedjax_algos.runs.clock import simulate_async_seeds

ROWS = 15  # of versions and of updates, so that all plans share a program


def dispatches_of(plan, data=None):
    return plan_dispatches(plan, (examples() if data is None else data).counts(), LOCAL)


@functools.cache
def executor_of(slots, layout="sequential", devices=None, non_finite="keep"):
    """The check of finite numbers may change the last bit of programs that are not optimised."""
    how = {"slots": slots, "layout": layout, "devices": devices, "non_finite": non_finite}
    return make_executor(ALGORITHM, waves_per_call=4, **how)


def with_rows(waves):
    assert max(waves.num_version_rows, waves.num_update_rows) <= ROWS
    return waves._replace(num_version_rows=ROWS, num_update_rows=ROWS)


def execute(executor, plan, stops=(), dispatches=None, share=True):
    """The stops in NumPy arrays; plans `share` a program, or have the rows that they need."""
    state = executor.init(SEED, POPULATION)
    waves = with_rows(executor.waves(state, plan)) if share else None
    dispatches = dispatches_of(plan) if dispatches is None else dispatches
    data = executor.put_data(examples())
    calls = executor.run(state, data, plan, dispatches, stops=stops, waves=waves)
    return [stop._replace(**host(stop._asdict())) for stop in calls]


def by_hand(plan, dispatches=None, seed=SEED, data=None):
    """The run at its end, the models after each server step, and the losses."""
    run = Run(seed, data)
    ends = run.plan(plan, dispatches_of(plan) if dispatches is None else dispatches)
    *models, losses = zip(*ends, strict=True)
    return run, list(zip(*models, strict=True)), [float(loss.total) for loss in losses]


def check_rows(state, run, same=chex.assert_trees_all_equal):
    """Dispatches that are lost or in flight at the end write none."""
    zero = np.zeros_like(run.origin)
    same(rows_of(state.clients), host({i: run.rows.get(i, zero) for i in range(CLIENTS)}))
    states = fa.client_states(executor_of(3), state)
    known = [client in run.rows for client in range(CLIENTS)]
    assert state.dispatched.tolist() == np.asarray(states.dispatched).tolist() == known
    rows = dict(zip(range(CLIENTS), states.rows, strict=True))
    same(rows_of(rows, run.rows), host(dict(run.rows)))


def close(one, other):
    chex.assert_trees_all_close(host(one), host(other), rtol=1e-5, atol=1e-6)


IN_ALL = pytest.mark.all


@pytest.mark.parametrize(
    ("slots", "devices", "layout"),
    [
        (3, None, "sequential"),
        pytest.param(1, None, "sequential", marks=IN_ALL),
        pytest.param(8, None, "sequential", marks=IN_ALL),
        pytest.param(2, 2, "sequential", marks=IN_ALL),
        pytest.param(6, 3, "sequential", marks=IN_ALL),
        pytest.param(3, None, "vmapped", marks=IN_ALL),
        pytest.param(6, 2, "vmapped", marks=IN_ALL),
    ],
)
def test_slots_and_devices_change_no_bit(slots, devices, layout):
    """Ten plans: models and losses at server steps inside waves and at their ends, and rows.

    Mapped waves differ by rounding.
    """
    executor = executor_of(slots, layout, devices)
    same = chex.assert_trees_all_equal if layout == "sequential" else close
    for plan in (plan_of(kind, seed) for kind in PLANNERS for seed in (2, 1)):
        run, models, losses = by_hand(plan)
        made, number = make_waves(plan, slots).steps, len(models)
        stops = sorted({1, number // 2, int(made[-2])} - {0, number})
        found = execute(executor, plan, stops)
        assert [stop.server_steps for stop in found] == [*stops, number]
        before = 0
        for done, state, metrics, _ in found:
            same((state.server, state.statistics), host(models[done - 1]))
            total = sum(losses[before:done])
            assert float(metrics["train_loss"].total) == pytest.approx(total, rel=1e-5, abs=1e-5)
            before = done
        check_rows(found[-1].state, run, same)


def test_the_plans_cover_the_cases():
    plans = [plan_of(kind, seed) for kind in PLANNERS for seed in (2, 1)]
    for plan in plans[:6]:
        assert {1, 4} <= set(plan.num_steps[plan.dispatch])
        assert plan.staleness.max() >= 2
    assert any((plan.fate[plan.number == 0] == LOST).any() for plan in plans)
    assert any(len(set(plan.client[plan.dispatch])) < CLIENTS for plan in plans)  # without a row
    assert {0, 1} == set(plan_of("groups").group)
    assert np.bincount(plan_of("groups", 1).step).max() > 5  # with late ones
    stops = make_waves(plan_of("each arrival"), 3).steps
    assert set(range(1, 31)) - set(stops)  # some server steps are made inside of waves


def spoiled(plan, which, data=None):
    """The plan's dispatches, of which some have the rate NaN."""
    dispatches = dispatches_of(plan, data)
    nan = np.isin(np.arange(len(plan.client)), which)
    return dispatches._replace(learning_rate=np.where(nan, np.nan, dispatches.learning_rate))


@pytest.mark.usefixtures("any_rate")
@pytest.mark.parametrize(
    ("layout", "non_finite"),
    [("sequential", "keep"), pytest.param("vmapped", "exclude", marks=IN_ALL)],
)
def test_merged_plans_are_the_runs_of_their_seeds(layout, non_finite):
    """Each has its own clients, keys and rows, and its losses since a stop of its own."""
    seeds, stop, keeps = (3, 4), 6, non_finite == "keep"
    data = [examples(seed) for seed in seeds]
    executor = executor_of(3, layout, non_finite=non_finite)
    plans = [plan_of("buffers of 3"), plan_of("groups", 1)]
    which = [[] if keeps else plan.dispatch[::4] for plan in plans]
    drawn = [*map(spoiled, plans, which, data)]
    plan, dispatches = merge_plans(plans, drawn, CLIENTS)
    states = merge_states([executor.init(seed, POPULATION) for seed in seeds])
    same = chex.assert_trees_all_equal if keeps else close
    *_, end = executor.run(states, merge_data(data), plan, dispatches, stops=[stop])
    for number, seed in enumerate(seeds):
        run, models, losses = by_hand(plans[number], drawn[number], seed, data[number])
        state = host(state_of_run(end.state, number))
        same((state.server, state.statistics), host(models[-1]))
        check_rows(state, run, same)
        assert keeps or int(state.excluded.number) == len(run.excluded) > 0
        before = (plan.run[:stop] == number).sum() if plan.run[stop - 1] == number else 0
        total = float(end.metrics["train_loss"].total[number])
        assert total == pytest.approx(sum(losses[before:]), rel=1e-5, abs=1e-5)


@pytest.mark.usefixtures("any_rate")
@pytest.mark.parametrize("layout", ["sequential", pytest.param("vmapped", marks=IN_ALL)])
def test_contributions_that_are_not_finite_are_left_out(layout):
    """Of all clients modulo 4, and all contributions of a server step, which changes nothing."""
    plan = plan_of("buffers of 3")
    these = [*plan.dispatch[plan.step == 2], *plan.dispatch[[1, 11, 14, 17]]]
    assert {0, 1, 2, 3} == set(plan.client[these] % 4)
    run, models, losses = by_hand(plan, spoiled(plan, these))
    executor = executor_of(3, layout, non_finite="exclude")
    before, after, end = execute(executor, plan, [2, 3], spoiled(plan, these))
    for stop in (before, after, end):
        model = stop.state.server, stop.state.statistics
        close(model, models[stop.server_steps - 1])
    chex.assert_trees_all_equal(before.state.server, after.state.server)
    assert int(before.state.excluded.number) + 3 == int(after.state.excluded.number)
    excluded = [int(leaf) for leaf in end.state.excluded]
    first = plan.dispatch[1]
    assert excluded == [len(these), plan.version[first], plan.client[first]]
    assert len(run.excluded) == len(these)
    check_rows(end.state, run, close)
    total = float(end.metrics["train_loss"].total)
    assert total == pytest.approx(sum(losses[3:]), rel=1e-5, abs=1e-5)


@pytest.mark.all
@pytest.mark.usefixtures("any_rate")
def test_an_update_that_is_not_finite_is_an_error_on_request():
    plan = plan_of("buffers of 3")
    executor = executor_of(3, non_finite="error")
    who = plan.client[plan.dispatch[4]]
    with pytest.raises(NonFiniteUpdateError, match=f"client {who} made an update"):
        execute(executor, plan, dispatches=spoiled(plan, plan.dispatch[[4]]))


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
    dispatch = sum(leaf.itemsize for leaf in jax.tree.leaves(dispatches))
    facts = dispatch + 2 * 4  # and train_loss
    assert memory.update_bytes == memory.update_rows * (2 * 4 + facts)


def test_arguments_that_cannot_be_executed():
    for options, message in (
        ({"layout": "rows"}, "layout='rows' is unknown"),
        ({"slots": 0}, "slots=0"),
        ({"slots": 3, "devices": 2}, "slots=3 do not divide over 2 devices"),
    ):
        with pytest.raises(ValueError, match=message):
            make_executor(ALGORITHM, **options)
    plan, executor = plan_of("groups"), executor_of(1)
    state, data = executor.init(SEED, POPULATION), examples()
    with pytest.raises(ValueError, match=f"ascending server steps from 1 to {len(plan.time)}"):
        executor.run(state, data, plan, dispatches_of(plan), stops=[3, 2])
    with pytest.raises(ValueError, match="dispatches do not fit a plan with"):
        executor.run(state, data, plan, one_round(dispatches_of(plan), slice(3)))


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


@pytest.mark.parametrize(
    ("kind", "devices", "slots", "seeds"),
    [
        pytest.param("groups", None, 3, (2, 5), marks=IN_ALL),
        pytest.param("buffers of 3", 2, 4, (2, 5, 7), marks=pytest.mark.nightly),
    ],
)
def test_merged_runs_have_the_bits_of_each_alone(kind, devices, slots, seeds):
    executor, reported, memories = executor_of(slots, devices=devices), [], []
    told = {"on_evaluation": lambda seed, row: reported.append((seed, row, len(memories)))}
    evaluate = fa.make_evaluate(ALGORITHM.problem)
    run = functools.partial(together, executor, PLANNERS[kind], evaluate=evaluate)
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
    executor, memories = make_executor(Case("fedat", {}).build(ALGORITHM.problem, LOCAL)), []
    how = tiers(steps=4, ratio=1.5), (1, 2, 3)
    options = {"merged_bytes": ALWAYS, "on_memory": memories.append}
    results = together(untrained(executor), *how, **options)
    assert list(results) == [1, 2, 3]
    numbers = [int(result.plan.group.max()) for result in results.values()]
    assert len(set(numbers)) == 2
    assert memories[0].runs == 2


def test_runs_that_cannot_be_merged():
    other = examples()._replace(examples=jax.tree.map(jnp.copy, examples().examples))
    fewer = examples()._replace(offsets=examples().offsets[:-1])
    executor, plan = executor_of(3), plan_of("groups")
    first, second = (executor.init(seed, POPULATION) for seed in (0, 1))
    wide = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), second)
    merged = merge_plans([plan] * 2, [dispatches_of(plan)] * 2, CLIENTS)
    for call, named in (
        (lambda: merge_data([examples(), other]), "examples of run 1 .* run 0"),
        (lambda: merge_data([examples(), fewer]), "run 1 has 7 clients and run 0 8"),
        (lambda: merge_data([in_files()] * 2), "examples in files"),
        (lambda: merge_states([first, wide]), "state of run 1 .* run 0"),
        (lambda: executor.run(first, examples(), *merged), "2 runs and the state has 1"),
        (lambda: together(executor, COMPASS, []), "there are no seeds"),
    ):
        with pytest.raises(ValueError, match=named):
            call()
    chex.assert_trees_all_equal(state_of_run(merge_states([first, second]), 1), second)
