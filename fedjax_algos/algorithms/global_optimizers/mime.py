"""Mime: clients mimic a central optimiser with its statistics and a control variate.

Karimireddy et al., "Breaking the centralized barrier for cross-device federated learning",
NeurIPS 2021, https://arxiv.org/abs/2008.03606.

A round has two exchanges: clients first return their full gradient at x. The mean over clients is
uniform by default as in the released code of the GHBM paper. That code averages over a client's
batches; here the mean over its examples is exact.
"""

from typing import Any, NamedTuple

import jax
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.global_optimizers.biased_optimizers import (
    OWN_OPTIMIZER,
    frozen,
    momentum,
    sgd,
)
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Key, Local, Params, Prelude, Problem, Traits, Weighting
from fedjax_algos.core.local_steps import full_gradient, full_size, local_training
from fedjax_algos.core.options import Decay, Positive
from fedjax_algos.core.trees import add_scaled


class ServerState(NamedTuple):
    params: Params  # x
    optimizer_statistics: Any  # s
    control: Params  # c


def key_at_x(key: Key) -> Key:
    """Returns the key for a gradient at x, which no local step uses."""
    return jax.random.fold_in(key, 2**31 - 1)


def _mime(problem, local, optimizer, server_learning_rate, weighting) -> Algorithm:
    train = local_training(problem, local)
    full = full_gradient(problem, full_size(local), reverse=local.reverse)
    transform = optax.chain(local.transform, frozen(optimizer.transform()))

    def init(params, population):
        return ServerState(params, optimizer.init(params), optax.tree.zeros_like(params))

    def broadcast(server, group):
        return server.optimizer_statistics, server.control

    def gradient_at_x(x, data, dispatch, key):
        return full(data.model(x), data, key_at_x(key))[0]

    def client_update(broadcast, state, data, dispatch, key):
        x, (s, c) = broadcast

        def corrected(gradient, local_params, step):
            at_x = step.gradient_at(x)
            return jax.tree.map(lambda g, g_x, c: g - g_x + c, gradient, at_x, c)

        start = (local.transform.init(x), s)
        trained = train(
            x, data, dispatch, key, correct=corrected, transform=transform, transform_state=start
        )
        return state, optax.tree.sub(x, trained.params), trained.report

    def server_update(server, sums, count, group):
        x, s, c = server
        params = add_scaled(x, -server_learning_rate, sums.mean())
        return ServerState(params, optimizer.track(c, s), c)

    frame = fedavg(problem, local, weighting=weighting)
    prelude = Prelude(
        broadcast=frame.broadcast,
        client_update=gradient_at_x,
        server_update=lambda server, sums, count, group: server._replace(control=sums.mean()),
        contribute=frame.contribute,
    )
    return frame._replace(
        init=init,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        prelude=prelude,
        traits=Traits(broadcast=(optimizer.parts, "vector"), requires_sgd=OWN_OPTIMIZER),
    )


@algorithms.register
def mime(
    problem: Problem,
    local: Local,
    *,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """Mime with SGD: `c = mean_i grad f_i(x)`, then `y_i <- y_i - eta_l (g(y_i) - g(x) + c)`.

    Both g use the same batch. Server: `x <- x - eta_g mean_i (x - y_i)`.

    Args:
      problem: the model and the loss.
      local: how a client trains, with learning rate eta_l (eta in the paper).
      server_learning_rate: eta_g, above 0; 1 in the paper.
      weighting: weights of both means: "uniform", or "examples" (proportional to n_i).
    """
    return _mime(problem, local, sgd(), server_learning_rate, weighting)


@algorithms.register
def mimemom(
    problem: Problem,
    local: Local,
    *,
    beta: Decay = 0.9,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """Mime with momentum: `y_i <- y_i - eta_l (beta m + g(y_i) - g(x) + c)`, m fixed in a round.

    c and the server's x are as in `mime`; `m <- beta m + c` from m = 0, without dampening. The GHBM
    paper's code has a server rate of 0.1 and a weight decay of 1e-4 by default; here only
    `local.transform` adds weight decay.

    Args:
      problem: the model and the loss.
      local: how a client trains, with learning rate eta_l (eta in the paper).
      beta: beta, the decay of m, from 0 to below 1; 0 is `mime`.
      server_learning_rate: eta_g, above 0.
      weighting: weights of both means: "uniform", or "examples" (proportional to n_i).
    """
    return _mime(problem, local, momentum(beta=beta), server_learning_rate, weighting)
