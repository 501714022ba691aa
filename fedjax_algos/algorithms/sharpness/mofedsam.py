"""MoFedSAM: FedSAM with FedCM's momentum in every local step.

Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", ICML 2022,
https://arxiv.org/abs/2206.02618.
"""

from fedjax_algos.algorithms.momentum.fedcm import fedcm
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.algorithms.sharpness.fedsam import perturbed
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.options import NonNegative, Positive, PositiveShare


@algorithms.register
def mofedsam(
    problem: Problem,
    local: Local,
    *,
    rho: NonNegative = 0.1,
    alpha: PositiveShare = 0.1,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """`y <- y - eta_l (alpha g~ + (1 - alpha) M / (eta_l K_i))`, with FedSAM's gradient g~.

    Server: `M <- mean_i (x - y_i)` from M = 0, `x <- x - eta_g M`. A client divides M by its own
    current rate and number of steps. FL-Simulator (https://github.com/woodenchild95/FL-Simulator)
    divides by the rate of the round before and by the number of steps of one client.

    Args:
      problem: the model and the loss.
      local: how a client trains: K_i steps with learning rate eta_l.
      rho: rho, at least 0, in the unit of the params; 0 is FedCM.
      alpha: alpha, the weight of the client's own gradient, above 0 and at most 1; 1 is FedSAM.
      server_learning_rate: eta_g, above 0.
      weighting: weights of M: "uniform" or "examples" (proportional to n_i).
    """
    return fedcm(
        problem,
        local,
        perturbed(rho),
        alpha=alpha,
        server_learning_rate=server_learning_rate,
        weighting=weighting,
    )
