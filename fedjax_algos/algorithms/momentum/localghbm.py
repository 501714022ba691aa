"""LocalGHBM: GHBM with the model that a client received last in place of a past model.

Zaccone et al., "Communication-Efficient Heterogeneous Federated Learning with Generalized
Heavy-Ball Momentum", TMLR 2025, https://arxiv.org/abs/2311.18578.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Traits, Weighting, trees
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import Decay, Positive

# see `Traits.requires_sgd`
DISPLACEMENT = "its momentum moves the model by a given amount, which an optimiser would change"


class ServerState(NamedTuple):
    params: Params  # theta^t
    participation: Any  # float[]: C


class ClientState(NamedTuple):
    anchor: Params  # the global model received at the last dispatch
    last_round: jax.Array  # int32[]: the round of that dispatch; -1 before the first


@algorithms.register
def localghbm(
    problem: Problem,
    local: Local,
    *,
    beta: Decay = 0.9,
    scale: Literal["participation", "gap"] = "participation",
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`y <- y - eta_l g + beta C / J_i (theta^{t-1} - anchor)`, J_i times from theta; then FedAvg.

    The anchor is the global model that the client received at its previous dispatch; at the first
    dispatch the term is 0. The server broadcasts C with the model.

    Args:
      problem: the model and the loss.
      local: how a client trains: J_i steps with learning rate eta_l.
      beta: beta, the factor of the momentum, from 0 to below 1; 0 is FedAvg.
      scale: "participation" is C, the cohort's share of all clients, as in the released code and so
        in the paper's results; "gap" is 1 / tau_i as in the paper's text, where tau_i is the number
        of rounds since the client's previous dispatch.
      server_learning_rate: eta, above 0; 1 in the paper.
      weighting: weights of the mean delta: "examples" (proportional to n_i) as in the released
        code, or "uniform".
    """
    train = local_training(problem, local)

    def init(params, population):
        share = population.cohort_size / population.num_clients
        return ServerState(params, jnp.asarray(share, float))

    def client_init(params, key):
        return ClientState(params, jnp.int32(-1))

    def client_update(broadcast, own, data, dispatch, key):
        x, participation = broadcast
        gap = jnp.maximum(dispatch.server_step - own.last_round, 1)  # tau_i
        factor = participation if scale == "participation" else 1.0 / gap
        factor = beta * factor / jnp.maximum(dispatch.num_steps, 1)
        factor = jnp.where(own.last_round >= 0, factor, 0)
        term = trees.scale(factor / dispatch.learning_rate, optax.tree.sub(own.anchor, x))

        def corrected(gradient, local_params, step):
            return jax.tree.map(jnp.add, gradient, term)

        trained = train(x, data, dispatch, key, correct=corrected)
        own = ClientState(x, dispatch.server_step)
        return own, optax.tree.sub(x, trained.params), trained.report

    def server_update(server, sums, count, group):
        params = trees.add_scaled(server.params, -server_learning_rate, sums.mean())
        return server._replace(params=params)

    frame = fedavg(problem, local, weighting=weighting)
    return frame._replace(
        init=init,
        broadcast=lambda server, group: server,
        client_update=client_update,
        server_update=server_update,
        client_init=client_init,
        traits=Traits(broadcast=ServerState("model", "count"), requires_sgd=DISPLACEMENT),
    )
