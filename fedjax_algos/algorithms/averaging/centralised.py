"""Training without federation, as a baseline: every client draws from all examples."""

import numpy as np

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem
from fedjax_algos.core.registry import Positive


@algorithms
def centralised(
    problem: Problem, local: Local, *, server_learning_rate: Positive = 1.0
) -> Algorithm:
    """SGD on the pool of all clients' examples, with the work and the traffic of FedAvg.

    With a cohort of one this is plain SGD, K steps a round. A larger cohort averages as many runs
    on the pool every K steps: FedAvg if its data were not heterogeneous at all.
    """
    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting="uniform")

    def client_update(params, state, data, visit, key):
        pool = data._replace(offset=0, num_examples=np.int32(data.indices.shape[0]))
        return frame.client_update(params, state, pool, visit, key)

    return frame._replace(client_update=client_update)
