"""FedLGA: the server extends the updates of clients that did only part of their work.

Li et al., "FedLGA: Towards System-Heterogeneity of Federated Learning via Local Gradient
Approximation", IEEE Transactions on Cybernetics 2023, https://arxiv.org/abs/2112.11989.

There is no released code, and the text leaves open what the server knows. The reading here: clients
upload Delta_i = w_i - w (the sign of the paper's Algorithm 1; the other would ascend) and their
number of steps S_i of a full S; the gradient g in the paper's G = g g^T is -Delta_i / (rate S_i),
the only one that the server can know. Under the outer product an update is only rescaled, by c_i,
which may also turn it around; `clip` bounds c_i by what more work of the same kind could give.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.base import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Stack
from fedjax_algos.local import local_training
from fedjax_algos.registry import NonNegative, Positive
from fedjax_algos.trees import add_scaled

Mode = Literal["outer", "diag", "update"]


class ServerState(NamedTuple):
    params: Params  # w
    unaided_rounds: jax.Array  # int32[]: rounds with partial clients and no complete one


class Upload(NamedTuple):
    change: Params  # Delta_i = w_i - w
    num_steps: jax.Array  # int32[]: S_i


def _spread(vector, like):
    """A vector over the group, to be multiplied with leaves [group, ...]."""
    return vector.astype(like.dtype).reshape(-1, *[1] * (like.ndim - 1))


def _mean(mask, leaf):
    """The mean over the masked part of the group, as [1, ...]."""
    return (_spread(mask, leaf) * leaf).sum(0, keepdims=True) / jnp.maximum(mask.sum(), 1)


def complete_clients(visits, mask, fallback="none"):
    """bool[group]: who did a full turn; with "max" and nobody there, who came nearest to it."""
    complete = mask & (visits.num_steps >= visits.full_steps)
    if fallback == "none":
        return complete
    done = jnp.where(mask, visits.num_steps / visits.full_steps, 0)
    return jnp.where(complete.any(), complete, mask & (done == done.max()))


def factors(stack: Stack, *, mode: Mode = "outer", strength=1.0, clip=False, fallback="none"):
    """float[group]: c_i, by which an update is multiplied in the modes "outer" and "update"."""
    changes, visits, mask = stack
    complete = complete_clients(visits, mask, fallback)
    steps = jnp.maximum(visits.num_steps, 1)
    scale = (visits.learning_rate * steps) ** 2 if mode == "outer" else 1.0  # (rate S_i)^2

    def product(change):  # <Delta_i, v_i> with v_i = mean of the complete ones - Delta_i
        change = jnp.where(_spread(mask, change) != 0, change, 0)
        mean = _mean(complete, change)
        return (change * (mean - change)).reshape(change.shape[0], -1).sum(1)

    inner = sum(jax.tree.leaves(jax.tree.map(product, changes)))
    chosen = 1 + strength * inner / scale
    if clip:
        chosen = jnp.clip(chosen, 0, visits.full_steps / steps)
    return jnp.where(complete | ~mask | ~complete.any(), 1.0, chosen)


def approximate(
    stack: Stack, *, mode: Mode = "outer", strength=1.0, clip=False, fallback="none"
) -> Params:
    """The updates Delta_i (leaves [group, ...]), those of partial clients approximated as full."""
    changes, visits, mask = stack
    if mode != "diag":
        chosen = factors(stack, mode=mode, strength=strength, clip=clip, fallback=fallback)
        return jax.tree.map(lambda change: _spread(chosen, change) * change, changes)
    complete = complete_clients(visits, mask, fallback)
    partial = mask & ~complete & complete.any()
    work = visits.learning_rate * jnp.maximum(visits.num_steps, 1)

    def corrected(change):
        mean = _mean(complete, change)
        gradient = change / _spread(work, change)
        added = strength * gradient**2 * (mean - change)
        return change + jnp.where(_spread(partial, change) != 0, added, 0)

    return jax.tree.map(corrected, changes)


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
        total = jax.tree.map(lambda u: jnp.where(_spread(stack.mask, u) != 0, u, 0).sum(0), updates)
        full = stack.visits.num_steps >= stack.visits.full_steps
        unaided = ~(full & stack.mask).any()
        params = add_scaled(server.params, server_learning_rate / count, total)
        return ServerState(params, server.unaided_rounds + unaided)

    return Algorithm(problem, local, init, broadcast, client_update, server_update, reduce="stack")
