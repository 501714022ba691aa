"""ACE: each arrival moves the model along the mean of all clients' latest updates.

Chang et al., "Mitigating Participation Imbalance Bias in Asynchronous Federated Learning", 2025,
https://arxiv.org/abs/2511.19066.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.control_variates.feddyn import Sums
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Asynchrony, Local, Params, Problem, Traits
from fedjax_algos.core.options import Positive
from fedjax_algos.core.trees import add_scaled


class ServerState(NamedTuple):
    params: Params  # x
    cached: Params  # h, the mean of all h_i
    num_clients: jax.Array  # float[]: N


def cached_updates(problem: Problem, local: Local, planner: str) -> Algorithm:
    """The frame of rules with the client's last update h_i as its row; it sends the change of h_i.

    So the server keeps one vector, and not one for each client.
    """
    frame = fedavg(problem, local, weighting="uniform")

    def init(params, population):
        num_clients = jnp.asarray(population.num_clients, float)
        return ServerState(params, optax.tree.zeros_like(params), num_clients)

    def client_update(x, h_i, data, dispatch, key):
        _, delta, report = frame.client_update(x, (), data, dispatch, key)
        return delta, optax.tree.sub(delta, h_i), report

    return frame._replace(
        init=init,
        client_update=client_update,
        contribute=lambda *arguments: Sums(frame.contribute(*arguments)),
        client_init=lambda params, key: optax.tree.zeros_like(params),  # h_i
        traits=Traits("vector", asynchrony=Asynchrony(planner)),
    )


def next_cached(server: ServerState, sums: Sums) -> Params:
    """Returns `h + (1/N) sum (u_i - h_i)`."""
    return add_scaled(server.cached, 1 / server.num_clients, sums.delta.total)


@algorithms.register
def ace(problem: Problem, local: Local, *, server_learning_rate: Positive = 1.0) -> Algorithm:
    """`h_i <- x_i - y_i` at the arrival of client i, `x <- x - eta h` with the mean h of all h_i.

    x_i is the model that the client received. The h_i start at 0, and no first pass over all
    clients fills them. The paper has one gradient for each dispatch, this any number of steps.
    After lossy compression h follows what the server decoded, and the client's row what it sent.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      server_learning_rate: eta, above 0.
    """

    def server_update(server, sums, count, group):
        h = next_cached(server, sums)
        return ServerState(
            add_scaled(server.params, -server_learning_rate, h), h, server.num_clients
        )

    return cached_updates(problem, local, "immediate")._replace(server_update=server_update)
