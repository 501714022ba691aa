"""LG-FedAvg: each client keeps its own body, and the clients share the head.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", 2020, https://arxiv.org/abs/2001.01523.
"""

from fedjax_algos.algorithms.personalised.fedbn import fedbn
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.options import Positive
from fedjax_algos.core.trees import Pattern, check_match, split_params


@algorithms.register
def lgfedavg(
    problem: Problem,
    local: Local,
    *,
    head: Pattern,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """FedAvg of the head; a client trains all layers together and keeps its body.

    The rule is `fedbn`'s, with the body in place of the normalisation layers, so a client also
    keeps its own statistics. A client's first body is the initial one. The released code
    (https://github.com/pliang279/LG-FedAvg) starts from a model that FedAvg has trained, averages
    the heads with equal weights, and evaluates the model of each client that was best on its test
    examples.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      head: the params that clients share: a pattern of their paths, such as "Dense_1/*" for the
        last layer of `mlp`, or a function from a path to a bool.
      server_learning_rate: the factor of the mean delta, above 0; 1 in the paper.
      weighting: weights of the head: "examples" (proportional to n_i) or "uniform".

    Raises:
      ValueError: if the pattern matches none or all of the params.
    """
    parts = split_params(problem, head)
    check_match("lgfedavg: head", parts, head, rest="the body")
    body = {path for path, in_head in zip(parts.paths, parts.own, strict=True) if not in_head}
    rate = {"server_learning_rate": server_learning_rate}
    return fedbn(problem, local, norm=body.__contains__, weighting=weighting, **rate)
