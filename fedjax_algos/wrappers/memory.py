"""What the server of a wrapped algorithm remembers beside the algorithm's own state."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedjax_algos.core import Algorithm, Params, Population, ServerState


class Server(NamedTuple):
    """The server state of the algorithm, and the memory."""

    params: Params
    rest: ServerState  # of the algorithm, with params=()
    memory: Any

    @property
    def inner(self) -> ServerState:
        """The server state of the algorithm."""
        return self.rest._replace(params=self.params)


def with_memory(
    algorithm: Algorithm,
    first: Callable[[Params, Population], Any],
    server_update: Callable[[ServerState, Any, Any, jax.Array, jax.Array], tuple[ServerState, Any]],
) -> Algorithm:
    """The algorithm, without a prelude, whose server keeps a memory.

    Args:
      algorithm: what is wrapped.
      first: `(params, population) -> memory`.
      server_update: `(server, memory, sums, count, group) -> (server, memory)`, in place of the
        algorithm's own, with the algorithm's server state.
    """
    personal = algorithm.personal

    def put(inner, memory):
        return Server(inner.params, inner._replace(params=()), memory)

    def update(server, sums, count, group):
        return put(*server_update(server.inner, server.memory, sums, count, group))

    return algorithm._replace(
        init=lambda params, population: put(
            algorithm.init(params, population), first(params, population)
        ),
        broadcast=lambda server, group: algorithm.broadcast(server.inner, group),
        server_update=update,
        personal=personal and (lambda server, row: personal(server.inner, row)),
    )
