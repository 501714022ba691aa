"""What candidates report, what is remembered of them, and the choice of the largest values."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.core import (
    Algorithm,
    ClientData,
    ClientState,
    Dispatch,
    Key,
    Local,
    Model,
    Problem,
    Report,
)
from fedjax_algos.core.local_training import loss_of_batch
from fedjax_algos.core.options import Range

Candidates = Annotated[float, Range(1)]
Share = Annotated[float, Range(0, 1)]
_BEFORE_ALL = -1  # the step of a batch that is none of a dispatch's own


class Row(NamedTuple):
    """A client's row: that of the algorithm, and what the server knows of the client."""

    inner: ClientState
    known: Any


def batch_loss(problem: Problem, local: Local) -> Callable[[Model, ClientData, Key], jax.Array]:
    """`(model, data, key) -> float[]`: the mean loss of a batch, drawn with replacement."""

    def run(model, data, key):
        batch, mask = data.batch(jnp.int32(_BEFORE_ALL), local.batch_size, "replacement")
        return loss_of_batch(problem, model, batch, mask, key).value()

    return run


def largest(value: jax.Array, dispatches: Dispatch, answered: jax.Array) -> jax.Array:
    """int32[candidates]: positions by value, the largest first; equal ones by the client's id."""
    return jnp.lexsort((dispatches.client, -value, ~answered)).astype(jnp.int32)


def remembering(
    algorithm: Algorithm,
    first: Any,
    seen: Callable[[Report, ClientData, Dispatch], Any],
) -> Algorithm:
    """The algorithm with rows in which the server notes what it has `seen` of a client's training.

    `first` is what it knows of a client that has not trained.
    """

    def client_init(params, key):
        return Row(algorithm.client_init(params, key), first)

    def client_update(broadcast, row, data, dispatch, key):
        inner, message, report = algorithm.client_update(broadcast, row.inner, data, dispatch, key)
        known = seen(report, data, dispatch)
        known = jax.tree.map(lambda new, old: jnp.asarray(new, jnp.result_type(old)), known, first)
        return Row(inner, known), message, report

    personal = algorithm.personal
    return algorithm._replace(
        client_init=client_init,
        client_update=client_update,
        personal=personal and (lambda server, row: personal(server, row.inner)),
    )
