"""FedBuff: the server steps when a buffer of K updates is full.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022,
https://arxiv.org/abs/2106.06639, and its form in FedCompass (https://arxiv.org/abs/2309.14675).
"""

from typing import Annotated, Literal

from fedjax_algos.algorithms.asynchronous.fedasync import fedasync
from fedjax_algos.algorithms.asynchronous.staleness import Share, stale_share
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem
from fedjax_algos.core.registry import NonNegative, Positive, Range
from fedjax_algos.core.trees import add_scaled


@algorithms
def fedbuff(
    problem: Problem,
    local: Local,
    *,
    alpha: Annotated[float, Range(0, 1, low_open=True)] = 0.9,
    exponent: NonNegative = 0.5,
    server_learning_rate: Positive = 1.0,
    weighting: Literal["examples", "uniform", "buffer"] = "examples",
) -> Algorithm:
    """`w <- w - server_learning_rate sum_i st(d_i) p_i (x_i - w_i)` over the K buffered updates.

    st is FedAsync's, with d_i at the arrival. K belongs to the schedule (`buffered`). p_i is n_i
    over ALL clients' n ("examples") or 1/m ("uniform"), as FedCompass compares it, or 1/K
    ("buffer"), the original's mean.
    """
    share: Share = "examples" if weighting == "examples" else "uniform"
    frame = fedasync(problem, local, weighting=share)

    def server_update(server, sums, count, group):
        del group
        divisor = count.astype(server.divisor.dtype) if weighting == "buffer" else server.divisor
        factor = -server_learning_rate / divisor
        return server._replace(params=add_scaled(server.params, factor, sums.total))

    return frame._replace(
        server_update=server_update, contribute=stale_share(alpha, exponent, share)
    )
