"""Training without federation, as a baseline: every client draws from the examples of all clients.

It is FedAvg (McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629) on pooled data.
"""

import numpy as np

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem, Traits
from fedjax_algos.core.options import Positive


@algorithms.register
def centralised(
    problem: Problem, local: Local, *, server_learning_rate: Positive = 1.0
) -> Algorithm:
    """`y_i <- y_i - eta_l g`, K times, g of the pooled examples; `x <- x - eta mean_i (x - y_i)`.

    Steps and traffic are as in FedAvg. With a cohort of one client this is plain SGD, K steps in a
    round. A cohort of M clients averages M runs on the pool every K steps, which is FedAvg without
    statistical heterogeneity.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      server_learning_rate: eta, above 0.
    """
    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting="uniform")

    def client_update(params, state, data, dispatch, key):
        pool = data._replace(offset=0, num_examples=np.int32(data.indices.shape[0]))
        return frame.client_update(params, state, pool, dispatch, key)

    return frame._replace(client_update=client_update, traits=Traits(pools_examples=True))
