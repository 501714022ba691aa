"""FedBABU: clients train and share the body; the head stays as it was initialised.

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022,
https://arxiv.org/abs/2106.06042, Algorithm 1.
"""

import optax

from fedjax_algos.algorithms.personalised.fedrep import average_shared
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.algorithm import send_params
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import Positive
from fedjax_algos.core.trees import Pattern, check_match, split_params


@algorithms.register
def fedbabu(
    problem: Problem,
    local: Local,
    *,
    head: Pattern,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """FedAvg of the body with a head that never moves.

    Only the body is sent, because clients have the initial head. For a model of its own, a client
    fine-tunes the global model afterwards: `--personal-steps` trains body and head. The
    released code (https://github.com/jhoon-oh/FedBABU) averages the bodies with equal weights.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      head: the params of the head: a pattern of their paths, such as "Dense_1/*" for the last layer
        of `mlp`, or a function from a path to a bool.
      server_learning_rate: the factor of the mean delta, above 0; 1 in the paper.
      weighting: weights of the bodies: "examples" (proportional to n_i) or "uniform".

    Raises:
      ValueError: if the pattern matches none or all of the params.
    """
    parts = split_params(problem, head)
    check_match("fedbabu: head", parts, head, rest="the body")
    frozen = optax.masked(optax.set_to_zero(), parts.structure.unflatten(parts.own))
    train = local_training(problem, local)
    transform = optax.chain(local.transform, frozen)  # last, because weight decay moves all

    def client_update(x, state, data, dispatch, key):
        trained = train(x, data, dispatch, key, transform=transform)
        delta = optax.tree.sub(x, trained.params)
        return state, parts.shared_leaves(delta), trained.report

    frame = average_shared(problem, local, parts, server_learning_rate, weighting)
    return frame._replace(
        broadcast=send_params,
        download=lambda server, group: parts.shared_leaves(server.params),
        client_update=client_update,
    )
