"""Executed plans equal, bit for bit, an oracle that trains at each dispatch; waves and slots."""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Compilations, random_rows, small_network, stored, with_statistics
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import barrier, buffered, compass, immediate, simulated, tiers
from fedjax_algos.asynchrony.plan import AGGREGATED, LOST, plan_dispatches
from fedjax_algos.core import WeightedSum
from fedjax_algos.core.randomness import client_key, dispatch_keys, permutation_words
from fedjax_algos.core.trees import add_scaled
from fedjax_algos.data.federated_data import client_view
from fedjax_algos.engine.asynchronous.executor import make_executor
from fedjax_algos.engine.asynchronous.waves import (
    assign_slots,
    choose_slots,
    make_waves,
    step_ends,
    wave_costs,
)

CLIENTS, SEED = 10, 3
POPULATION = fa.Population(CLIENTS, 3, 55)
LOCAL = fa.Local(batch_size=3, learning_rate=lambda version: 0.1 / (1 + 0.1 * version), steps=4)


def make_plan(planner, seed, num_clients, lost=0.0, **end):
    """A plan for clients of unequal speeds, whose dispatches have 1 to 4 steps of 4."""
    system = simulated(speeds="exponential", change=0.3, jitter=0.5, dropout=lost)(seed)
    plan = planner(system, num_clients, **end)
    steps = np.random.default_rng(seed).integers(1, 5, len(plan.client), np.int32)
    return plan._replace(num_steps=steps, full_steps=np.full_like(steps, 4), trace=None)


# arrival groups, with late updates of others, and first arrivals
COMPASS = compass(min_steps=1, max_steps=4, slack=1.1)
PLANS = {
    "each arrival": make_plan(immediate(steps=4), 0, CLIENTS, 0.2, arrivals=24),
    "buffers of 3": make_plan(buffered(steps=4, size=3), 1, CLIENTS, arrivals=27),
    "groups": make_plan(COMPASS, 2, CLIENTS, 0.1, arrivals=40),
}


class Server(NamedTuple):
    params: Any
    steps: jax.Array  # server steps of each of two groups


@functools.cache
def case(name):
    """An algorithm, on ten clients with 1 to 10 examples."""
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n)} for n in range(1, 11)]
    problem = small_network().problem
    if name == "scaffold":  # its controls start from anything but the table's zeros
        algorithm = algorithms[name](problem, LOCAL, server_learning_rate=0.5)
        return algorithm._replace(client_init=random_rows), stored(clients)

    def contribute(update, dispatch, staleness):
        # a division: powers may be compiled to other bits inside a loop than outside
        weight = dispatch.share / (1.0 + staleness)
        return WeightedSum(jax.tree.map(lambda u: weight.astype(u.dtype) * u, update), weight)

    def server_update(server, sums, count, group):
        rate = jnp.where(group == 1, 0.5, 0.8) * count / (1 + count)
        params = add_scaled(server.params, -rate, sums.mean())
        return Server(params, server.steps.at[group].add(1))

    frame = algorithms["fedavg"](with_statistics(problem), LOCAL)
    algorithm = frame._replace(
        init=lambda params, population: Server(params, jnp.zeros(2, jnp.int32)),
        contribute=contribute,
        server_update=server_update,
    )
    return algorithm, stored(clients)


@functools.cache
def oracle_of(name):
    """Trains each dispatch when it is made, one client a call, without waves, rows or tables."""
    algorithm, data = case(name)

    @jax.jit
    def train(version, origin, row, dispatch, first):
        sent, statistics = version
        order, key = dispatch_keys(SEED, dispatch.client, dispatch.number)
        fresh = algorithm.client_init(origin, client_key(SEED, dispatch.client))
        row = jax.tree.map(lambda new, old: jnp.where(first, new, old), fresh, row)
        view = client_view(
            data, dispatch.client, permutation_words(order), statistics, dispatch.first_step
        )
        return algorithm.client_update(sent, row, view, dispatch, key)

    @jax.jit
    def add(sums, update, report, dispatch, staleness):
        new = (algorithm.contribute(update, dispatch, staleness), report.statistics)
        return new if sums is None else jax.tree.map(jnp.add, sums, new)

    @jax.jit
    def serve(server, sums, count, group):
        server = algorithm.server_update(server, sums[0], count, group)
        return server, (algorithm.broadcast(server, jnp.int32(0)), sums[1])

    def run(plan, dispatches):
        state = fa.make_engine(algorithm).init(SEED, POPULATION)
        model = algorithm.problem.init(jax.random.fold_in(jax.random.key(SEED), 0))
        server, versions = state.server, [(algorithm.broadcast(state.server, 0), model.statistics)]
        rows, updates, history, losses = {}, {}, [], []
        index = contribution = 0
        for step, group in enumerate(plan.group):
            while index < len(plan.client) and plan.version[index] <= step:
                if plan.fate[index] == AGGREGATED:
                    dispatch = jax.tree.map(lambda leaf, i=index: leaf[i], dispatches)
                    client = int(dispatch.client)
                    row = rows.get(client, jax.tree.map(lambda leaf: leaf[0], state.clients))
                    version = versions[dispatch.server_step]
                    first = client not in rows
                    rows[client], *trained = train(version, model.params, row, dispatch, first)
                    updates[index] = *trained, dispatch
                index += 1
            sums, count, loss = None, 0, []
            while contribution < len(plan.step) and plan.step[contribution] == step:
                update, report, dispatch = updates.pop(plan.dispatch[contribution])
                sums = add(sums, update, report, dispatch, plan.staleness[contribution])
                loss.append(float(report.metrics["train_loss"].total))
                count, contribution = count + 1, contribution + 1
            server, version = serve(server, sums, np.int32(count), group)
            mean = jax.tree.map(lambda leaf, n=count: leaf * (1 / leaf.dtype.type(n)), version[1])
            versions.append((version[0], mean))
            history.append(jax.tree.map(np.asarray, (server, mean)))
            losses.append(sum(loss))
        return history, rows, losses

    return run


@functools.cache
def expected(name, kind):
    plan = PLANS[kind]
    return oracle_of(name)(plan, plan_dispatches(plan, case(name)[1].counts(), LOCAL))


@functools.cache
def executor_of(name, slots, layout="sequential", devices=None):
    """Without the check of finite numbers, which the oracle has not.

    It may change the last bit where the compiler's optimisations are off, as they are here.
    """
    algorithm = case(name)[0]
    return make_executor(
        algorithm, slots=slots, layout=layout, waves_per_call=4, devices=devices, non_finite="keep"
    )


def execute(executor, data, plan, stops=(), waves=None):
    """What `run` yields, in NumPy arrays."""
    dispatches = plan_dispatches(plan, data.counts(), LOCAL)
    state = executor.init(SEED, POPULATION)
    yielded = executor.run(
        state, executor.put_data(data), plan, dispatches, stops=stops, waves=waves
    )
    return [(stop.server_steps, *jax.tree.map(np.array, stop[1:3])) for stop in yielded]


def close(one, other, tolerance):
    chex.assert_trees_all_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "slots", "devices", "kind"),
    [
        ("stale", 1, None, "each arrival"),
        ("scaffold", 1, None, "buffers of 3"),
        ("scaffold", 3, None, "each arrival"),
        ("scaffold", 3, None, "groups"),
        ("stale", 8, None, "each arrival"),
        ("stale", 2, 2, "buffers of 3"),
        ("scaffold", 6, 3, "groups"),
        ("scaffold", 6, 3, "each arrival"),
    ],
)
def test_slots_and_devices_change_no_bit(name, slots, devices, kind):
    """Also the clients' rows: dispatches that are lost or in flight at the end write none."""
    history, rows, losses = expected(name, kind)
    executor = executor_of(name, slots, devices=devices)
    (_, state, metrics), (done, last, _) = execute(executor, case(name)[1], PLANS[kind], stops=[3])
    assert done == len(history)
    assert float(metrics["train_loss"].total) == pytest.approx(sum(losses[:3]), rel=1e-5)
    chex.assert_trees_all_equal((state.server, state.statistics), history[2])
    chex.assert_trees_all_equal((last.server, last.statistics), history[-1])
    for client in range(CLIENTS):
        row = jax.tree.map(lambda leaf, c=client: leaf[c], last.clients)
        chex.assert_trees_all_equal(row, rows.get(client, jax.tree.map(np.zeros_like, row)))


@pytest.mark.all
@pytest.mark.parametrize(("name", "slots", "devices"), [("stale", 3, None), ("scaffold", 6, 2)])
def test_mapped_waves_agree(name, slots, devices):
    executor = executor_of(name, slots, "vmapped", devices=devices)
    ((_, state, _),) = execute(executor, case(name)[1], PLANS["groups"])
    close((state.server, state.statistics), expected(name, "groups")[0][-1], 1e-6)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_slots_are_assigned_to_the_least_loaded_device(draw):
    """The longest dispatch first, to the device with the least work among those with free slots."""
    devices, per_device = draw.draw(st.integers(1, 4)), draw.draw(st.integers(1, 4))
    slots, waves = devices * per_device, draw.draw(st.integers(1, 4))
    filled = draw.draw(arrays(np.int64, waves, elements=st.integers(0, slots)))
    steps = draw.draw(arrays(np.int64, (waves, slots), elements=st.integers(1, 100)))
    assigned = assign_slots(steps, filled, devices)
    assert assigned.shape == (waves, devices, per_device)
    for line, number, step in zip(assigned, filled, steps, strict=True):
        parts = [[] for _ in range(devices)]
        for slot in sorted(range(number), key=lambda slot, step=step: -step[slot]):
            free = [part for part in parts if len(part) < per_device]
            min(free, key=lambda part, step=step: sum(step[i] for i in part)).append(slot)
        assert [part[part >= 0].tolist() for part in line] == parts


def test_costs_of_waves_by_hand():
    trained, steps = np.arange(6)[None], np.array([1, 9, 5, 5, 2, 2])  # on devices: 1 4 0, 2 3 5
    for filled, layout, devices, cost in (
        (6, "sequential", 2, 12),
        (6, "vmapped", 2, 9),
        (3, "sequential", 3, 9),
    ):
        assert wave_costs(trained, np.array([filled]), steps, layout, devices).tolist() == [cost]


def test_the_plans_cover_the_cases():
    for plan in PLANS.values():
        assert {1, 4} <= set(plan.num_steps[plan.dispatch])
        assert plan.staleness.max() >= 2
    first = PLANS["each arrival"].number == 0
    assert (PLANS["each arrival"].fate[first] == LOST).any()
    trained = set(PLANS["each arrival"].client[PLANS["each arrival"].dispatch])
    assert len(trained) < CLIENTS  # so some client has no row
    assert set(PLANS["groups"].group) == {0, 1}
    assert np.bincount(PLANS["groups"].step).max() > 5  # with late ones


def test_models_and_losses_at_requested_server_steps():
    plan = PLANS["each arrival"]
    history, _, losses = expected("stale", "each arrival")
    made = make_waves(plan, 8).steps
    inside = np.setdiff1d(np.arange(1, len(history)), made)[:4]
    assert len(inside)
    stops = sorted({*inside.tolist(), int(made[1])})
    yielded = execute(executor_of("stale", 8), case("stale")[1], plan, stops)
    assert [done for done, *_ in yielded] == [*stops, len(history)]
    before = 0
    for done, state, metrics in yielded:
        chex.assert_trees_all_equal((state.server, state.statistics), history[done - 1])
        total = sum(losses[before:done])
        assert float(metrics["train_loss"].total) == pytest.approx(total, rel=1e-5)
        before = done


@pytest.mark.all
def test_a_barrier_for_all_is_the_synchronous_round():
    algorithm, data = case("scaffold")
    plan = make_plan(barrier(steps=4), 4, CLIENTS, arrivals=3 * CLIENTS)
    dispatches = plan_dispatches(plan, data.counts(), LOCAL)
    engine = fa.make_engine(algorithm, "sequential")
    state = engine.init(SEED, POPULATION._replace(cohort_size=CLIENTS))
    for index in range(3):
        cohort = slice(index * CLIENTS, (index + 1) * CLIENTS)
        state, _ = engine.round(
            state, data, jax.tree.map(lambda leaf, at=cohort: leaf[at], dispatches)
        )
    ((_, executed, _),) = execute(executor_of("scaffold", 3), data, plan)
    close((state.server, state.clients), (executed.server, executed.clients), 1e-6)


def test_later_calls_and_similar_plans_compile_nothing():
    data, executor = case("stale")[1], executor_of("stale", 2)
    planner = buffered(steps=4, size=3)
    one, other = (make_plan(planner, seed, CLIENTS, 0.1, arrivals=90) for seed in (9, 11))
    execute(executor, data, one)
    with Compilations() as later:
        execute(executor, data, other, stops=[5, 6, 20])
    assert later.count == 0


def test_memory_is_the_bytes_of_all_rows():
    data, executor = case("scaffold")[1], executor_of("scaffold", 3)
    plan = PLANS["groups"]
    dispatches, state = plan_dispatches(plan, data.counts(), LOCAL), executor.init(SEED, POPULATION)
    assert repr(executor).startswith("Executor(slots=3, layout=sequential, devices=1, algorithm=")
    waves = executor.waves(state, plan)
    memory = executor.memory(state, data, dispatches, waves)
    model = 4 * (3 * 4 + 4 + 4)
    assert waves.num_version_rows < memory.version_rows <= 1.5 * waves.num_version_rows + 1
    assert waves.num_update_rows <= memory.update_rows <= 1.5 * waves.num_update_rows
    assert memory.version_bytes == memory.version_rows * 2 * model
    dispatch = sum(leaf.itemsize for leaf in jax.tree.leaves(dispatches))
    facts = dispatch + 2 * 4  # and train_loss
    assert memory.update_bytes == memory.update_rows * (2 * model + facts)


@st.composite
def plans(draw):
    num_clients, steps = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    planner = draw(
        st.sampled_from([COMPASS, barrier(steps=4), tiers(steps=4), immediate(steps=4)])
        | st.builds(buffered, steps=st.just(steps), size=st.integers(1, 4))
    )
    lost, arrivals = draw(st.sampled_from([0.0, 0.1, 0.5])), draw(st.integers(8, 40))
    plan = make_plan(planner, draw(st.integers(0, 999)), num_clients, lost, arrivals=arrivals)
    assume(len(plan.time))
    return plan


def held(rows):
    """What is in rows, by row."""
    return {row: what for row, what in enumerate(rows) if what >= 0}


def check_waves(plan, waves, stateful, begun=None):
    """Each dispatch is trained once, with its version; rows are kept, and no row is unneeded."""
    ends, last = step_ends(plan), {}
    starting = np.bincount(plan.version[plan.dispatch], minlength=plan.num_versions)
    versions, updates, added, made = {waves.version_row[0]: 0}, {}, 0, 0
    if begun is not None:
        made, added = int(begun.steps), ends[begun.steps - 1]
        versions = {waves.version_row[v]: v for v in held(begun.versions).values()}
        updates = {waves.update_row[c]: c for c in held(begun.contributions).values()}
        for dispatch in sorted(plan.dispatch[[*range(added), *updates.values()]]):
            starting[plan.version[dispatch]] -= 1
            last[plan.client[dispatch]] = dispatch
    most_versions = most_updates = 0
    for filled, trained, to_add, to_make in zip(
        waves.filled, waves.trained, waves.contributions, waves.steps, strict=True
    ):
        most_versions = max(most_versions, sum(starting[v] > 0 for v in range(made + 1)))
        clients = plan.client[plan.dispatch[trained[:filled]]]
        assert not stateful or len(set(clients)) == filled
        for contribution in trained[:filled]:
            dispatch = plan.dispatch[contribution]
            client, version = plan.client[dispatch], plan.version[dispatch]
            assert plan.fate[dispatch] == AGGREGATED
            assert version <= made
            assert versions[waves.version_row[version]] == version
            starting[version] -= 1
            assert not stateful or last.get(client, -1) < dispatch
            last[client] = dispatch
            assert waves.update_row[contribution] not in updates
            updates[waves.update_row[contribution]] = contribution
        most_updates = max(most_updates, len(updates))
        before = made
        while added < to_add:
            assert updates.pop(waves.update_row[added]) == added
            added += 1
            if added == ends[made]:
                made += 1
                versions[waves.version_row[made]] = made
        assert made == to_make
        if made > before and added == ends[made - 1]:
            now = waves.rows_after(made, plan)
            assert held(now.versions) == {row: v for row, v in versions.items() if starting[v]}
            assert held(now.contributions) == updates
    assert added == len(plan.dispatch)
    assert not updates
    assert made == len(ends)
    assert not starting.any()  # each was trained once
    assert waves.num_version_rows == most_versions
    assert waves.num_update_rows == most_updates
    return most_versions, most_updates


@given(plans(), st.integers(1, 9), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_waves_are_consistent(plan, slots, stateful, cut):
    waves, ends = make_waves(plan, slots, stateful=stateful), step_ends(plan)
    assert 1 <= waves.filled.min() <= waves.filled.max() <= slots
    if cut:
        stops = np.arange(1, len(ends) + 1)
        waves = waves.split_at(stops, ends)
        assert set(zip(stops, ends, strict=True)) <= set(
            zip(waves.steps, waves.contributions, strict=True)
        )
    most_versions, most_updates = check_waves(plan, waves, stateful)
    # for any number of slots: dispatches in flight at once, and arrivals that wait for their step
    begun, now = plan.started, plan.started[:, None]
    in_flight = ((begun <= now) & (now < plan.ended)).sum(1).max()
    bound = in_flight + np.bincount(plan.step).max()
    assert most_versions <= bound
    assert most_updates <= 2 * bound


@given(plans(), st.integers(1, 9), st.integers(1, 9), st.booleans(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_plan_goes_on_with_other_slots(plan, slots, others, stateful, draw):
    """After any server step, with all that was in flight; as many slots have the same waves."""
    waves, ends = make_waves(plan, slots, stateful=stateful), step_ends(plan)
    steps = draw.draw(st.integers(1, len(ends)))
    begun = waves.rows_after(steps, plan)
    rest = make_waves(plan, others, stateful=stateful, begun=begun)
    check_waves(plan, rest.split_at(np.arange(steps, len(ends) + 1), ends), stateful, begun)
    if others == slots:
        later = waves.steps >= steps
        later[later.argmax()] = False
        np.testing.assert_array_equal(rest.trained[1:], waves.trained[later])
        assert rest.num_update_rows <= waves.num_update_rows
        assert rest.num_version_rows <= waves.num_version_rows


@given(plans(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_with_slots_for_all_the_waves_are_the_longest_chain(plan, stateful):
    depth = np.zeros(len(plan.client), int)  # waves until the dispatch is trained
    latest = np.zeros(plan.client.max() + 1, int)
    exists = [0]
    dispatch = 0
    for step in range(len(plan.time)):
        while dispatch < len(depth) and plan.version[dispatch] <= step:
            if plan.fate[dispatch] == AGGREGATED:
                before = latest[plan.client[dispatch]] if stateful else 0
                depth[dispatch] = 1 + max(exists[plan.version[dispatch]], before)
                latest[plan.client[dispatch]] = depth[dispatch]
            dispatch += 1
        exists.append(max(exists[-1], depth[plan.dispatch[plan.step == step]].max()))
    assert len(make_waves(plan, len(depth), stateful=stateful).filled) == exists[-1]


def test_chosen_numbers_of_slots():
    assert choose_slots(PLANS["buffers of 3"], "sequential") == 1
    assert choose_slots(make_plan(immediate(steps=4), 0, 1, arrivals=20), "vmapped") == 1  # a chain
    rounds = make_plan(barrier(steps=4), 0, 16, arrivals=80)
    assert choose_slots(rounds, "vmapped") == 16
    assert choose_slots(rounds, "vmapped", devices=2) == 16
    # several for each device balance unequal dispatches, and equal ones need none
    assert choose_slots(rounds, "sequential", devices=2) > 2
    equal = rounds._replace(num_steps=np.full_like(rounds.num_steps, 4))
    assert choose_slots(equal, "sequential", devices=2) == 2


def test_dispatches_of_a_plan():
    plan = make_plan(buffered(steps=4, size=2), 5, 3, 0.3, arrivals=12)
    counts = np.array([2, 3, 5, 10])
    dispatches = plan_dispatches(plan, counts, LOCAL)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(dispatches)} == {"int32", "float32"}
    np.testing.assert_array_equal(dispatches.server_step, plan.version)
    np.testing.assert_allclose(dispatches.learning_rate, 0.1 / (1 + 0.1 * plan.version), rtol=1e-6)
    np.testing.assert_allclose(
        dispatches.share, np.array([0.1, 0.15, 0.25])[plan.client], rtol=1e-6
    )
    done = np.zeros(3, int)
    for dispatch, client in enumerate(plan.client):
        assert dispatches.first_step[dispatch] == done[client]
        done[client] += plan.num_steps[dispatch] * (plan.fate[dispatch] != LOST)
    by_dispatch = plan_dispatches(plan, counts, LOCAL._replace(rate_by="dispatch"))
    np.testing.assert_allclose(by_dispatch.learning_rate, 0.1 / (1 + 0.1 * plan.number), rtol=1e-6)
    with pytest.raises(ValueError, match="client 2, but there are counts of 2 clients"):
        plan_dispatches(plan, counts[:2], LOCAL)


def test_arguments_that_cannot_be_executed():
    algorithm, data = case("scaffold")
    for options, message in (
        ({"layout": "rows"}, "layout='rows' is unknown"),
        ({"slots": 0}, "slots=0"),
        ({"slots": 3, "devices": 2}, "slots=3 do not divide over 2 devices"),
    ):
        with pytest.raises(ValueError, match=message):
            make_executor(algorithm, **options)
    plan, executor = PLANS["groups"], executor_of("scaffold", 1)
    state, counts = executor.init(SEED, POPULATION), data.counts()
    with pytest.raises(ValueError, match=f"ascending server steps from 1 to {len(plan.time)}"):
        executor.run(state, data, plan, plan_dispatches(plan, counts, LOCAL), stops=[3, 2])
    with pytest.raises(ValueError, match="dispatches do not fit a plan with"):
        executor.run(state, data, plan, plan_dispatches(PLANS["each arrival"], counts, LOCAL))


def test_plans_that_contradict_themselves():
    plan = PLANS["buffers of 3"]
    for changes, message in (
        ({"time": plan.time[:0]}, "no server step"),
        ({"time": np.arange(10.0)}, "server steps 0 to 9"),
        ({"version": plan.version + 1}, "before that version"),
        ({"fate": np.full_like(plan.fate, LOST)}, "contributes 1 times and has fate 2"),
    ):
        with pytest.raises(ValueError, match=message):
            make_waves(plan._replace(**changes), 1)
    # dispatch 0 is lost, and made after version 1, but before all others, which start from 0
    first = np.arange(len(plan.client)) == 0
    others = plan.dispatch > 0
    falling = plan._replace(
        version=first.astype(np.int32),
        fate=np.where(first, LOST, plan.fate),
        dispatch=plan.dispatch[others],
        step=plan.step[others],
    )
    with pytest.raises(ValueError, match="versions of the plan's dispatches are not ascending"):
        make_waves(falling, 1, stateful=True)
