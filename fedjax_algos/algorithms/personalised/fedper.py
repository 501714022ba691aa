"""FedPer: clients share the base layers, and each keeps its own last layers.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019,
https://arxiv.org/abs/1912.00818, Algorithm 1.
"""

from fedjax_algos.algorithms.personalised.fedbn import fedbn
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.options import Positive
from fedjax_algos.core.trees import Pattern, check_match, split_params


@algorithms.register
def fedper(
    problem: Problem,
    local: Local,
    *,
    head: Pattern,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """FedAvg of the base layers; a client trains all layers together and keeps its head.

    The rule is `fedbn`'s, with the head in place of the normalisation layers, so a client also
    keeps its own statistics, such as BatchNorm's means. A client's first head is the initial one.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      head: the params of the head: a pattern of their paths, such as "Dense_1/*" for the last layer
        of `mlp`, or a function from a path to a bool.
      server_learning_rate: the factor of the mean delta, above 0; 1 in the paper.
      weighting: weights of the base layers: "examples" (proportional to n_i) as in the paper, or
        "uniform".

    Raises:
      ValueError: if the pattern matches none or all of the params.
    """
    check_match("fedper: head", split_params(problem, head), head, rest="the base")
    rate = {"server_learning_rate": server_learning_rate}
    return fedbn(problem, local, norm=head, weighting=weighting, **rate)
