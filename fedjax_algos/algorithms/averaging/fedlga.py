"""FedLGA: the server extends the updates of clients that did only part of their work.

Li et al., "FedLGA: Towards System-Heterogeneity of Federated Learning via Local Gradient
Approximation", IEEE Transactions on Cybernetics 2023, https://arxiv.org/abs/2112.11989.

There is no released code, and the text leaves open what the server knows. The reading here: clients
upload Delta_i = w_i - w (the sign of the paper's Algorithm 1; the other would ascend) and their
number of steps S_i of a full S; the gradient g in the paper's G = g g^T is -Delta_i / (rate S_i),
the only one that the server can know. Under the outer product an update is only rescaled, by c_i,
which may also turn it around; `clip` bounds c_i by what more work of the same kind could give.
"""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Stack
from fedjax_algos.core.local_training import local_training
from fedjax_algos.core.registry import NonNegative, Positive
from fedjax_algos.core.trees import add_scaled, scale

Mode = Literal["outer", "diag", "update"]


class ServerState(NamedTuple):
    params: Params  # w
    unaided_rounds: jax.Array  # int32[]: rounds with partial clients and no complete one


class Upload(NamedTuple):
    change: Params  # Delta_i = w_i - w
    num_steps: jax.Array  # int32[]: S_i


def complete_clients(visits, mask, fallback="none"):
    """bool[group]: who did a full turn; with "max" and nobody there, who came nearest to it."""
    complete = mask & (visits.num_steps >= visits.full_steps)
    if fallback == "none":
        return complete
    done = jnp.where(mask, 1.0 * visits.num_steps / visits.full_steps, 0)
    return jnp.where(complete.any(), complete, mask & (done == done.max()))


def _masked_sum(mask, changes):
    chosen = jax.vmap(lambda real, tree: jax.tree.map(lambda leaf: jnp.where(real, leaf, 0), tree))
    return jax.tree.map(lambda leaf: leaf.sum(0), chosen(mask, changes))


def _per_client(rule, stack, fallback, otherwise):
    """`rule(Delta_i, v_i, visit)` for partial clients, `otherwise(Delta_i)` for the others."""
    complete = complete_clients(stack.visits, stack.mask, fallback)
    mean = scale(1.0 / jnp.maximum(complete.sum(), 1), _masked_sum(complete, stack.updates))
    partial = stack.mask & ~complete & complete.any()

    def one(change, visit, partial):
        corrected = rule(change, optax.tree.sub(mean, change), visit)
        pick = functools.partial(jnp.where, partial)
        return jax.tree.map(pick, corrected, otherwise(change))

    return jax.vmap(one)(stack.updates, stack.visits, partial)


def _work(visit):
    return visit.learning_rate * jnp.maximum(visit.num_steps, 1)  # rate S_i


def factors(stack: Stack, *, mode: Mode = "outer", strength=1.0, clip=False, fallback="none"):
    """float[group]: c_i, by which an update is multiplied in the modes "outer" and "update"."""

    def factor(change, ahead, visit):
        unit = _work(visit) ** 2 if mode == "outer" else 1.0
        chosen = 1 + strength * optax.tree.vdot(change, ahead) / unit
        most = 1.0 * visit.full_steps / jnp.maximum(visit.num_steps, 1)
        return jnp.clip(chosen, 0, most.astype(chosen.dtype)) if clip else chosen

    return _per_client(factor, stack, fallback, lambda change: 1.0)


def approximate(
    stack: Stack, *, mode: Mode = "outer", strength=1.0, clip=False, fallback="none"
) -> Params:
    """The updates Delta_i (leaves [group, ...]), those of partial clients approximated as full."""
    if mode == "diag":

        def extended(change, ahead, visit):
            squares = jax.tree.map(lambda d: (d / _work(visit).astype(d.dtype)) ** 2, change)
            return add_scaled(change, strength, jax.tree.map(jnp.multiply, squares, ahead))

        return _per_client(extended, stack, fallback, lambda change: change)
    chosen = factors(stack, mode=mode, strength=strength, clip=clip, fallback=fallback)
    return jax.vmap(scale)(chosen, stack.updates)


@algorithms
def fedlga(
    problem: Problem,
    local: Local,
    *,
    mode: Mode = "outer",
    strength: NonNegative = 1.0,
    clip: bool = False,
    fallback: Literal["none", "max"] = "none",
    server_learning_rate: Positive = 1.0,
) -> Algorithm:
    """`w <- w + server_learning_rate mean_i Delta^_i`; Delta^_i is Delta_i after a complete turn.

    Else, with D the mean update of complete clients, v_i = D - Delta_i and g_i = Delta_i / (rate
    S_i), `Delta^_i = Delta_i + strength g_i <g_i, v_i>`, which is a multiple of Delta_i. A visit is
    partial where its `num_steps` is below its `full_steps`: see `works.partial`.

    Args:
      problem: what is learned.
      local: how a client trains.
      mode: "outer" as above, the paper's; "diag" is `g_i^2 v_i` elementwise; "update" has Delta_i
        in place of g_i.
      strength: lambda. 1 is literal; the rate would make the units right.
      clip: c_i in [0, S / S_i], for "outer" and "update"; the paper has no clip.
      fallback: in rounds without a complete client, "none" corrects nothing and counts the round in
        the server state; "max" takes the clients with the largest share of their work for complete.
      server_learning_rate: eta_g.
    """
    train = local_training(problem, local)

    def init(params, population):
        del population
        return ServerState(params, jnp.int32(0))

    def broadcast(server, group):
        del group
        return server.params

    def client_update(w, state, data, visit, key):
        trained = train(w, data, visit, key)
        update = Upload(optax.tree.sub(trained.params, w), jnp.asarray(visit.num_steps, jnp.int32))
        return state, update, trained.report

    def server_update(server, stack, count, group):
        del group
        stack = stack._replace(updates=stack.updates.change)
        updates = approximate(stack, mode=mode, strength=strength, clip=clip, fallback=fallback)
        total = _masked_sum(stack.mask, updates)
        full = stack.visits.num_steps >= stack.visits.full_steps
        unaided = ~(full & stack.mask).any()
        params = add_scaled(server.params, 1.0 * server_learning_rate / count, total)
        return ServerState(params, server.unaided_rounds + unaided)

    return Algorithm(problem, local, init, broadcast, client_update, server_update, reduce="stack")
