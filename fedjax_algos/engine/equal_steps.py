"""Programs of dispatches that all do the same number of steps: their loops have a fixed length.

Elsewhere the number of steps is data, so that clients with less work recompile nothing.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Dispatch, Local
from fedjax_algos.participation.cohorts import full_steps


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class EqualSteps:
    """The `num_steps` of such dispatches: no array, but a part of what is compiled."""

    number: int


def common_steps(local: Local, counts: np.ndarray | None) -> int | None:
    """The steps of a complete local update if they are the same for all clients, else None.

    With epochs they are if all hold the same number of examples; `counts` may be unknown.
    """
    if local.steps is not None or counts is None:
        return local.steps
    return int(full_steps(counts[:1], local)[0]) if (counts == counts[0]).all() else None


def mark_equal_steps(
    slots: Dispatch, given: Dispatch, common: int | None, num_clients: int
) -> Dispatch:
    """The slots of `given` dispatches, with `EqualSteps` if each of these does `common` steps.

    No other number counts that they may share, so there are two programs at most. Slots that fill
    up chunks and devices are computed like the rest, and masked.
    """
    steps, clients = given.num_steps, given.client
    known = isinstance(steps, np.ndarray) and isinstance(clients, np.ndarray)
    if common is None or not known or (steps != common).any() or (clients >= num_clients).any():
        return slots
    marked: Any = EqualSteps(common)
    return slots._replace(num_steps=marked)


def with_arrays(dispatches: Dispatch) -> Dispatch:
    """Dispatches [...] whose `num_steps` is int32[...] in any case."""
    if not isinstance(dispatches.num_steps, EqualSteps):
        return dispatches
    steps = np.full(jnp.shape(dispatches.client), dispatches.num_steps.number, np.int32)
    with jax.ensure_compile_time_eval():  # no tracer, so that a loop knows its length
        return dispatches._replace(num_steps=jnp.asarray(steps))
