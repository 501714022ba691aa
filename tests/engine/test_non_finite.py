"""Updates that are not finite: what is left out equals a cohort without these clients."""

import chex
import jax
import numpy as np
import pytest
from helpers import CASES, Case, fixed, random_rows, small_network, with_statistics

import fedjax_algos as fa
from fedjax_algos.core.randomness import client_key
from fedjax_algos.engine.non_finite import NonFiniteUpdateError, all_finite, select
from fedjax_algos.participation import Cohorts

pytestmark = pytest.mark.usefixtures("x64")
ONE_EACH = list({case.name: case for case in CASES}.values())  # the last of each name
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
SETS = [(0, 1, 2), (3, 2, 1)]
POPULATION = fa.Population(4, 3, 17)
POISONED, EMPTY = 2, 4  # a client, and the id of an empty slot
LAYOUTS = [
    {"layout": "vmapped"},
    {"layout": 2, "client_state": "host"},
    {"layout": "sequential", "devices": 2},
    {"layout": "vmapped", "devices": 2, "examples": "sharded"},
]


@pytest.fixture(autouse=True)
def any_rate(monkeypatch):
    """Lets dispatches through that spoil a client by its learning rate."""
    monkeypatch.setattr("fedjax_algos.engine.checks.check_dispatches", lambda *arguments: None)


def build(case, problem):
    """The algorithm; in its prelude a rate of NaN spoils the update, as it does in local steps."""
    algorithm = case.build(problem, LOCAL)
    prelude = algorithm.prelude
    if prelude is None:
        return algorithm

    def client_update(broadcast, data, dispatch, key):
        update = prelude.client_update(broadcast, data, dispatch, key)
        return select(
            dispatch.learning_rate > 0, update, jax.tree.map(lambda u: u * np.nan, update)
        )

    return algorithm._replace(prelude=prelude._replace(client_update=client_update))


def poisoned(data, clients):
    """The dispatches of the rounds; those of some clients have the rate NaN."""
    cohorts = Cohorts(data.counts(), LOCAL, cohort_size=3, seed=0, sampler=fixed(SETS))
    dispatches = cohorts.dispatches(len(SETS))
    rate = np.where(np.isin(dispatches.client, clients), np.nan, dispatches.learning_rate)
    return dispatches._replace(learning_rate=rate)


def host(tree):
    return jax.tree.map(np.array, tree)


@pytest.mark.sampled
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_a_poisoned_client_is_as_if_it_were_not_in_the_cohort(case):
    """Bit for bit: the same program runs with empty slots in its place. Then no client is left."""
    toy = small_network()
    problem = with_statistics(toy.problem)
    algorithm = build(case, problem)
    engine = fa.make_engine(algorithm, 2)

    def start():
        return engine.init(0, POPULATION)

    state, metrics = engine.rounds(start(), toy.data, poisoned(toy.data, [POISONED]))
    without = poisoned(toy.data, [])
    absent = without._replace(client=np.where(without.client == POISONED, EMPTY, without.client))
    expected, expected_metrics = engine.rounds(start(), toy.data, absent)
    chex.assert_tree_all_finite((state.server, state.statistics, state.clients, metrics))
    chex.assert_trees_all_equal(
        (state.server, state.statistics, metrics),
        (expected.server, expected.statistics, expected_metrics),
    )
    others = np.arange(4) != POISONED
    chex.assert_trees_all_equal(
        *(
            jax.tree.map(lambda leaf: np.asarray(leaf)[others], each.clients)
            for each in (state, expected)
        )
    )
    row = algorithm.client_init(state.origin, client_key(state.seed, np.int32(POISONED)))
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[POISONED], state.clients), row)
    uploads = 1 + (algorithm.prelude is not None)
    assert [int(leaf) for leaf in state.excluded] == [2 * uploads, 0, POISONED]
    assert int(expected.excluded.number) == 0

    before = host(expected)
    nothing_left, metrics = engine.rounds(expected, toy.data, poisoned(toy.data, [0, 1, 2, 3]), 1)
    chex.assert_trees_all_equal(host(nothing_left.server), before.server)
    chex.assert_trees_all_equal(host(nothing_left.statistics), before.statistics)
    assert all(float(mean.weight) == 0 for mean in metrics.values())
    assert [int(leaf) for leaf in nothing_left.excluded] == [3 * uploads, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "fedlga", "mime"])
def test_layouts_agree(name):
    """Sums with client state, a stack, and a prelude; rows on the device or on the host."""
    toy = small_network()
    algorithm = build(Case(name, {}), toy.problem)
    if name == "scaffold":
        algorithm = algorithm._replace(client_init=random_rows)
    ends = []
    for options in LAYOUTS if name == "scaffold" else LAYOUTS[::3]:
        engine = fa.make_engine(algorithm, **options)
        data = engine.put_data(toy.data)
        state = engine.init(0, POPULATION)
        state, _ = engine.rounds(state, data, poisoned(toy.data, [POISONED, 3]))
        rows = state.clients
        if options.get("client_state") == "host":
            rows = jax.tree.map(lambda *leaves: np.stack(leaves), *(rows[i] for i in range(4)))
        ends.append(host((state.server, rows, state.excluded)))
    chex.assert_tree_all_finite(ends[0])
    for end in ends[1:]:
        chex.assert_trees_all_close(ends[0], end, rtol=1e-11, atol=1e-11)


@pytest.mark.sampled
@pytest.mark.parametrize("part", ["row", "update", "metrics", "statistics"])
def test_the_parts_of_an_update_are_all_checked(part):
    """The clients' rows count their updates; that of the client that is left out does not move."""
    toy = small_network()
    base = Case("fedavg", {}).build(with_statistics(toy.problem), LOCAL)

    def client_update(broadcast, row, data, dispatch, key):
        _, update, report = base.client_update(broadcast, (), data, dispatch, key)
        parts = {"row": row + 1.0, "update": update, **report._asdict()}
        spoiled = jax.tree.map(lambda leaf: leaf + np.inf, parts[part])
        parts[part] = select(dispatch.client != POISONED, parts[part], spoiled)
        return parts["row"], parts["update"], fa.Report(parts["metrics"], parts["statistics"])

    def client_init(params, key):
        return np.zeros(2)

    algorithm = base._replace(client_update=client_update, client_init=client_init)
    engine = fa.make_engine(algorithm, "sequential")
    state = engine.init(0, POPULATION)
    state, metrics = engine.rounds(state, toy.data, poisoned(toy.data, []))
    assert [int(leaf) for leaf in state.excluded] == [2, 0, POISONED]
    chex.assert_tree_all_finite((state, metrics))
    assert np.asarray(state.clients).tolist() == [[1, 1], [2, 2], [0, 0], [1, 1]]


def test_an_update_that_is_not_finite_is_an_error_on_request():
    toy = small_network()
    algorithm = Case("fedavg", {}).build(toy.problem, LOCAL)
    dispatches = poisoned(toy.data, [3])  # in the second round only
    for place in ("device", "host"):
        engine = fa.make_engine(algorithm, client_state=place, non_finite="error")
        with pytest.raises(NonFiniteUpdateError, match=r"client 3 .* in round 1 .*clip_norm"):
            engine.rounds(engine.init(0, POPULATION), toy.data, dispatches)
        engine.rounds(engine.init(0, POPULATION), toy.data, poisoned(toy.data, []))
    with pytest.raises(ValueError, match="'drop' is unknown; choose exclude, error or keep"):
        fa.make_engine(algorithm, non_finite="drop")


def test_kept_updates_spoil_the_model():
    toy = small_network()
    algorithm = Case("fedavg", {}).build(toy.problem, LOCAL)
    engine = fa.make_engine(algorithm, "sequential", non_finite="keep")
    state = engine.init(0, POPULATION)
    assert state.excluded == ()
    state, metrics = engine.rounds(state, toy.data, poisoned(toy.data, [POISONED]))
    assert not all_finite(state.server.params)
    assert not np.isfinite(metrics["train_loss"].total)
