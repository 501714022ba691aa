"""FedLGA's factors, and how far its approximations are from updates of complete turns."""

import typing
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedlga import Mode, approximate, factors
from fedjax_algos.analysis.diagnostics.drift import steps_of
from fedjax_algos.core import Params, Stack, Visit
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.engine import Engine, FederatedState

Fallback = Literal["none", "max"]


def lga_factors(
    stack: Stack,
    *,
    mode: Literal["outer", "update"] = "outer",
    strength: float = 1.0,
    clip: bool = False,
    fallback: Fallback = "none",
) -> jax.Array:
    """FedLGA's factors c_i, float[cohort], by which partial clients' updates are multiplied.

    With D the mean change of the complete clients, `c_i = 1 + strength <Delta_i, D - Delta_i> /
    (rate S_i)^2` in the mode "outer", and without the denominator in "update"; 1 for complete
    clients, and for all where none is complete and fallback is "none". The mode "diag" changes
    directions and has no factors.

    Args:
      stack: changes y_i - x or steps x - y_i, leaves [cohort, ...], of FedLGA's or any algorithm's
        upload, with their visits: the factor does not depend on the sign.
      mode, strength, clip, fallback: as for `fedlga`.

    Raises:
      ValueError: for the mode "diag", an unknown one, or an unknown fallback.
    """
    _check("mode", mode, ("outer", "update"))
    _check("fallback", fallback, typing.get_args(Fallback))
    updates = stack.updates
    stack = stack._replace(updates=getattr(updates, "change", getattr(updates, "step", updates)))
    return factors(stack, mode=mode, strength=strength, clip=clip, fallback=fallback)


class PartialTurns(NamedTuple):
    """What a cohort changes, and what it would have changed had all done full turns."""

    stack: Stack  # y_i - x after num_steps, leaves [cohort, ...]
    full: Params  # y_i - x after full_steps, likewise


class ApproximationError(NamedTuple):
    """float[cohort] each but the first; relative to |Delta_i,full|; 0 for complete clients."""

    partial: jax.Array  # bool[cohort]: who did not complete its turn
    error: jax.Array  # |Delta_i,full - approximation|
    relative: jax.Array
    uncorrected: jax.Array  # |Delta_i,full - Delta_i|, the error of doing nothing
    uncorrected_relative: jax.Array


def partial_turns(
    engine: Engine, state: FederatedState, data: FederatedData, visits: Visit
) -> PartialTurns:
    """Computes a cohort twice, with its partial work and to the end, on the same keys and batches.

    Args:
      engine: of FedLGA, FedAvg or another algorithm that uploads steps.
      state: as before the round; it is not consumed.
      data: all clients' examples.
      visits: of one round, leaves [cohort]; `num_steps` is below `full_steps` where partial.

    Raises:
      ValueError: for an algorithm whose uploads do not hold the steps.
    """

    def changes(visits):
        stack = engine.updates(state, data, visits)
        steps = steps_of(state.server.params, stack.updates)
        return stack._replace(updates=jax.tree.map(jnp.negative, steps))

    complete = visits._replace(num_steps=visits.full_steps)
    return PartialTurns(changes(visits), changes(complete).updates)


def approximation_error(
    turns: PartialTurns,
    *,
    mode: Mode = "outer",
    strength: float = 1.0,
    clip: bool = False,
    fallback: Fallback = "none",
) -> ApproximationError:
    """The difference of FedLGA's approximations from the updates of complete turns.

    `|Delta_i,E - Delta^_i|` for each partial client i: what eq. 3 of Li et al., "FedLGA: Towards
    System-Heterogeneity of Federated Learning via Local Gradient Approximation", 2023,
    https://arxiv.org/abs/2112.11989, wants to be small. With the fallback "max" the clients that
    did the largest share of their work are left as they are, and keep their error.

    Args:
      turns: what `partial_turns` gave; one serves any number of settings.
      mode, strength, clip, fallback: as for `fedlga`.

    Raises:
      ValueError: for an unknown mode or fallback.
    """
    _check("mode", mode, typing.get_args(Mode))
    _check("fallback", fallback, typing.get_args(Fallback))
    (stack, full), norms = turns, jax.vmap(optax.tree.norm)

    def missed(updates):
        error = norms(optax.tree.sub(full, updates))
        return error, jnp.where(error > 0, error / norms(full), 0)

    partial = stack.mask & (stack.visits.num_steps < stack.visits.full_steps)
    approximated = approximate(stack, mode=mode, strength=strength, clip=clip, fallback=fallback)
    return ApproximationError(partial, *missed(approximated), *missed(stack.updates))


def _check(name, value, known):
    if value not in known:
        raise ValueError(f"{name}={value!r} does not exist here; choose {' or '.join(known)}")
