"""Updates that are not finite; see also algorithms/test_every_algorithm.py."""

import chex
import jax
import numpy as np
import pytest
from helpers import Case, dispatches_of, one_round, random_rows, small_network, with_statistics
from same_runs import host

import fedjax_algos as fa
from fedjax_algos.engine.non_finite import NonFiniteUpdateError, all_finite, select

pytestmark = pytest.mark.usefixtures("x64", "any_rate")
LOCAL = fa.Local(batch_size=3, learning_rate=0.1, steps=2)
SETS = [(0, 1, 2), (3, 2, 1)]
POPULATION = fa.Population(4, 3, 17)
POISONED = 2
# in each layout one of sums with client state, a prelude, and a stack
LAYOUTS = [
    ("scaffold", {"layout": 2, "client_state": "host"}),
    ("mime", {"layout": "sequential", "devices": 2}),
    ("fedlga", {"layout": "vmapped", "devices": 2, "examples": "sharded"}),
]


def poisoned(data, clients):
    """The dispatches of the rounds; those of some clients have the rate NaN."""
    dispatches = dispatches_of(data, LOCAL, SETS)
    rate = np.where(np.isin(dispatches.client, clients), np.nan, dispatches.learning_rate)
    return dispatches._replace(learning_rate=rate)


@pytest.mark.all
@pytest.mark.parametrize(("name", "layout"), LAYOUTS, ids=str)
def test_layouts_agree(name, layout):
    toy = small_network()
    algorithm = Case(name, {}).build(toy.problem, LOCAL)
    if name == "scaffold":
        algorithm = algorithm._replace(client_init=random_rows)
    ends = []
    for options in ({"layout": "vmapped"}, layout):
        engine = fa.make_engine(algorithm, **options)
        dispatches = poisoned(toy.data, [POISONED, 3])
        state, _ = engine.rounds(engine.init(0, POPULATION), engine.put_data(toy.data), dispatches)
        rows = state.clients
        if options.get("client_state") == "host":
            rows = jax.tree.map(lambda *leaves: np.stack(leaves), *(rows[i] for i in range(4)))
        ends.append(host((state.server, rows, state.excluded)))
    chex.assert_tree_all_finite(ends[0])
    chex.assert_trees_all_close(*ends, rtol=1e-11, atol=1e-11)


@pytest.mark.all
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


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize(("what", "excluded"), [("an update", [1, 1, 3]), ("a sum", [3, 1, 1])])
def test_many_rounds_are_those_of_single_rounds(what, excluded):
    """Many rounds look at clients only where a sum is not finite, and single rounds at each.

    A sum of finite updates may be infinite: none of them is left out, but those of the next round.
    """
    toy = small_network()
    algorithm = base = Case("scaffold", {}).build(toy.problem, LOCAL)
    if what == "a sum":
        algorithm = base._replace(
            contribute=lambda *it: jax.tree.map(lambda leaf: 0 * leaf + 1e308, base.contribute(*it))
        )
    engine = fa.make_engine(algorithm)
    dispatches = poisoned(toy.data, [3] if what == "an update" else [])
    many = engine.rounds(engine.init(0, POPULATION), toy.data, dispatches)
    state, total = engine.init(0, POPULATION), None
    for number in range(2):
        state, metrics = engine.round(state, toy.data, one_round(dispatches, number))
        total = metrics if total is None else jax.tree.map(np.add, total, metrics)
    chex.assert_trees_all_equal(host(many), host((state, total)))
    assert [int(leaf) for leaf in state.excluded] == excluded
    assert all_finite(state.server.params) == (what == "an update")


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
