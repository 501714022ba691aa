"""MimeLite and MimeXlite: clients step with global statistics that full gradients move.

Karimireddy et al., "Breaking the centralized barrier for cross-device federated learning" (Mime),
NeurIPS 2021, https://arxiv.org/abs/2008.03606; MimeXlite is the variant of the FedGBO paper.

Two deviations from that paper's code: a full gradient there wraps around to fill batches of 128
(with n = 100, 28 examples count twice) and moves the client's stream of batches; here it is the
exact mean over the n_i examples, and the stream is left as it was.
"""

from typing import Any, NamedTuple

import jax
import optax

from fedjax_algos.algorithms.global_optimizers.biased_optimizers import (
    Name,
    frozen,
    momentum,
    named,
)
from fedjax_algos.algorithms.global_optimizers.mime import AT_X
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Model, Params, Problem, Weighting, weighted_by
from fedjax_algos.core.local_training import batch_gradient, full_gradient, local_training
from fedjax_algos.core.registry import Decay, Positive
from fedjax_algos.core.trees import add_scaled


class ServerState(NamedTuple):
    params: Params  # x
    optimizer_statistics: Any  # s


class Upload(NamedTuple):
    step: Params  # x - y_i
    gradient: Params  # grad f_i(x), or a batch's


def _lite(problem, local, optimizer, gradient_at, server_learning_rate, weighting) -> Algorithm:
    train = local_training(problem, local)
    transform = optax.chain(local.transform, frozen(optimizer.transform()))

    def init(params, population):
        del population
        return ServerState(params, optimizer.init(params))

    def broadcast(server, group):
        del group
        return server

    def client_update(broadcast, state, data, visit, key):
        x, s = broadcast
        start = (local.transform.init(x), s)
        trained = train(x, data, visit, key, transform=transform, transform_state=start)
        model, key = Model(x, data.statistics), jax.random.fold_in(key, AT_X)
        gradient = gradient_at(model, data, visit, key)
        return state, Upload(optax.tree.sub(x, trained.params), gradient), trained.report

    def server_update(server, sums, count, group):
        del count, group
        x, s = server
        mean = sums.mean()
        params = add_scaled(x, -server_learning_rate, mean.step)
        return ServerState(params, optimizer.track(mean.gradient, s))

    contribute = weighted_by(weighting)
    return Algorithm(problem, local, init, broadcast, client_update, server_update, contribute)


def _of_all_examples(problem):
    gradient = full_gradient(problem)
    return lambda model, data, visit, key: gradient(model, data, key)[0]


@algorithms
def mimelite(
    problem: Problem,
    local: Local,
    *,
    optimizer: Name = "sgdm",
    beta: Decay = 0.9,
    b2: Decay = 0.99,
    eps: Positive = 1e-3,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """FedGBO's fixed-statistics steps; clients also upload their full gradient at x.

    Client: `y_i <- y_i - U(rate, g, s)`, s fixed. Server: `s <- T(mean_i grad f_i(x), s)`,
    `x <- x - server_learning_rate mean_i (x - y_i)`. U, T and the options are FedGBO's.
    """
    chosen = named(optimizer, beta=beta, b2=b2, eps=eps)
    gradient_at = _of_all_examples(problem)
    return _lite(problem, local, chosen, gradient_at, server_learning_rate, weighting)


@algorithms
def mimexlite(
    problem: Problem,
    local: Local,
    *,
    optimizer: Name = "sgdm",
    beta: Decay = 0.9,
    b2: Decay = 0.99,
    eps: Positive = 1e-3,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """MimeLite with the gradient of ONE batch at x instead of all examples.

    The batch is the one that would follow the K_i batches of training, so it costs no extra draw.
    """
    of_batch, of_all = batch_gradient(problem), full_gradient(problem, local.batch_size)

    def gradient_at(model, data, visit, key):
        if local.batches == "full":
            return of_all(model, data, key)[0]
        batch, mask = data.batch(visit.num_steps, local.batch_size, local.batches)
        return of_batch(model, batch, mask, key)[0]

    chosen = named(optimizer, beta=beta, b2=b2, eps=eps)
    return _lite(problem, local, chosen, gradient_at, server_learning_rate, weighting)


@algorithms
def mimelitemom(
    problem: Problem,
    local: Local,
    *,
    beta: Decay = 0.9,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """MimeLite with momentum that is not dampened, as in the GHBM paper.

    Client: `y_i <- y_i - rate (beta m + g)`, m fixed. Server: `m <- beta m + mean_i grad f_i(x)`.
    The GHBM paper's code adds weight decay 1e-4 and a server rate of .1 by default; here they are
    what is asked for.
    """
    optimizer, gradient_at = momentum(beta=beta), _of_all_examples(problem)
    return _lite(problem, local, optimizer, gradient_at, server_learning_rate, weighting)
