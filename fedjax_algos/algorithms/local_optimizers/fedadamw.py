"""FedAdamW: clients run AdamW from the mean of the second moments and towards the last update.

Liu et al., "FedAdamW: A Communication-Efficient Optimizer with Convergence and Generalization
Guarantees for Federated Large Models", 2025, https://arxiv.org/abs/2510.27486.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.local_optimizers.diloco import ONE_RATE
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Dispatch, Local, Params, Problem, Traits
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import Decay, NonNegative, Positive
from fedjax_algos.core.trees import add_scaled, scale


class ServerState(NamedTuple):
    params: Params  # x
    update: Params  # G, the last mean of x - y_i
    moments: Params  # vbar, the last mean of v_i


class Upload(NamedTuple):
    delta: Params  # x - y_i
    moments: Params  # v_i


class Steps(NamedTuple):
    """A state of a local optimiser."""

    number: jax.Array  # int32[]: k
    first: Params  # m
    second: Params  # v


def block_means(tree: Params) -> Params:
    """Returns the mean of each array, float[]."""
    return jax.tree.map(jnp.mean, tree)


def moments_of_server(
    problem: Problem,
    local: Local,
    steps: Callable[[ServerState, Dispatch], optax.GradientTransformation],
    sent: Callable[[Params], Any] = lambda tree: tree,
    server_learning_rate: float = 1.0,
) -> Algorithm:
    """The frame of optimisers whose `Steps` start from vbar; clients send `sent(v_i)`."""
    train = local_training(problem, local)

    def init(params, population):
        zeros = optax.tree.zeros_like(params)
        return ServerState(params, zeros, sent(zeros))

    def client_update(broadcast, state, data, dispatch, key):
        x, _, mean = broadcast
        second = jax.tree.map(jnp.broadcast_to, mean, jax.tree.map(jnp.shape, x))
        start = Steps(jnp.int32(0), optax.tree.zeros_like(x), second)
        own = optax.chain(local.transform, steps(broadcast, dispatch))
        given = {"transform": own, "transform_state": (local.transform.init(x), start)}
        trained = train(x, data, dispatch, key, **given)
        last = sent(trained.transform_state[1].second)
        return state, Upload(optax.tree.sub(x, trained.params), last), trained.report

    def server_update(server, sums, count, group):
        mean = sums.mean()
        x = add_scaled(server.params, -server_learning_rate, mean.delta)
        return ServerState(x, *mean)

    frame = fedavg(problem, local, weighting="uniform")
    broadcast_kinds = ServerState("model", "vector", "moments")
    traits = Traits(
        Upload("delta", "moments"),
        broadcast_kinds,
        requires_sgd=ONE_RATE,
        like=lambda params: Upload(params, sent(params)),
    )
    return frame._replace(
        init=init,
        broadcast=lambda server, group: server,
        client_update=client_update,
        server_update=server_update,
        traits=traits,
    )


@algorithms.register
def fedadamw(
    problem: Problem,
    local: Local,
    *,
    alpha: NonNegative = 0.5,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    weight_decay: NonNegative = 0.01,
    moments: Literal["array", "entry"] = "array",
    server_learning_rate: Positive = 1.0,
) -> Algorithm:
    """`y <- y - eta_l (m_hat / (sqrt(v_hat) + 1e-8) + wd y) - alpha G / K_i`; `x <- x - eta G`.

    G is the mean of x - y_i, which clients receive one round later. m starts at 0 in each local
    update and v at vbar, the mean of the clients' last v. In local step k,
    `m_hat = m / (1 - b1^k)` and `v_hat = v / (1 - b2^(t+k))`, where t is the number of local steps
    of all earlier rounds.

    The released code (https://github.com/junkangLiu0/FedAdamW) divides m by 1 - b1^(t+k) although
    m starts at 0, so that the first local steps are a tenth as long. For images it sends every
    entry of v, and multiplies G by this round's rate over the last round's.

    Args:
      problem: the model and the loss.
      local: how a client trains: K_i steps with learning rate eta_l.
      alpha: alpha, at least 0, the weight of the last update.
      b1: beta_1, from 0 to below 1.
      b2: beta_2, from 0 to below 1.
      weight_decay: wd, at least 0; it is decoupled.
      moments: clients send the mean of v over each "array", or each "entry". The paper has means
        over blocks of its own choice.
      server_learning_rate: eta, above 0; 1 in the paper.
    """

    def steps(server, dispatch):
        before = dispatch.server_step * dispatch.full_steps  # t
        work = dispatch.learning_rate * jnp.maximum(dispatch.num_steps, 1)  # eta_l K_i
        pull = scale(alpha / work, server.update)

        def update(gradient, state, params):
            k = state.number + 1
            m = optax.tree.update_moment(gradient, state.first, b1, 1)
            v = optax.tree.update_moment(gradient, state.second, b2, 2)
            first, second = (1 - b**n for b, n in ((b1, k), (b2, before + k)))
            step = jax.tree.map(lambda m, v: m / first / (jnp.sqrt(v / second) + 1e-8), m, v)
            step = add_scaled(optax.tree.add(step, pull), weight_decay, params)
            return step, Steps(k, m, v)

        return optax.GradientTransformation(lambda params: (), update)

    sent = block_means if moments == "array" else lambda tree: tree
    return moments_of_server(problem, local, steps, sent, server_learning_rate)
