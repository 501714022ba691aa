"""FedLGA: the server extends the updates of clients that did only a part of their work.

Li et al., "FedLGA: Toward System-Heterogeneity of Federated Learning via Local Gradient
Approximation", IEEE Transactions on Cybernetics 2024, https://arxiv.org/abs/2112.11989 (there
"Towards").

No code is released, and the paper leaves open what the server knows. We assume that clients upload
Delta_i = w_i - w (the sign in the paper's Algorithm 1) and their number of steps S_i of a full S.
In the paper's G = g g^T we take g = -Delta_i / (eta_l S_i), the only gradient that the server can
know. The outer product only rescales an update by a factor c_i, which may be negative; `clip`
bounds c_i by S / S_i.

The paper contradicts itself on the sign of the correction. Table I and section II-B define
Delta = w - w_i, which points like a gradient, and equation 4 adds its Taylor term to it. Algorithm
1 defines Delta_i = w_i - w, and Algorithm 2 adds the same term to it. With the sign of Algorithm 1,
which we use, the first reading subtracts the term.
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Dispatch, Local, Params, Problem, Stack, Traits
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import Positive, Real
from fedjax_algos.core.trees import add_scaled, scale

Mode = Literal["outer", "diag", "update"]
Fallback = Literal["none", "max"]


class ServerState(NamedTuple):
    params: Params  # w
    incomplete_rounds: jax.Array  # int32[]: rounds without a complete client


class Upload(NamedTuple):
    change: Params  # Delta_i = w_i - w
    num_steps: Any  # int32[]: S_i


def complete_clients(
    dispatches: Dispatch, mask: jax.Array, fallback: Fallback = "none"
) -> jax.Array:
    """Marks the clients that took all their steps, bool[group].

    Without such a client, fallback "max" marks those that took the largest share of their steps.
    """
    complete = mask & (dispatches.num_steps >= dispatches.full_steps)
    if fallback == "none":
        return complete
    done = jnp.where(mask, 1.0 * dispatches.num_steps / dispatches.full_steps, 0)
    return jnp.where(complete.any(), complete, mask & (done == done.max()))


def _sum_where(mask, changes):
    """Sums rows by a product, which on a CPU is much faster than summing a masked copy.

    0 * NaN is NaN, but only non_finite="keep" leaves rows that are not finite in the stack.
    """
    product = functools.partial(jnp.tensordot, axes=1, precision="highest")
    return jax.tree.map(lambda leaf: product(mask.astype(leaf.dtype), leaf), changes)


def _per_client(rule, stack, fallback, otherwise):
    """Applies `rule(Delta_i, v_i, dispatch)` to partial clients, else `otherwise(Delta_i)`."""
    complete = complete_clients(stack.dispatches, stack.mask, fallback)
    mean = scale(1.0 / jnp.maximum(complete.sum(), 1), _sum_where(complete, stack.updates))
    partial = stack.mask & ~complete & complete.any()

    def one(change, dispatch, partial):
        corrected = rule(change, optax.tree.sub(mean, change), dispatch)
        pick = functools.partial(jnp.where, partial)
        return jax.tree.map(pick, corrected, otherwise(change))

    return jax.vmap(one)(stack.updates, stack.dispatches, partial)


def _work(dispatch):
    return dispatch.learning_rate * jnp.maximum(dispatch.num_steps, 1)  # eta_l S_i


def factors(stack: Stack, mode="outer", strength=1.0, clip=False, fallback="none") -> jax.Array:
    """Computes c_i, the factor of an update in the modes "outer" and "update", float[group].

    `c_i = 1 + lambda <Delta_i, v_i> / (eta_l S_i)^2` with v_i as in `fedlga`; "update" has no
    divisor.
    """

    def factor(change, ahead, dispatch):
        unit = _work(dispatch) ** 2 if mode == "outer" else 1.0
        rescaling = 1 + strength * optax.tree.vdot(change, ahead) / unit
        bound = 1.0 * dispatch.full_steps / jnp.maximum(dispatch.num_steps, 1)
        return jnp.clip(rescaling, 0, bound.astype(rescaling.dtype)) if clip else rescaling

    return _per_client(factor, stack, fallback, lambda change: 1.0)


def approximate(stack: Stack, mode="outer", strength=1.0, clip=False, fallback="none") -> Params:
    """Extends the updates of partial clients to full work; leaves [group, ...]."""
    if mode == "diag":

        def extended(change, ahead, dispatch):
            squares = jax.tree.map(lambda d: (d / _work(dispatch).astype(d.dtype)) ** 2, change)
            return add_scaled(change, strength, jax.tree.map(jnp.multiply, squares, ahead))

        return _per_client(extended, stack, fallback, lambda change: change)
    rescaling = factors(stack, mode, strength, clip, fallback)
    return jax.vmap(scale)(rescaling, stack.updates)


@algorithms.register
def fedlga(
    problem: Problem,
    local: Local,
    *,
    mode: Mode = "outer",
    strength: Real = 1.0,
    clip: bool = False,
    fallback: Fallback = "none",
    server_learning_rate: Positive = 1.0,
) -> Algorithm:
    """`w <- w + eta_g mean_i Delta^_i`; Delta^_i is Delta_i for a client with full work.

    For the others, `Delta^_i = Delta_i + lambda g_i <g_i, v_i>` (a multiple of Delta_i), where
    `v_i = D - Delta_i`, D is the mean update of the complete clients, and
    `g_i = -Delta_i / (eta_l S_i)`. A dispatch is partial if its `num_steps` is below its
    `full_steps`: see `participation.partial`.

    Args:
      problem: the model and the loss.
      local: how a client trains: S_i steps with learning rate eta_l.
      mode: "outer" is the paper's rule above; "diag" has `g_i^2 v_i` elementwise; "update" has
        Delta_i in place of g_i.
      strength: lambda, of either sign; 0 is FedAvg. The paper has none: 1 is Algorithms 1 and 2 as
        printed, -1 is equation 4 with the Delta = w - w_i of Table I and section II-B, and eta_l
        would give both terms the same units. Neither sign approximates the complete update well:
        where |g_i| is above 1, a partial update is multiplied by a large factor. If <Delta_i, D> is
        small, the factor is negative for 1 and positive for -1, so -1 acts as a longer step.
      clip: bounds c_i = Delta^_i / Delta_i to [0, S / S_i] in "outer" and "update"; the paper has
        no bound.
      fallback: for rounds without a complete client. "none" corrects nothing; "max" treats the
        clients that did the largest share of their work as complete. The server state counts such
        rounds.
      server_learning_rate: eta_g, above 0.
    """
    train = local_training(problem, local)

    def init(params, population):
        return ServerState(params, jnp.int32(0))

    def client_update(w, state, data, dispatch, key):
        trained = train(w, data, dispatch, key)
        change = optax.tree.sub(trained.params, w)
        return state, Upload(change, jnp.asarray(dispatch.num_steps, jnp.int32)), trained.report

    def server_update(server, stack, count, group):
        stack = stack._replace(updates=stack.updates.change)
        updates = approximate(stack, mode, strength, clip, fallback)
        total = _sum_where(stack.mask, updates)
        complete = complete_clients(stack.dispatches, stack.mask)
        params = add_scaled(server.params, 1.0 * server_learning_rate / count, total)
        return ServerState(params, server.incomplete_rounds + ~complete.any())

    reason = "-Delta_i / (eta_l S_i), which its rule reads, is a mean gradient only with sgd"
    return Algorithm(
        problem=problem,
        local=local,
        init=init,
        client_update=client_update,
        server_update=server_update,
        traits=Traits(
            parts=Upload("change", "count"),
            reduce="stack",
            requires_sgd="" if mode == "update" else reason,
        ),
    )
