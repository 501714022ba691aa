"""What the server makes of arrivals, traced: their sums, its update, the mean of the statistics.

A round sums the arrivals of its cohort, a plan those of a server step one after another.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.base.reprs import describe_tree
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
from fedjax_algos.core.algorithm import check_update, contribution_of, update_in
from fedjax_algos.core.checks import check_like, named_errors
from fedjax_algos.engine.non_finite import select


class Arrivals(NamedTuple):
    """What has arrived for one server step: sums, to which `arrival` adds one."""

    contributions: Any  # sums, or a `Stack` of updates
    statistics: Statistics  # sums, () of a prelude
    count: Any  # int32[]: updates that were not left out


Phase = Algorithm | Prelude
_FIX = "return other updates in client_update, or other sums in contribute"


def contribution(
    phase: Phase, message: Any, dispatch: Dispatch, staleness: Any, server: ServerState
) -> Any:
    """What a message adds to the server's sums."""
    return contribution_of(phase, decoded(phase, message, server), dispatch, staleness, server)


def decoded(phase: Phase, message: Any, server: ServerState) -> Update:
    """The update that a client has sent as a message, checked."""
    update, params = phase.decode(message), getattr(server, "params", None)
    if params is not None:  # diagnostics have other server states
        check_update(phase.traits.parts, update_in(phase.traits.parts, update), params)
    return update


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
        sums = arrivals.contributions
        given = f"it has {describe_tree(sums)} of clients, and the server {describe_tree(server)}"
        with named_errors("server_update", given, _FIX):
            new = phase.server_update(server, sums, arrivals.count, group)
        # not a division, which may or may not be compiled to this: the bits would differ
        mean = jax.tree.map(
            lambda leaf: leaf * (1 / arrivals.count.astype(leaf.dtype)), arrivals.statistics
        )
        fix = "return the shapes and types of what init made"
        check_like("the server state that server_update returned: ", new, server, fix)
        check_like(
            "the new statistics of the model: ", mean, statistics, f"{fix}, in Problem.apply"
        )
        return new, mean

    if not screened or phase.traits.steps_alone:
        return update()
    return jax.lax.cond(arrivals.count > 0, update, lambda: (server, statistics))
