"""Asynchronous SGD: the server takes each update as it comes, whatever its staleness.

Koloskova et al., "Sharper Convergence Guarantees for Asynchronous SGD for Distributed and Federated
Learning", NeurIPS 2022, https://nips.cc/virtual/2022/poster/53346.
"""

from fedjax_algos.algorithms.asynchronous.fedbuff import fedbuff
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Asynchrony, Local, Problem, Traits
from fedjax_algos.core.options import Positive


@algorithms.register
def asyncsgd(problem: Problem, local: Local, *, server_learning_rate: Positive = 1.0) -> Algorithm:
    """`x <- x - eta (x_i - y_i)` at each arrival, where client i has trained x_i to y_i.

    With a planner of several arrivals in a server step, it takes their mean: FedBuff without
    weights for staleness.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      server_learning_rate: eta, above 0.
    """
    frame = fedbuff(
        problem,
        local,
        alpha=1.0,
        exponent=0.0,
        server_learning_rate=server_learning_rate,
        weighting="buffer",
    )
    return frame._replace(traits=Traits(asynchrony=Asynchrony("immediate")))
