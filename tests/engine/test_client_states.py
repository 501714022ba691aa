"""The rows of all clients: as the next dispatch reads them, taken out of a run and given to one."""

import functools
import tempfile

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_helpers import ALGORITHM, CLIENTS, LOCAL, POPULATION, SEED, client_init, examples
from helpers import dispatches_of, one_round
from same_runs import host

import fedjax_algos as fa
from fedjax_algos.core.randomness import client_key
from fedjax_algos.engine.placed.on_disk import DiskClientState
from fedjax_algos.engine.state import HostClientState

FOLDER = tempfile.TemporaryDirectory()  # of the tests in this process
PLACES = {
    "device": ({}, dict),
    "host": ({"client_state": "host"}, HostClientState),
    "disk": ({"client_state": fa.RowsOnDisk(FOLDER.name)}, DiskClientState),
    "two devices": ({"devices": 2}, dict),
}
SETS = [(0, 1), (2, 1), (1, 0), (3, 0)]


def wide_row(row):
    return {"one": row, "two": jnp.stack([row, -row])}


def counting_update(x, row, *arguments):
    _, update, report = ALGORITHM.client_update(x, row["one"], *arguments)
    return jax.tree.map(lambda leaf: leaf + 1, row), update, report


# rows start at random values and count up in each dispatch
COUNTING = ALGORITHM._replace(
    client_init=lambda params, key: wide_row(client_init(params, key)),
    client_update=counting_update,
)


@functools.cache
def engine_of(place):
    return fa.make_engine(COUNTING, 2, **PLACES[place][0])


def drawn():
    return dispatches_of(examples(), LOCAL, SETS, seed=SEED)


def rows_of(values):
    return jax.vmap(wide_row)(jnp.asarray(np.array(values)))


def counts_of(sets):
    return np.bincount(np.ravel(sets).astype(int), minlength=CLIENTS)


@pytest.mark.all
@pytest.mark.parametrize("place", PLACES)
def test_rows_are_those_of_the_next_dispatch_and_go_on(place):
    """Also from rows that are given, which are copied. Some clients are not dispatched."""
    engine, dispatches = engine_of(place), drawn()
    data, start = engine.put_data(examples()), functools.partial(engine.init, SEED, POPULATION)
    params = np.asarray(start().server.params)
    new = rows_of([client_init(params, client_key(SEED, client)) for client in range(CLIENTS)])

    def check(state, sets):
        states, counts = fa.client_states(engine, state), counts_of(sets)
        assert np.asarray(states.dispatched).tolist() == (counts > 0).tolist()
        expected = jax.tree.map(lambda leaf: (leaf.T + counts).T, host(new))
        chex.assert_trees_all_close(host(states.rows), expected, rtol=1e-6)
        return states

    check(start(), [])
    half, _ = engine.rounds(start(), data, dispatches, 2)
    taken = check(half, SETS[:2])
    again, copy = start(clients=taken), host(taken)
    chex.assert_trees_all_equal(host(fa.client_states(engine, again)), copy)
    rest = jax.tree.map(lambda leaf: np.roll(leaf, -2, axis=0), dispatches)
    end, _ = engine.rounds(again, data, rest, 2)
    check(end, SETS)
    assert PLACES[place][1] is type(end.clients)
    chex.assert_trees_all_equal(host(taken), copy)  # which a round has not consumed


def test_rows_that_do_not_fit_are_refused():
    engine, rows = engine_of("device"), rows_of([0.0] * CLIENTS)
    short = jax.tree.map(lambda leaf: leaf[:3], rows)
    for given, error, named in (
        (fa.ClientStates({"x": np.zeros(8)}), ValueError, r"rows\['x'\] is of shape \[8\]"),
        (fa.ClientStates(short), ValueError, "each of the 8 clients"),
        (fa.ClientStates(rows, np.ones(3, bool)), ValueError, r"dispatched has shape \[3\]"),
        (rows, TypeError, "ClientStates"),
    ):
        with pytest.raises(error, match=named):
            engine.init(SEED, POPULATION, clients=given)
    state = engine.init(SEED, POPULATION)._replace(dispatched=())
    with pytest.raises(ValueError, match="state is of 0 clients, but the data have 8"):
        engine.round(state, examples(), one_round(drawn(), 0))


@pytest.mark.parametrize("place", ["device", "host"])
def test_given_rows_are_those_of_clients_that_have_been_dispatched(place):
    """No other row is read, and these are finite unless others are kept, too."""
    engine, marks = engine_of(place), np.isin(np.arange(CLIENTS), (2, 5))
    nan, seven = rows_of([np.nan] * CLIENTS), rows_of([7.0] * CLIENTS)
    initial = fa.client_states(engine, engine.init(SEED, POPULATION)).rows
    state = engine.init(SEED, POPULATION, clients=fa.ClientStates(seven, marks))
    states = fa.client_states(engine, state)
    expected = jax.tree.map(lambda a, b: np.where(marks, a.T, b.T).T, host(seven), host(initial))
    chex.assert_trees_all_equal(host(states.rows), expected)
    assert np.asarray(states.dispatched).tolist() == marks.tolist()
    state = engine.init(SEED, POPULATION, clients=fa.ClientStates(nan, marks & False))
    chex.assert_trees_all_equal(host(fa.client_states(engine, state).rows), host(initial))
    with pytest.raises(ValueError, match=r"of clients \[2 5\] are not finite"):
        engine.init(SEED, POPULATION, clients=fa.ClientStates(nan, marks))
    keeping = fa.make_engine(COUNTING, non_finite="keep")
    state = keeping.init(SEED, POPULATION, clients=fa.ClientStates(nan, marks))
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(state.clients))


def test_an_algorithm_without_client_state():
    engine = fa.make_engine(fa.algorithms.fedavg(ALGORITHM.problem, LOCAL))
    state = engine.init(SEED, POPULATION)
    assert (state.clients, state.origin, state.dispatched) == ((), (), ())
    with pytest.raises(ValueError, match="the clients of this algorithm keep no state"):
        fa.client_states(engine, state)
    with pytest.raises(ValueError, match="keep no state; leave clients out"):
        engine.init(SEED, POPULATION, clients=fa.ClientStates(()))
