"""Waves: the order in which a plan is trained; merged plans. Nothing is executed here."""

import chex
import numpy as np
import pytest
from engine_helpers import CLIENTS, COMPASS, LOCAL, PLANNERS, make_plan, plan_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedjax_algos.asynchrony import barrier, buffered, immediate, simulated, tiers
from fedjax_algos.asynchrony.plan import AGGREGATED, LOST, plan_dispatches
from fedjax_algos.engine.asynchronous.call_tables import merge_plans
from fedjax_algos.engine.asynchronous.waves import (
    assign_slots,
    choose_slots,
    make_waves,
    step_ends,
    wave_costs,
)


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
    for filled, *how, cost in (
        (6, "sequential", 2, 12),
        (6, "vmapped", 2, 9),
        (3, "sequential", 3, 9),
    ):
        assert wave_costs(trained, np.array([filled]), steps, *how).tolist() == [cost]


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


def check_waves(plan, waves, stateful):
    """Each dispatch is trained once, with its version; rows are kept, and no row is unneeded."""
    ends, last = step_ends(plan), {}
    starting = np.bincount(plan.version[plan.dispatch], minlength=plan.num_versions)
    versions, updates, added, made = {waves.version_row[0]: 0}, {}, 0, 0
    most_versions = most_updates = 0
    fields = waves.filled, waves.trained, waves.contributions, waves.steps
    for filled, trained, to_add, to_make in zip(*fields, strict=True):
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
        while added < to_add:
            assert updates.pop(waves.update_row[added]) == added
            added += 1
            if added == ends[made]:
                made += 1
                versions[waves.version_row[made]] = made
        assert made == to_make
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
        waves = waves.split_at(np.arange(1, len(ends) + 1), ends)
        assert {*enumerate(ends, 1)} <= {*zip(waves.steps, waves.contributions, strict=True)}
    most_versions, most_updates = check_waves(plan, waves, stateful)
    # for any number of slots: dispatches in flight at once, and arrivals that wait for their step
    begun, now = plan.started, plan.started[:, None]
    in_flight = ((begun <= now) & (now < plan.ended)).sum(1).max()
    bound = in_flight + np.bincount(plan.step).max()
    assert most_versions <= bound
    assert most_updates <= 2 * bound


@given(plans(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_with_slots_for_all_the_waves_are_the_longest_chain(plan, stateful):
    depth = np.zeros(len(plan.client), int)  # waves until the dispatch is trained
    latest = np.zeros(plan.client.max() + 1, int)
    exists, dispatch = [0], 0
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
    assert choose_slots(plan_of("buffers of 3"), "sequential") == 1
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
    assert {np.asarray(leaf).dtype.name for leaf in dispatches[:-1]} == {"int32", "float32"}
    np.testing.assert_array_equal(dispatches.server_step, plan.version)
    np.testing.assert_allclose(dispatches.learning_rate, 0.1 / (1 + 0.1 * plan.version), rtol=1e-6)
    np.testing.assert_allclose(dispatches.share, counts[plan.client] / 20, rtol=1e-6)
    done = np.zeros(3, int)
    for dispatch, client in enumerate(plan.client):
        assert dispatches.first_step[dispatch] == done[client]
        done[client] += plan.num_steps[dispatch] * (plan.fate[dispatch] != LOST)
    by_dispatch = plan_dispatches(plan, counts, LOCAL._replace(rate_by="dispatch"))
    np.testing.assert_allclose(by_dispatch.learning_rate, 0.1 / (1 + 0.1 * plan.number), rtol=1e-6)
    with pytest.raises(ValueError, match="dispatches client 2, but there are counts of 2"):
        plan_dispatches(plan, counts[:2], LOCAL)


@given(
    st.sampled_from(list(PLANNERS)),
    st.lists(st.integers(0, 10**6), min_size=2, max_size=4, unique=True),
    st.sampled_from([1, 2, 3, 8, 1000]),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_merged_plan_contains_each_run_s_plan_in_fewer_waves(planner, seeds, slots, stateful):
    system = simulated(speeds="exponential", dropout=0.1, unavailable_seconds=1)
    plans = [PLANNERS[planner](system(seed), CLIENTS, seconds=6) for seed in seeds]
    assume(all(len(plan.time) for plan in plans))
    drawn = [plan_dispatches(plan, np.ones(CLIENTS, int), LOCAL) for plan in plans]
    merged, dispatches = merge_plans(plans, drawn, CLIENTS)
    assert merged.num_runs == len(seeds)
    assert (np.diff(merged.time) >= 0).all()
    separate = [make_waves(plan, slots, stateful=stateful) for plan in plans]
    waves = make_waves(merged, slots, stateful=stateful)  # which also checks the plan
    assert len(waves.filled) <= sum(len(each.filled) for each in separate)
    for run, plan in enumerate(plans):
        own, steps = merged.client // CLIENTS == run, np.flatnonzero(merged.run == run)
        versions = np.concatenate([[run], steps + len(plans)])
        found = dispatches.client[own], dispatches.server_step[own], merged.time[steps]
        chex.assert_trees_all_equal(found, (plan.client, plan.version, plan.time))
        np.testing.assert_array_equal(merged.version[own], versions[plan.version])


def test_plans_that_contradict_themselves():
    plan = plan_of("buffers of 3")
    # dispatch 0 is lost, and made after version 1, but before all others, which start from 0
    first, others = np.arange(len(plan.client)) == 0, plan.dispatch > 0
    falling = {
        "version": first.astype(np.int32),
        "fate": np.where(first, LOST, plan.fate),
        "dispatch": plan.dispatch[others],
        "step": plan.step[others],
    }
    for changes, message in (
        ({"time": plan.time[:0]}, "to 0 server steps"),
        ({"time": np.arange(50.0)}, "to 50 server steps"),
        ({"version": plan.version + 1}, "before that version"),
        ({"fate": np.full_like(plan.fate, LOST)}, "contributes 1 times and has fate 2"),
        (falling, "versions of the plan's dispatches are not ascending"),
    ):
        with pytest.raises(ValueError, match=message):
            make_waves(plan._replace(**changes), 1, stateful=True)
