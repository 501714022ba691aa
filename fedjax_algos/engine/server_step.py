"""Traces the server step: sums arrivals, updates the server and averages statistics.

A round sums the arrivals of its cohort. A plan adds the arrivals of a server step one by one.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.base.reprs import describe_tree
from fedjax_algos.core import Algorithm, Prelude, types
from fedjax_algos.core.algorithm import MODELS, contribution_of, kinds, update_in
from fedjax_algos.core.checks import check_like, named_errors
from fedjax_algos.engine.non_finite import select


class Arrivals(NamedTuple):
    """Sums over the updates that have arrived for one server step; `arrival` makes one summand."""

    contributions: Any  # sums, or a `Stack` of updates
    statistics: types.Statistics  # sums, () in a prelude
    count: Any  # int32[]: updates that were not left out


Phase = Algorithm | Prelude
_FIX = "return other updates in client_update, or other sums in contribute"


def contribution(
    phase: Phase, message: Any, dispatch: types.Dispatch, staleness: Any, server: types.ServerState
) -> Any:
    """Returns the summand of a message."""
    return contribution_of(phase, decoded(phase, message, server), dispatch, staleness, server)


def decoded(phase: Phase, message: Any, server: types.ServerState) -> types.Update:
    """Decodes a client's message and checks the update."""
    update, params = phase.decode(message), getattr(server, "params", None)
    if params is not None:  # diagnostics have other server states
        _check_update(phase.traits.parts, update_in(phase.traits.parts, update), params)
    return update


def _check_update(parts, update, params):
    """Raises ValueError if a model or difference of models in an update is unlike the params."""
    try:
        trees = jax.tree.structure(parts).flatten_up_to(update)
    except (TypeError, ValueError):  # only wrappers need the parts
        return
    fix = "a server rule would broadcast it: return x - y_i, or declare other Traits(parts=...)"
    for kind, tree in zip(kinds(parts), trees, strict=True):
        if kind in MODELS and jax.tree.structure(tree) == jax.tree.structure(params):
            check_like(f"the {kind} in client_update's update: ", tree, params, fix)


def arrival(
    contributed: Any, report: types.Report | tuple[()], finite: jax.Array | None
) -> tuple[Arrivals, types.Metrics | tuple[()]]:
    """Returns one arrival and its metrics; zeros if `finite` is False."""
    metrics, statistics = report or ((), ())
    one: Any = Arrivals(contributed, statistics, jnp.int32(1)), metrics
    return one if finite is None else select(finite, one, 0)


def server_step(
    phase: Phase,
    server: types.ServerState,
    statistics: types.Statistics,
    arrivals: Arrivals,
    group: Any,
    *,
    screened: bool,
) -> tuple[types.ServerState, types.Statistics]:
    """Updates the server and averages statistics; no change if `screened` and none arrived."""

    def update():
        sums = arrivals.contributions
        inputs = f"it has {describe_tree(sums)} of clients, and the server {describe_tree(server)}"
        with named_errors("server_update", inputs, _FIX):
            new = phase.server_update(server, sums, arrivals.count, group)
        # not a division: XLA may or may not compile it to this, with other bits
        mean = jax.tree.map(lambda s: s * (1 / arrivals.count.astype(s.dtype)), arrivals.statistics)
        fix = "return the shapes and types of what init made"
        check_like("the server state that server_update returned: ", new, server, fix)
        check_like("the new statistics from Problem.apply: ", mean, statistics, fix)
        return new, mean

    if not screened or phase.traits.steps_alone:
        return update()
    return jax.lax.cond(arrivals.count > 0, update, lambda: (server, statistics))
