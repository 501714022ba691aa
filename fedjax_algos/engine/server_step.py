"""What the server makes of arrivals, traced: their sums, its update, the mean of the statistics.

A round sums the arrivals of its cohort, a plan those of a server step one after another.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.core import (
    Algorithm,
    Dispatch,
    Metrics,
    Prelude,
    Report,
    ServerState,
    Statistics,
    Update,
)
from fedjax_algos.engine.non_finite import select


class Arrivals(NamedTuple):
    """What has arrived for one server step: sums, to which `arrival` adds one."""

    contributions: Any  # sums, or a `Stack` of updates
    statistics: Statistics  # sums, () of a prelude
    count: Any  # int32[]: updates that were not left out


Phase = Algorithm | Prelude


def contribution(phase: Phase, message: Any, dispatch: Dispatch, staleness: Any) -> Any:
    """What a message adds to the server's sums."""
    return phase.contribute(decoded(phase, message), dispatch, staleness)


def decoded(phase: Phase, message: Any) -> Update:
    """The update that a client has sent as a message."""
    return phase.decode(message)


def arrival(
    contributed: Any, report: Report | tuple[()], finite: jax.Array | None
) -> tuple[Arrivals, Metrics | tuple[()]]:
    """One arrival and its metrics; zeros if something is not finite, which None leaves open."""
    metrics, statistics = report or ((), ())
    one: Any = Arrivals(contributed, statistics, jnp.int32(1)), metrics
    return one if finite is None else select(finite, one, 0)


def server_step(
    phase: Phase,
    server: ServerState,
    statistics: Statistics,
    arrivals: Arrivals,
    group: Any,
    *,
    screened: bool,
) -> tuple[ServerState, Statistics]:
    """The server update and the mean of statistics; unchanged if `screened` and none arrived."""

    def update():
        new = phase.server_update(server, arrivals.contributions, arrivals.count, group)
        # not a division, which may or may not be compiled to this: the bits would differ
        mean = jax.tree.map(
            lambda leaf: leaf * (1 / arrivals.count.astype(leaf.dtype)), arrivals.statistics
        )
        return new, mean

    if not screened:
        return update()
    return jax.lax.cond(arrivals.count > 0, update, lambda: (server, statistics))
