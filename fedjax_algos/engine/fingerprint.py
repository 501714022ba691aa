"""Fingerprints that identify a run's algorithm and data in a later process."""

import functools
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Algorithm, Batch, Dispatch, Stack
from fedjax_algos.core.trees import take
from fedjax_algos.data.stored import StoredData
from fedjax_algos.engine.exchange import draw, exchange, first_exchange, send, shared_of
from fedjax_algos.engine.federated_round import FederatedRound
from fedjax_algos.engine.placed.cohort_data import CohortData
from fedjax_algos.engine.placed.processes import fetch
from fedjax_algos.engine.placed.sharded_data import RunData, ShardedData, data_shapes
from fedjax_algos.engine.server_step import Arrivals, contribution, decoded, server_step
from fedjax_algos.engine.slots import Placement
from fedjax_algos.engine.state import FederatedState, row_shapes

_SAMPLED_ROWS = 1000


def array_fingerprint(tree: Any) -> str:
    """Returns 16 hexadecimal digits that identify values, dtypes, shapes and names of arrays."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        values = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {values.dtype} {values.shape}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()[:16]


def algorithm_fingerprint(
    algorithm: Algorithm, state: FederatedState, data: RunData, dispatch: Dispatch
) -> str:
    """Identifies an algorithm by its lowered program for one client; arguments may be shapes."""
    arguments = state._replace(clients=()), data_shapes(data), dispatch._replace(arrives=())
    leaves, tree = jax.tree.flatten(arguments)
    shapes = [jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]
    return _fingerprint_of_shapes(algorithm, tree, tuple(shapes))


@functools.lru_cache(maxsize=64)
def _fingerprint_of_shapes(algorithm, tree, leaves):
    """Fingerprints from shapes; the runs of an engine have equal ones, so they are lowered once."""

    def after(phase, state, contributed, group):
        arrivals = Arrivals(contributed, (), jnp.int32(1))
        return server_step(phase, state.server, (), arrivals, group, screened=False)[0]

    def contribution_of(phase, sent, dispatch, staleness, server):
        if phase.traits.reduce != "stack":
            return contribution(phase, sent.message, dispatch, staleness, server)
        one = decoded(phase, sent.message, server), dispatch
        return Stack(*take(one, None), jnp.ones(1, bool))

    def round_of_one(row, state, data, dispatch, staleness, group):
        shared, prelude = shared_of(state), algorithm.prelude
        draws = draw(algorithm.local.batches, state.seed, dispatch.client, dispatch.number)
        received, first, chosen = send(algorithm, state.server), (), ()
        if prelude is not None:
            sent = first_exchange(algorithm, shared, received[0], data, dispatch, draws)
            contributed = contribution_of(prelude, sent, dispatch, staleness, state.server)
            first = after(prelude, state, contributed, group)
        own = row, take(state.dispatched, dispatch.client)
        sent = exchange(algorithm, shared, received, data, dispatch, draws, own)
        contributed = contribution_of(algorithm, sent, dispatch, staleness, state.server)
        if algorithm.selection is not None:
            of_round = FederatedRound(algorithm, Placement("sequential"))
            rows, dispatches = take((row, dispatch), None)
            chosen = of_round.select_cohort(rows, state, data, dispatches)
        return chosen, first, sent.row, after(algorithm, state, contributed, group), sent.report

    state, data, dispatch = tree.unflatten(leaves)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    row = row_shapes(algorithm, state)
    lowered = jax.jit(round_of_one).lower(row, state, data, dispatch, number, number)
    program = lowered.as_text() + algorithm.traits.catch_up
    return hashlib.sha256(program.encode()).hexdigest()[:16]


def data_fingerprint(data: RunData) -> str:
    """Identifies which client holds which examples, and the values of about a thousand of them."""
    data = data.stored if isinstance(data, CohortData) else data
    if isinstance(data, StoredData):
        identity = np.frombuffer(data.source.identity.encode(), np.uint8)
        return array_fingerprint((data.counts(), data.clients, identity))
    if isinstance(data, ShardedData):
        rows = data.sizes, fetch(data.parts.indices)
        return array_fingerprint((rows, _sample(fetch(take(data.parts.examples, 0)))))
    return array_fingerprint(((data.offsets, data.indices), _sample(data.examples)))


def examples_fingerprint(examples: Batch | None) -> str:
    """Identifies examples [total, ...] by their number and the values of some; "" for None."""
    if examples is None:
        return ""
    return array_fingerprint((np.int64(len(jax.tree.leaves(examples)[0])), _sample(examples)))


def _sample(examples):
    return jax.tree.map(lambda leaf: leaf[:: -(-len(leaf) // _SAMPLED_ROWS)], examples)
