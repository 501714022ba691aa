"""FedGAMMA: FedSAM with SCAFFOLD's control variates.

Dai et al., "FedGAMMA: Federated Learning with Global Sharpness-Aware Minimization", IEEE
Transactions on Neural Networks and Learning Systems, 2023,
https://doi.org/10.1109/TNNLS.2023.3304453.
"""

from fedjax_algos.algorithms.control_variates.scaffold import scaffold
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.algorithms.sharpness.fedsam import perturbed
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.options import NonNegative, Positive


@algorithms.register
def fedgamma(
    problem: Problem,
    local: Local,
    *,
    rho: NonNegative = 0.1,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """`y <- y - eta_l (g~ - c_i + c)` with FedSAM's gradient g~.

    c and c_i follow SCAFFOLD's rules. So the controls are means of gradients at perturbed
    models. The first round is FedSAM's. FL-Simulator
    (https://github.com/woodenchild95/FL-Simulator) has the same rule, with the number of steps of
    one client for all.

    Args:
      problem: the model and the loss.
      local: how a client trains: K_i steps with learning rate eta_l.
      rho: rho, at least 0, in the unit of the params; 0 is SCAFFOLD. The released commands have
        0.01.
      server_learning_rate: eta_g, above 0.
      weighting: weights of the mean delta: "uniform" or "examples" (proportional to n_i).
    """
    return scaffold(
        problem,
        local,
        perturbed(rho),
        server_learning_rate=server_learning_rate,
        weighting=weighting,
    )
