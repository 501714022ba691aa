"""An algorithm whose clients send given vectors, its rounds, and what is sent in one of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import dispatches_of, one_round, small_network, stored

import fedjax_algos as fa
from fedjax_algos.engine.exchange import count_transfer

LOCAL = fa.Local(batch_size=1, learning_rate=1.0, steps=1)
NETWORK_LOCAL = fa.Local(batch_size=4, learning_rate=0.1, steps=2)

ALL, D = (0, 1, 2, 3, 4, 5, 6), 5
VECTORS = np.random.default_rng(0).normal(size=(7, 3, D))
LOST = np.isin(ALL, (2, 5))
ARRIVES = np.array([~LOST, np.full(7, True), np.full(7, False)])


def later(*rows, mark=pytest.mark.all):
    """Rows of a parametrised test, or single values, in a later tier."""
    return [pytest.param(*row if type(row) is tuple else (row,), marks=mark) for row in rows]


def sends(vectors):
    """Client i sends `vectors[i, number of the dispatch]`; `x <- x - mean of what arrives`, from 0.

    `vectors` is an array [clients, dispatches, d], or a tree of such arrays.
    """
    vectors = jax.tree.map(jnp.asarray, vectors)
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[2:], leaf.dtype), vectors)
    problem = fa.Problem(
        init=lambda key: fa.Model({"x": params}),
        apply=lambda model, batch, key, training: (batch["b"], ()),
        loss=lambda outputs, batch: outputs,
    )
    frame = fa.algorithms.fedavg(problem, LOCAL, weighting="uniform")

    def client_update(broadcast, row, data, dispatch, key):
        sent = jax.tree.map(lambda leaf: leaf[dispatch.client, dispatch.number], vectors)
        return row, {"x": sent}, fa.Report({}, ())

    return frame._replace(client_update=client_update)


def weighted(algorithm, weight):
    """The algorithm, in which client i has the weight `weight(i)`."""

    def contribute(update, dispatch, staleness):
        of_client = weight(dispatch.client)
        return fa.core.WeightedSum(jax.tree.map(lambda leaf: of_client * leaf, update), of_client)

    return algorithm._replace(contribute=contribute)


def one_example_each(num_clients):
    """Their losses are 0, 1, ..."""
    return stored([{"b": np.full(1, float(client))} for client in range(num_clients)])


def rounds_of(algorithm, sets, num_clients, layout="vmapped", seed=0, **changes):
    """The `FederatedState` after each round of cohorts `sets`, as NumPy arrays, by one program."""
    data = one_example_each(num_clients)
    round_fn = fa.pure_round(algorithm, layout)

    @jax.jit
    def scanned(data, dispatches):
        def step(state, of_round):
            state, _ = round_fn(state, data, of_round)
            return state, state

        start = round_fn.init(seed, fa.Population(num_clients, len(sets[0]), num_clients))
        return jax.lax.scan(step, start, dispatches)[1]

    dispatches = dispatches_of(data, algorithm.local, sets, seed=seed)._replace(**changes)
    states = jax.device_get(scanned(data, dispatches))
    return [one_round(states, index) for index in range(len(sets))]


def moves(algorithm, rounds=3, **options):
    """What the server has subtracted in each round."""
    options = {"arrives": ARRIVES[:rounds]} | options
    states = rounds_of(algorithm, [ALL] * rounds, 7, **options)
    params = np.array([np.zeros(D), *(state.server.params["x"] for state in states)])
    return params[:-1] - params[1:]


def in_a_round(algorithm, data=None, cohort=(0, 1)):
    """The shapes of a state, data, by default the small network's, and dispatches of a round."""
    data = small_network().data if data is None else data
    population = fa.Population(data.num_clients, len(cohort), int(data.counts().sum()))
    state = jax.eval_shape(lambda: fa.pure_round(algorithm).init(0, population))
    return state, data, one_round(dispatches_of(data, algorithm.local, [cohort]), 0)


def traced(algorithm):
    """The shapes of a state after a round on the small network, and those of its metrics."""
    return jax.eval_shape(fa.pure_round(algorithm), *in_a_round(algorithm))


def transfer_of(algorithm, data=None, cohort=(0, 1)):
    """The bytes of a client in a round."""
    return count_transfer(algorithm, *in_a_round(algorithm, data, cohort))
