"""An algorithm whose clients send given vectors, and its rounds."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers import dispatches_of, one_round, stored

import fedjax_algos as fa

LOCAL = fa.Local(batch_size=1, learning_rate=1.0, steps=1)


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


def rounds_of(algorithm, sets, num_clients, seed=0, layout="vmapped"):
    """The `FederatedState` after each round of cohorts `sets`, as NumPy arrays."""
    data = stored([{"b": np.zeros(1)}] * num_clients)
    dispatches = dispatches_of(data, algorithm.local, sets, seed=seed)
    round_fn = fa.pure_round(algorithm, layout)
    state = round_fn.init(seed, fa.Population(num_clients, len(sets[0]), num_clients))
    step = jax.jit(lambda state, dispatches: round_fn(state, data, dispatches)[0])
    states = []
    for index in range(len(sets)):
        state = step(state, one_round(dispatches, index))
        states.append(jax.device_get(state))
    return states


def least_squares():
    """Four clients with f_i(x) = |x - b_i|^2 / 2 in ten dimensions, whose means differ much."""
    b = 3 * np.random.default_rng(5).normal(size=(4, 10))
    problem = fa.Problem(
        init=lambda key: fa.Model({"x": jnp.zeros(10)}),
        apply=lambda model, batch, key, training: (model.params["x"], ()),
        loss=lambda x, batch: 0.5 * ((x[None] - batch["b"]) ** 2).sum(1),
    )
    data = stored([{"b": b[i : i + 1]} for i in range(4)])
    return problem, data, b.mean(0)
