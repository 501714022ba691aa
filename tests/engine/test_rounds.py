"""Rounds equal those of clients that train one after another; numbers that are not finite."""

import functools

import chex
import jax
import numpy as np
import pytest
from engine_helpers import (
    ALGORITHM,
    CLIENTS,
    LOCAL,
    POPULATION,
    SEED,
    STACKED,
    Run,
    client_init,
    examples,
    in_files,
    rows_of,
    train,
)
from helpers import dispatches_of, one_round
from same_runs import host

import fedjax_algos as fa
from fedjax_algos.core import Mean
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
    dispatches = dispatches_of(examples(), LOCAL, SETS, STEPS)
    empty = marks(EMPTY)
    return dispatches._replace(
        client=np.where(empty, CLIENTS, dispatches.client).astype(np.int32),
        num_steps=np.where(empty, 0, dispatches.num_steps).astype(np.int32),
        learning_rate=np.where(marks(spoiled), np.nan, dispatches.learning_rate),
        arrives=~(empty | marks(FAILED)),
    )


@functools.cache
def by_hand():
    """The run, and the sum of its losses."""
    run, total = Run(), Mean(0.0, 0.0)
    for number in range(len(SETS)):
        run.round(one_round(drawn(), number))
        total = jax.tree.map(np.add, total, run.loss)
    assert len(run.excluded) == 8
    assert len(run.rows) < CLIENTS  # some client has no row
    return run, total


def close(found, expected):
    chex.assert_trees_all_close(host(found), host(expected), rtol=1e-5, atol=1e-6)


SHARDED = {"devices": 2, "examples": "sharded"}
IN_ALL = pytest.mark.all


@pytest.mark.parametrize(
    ("algorithm", "data", "options"),
    [
        (ALGORITHM, examples, {"layout": 3}),
        (ALGORITHM, examples, {"layout": "sequential", "client_state": "host"}),
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
    run, loss = by_hand()
    engine = fa.make_engine(algorithm, **options)
    start = engine.init(SEED, POPULATION)
    state, metrics = engine.rounds(start, engine.put_data(data()), drawn())
    close((state.server, state.statistics), (run.server, run.statistics))
    close(metrics["train_loss"], loss)
    assert [int(leaf) for leaf in state.excluded] == [len(run.excluded), *min(run.excluded)]
    known = [client in run.rows for client in range(CLIENTS)]
    assert np.asarray(state.dispatched).tolist() == known
    if "client_state" in options:  # off the devices there are only those that have been dispatched
        assert sorted(state.clients) == sorted(run.rows)
    zero = np.zeros_like(run.origin)
    close(rows_of(state.clients), {i: run.rows.get(i, zero) for i in range(CLIENTS)})
    states = fa.client_states(engine, state)
    assert np.asarray(states.dispatched).tolist() == known
    new = [client_init(run.origin, client_key(SEED, client)) for client in range(CLIENTS)]
    close(states.rows, np.array([run.rows.get(i, new[i]) for i in range(CLIENTS)]))


@pytest.mark.parametrize(
    "options", [{"layout": 3}, pytest.param({"layout": 2, **SHARDED}, marks=IN_ALL)]
)
def test_updates_of_a_cohort_are_in_its_order(options):
    """Also of clients that fail or are not finite; empty slots are masked."""
    engine, one, run = fa.make_engine(ALGORITHM, **options), one_round(drawn(), 1), Run()
    one = one._replace(arrives=one.arrives & (np.arange(4) < 3))
    state = engine.init(SEED, POPULATION)
    stack = engine.updates(state, engine.put_data(examples()), one)
    assert stack.mask.tolist() == (one.client < CLIENTS).tolist()
    assert stack.dispatches.client.tolist() == one.client.tolist()
    for index in np.flatnonzero(one.client < CLIENTS):
        dispatch = one_round(one, index)._replace(arrives=())
        _, (_, update, _) = train(
            run.data, run.seed, run.origin, run.version(), np.float32(0), False, dispatch
        )
        close(stack.updates[index], update)


def test_rounds_of_equal_steps_in_one_program_and_one_by_one():
    """All clients answer; of three rounds two are run."""
    engine, drawn = fa.make_engine(ALGORITHM, 3), dispatches_of(examples(), LOCAL, SETS[:3])
    many, total = engine.rounds(engine.init(SEED, POPULATION), examples(), drawn, 2)
    state, run, losses = engine.init(SEED, POPULATION), Run(), Mean(0.0, 0.0)
    for number in range(2):
        run.round(one_round(drawn, number))
        losses = jax.tree.map(np.add, losses, run.loss)
        state, metrics = engine.round(state, examples(), one_round(drawn, number))
    close(state, many)
    close(state.server, run.server)
    close((metrics["train_loss"], total["train_loss"]), (run.loss, losses))


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
