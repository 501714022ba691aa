"""Rounds equal those of clients that train one after another; numbers that are not finite."""

import functools

import chex
import jax
import numpy as np
import pytest
from engine_helpers import ALGORITHM, CLIENTS, POPULATION, SEED, STACKED, examples, in_files
from helpers import dispatches_of, one_round
from naive_rounds import Naive, added, draws
from same_runs import assert_close, host

import fedjax_algos as fa
from fedjax_algos.core.randomness import client_key
from fedjax_algos.engine.non_finite import Excluded, NonFiniteUpdateError, all_finite

pytestmark = pytest.mark.usefixtures("any_rate")
SETS = [(0, 1, 2, 5), (3, 2, 1, 4), (4, 1, 6, 3), (0, 1, 2, 3), (1, 0, 3, 2), (5, 1, 4, 6)]
STEPS = (3, 1, 4, 2, 4, 1, 3, 2)
EMPTY = [(1, 1), (5, 1), *((3, number) for number in range(4))]  # (round, position)
FAILED = [(0, 1), (4, 2), (5, 0)]
SPOILED = [(0, 2), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (4, 1), (4, 2), (5, 2)]


def marks(places):
    marked = np.zeros((len(SETS), 4), bool)
    marked[tuple(zip(*places, strict=True))] = True
    return marked


def drawn(spoiled=SPOILED):
    """All ids modulo 4 are spoiled, in round 2 all clients, and one that fails; 3 is empty."""
    dispatches = dispatches_of(examples(), ALGORITHM.local, SETS, STEPS)
    empty = marks(EMPTY)
    return dispatches._replace(
        client=np.where(empty, CLIENTS, dispatches.client).astype(np.int32),
        num_steps=np.where(empty, 0, dispatches.num_steps).astype(np.int32),
        learning_rate=np.where(marks(spoiled), np.nan, dispatches.learning_rate),
        arrives=~(empty | marks(FAILED)),
    )


NAIVE = Naive(ALGORITHM)


@functools.cache
def by_hand():
    """What there is after each round."""
    return NAIVE.rounds(examples(), drawn(), POPULATION, seed=np.uint32(SEED))


SHARDED = {"devices": 2, "examples": "sharded"}
ON_HOST = {"layout": "sequential", "client_state": "host"}
IN_ALL = pytest.mark.all


@pytest.mark.parametrize(
    ("algorithm", "data", "options"),
    [
        (ALGORITHM, examples, {"layout": 3, "client_state": "host"}),
        pytest.param(ALGORITHM, examples, ON_HOST, marks=IN_ALL),
        pytest.param(ALGORITHM, examples, {"layout": 3}, marks=IN_ALL),
        (STACKED, examples, {"layout": "vmapped"}),
        pytest.param(ALGORITHM, examples, {"layout": 2, **SHARDED}, marks=IN_ALL),
        pytest.param(ALGORITHM, in_files, {"layout": "vmapped", **SHARDED}, marks=IN_ALL),
        pytest.param(ALGORITHM, in_files, {"client_state": "disk"}, marks=IN_ALL),
        pytest.param(STACKED, examples, SHARDED | {"client_state": "host"}, marks=IN_ALL),
        pytest.param(STACKED, examples, {"devices": 8}, marks=IN_ALL),  # more than clients
    ],
)
def test_rounds_with_clients_that_fail_or_are_not_finite(algorithm, data, options, tmp_path):
    """Sums and counts, the mean of the statistics, metrics, and the rows where they are."""
    if options.get("client_state") == "disk":
        options = options | {"client_state": fa.RowsOnDisk(tmp_path)}
    engine, end = fa.make_engine(algorithm, **options), by_hand()[-1]
    start = engine.init(SEED, POPULATION)
    state, metrics = engine.rounds(start, engine.put_data(data()), drawn())
    assert_close((state.server, state.statistics), (end.server, end.statistics))
    assert_close(metrics["train_loss"], added([after.loss for after in by_hand()]))
    assert [int(leaf) for leaf in state.excluded] == [8, 0, 2]
    known = np.isin(range(CLIENTS), drawn().client[drawn().arrives])
    assert not known.all()
    assert np.asarray(state.dispatched).tolist() == known.tolist()
    if "client_state" in options:  # off the devices there are only those that have been dispatched
        assert sorted(state.clients) == np.flatnonzero(known).tolist()
    rows = [np.asarray(state.clients[client]) for client in range(CLIENTS)]
    assert_close(np.stack(rows), np.where(known, end.clients, 0))
    states = fa.client_states(engine, state)
    assert np.asarray(states.dispatched).tolist() == known.tolist()
    assert_close(states.rows, end.clients)


@pytest.mark.parametrize(
    "options", [{"layout": 3}, pytest.param({"layout": 2, **SHARDED}, marks=IN_ALL)]
)
def test_updates_of_a_cohort_are_in_its_order(options):
    """Also of clients that fail or are not finite; empty slots are masked."""
    engine, one = fa.make_engine(ALGORITHM, **options), one_round(drawn(), 1)
    one = one._replace(arrives=one.arrives & (np.arange(4) < 3))
    state = engine.init(SEED, POPULATION)
    stack = engine.updates(state, engine.put_data(examples()), one)
    assert stack.mask.tolist() == (one.client < CLIENTS).tolist()
    assert stack.dispatches.client.tolist() == one.client.tolist()
    for index in np.flatnonzero(one.client < CLIENTS):
        dispatch = one_round(one, index)
        row = ALGORITHM.client_init(state.origin, client_key(SEED, dispatch.client))
        given = state.server.params, row, examples(), state.statistics, dispatch
        _, update, _ = NAIVE.train(*given, *draws(state.seed, dispatch, False))
        assert_close(stack.updates[index], update)


@pytest.mark.all
def test_rounds_of_equal_steps_in_one_program_and_one_by_one():
    """All clients answer; of three rounds two are run."""
    engine = fa.make_engine(ALGORITHM, 3)
    drawn = dispatches_of(examples(), ALGORITHM.local, SETS[:3])
    history = NAIVE.rounds(examples(), drawn, POPULATION, seed=np.uint32(SEED))[:2]
    many, total = engine.rounds(engine.init(SEED, POPULATION), examples(), drawn, 2)
    state = engine.init(SEED, POPULATION)
    for number, after in enumerate(history):
        state, metrics = engine.round(state, examples(), one_round(drawn, number))
        assert_close((state.server, metrics["train_loss"]), (after.server, after.loss))
    assert_close(state, many)
    assert_close(total["train_loss"], added([after.loss for after in history]))


@pytest.mark.all
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize(("what", "excluded"), [("an update", [1, 1, 3]), ("a sum", [3, 1, 1])])
def test_many_rounds_have_the_bits_of_single_rounds(what, excluded):
    """A sum of finite updates may be infinite: none of them is left out, but those after it."""

    def huge(*contribution):
        return jax.tree.map(lambda leaf: 0 * leaf + 3e38, ALGORITHM.contribute(*contribution))

    contribute = huge if what == "a sum" else ALGORITHM.contribute
    engine = fa.make_engine(ALGORITHM._replace(contribute=contribute))
    spoiled = [(1, 0)] if what == "an update" else [(5, 3)]
    dispatches = one_round(drawn(spoiled), slice(2))
    many = engine.rounds(engine.init(SEED, POPULATION), examples(), dispatches)
    state, total = engine.init(SEED, POPULATION), None
    for number in range(2):
        state, metrics = engine.round(state, examples(), one_round(dispatches, number))
        total = metrics if total is None else jax.tree.map(np.add, total, metrics)
    chex.assert_trees_all_equal(host(many), host((state, total)))
    assert [int(leaf) for leaf in state.excluded] == excluded
    assert all_finite(state.server.params) == (what == "an update")


@pytest.mark.parametrize("place", ["device", pytest.param("host", marks=IN_ALL)])
def test_an_update_that_is_not_finite_is_an_error_on_request(place):
    rounds = one_round(drawn([(1, 0)]), slice(2))
    engine = fa.make_engine(ALGORITHM, 3, client_state=place, non_finite="error")
    with pytest.raises(NonFiniteUpdateError, match=r"client 3 .* in round 1 "):
        engine.rounds(engine.init(SEED, POPULATION), examples(), rounds)
    engine.rounds(engine.init(SEED, POPULATION), examples(), rounds, 1)


def test_kept_updates_spoil_the_model():
    engine = fa.make_engine(ALGORITHM, 3, non_finite="keep")
    state = engine.init(SEED, POPULATION)
    assert state.excluded == ()
    state, metrics = engine.rounds(state, examples(), drawn())
    assert not np.isfinite(metrics["train_loss"].total)
    assert not all_finite(state.server.params)


def test_the_first_excluded_update_is_remembered():
    dispatches = one_round(drawn(), 0)
    none, left_out = Excluded.none(), np.array([False, True, True, False])
    assert [int(leaf) for leaf in none] == [0, -1, -1]
    assert [int(leaf) for leaf in none.add(left_out & False, dispatches)] == [0, -1, -1]
    first = none.add(left_out, dispatches)
    assert [int(leaf) for leaf in first] == [2, 0, 1]
    later = first.add(~left_out, one_round(drawn(), 4))
    assert [int(leaf) for leaf in later] == [4, 0, 1]
