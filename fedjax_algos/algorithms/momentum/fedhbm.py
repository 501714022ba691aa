"""FedHBM: heavy-ball momentum from the client's own last local model; nothing more is sent.

Zaccone et al., "Communication-Efficient Heterogeneous Federated Learning with Generalized
Heavy-Ball Momentum", TMLR 2025, https://arxiv.org/abs/2311.18578.
"""

from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.momentum.localghbm import localghbm
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting
from fedjax_algos.core.local_training import local_training
from fedjax_algos.core.registry import Positive, Range


class ClientState(NamedTuple):
    anchor: Params
    anchored: jax.Array  # bool[]: False before a first turn without an anchor


@algorithms
def fedhbm(
    problem: Problem,
    local: Local,
    *,
    beta: Annotated[float, Range(0)] = 1.0,
    first: Literal["standard", "shared", "random", "pretrained"] = "standard",
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`y <- y - rate g + beta C / K_i (y - anchor)`, K_i times with y before the step; then FedAvg.

    The anchor is the client's own local model at the end of its last turn, C the cohort's share of
    all clients (the paper's text has 1 / tau_i, its code and results C).

    Args:
      problem: what is learned.
      local: how a client trains.
      beta: 1 in the paper.
      first: the anchor of a client's first turn. "standard": none, the term is 0. "shared": the
        initial model, which clients can rebuild from its seed. "random": a fresh initialisation
        of the client's own. "pretrained": the initial model too, where it is a pretrained one that
        all clients can fetch (`simulate(params=...)`). In the released code the last three do
        nothing; here the anchor holds for the whole first turn, as the paper means it.
      server_learning_rate: 1 in the paper.
      weighting: "examples" as in the released code, or "uniform".
    """
    train = local_training(problem, local)

    def client_init(params, key):
        anchor = problem.init(key).params if first == "random" else params
        return ClientState(anchor, jnp.asarray(first != "standard"))

    def client_update(broadcast, own, data, visit, key):
        x, participation = broadcast
        factor = beta * participation / jnp.maximum(visit.num_steps, 1) / visit.learning_rate
        factor = jnp.where(own.anchored, factor, 0)

        def corrected(gradient, local_params, step):
            del step
            return jax.tree.map(
                lambda g, y, a: g - factor.astype(g.dtype) * (y - a),
                gradient,
                local_params,
                own.anchor,
            )

        trained = train(x, data, visit, key, correct=corrected)
        own = ClientState(trained.params, jnp.asarray(True))
        return own, optax.tree.sub(x, trained.params), trained.report

    frame = localghbm(
        problem, local, server_learning_rate=server_learning_rate, weighting=weighting
    )
    return frame._replace(client_update=client_update, client_init=client_init)
