"""MimeLite and MimeXlite: clients step with global statistics that gradients at x update.

Karimireddy et al., "Breaking the centralized barrier for cross-device federated learning" (Mime),
NeurIPS 2021, https://arxiv.org/abs/2008.03606; MimeXlite is the variant of the FedGBO paper.

We deviate from the FedGBO paper's code in two points. Its full gradient wraps around to fill
batches of 128 (with n = 100, 28 examples count twice) and advances the client's stream of batches.
Here it is the exact mean over the n_i examples, and the stream does not change.
"""

from typing import NamedTuple

import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.global_optimizers.biased_optimizers import (
    OWN_OPTIMIZER,
    OptimizerName,
    ServerState,
    biased_optimizer,
    frozen,
    momentum,
)
from fedjax_algos.algorithms.global_optimizers.mime import key_at_x
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Traits, Weighting
from fedjax_algos.core.local_steps import batch_gradient, full_gradient, full_size, local_training
from fedjax_algos.core.options import Decay, Positive
from fedjax_algos.core.trees import add_scaled


class Upload(NamedTuple):
    delta: Params  # x - y_i
    gradient: Params  # grad f_i(x), or a batch's


def _lite(problem, local, optimizer, gradient_at, server_learning_rate, weighting) -> Algorithm:
    train = local_training(problem, local)
    transform = optax.chain(local.transform, frozen(optimizer.transform()))

    def init(params, population):
        return ServerState(params, optimizer.init(params))

    def client_update(broadcast, state, data, dispatch, key):
        x, s = broadcast
        start = (local.transform.init(x), s)
        trained = train(x, data, dispatch, key, transform=transform, transform_state=start)
        gradient = gradient_at(data.model(x), data, dispatch, key_at_x(key))
        return state, Upload(optax.tree.sub(x, trained.params), gradient), trained.report

    def server_update(server, sums, count, group):
        x, s = server
        mean = sums.mean()
        params = add_scaled(x, -server_learning_rate, mean.delta)
        return ServerState(params, optimizer.track(mean.gradient, s))

    frame = fedavg(problem, local, weighting=weighting)
    return frame._replace(
        init=init,
        broadcast=lambda server, group: server,
        client_update=client_update,
        server_update=server_update,
        traits=Traits(
            Upload("delta", "vector"),
            broadcast=ServerState("model", optimizer.parts),
            requires_sgd=OWN_OPTIMIZER,
        ),
    )


def _of_all_examples(problem, local):
    gradient = full_gradient(problem, full_size(local), reverse=local.reverse)
    return lambda model, data, dispatch, key: gradient(model, data, key)[0]


@algorithms.register
def mimelite(
    problem: Problem,
    local: Local,
    *,
    optimizer: OptimizerName = "sgdm",
    beta: Decay = 0.9,
    b2: Decay = 0.99,
    eps: Positive = 1e-3,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """FedGBO's steps with fixed statistics; clients also upload their full gradient at x.

    Client: `y_i <- y_i - U(eta_l, g, s)`, s fixed. Server: `s <- T(mean_i grad f_i(x), s)`,
    `x <- x - eta_g mean_i (x - y_i)`. U and T are as in `fedgbo`.

    Args:
      problem: the model and the loss.
      local: how a client trains, with learning rate eta_l (eta in the paper).
      optimizer: U and T by name.
      beta: the decay of SGDm's m, of RMSProp's v, or of Adam's m (beta_1), from 0 to below 1.
      b2: beta_2, the decay of Adam's v, from 0 to below 1.
      eps: epsilon, above 0, added to the root of v; in units of g.
      server_learning_rate: eta_g, above 0; 1 in the papers.
      weighting: weights of both means: "uniform", or "examples" (proportional to n_i).
    """
    chosen = biased_optimizer(optimizer, beta=beta, b2=b2, eps=eps)
    gradient_at = _of_all_examples(problem, local)
    return _lite(problem, local, chosen, gradient_at, server_learning_rate, weighting)


@algorithms.register
def mimexlite(
    problem: Problem,
    local: Local,
    *,
    optimizer: OptimizerName = "sgdm",
    beta: Decay = 0.9,
    b2: Decay = 0.99,
    eps: Positive = 1e-3,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """MimeLite with the gradient of ONE batch at x: `s <- T(mean_i g_i(x), s)`.

    The batch is the one that would follow the K_i batches of training. With `batches="full"` it
    contains all examples, and this is MimeLite.

    Args:
      problem: the model and the loss.
      local: how a client trains: K_i steps with learning rate eta_l (eta in the paper).
      optimizer: U and T by name, as in `fedgbo`.
      beta: the decay of SGDm's m, of RMSProp's v, or of Adam's m (beta_1), from 0 to below 1.
      b2: beta_2, the decay of Adam's v, from 0 to below 1.
      eps: epsilon, above 0, added to the root of v; in units of g.
      server_learning_rate: eta_g, above 0; 1 in the paper.
      weighting: weights of both means: "uniform", or "examples" (proportional to n_i).
    """
    pieces = local.gradient_accumulation
    of_batch = batch_gradient(problem, pieces=pieces)
    of_all = full_gradient(problem, local.batch_size // pieces, reverse=local.reverse)

    def gradient_at(model, data, dispatch, key):
        if local.batches == "full":
            return of_all(model, data, key)[0]
        batch, mask = data.batch(dispatch.num_steps, local.batch_size, local.batches)
        return of_batch(model, batch, mask, key)[0]

    chosen = biased_optimizer(optimizer, beta=beta, b2=b2, eps=eps)
    return _lite(problem, local, chosen, gradient_at, server_learning_rate, weighting)


@algorithms.register
def mimelitemom(
    problem: Problem,
    local: Local,
    *,
    beta: Decay = 0.9,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """MimeLite with undampened momentum, as in the GHBM paper.

    Client: `y_i <- y_i - eta_l (beta m + g)`, m fixed. Server: `m <- beta m + mean_i grad f_i(x)`
    from m = 0. The GHBM paper's code has a server rate of 0.1 and a weight decay of 1e-4 by
    default; here only `local.transform` adds weight decay.

    Args:
      problem: the model and the loss.
      local: how a client trains, with learning rate eta_l (eta in the paper).
      beta: beta, the decay of m, from 0 to below 1; 0 is FedAvg.
      server_learning_rate: eta_g, above 0.
      weighting: weights of both means: "uniform", or "examples" (proportional to n_i).
    """
    optimizer, gradient_at = momentum(beta=beta), _of_all_examples(problem, local)
    return _lite(problem, local, optimizer, gradient_at, server_learning_rate, weighting)
