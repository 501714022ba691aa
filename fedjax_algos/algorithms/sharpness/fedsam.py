"""FedSAM: clients run sharpness-aware minimisation.

Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", ICML 2022,
https://arxiv.org/abs/2206.02618.
"""

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.local_steps import Correction
from fedjax_algos.core.options import NonNegative, Positive
from fedjax_algos.core.trees import add_scaled, unit


def perturbed(rho) -> Correction:
    """Returns the correction from g(y) to `g(y + rho g(y) / |g(y)|)`, on the same batch."""

    def corrected(gradient, y, step):
        return step.gradient_at(add_scaled(y, rho, unit(gradient)))

    return corrected


@algorithms.register
def fedsam(
    problem: Problem,
    local: Local,
    *,
    rho: NonNegative = 0.1,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """FedAvg with the gradient `g(y + e)` for g(y), where `e = rho g(y) / |g(y)|`.

    The norm is over all arrays together. Both gradients are of the same batch with the same
    dropout, and e does not contain weight decay. FL-Simulator, the code of FedSpeed and FedSMOO
    (https://github.com/woodenchild95/FL-Simulator), adds 1e-7 to the norm and draws dropout twice.
    A step costs two gradients.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      rho: rho, at least 0, in the unit of the params; 0 is FedAvg.
      server_learning_rate: eta as in `fedavg`, above 0.
      weighting: the average's weights: "uniform" or "examples" (proportional to n_i).
    """
    return fedavg(
        problem,
        local,
        perturbed(rho),
        server_learning_rate=server_learning_rate,
        weighting=weighting,
    )
