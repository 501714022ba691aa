"""CA2FL: a buffer of updates is calibrated with the latest updates of all clients.

Wang et al., "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
Calibration", ICLR 2024, https://openreview.net/forum?id=4aywmeb97I.
"""

from fedjax_algos.algorithms.asynchronous.ace import ServerState, cached_updates, next_cached
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem
from fedjax_algos.core.options import Positive
from fedjax_algos.core.trees import add_scaled


@algorithms.register
def ca2fl(problem: Problem, local: Local, *, server_learning_rate: Positive = 1.0) -> Algorithm:
    """`x <- x - eta (h + mean (u_i - h_i))` over the buffer; then `h_i <- u_i`.

    h is the mean of all h_i, which start at 0, and u_i = x_i - y_i, where x_i is the model that the
    client received. In the paper the server keeps the h_i; here each client keeps its own and sends
    u_i - h_i, which has the same bytes. If a client is twice in a buffer, its second update is
    calibrated with its first. After lossy compression h follows what the server decoded, and the
    client's row what it sent.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      server_learning_rate: eta, above 0.
    """

    def server_update(server, sums, count, group):
        x = add_scaled(server.params, -server_learning_rate, server.cached)
        x = add_scaled(x, -server_learning_rate, sums.delta.mean())
        return ServerState(x, next_cached(server, sums), server.num_clients)

    return cached_updates(problem, local, "buffered")._replace(server_update=server_update)
