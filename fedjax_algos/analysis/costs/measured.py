"""What a client's turn costs, counted from what is really computed, sent and held.

Bytes down and up are `engine.transfer`'s. The countings of two papers are in `paper_costs.py`.
"""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from fedjax_algos.analysis.costs.flops import Flops, UncountedError, count, loop_state, total
from fedjax_algos.core import Algorithm, ClientData, Visit
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.federated_round import FederatedState, tree_bytes

__all__ = ["ClientMemory", "Flops", "UncountedError", "count_flops", "count_memory"]


class ClientMemory(NamedTuple):
    """Bytes that an algorithm makes a client hold, beside its examples and one step's gradient."""

    between_rounds: int
    in_round: int


def count_flops(algorithm: Algorithm, state: FederatedState, data: FederatedData) -> Flops:
    """The floating-point operations of a client's turn, as a function of its visit.

    They are counted in the trace of the algorithm's own `client_update` and of the prelude's, by
    the rules of `flops.py`: gradients, optimiser and corrections, with the real number of local
    steps and of passes over the examples, one client at a time (in a mapped cohort those with fewer
    steps are computed along). A batch counts with all its rows, the masked ones of a short batch
    included, as they are computed. Not counted is what the server does: `broadcast`, `contribute`
    and `server_update`.

    Args:
      algorithm: what is computed.
      state: an engine's state, or its shapes.
      data: the clients' examples, or their shapes.

    Returns:
      `count_flops(...).of(visits)` is float64[...] for visits of NumPy arrays [...]. It has a
      `fixed` part and `loops`: for FedAvg one, of `num_steps` times its `body`.

    Raises:
      UncountedError: for a computation that the rules do not cover.
    """
    return total(count(each.jaxpr, each.known()) for each in _exchanges(algorithm, state, data))


def count_memory(algorithm: Algorithm, state: FederatedState, data: FederatedData) -> ClientMemory:
    """The memory that the algorithm asks of a client, from the shapes of its trace.

    Between rounds it is the client's row. In a round it is the row, what the client was sent
    (the model's statistics included), and the float arrays that its loops change: the local model,
    moving optimiser statistics, the sum of a full gradient. What a loop only reads, such as fixed
    optimiser statistics, is counted where it was sent. With a prelude the larger exchange counts.
    Not counted are the examples, and what lives within one step: activations and gradients.

    The FedGBO paper's Table I lets the local model take the place of the one that was sent, so
    that FedAvg holds |x|; here clients upload x - y_i, which needs both.

    Args:
      algorithm: what is computed.
      state: an engine's state, or its shapes.
      data: the clients' examples, or their shapes.
    """
    exchanges = _exchanges(algorithm, state, data)
    row = _row_of(algorithm, state.origin)
    return ClientMemory(tree_bytes(row), max(e.held + loop_state(e.jaxpr) for e in exchanges))


class _Exchange(NamedTuple):
    """A broadcast and a `client_update`, traced for one client: with Mime, a round has two."""

    jaxpr: ClosedJaxpr
    held: int  # bytes of the broadcast, the model's statistics and the client's row

    def known(self):
        """The visit's integers, which come first among the inputs, and None for the others."""
        counts = [None if name in _REAL else operator.attrgetter(name) for name in Visit._fields]
        return [*counts, *[None] * (len(self.jaxpr.in_avals) - len(counts))]


_REAL = ("share", "learning_rate")


def _exchanges(algorithm, state, data):
    dtypes = (jnp.result_type(float) if name in _REAL else jnp.int32 for name in Visit._fields)
    visit = Visit(*(jax.ShapeDtypeStruct((), dtype) for dtype in dtypes))
    inputs = visit, state._replace(clients=()), data
    leaves, tree = jax.tree.flatten(jax.tree.map(_shape, inputs))
    return _traced(algorithm, tree, tuple(leaves))


def _shape(leaf):
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))


def _key():
    return jax.eval_shape(jax.random.key, 0)


def _row_of(algorithm, origin):
    return jax.eval_shape(algorithm.client_init, origin, _key())


@functools.lru_cache(maxsize=64)
def _traced(algorithm: Algorithm, tree: Any, leaves: tuple) -> list[_Exchange]:
    """The exchanges of a round. An engine's runs have equal shapes, so they share one trace."""
    visit, state, data = tree.unflatten(leaves)
    number: Any = jax.ShapeDtypeStruct((), jnp.int32)
    words: Any = jax.ShapeDtypeStruct((20,), jnp.uint32)
    view = ClientData(data.examples, data.indices, number, number, words, state.statistics)
    row = _row_of(algorithm, state.origin)

    def exchange(phase, broadcast, row):
        def turn(visit, broadcast, row, view, key):
            view = view._replace(num_examples=visit.num_examples, first_step=visit.first_step)
            return phase.client_update(broadcast, *row, view, visit, key)

        jaxpr = jax.make_jaxpr(turn)(visit, broadcast, row, view, _key())
        return _Exchange(jaxpr, tree_bytes((broadcast, row, state.statistics)))

    def broadcast(phase):
        return jax.eval_shape(phase.broadcast, state.server, number)

    if algorithm.prelude is None:
        return [exchange(algorithm, broadcast(algorithm), (row,))]
    first = broadcast(algorithm.prelude)
    second = first, broadcast(algorithm)
    return [exchange(algorithm.prelude, first, ()), exchange(algorithm, second, (row,))]
