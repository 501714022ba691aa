"""Mime: clients mimic a central optimiser with its statistics and a control variate.

Karimireddy et al., "Breaking the centralized barrier for cross-device federated learning",
NeurIPS 2021, https://arxiv.org/abs/2008.03606.

A round has two exchanges: clients first return their full gradient at x. The mean over clients is
uniform by default as in the released code of the GHBM paper, which takes the mean over a client's
batches; here it is the exact mean over its examples.
"""

from typing import Any, NamedTuple

import jax
import optax

from fedjax_algos.algorithms.global_optimizers.biased_optimizers import frozen, momentum, sgd
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import (
    Algorithm,
    Local,
    Model,
    Params,
    Prelude,
    Problem,
    Weighting,
    weighted_by,
)
from fedjax_algos.core.local_training import full_gradient, local_training
from fedjax_algos.core.registry import Decay, Positive
from fedjax_algos.core.trees import add_scaled

AT_X = 2**31 - 1  # the key of a gradient at x: no local step has this number


class ServerState(NamedTuple):
    params: Params  # x
    optimizer_statistics: Any  # s
    control: Params  # c


def _mime(problem, local, optimizer, server_learning_rate, weighting) -> Algorithm:
    train, full = local_training(problem, local), full_gradient(problem)
    transform = optax.chain(local.transform, frozen(optimizer.transform()))

    def init(params, population):
        del population
        return ServerState(params, optimizer.init(params), optax.tree.zeros_like(params))

    def ask(x, data, visit, key):
        del visit
        return full(Model(x, data.statistics), data, jax.random.fold_in(key, AT_X))[0]

    def client_update(broadcast, state, data, visit, key):
        x, (s, c) = broadcast

        def corrected(gradient, local_params, step):
            del local_params
            at_x = step.gradient_at(x)
            return jax.tree.map(lambda g, g_x, c: g - g_x + c, gradient, at_x, c)

        start = (local.transform.init(x), s)
        trained = train(
            x, data, visit, key, correct=corrected, transform=transform, transform_state=start
        )
        return state, optax.tree.sub(x, trained.params), trained.report

    def server_update(server, sums, count, group):
        del count, group
        x, s, c = server
        params = add_scaled(x, -server_learning_rate, sums.mean())
        return ServerState(params, optimizer.track(c, s), c)

    return Algorithm(
        problem,
        local,
        init,
        broadcast=lambda server, group: (server.optimizer_statistics, server.control),
        client_update=client_update,
        server_update=server_update,
        contribute=weighted_by(weighting),
        prelude=Prelude(
            broadcast=lambda server, group: server.params,
            client_update=ask,
            server_update=lambda server, sums, count, group: server._replace(control=sums.mean()),
            contribute=weighted_by(weighting),
        ),
    )


@algorithms
def mime(
    problem: Problem,
    local: Local,
    *,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """Mime with SGD: `c = mean_i grad f_i(x)`, then `y_i <- y_i - rate (g(y_i) - g(x) + c)`.

    Both g are of the same batch. Server: `x <- x - server_learning_rate mean_i (x - y_i)`.
    """
    return _mime(problem, local, sgd(), server_learning_rate, weighting)


@algorithms
def mimemom(
    problem: Problem,
    local: Local,
    *,
    beta: Decay = 0.9,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """Mime with momentum: `y_i <- y_i - rate (beta m + g(y_i) - g(x) + c)`, m fixed in a round.

    Server: `m <- beta m + c` from m = 0. The GHBM paper's code has a server rate of .1 and weight
    decay 1e-4 by default; here they are what is asked for.
    """
    return _mime(problem, local, momentum(beta=beta), server_learning_rate, weighting)
