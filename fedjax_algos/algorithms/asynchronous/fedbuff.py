"""FedBuff: the server makes a step when a buffer of K updates is full.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022,
https://arxiv.org/abs/2106.06639, and its form in FedCompass (https://arxiv.org/abs/2309.14675).
"""

from typing import Literal

from fedjax_algos.algorithms.asynchronous.fedasync import StaleWeighting, fedasync
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Asynchrony, Local, Problem, Traits
from fedjax_algos.core.options import Positive, PositiveShare, Real
from fedjax_algos.core.trees import add_scaled


@algorithms.register
def fedbuff(
    problem: Problem,
    local: Local,
    *,
    alpha: PositiveShare = 0.9,
    exponent: Real = 0.5,
    server_learning_rate: Positive = 1.0,
    weighting: Literal["examples", "uniform", "buffer"] = "examples",
) -> Algorithm:
    """`w <- w - eta_g sum_i st(d_i) p_i (x_i - w_i)` over the K buffered updates.

    `st(d) = alpha (d + 1)^(-a)` as in `fedasync`; d_i is the number of server steps between the
    broadcast of x_i and the arrival. K is an option of the planner `buffered`.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      alpha: the weight of a fresh update, above 0 and at most 1.
      exponent: a, as in `fedasync`: below 0, stale updates have larger weights.
      server_learning_rate: eta_g, above 0.
      weighting: p_i. "examples" is n_i / n over ALL clients and "uniform" is 1/m, as in the
        FedCompass paper's comparison; "buffer" is 1/K, the original's mean.
    """
    stale_weighting: StaleWeighting = "examples" if weighting == "examples" else "uniform"
    frame = fedasync(problem, local, alpha=alpha, exponent=exponent, weighting=stale_weighting)

    def server_update(server, sums, count, group):
        divisor = count.astype(server.divisor.dtype) if weighting == "buffer" else server.divisor
        factor = -server_learning_rate / divisor
        return server._replace(params=add_scaled(server.params, factor, sums))

    traits = Traits(asynchrony=Asynchrony("buffered"))
    return frame._replace(server_update=server_update, traits=traits)
