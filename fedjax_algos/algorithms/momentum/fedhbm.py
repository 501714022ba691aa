"""FedHBM: heavy-ball momentum from the client's own last local model, without extra traffic.

Zaccone et al., "Communication-Efficient Heterogeneous Federated Learning with Generalized
Heavy-Ball Momentum", TMLR 2025, https://arxiv.org/abs/2311.18578.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedprox import proximal
from fedjax_algos.algorithms.momentum.localghbm import localghbm
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import NonNegative, Positive


class ClientState(NamedTuple):
    anchor: Params
    anchored: jax.Array  # bool[]: False before a first dispatch that has no anchor


@algorithms.register
def fedhbm(
    problem: Problem,
    local: Local,
    *,
    beta: NonNegative = 1.0,
    first: Literal["standard", "shared", "random", "pretrained"] = "standard",
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`y <- y - eta_l g + beta C / J_i (y - anchor)`, J_i times from theta; then FedAvg.

    The anchor is the client's own local model at the end of its previous local update, and C is the
    cohort's share of all clients (the paper's text has 1 / tau_i, its code and results C).

    Args:
      problem: the model and the loss.
      local: how a client trains: J_i steps with learning rate eta_l.
      beta: beta, the factor of the momentum, at least 0; 1 in the paper, 0 is FedAvg.
      first: the anchor at a client's first dispatch. "standard": none, the term is 0. "shared": the
        initial model, which clients can rebuild from its seed. "random": a new initialisation for
        each client. "pretrained": also the initial model, a pretrained one that all clients can
        fetch (`simulate(params=...)`). In the released code the last three have no effect; here the
        anchor holds for the whole first local update, as the paper describes it.
      server_learning_rate: eta, above 0; 1 in the paper.
      weighting: weights of the mean delta: "examples" (proportional to n_i) as in the released
        code, or "uniform".
    """
    train = local_training(problem, local)

    def client_init(params, key):
        anchor = problem.init(key).params if first == "random" else params
        return ClientState(anchor, jnp.asarray(first != "standard"))

    def client_update(broadcast, own, data, dispatch, key):
        x, participation = broadcast
        factor = beta * participation / jnp.maximum(dispatch.num_steps, 1) / dispatch.learning_rate
        factor = jnp.where(own.anchored, factor, 0)

        # g - factor (y - anchor)
        trained = train(x, data, dispatch, key, correct=proximal(-factor, own.anchor))
        own = ClientState(trained.params, jnp.asarray(True))
        return own, optax.tree.sub(x, trained.params), trained.report

    frame = localghbm(
        problem, local, server_learning_rate=server_learning_rate, weighting=weighting
    )
    return frame._replace(client_update=client_update, client_init=client_init)
