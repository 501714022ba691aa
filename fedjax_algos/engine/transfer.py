"""How many bytes a client downloads and uploads, counted from the shapes of what is sent."""

from functools import lru_cache, partial
from typing import NamedTuple

import jax

from fedjax_algos.core import Algorithm, Dispatch
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.engine.local_update import (
    broadcast_to_client,
    draw_randomness,
    local_update,
    prelude_update,
)
from fedjax_algos.engine.sharded_data import RunData, data_shapes
from fedjax_algos.engine.state import FederatedState, row_shapes


class Transfer(NamedTuple):
    """Bytes of one client in one round, the model's statistics included.

    Attributes:
      download: bytes that a client receives.
      upload: bytes that it sends.
    """

    download: int
    upload: int


def count_transfer(
    algorithm: Algorithm, state: FederatedState, data: RunData, dispatches: Dispatch
) -> Transfer:
    """The bytes that one client downloads and uploads in one round; computes nothing.

    Args:
      algorithm: what is sent.
      state: of a run of the algorithm, or its shapes.
      data: all clients' examples, or their shapes.
      dispatches: of one round, leaves [cohort].
    """
    dispatch = jax.tree.map(lambda leaf: leaf[0], dispatches)
    leaves, tree = jax.tree.flatten((state._replace(clients=()), data_shapes(data), dispatch))
    return _transfer_of_shapes(algorithm, tree, tuple(map(jax.typeof, leaves)))


@lru_cache(maxsize=64)
def _transfer_of_shapes(algorithm, tree, leaves):
    """The runs of an engine have equal shapes, so they share one trace."""
    state, data, dispatch = tree.unflatten(leaves)
    broadcast = jax.eval_shape(partial(broadcast_to_client, algorithm), state.server)
    draws = jax.eval_shape(partial(draw_randomness, algorithm), state.seed, dispatch)
    row = row_shapes(algorithm, state)
    _, update, _ = jax.eval_shape(
        partial(local_update, algorithm), state, broadcast, data, dispatch, draws, row
    )
    if algorithm.prelude is not None:
        arguments = state, broadcast[0], data, dispatch, draws
        update = update, jax.eval_shape(partial(prelude_update, algorithm), *arguments)
    statistics = tree_bytes(state.statistics)
    return Transfer(tree_bytes(broadcast) + statistics, tree_bytes(update) + statistics)
