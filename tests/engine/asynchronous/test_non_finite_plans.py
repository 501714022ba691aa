"""Contributions that are not finite are left out of the server steps of a plan."""

import chex
import jax
import numpy as np
import pytest
from helpers import Case, small_network, with_statistics

import fedjax_algos as fa
from fedjax_algos import asynchrony
from fedjax_algos.asynchrony.plan import LOST, plan_dispatches
from fedjax_algos.engine.non_finite import NonFiniteUpdateError, all_finite, select

pytestmark = pytest.mark.usefixtures("x64", "any_rate")
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=4)
POPULATION = fa.Population(4, 4, 17)
SYSTEM = asynchrony.simulated(speeds="exponential")


def fedbuff(**options):
    algorithm = Case("fedbuff", {}).build(with_statistics(small_network().problem), LOCAL)
    return fa.make_executor(algorithm, slots=2, **options)


def plan_of_buffers():
    return asynchrony.buffered(size=3, steps=4)(SYSTEM(3), 4, seconds=6)


def execute(executor, plan, spoiled=(), stops=()):
    """(server steps made, server, statistics, excluded) at each stop; these dispatches are NaN."""
    data = small_network().data
    dispatches = plan_dispatches(plan, data.counts(), LOCAL)
    rate = np.where(np.isin(np.arange(len(plan.client)), spoiled), np.nan, 0.1)
    dispatches = dispatches._replace(learning_rate=rate)
    state = executor.init(3, POPULATION)
    for made, last, *_ in executor.run(state, data, plan, dispatches, stops=stops):
        server, statistics, excluded = last.server, last.statistics, last.excluded
        yield made, *jax.tree.map(np.array, (server, statistics, excluded))


@pytest.mark.parametrize("layout", ["sequential", "vmapped"])
def test_an_excluded_contribution_is_as_if_its_dispatch_were_lost(layout):
    executor, plan = fedbuff(layout=layout), plan_of_buffers()
    assert len(plan.time) >= 3
    spoiled = plan.dispatch[[1, 5]]  # one of the first and one of the second server step
    *_, (_, server, statistics, excluded) = execute(executor, plan, spoiled)
    kept = ~np.isin(plan.dispatch, spoiled)
    fate = np.where(np.isin(np.arange(len(plan.client)), spoiled), LOST, plan.fate)
    parts = {name: getattr(plan, name)[kept] for name in ("dispatch", "step", "staleness")}
    without = plan._replace(fate=fate.astype(np.int8), **parts)
    *_, (_, *expected) = execute(executor, without)
    chex.assert_tree_all_finite((server, statistics))
    close = chex.assert_trees_all_equal if layout == "sequential" else chex.assert_trees_all_close
    close((server, statistics), (expected[0], expected[1]))
    first = plan.dispatch[1]
    assert [int(leaf) for leaf in excluded] == [2, plan.version[first], plan.client[first]]


@pytest.mark.all
def test_a_server_step_without_contributions_leaves_the_server_as_it_is():
    executor, plan = fedbuff(), plan_of_buffers()
    spoiled = plan.dispatch[plan.step == 1]
    first, second, third = list(execute(executor, plan, spoiled, stops=[1, 2, 3]))[:3]
    chex.assert_trees_all_equal(first[1:3], second[1:3])
    assert int(second[3].number) == len(spoiled) == 3
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), second[1].params, third[1].params)
    assert all(jax.tree.leaves(changed))
    *_, (_, kept, _, _) = execute(fedbuff(), plan)
    assert all_finite(kept)


def test_errors_name_the_client():
    plan = plan_of_buffers()
    client = plan.client[plan.dispatch[4]]
    with pytest.raises(NonFiniteUpdateError, match=f"client {client} made an update"):
        list(execute(fedbuff(non_finite="error"), plan, plan.dispatch[[4]]))


@pytest.mark.all
def test_merged_runs_exclude_their_own_updates():
    """The rows of two seeds, bit for bit those of each alone; client 1 is never finite."""
    toy = small_network()
    base = Case("fedcompass", {}).build(toy.problem, LOCAL)

    def client_update(broadcast, row, data, dispatch, key):
        row, update, report = base.client_update(broadcast, row, data, dispatch, key)
        spoiled = jax.tree.map(lambda leaf: leaf + np.inf, update)
        return row, select(dispatch.client != 1, update, spoiled), report

    executor = fa.make_executor(base._replace(client_update=client_update), slots=2)

    def rows(merged_bytes):
        results = fa.simulate_async_seeds(
            executor,
            {0: toy.data, 3: toy.data},
            asynchrony.compass(min_steps=2, max_steps=8),
            SYSTEM,
            seconds=6,
            evaluations=2,
            merged_bytes=merged_bytes,
        )
        for result in results.values():
            chex.assert_tree_all_finite(result.state.server)
            arrived = result.plan.client[result.plan.dispatch] == 1
            assert result.rows[-1]["excluded_updates"] == arrived.sum() > 0
        return [[row | {"wall_seconds": 0} for row in each.rows] for each in results.values()]

    assert rows(0) == rows(2**30)
