"""FedLGA's factors, and how far its approximations are from the updates of complete local work.

The arguments mode, strength, clip and fallback are those of `fedlga`.
"""

import typing
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedlga import Fallback, Mode, approximate, factors
from fedjax_algos.analysis.diagnostics import client_deltas
from fedjax_algos.core import Dispatch, Params, Stack
from fedjax_algos.core.options import check_choice
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.engine import Engine
from fedjax_algos.engine.state import FederatedState


def fedlga_factors(
    stack: Stack,
    *,
    mode: Literal["outer", "update"] = "outer",
    strength: float = 1.0,
    clip: bool = False,
    fallback: Fallback = "none",
) -> jax.Array:
    """FedLGA's factors c_i, float[cohort], by which the updates of partial clients are multiplied.

    With D the mean change of the complete clients, `c_i = 1 + strength <Delta_i, D - Delta_i> /
    (rate S_i)^2` in the mode "outer", and without the denominator in "update". The factor is 1 for
    complete clients, and for all clients if none is complete and `fallback` is "none". The mode
    "diag" changes directions and has no factors. The stack has the uploads of FedLGA or of any
    algorithm: changes y_i - x or deltas x - y_i, leaves [cohort, ...].
    """
    check_choice("mode", mode, ("outer", "update"))
    check_choice("fallback", fallback, typing.get_args(Fallback))
    updates = stack.updates
    updates = getattr(updates, "change", getattr(updates, "delta", updates))
    stack = stack._replace(updates=updates)
    return factors(stack, mode=mode, strength=strength, clip=clip, fallback=fallback)


class PartialUpdates(NamedTuple):
    """A cohort's changes, after partial local work and after complete local work.

    Attributes:
      stack: y_i - x after num_steps, leaves [cohort, ...].
      full: y_i - x after full_steps, likewise.
    """

    stack: Stack
    full: Params


class ApproximationError(NamedTuple):
    """The errors of a cohort, float[cohort]; the relative ones are divided by |Delta_i,full|.

    Attributes:
      partial: bool[cohort]: whether the local work is partial; the errors of others are 0.
      error: |Delta_i,full - approximation|.
      uncorrected: |Delta_i,full - Delta_i|, the error without any correction.
    """

    partial: jax.Array
    error: jax.Array
    relative: jax.Array
    uncorrected: jax.Array
    uncorrected_relative: jax.Array


def partial_updates(
    engine: Engine, state: FederatedState, data: FederatedData, dispatches: Dispatch
) -> PartialUpdates:
    """Computes a cohort twice, with partial and with complete local work, on the same batches.

    The engine is FedLGA's, FedAvg's or that of another algorithm that uploads deltas; the state is
    not consumed. The dispatches are of one round, leaves [cohort], and are partial if their
    `num_steps` are fewer than their `full_steps`.
    """

    def changes(dispatches):
        stack = engine.updates(state, data, dispatches)
        deltas = client_deltas(engine.algorithm, state.server.params, stack.updates)
        return stack._replace(updates=jax.tree.map(jnp.negative, deltas))

    complete = dispatches._replace(num_steps=dispatches.full_steps)
    return PartialUpdates(changes(dispatches), changes(complete).updates)


def approximation_error(
    updates: PartialUpdates,
    *,
    mode: Mode = "outer",
    strength: float = 1.0,
    clip: bool = False,
    fallback: Fallback = "none",
) -> ApproximationError:
    """The distance of FedLGA's approximations from the updates of complete local work.

    It is `|Delta_i,E - Delta^_i|` for each partial client i, which eq. 3 of the paper minimises.
    With the fallback "max", the clients that did the largest share of their work are not
    approximated, and keep their error.

    Source: Li et al., "FedLGA: Toward System-Heterogeneity of Federated Learning via Local
    Gradient Approximation", 2024, https://arxiv.org/abs/2112.11989.
    """
    check_choice("mode", mode, typing.get_args(Mode))
    check_choice("fallback", fallback, typing.get_args(Fallback))
    (stack, full), norms = updates, jax.vmap(optax.tree.norm)

    def distance(changes):
        error = norms(optax.tree.sub(full, changes))
        return error, jnp.where(error > 0, error / norms(full), 0)

    partial = stack.mask & (stack.dispatches.num_steps < stack.dispatches.full_steps)
    approximated = approximate(stack, mode=mode, strength=strength, clip=clip, fallback=fallback)
    return ApproximationError(partial, *distance(approximated), *distance(stack.updates))
