"""FedLESAM: the perturbation is the last move of the global model, so a step costs one gradient.

Fan et al., "Locally Estimated Global Perturbations are Better than Local Perturbations for
Federated Sharpness-aware Minimization", ICML 2024, https://arxiv.org/abs/2405.18890.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.control_variates.feddyn import feddyn
from fedjax_algos.algorithms.control_variates.scaffold import scaffold
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem
from fedjax_algos.core.local_steps import Correction, uncorrected
from fedjax_algos.core.options import NonNegative, Positive
from fedjax_algos.core.trees import scale, unit


class ClientState(NamedTuple):
    last: Params  # x_old, the model that the client received last
    received: jax.Array  # bool[]: whether there was one
    row: Any  # c_i or h_i of the variant


@algorithms.register
def fedlesam(
    problem: Problem,
    local: Local,
    *,
    rho: NonNegative = 0.1,
    variant: Literal["plain", "scaffold", "feddyn"] = "plain",
    alpha: Positive = 0.1,
    server_learning_rate: Positive = 1.0,
) -> Algorithm:
    """`y <- y - eta_l g(y + e)` with the constant `e = rho (x_old - x) / |x_old - x|`.

    x_old is the model that this client received at its previous dispatch; e = 0 at its first one.
    The released code (https://github.com/MediaBrain-SJTU/FedLESAM) takes the server's last move
    instead, which is the same if all clients take part. Its move is one flat vector that it indexes
    by the number of the array, so each array is shifted by one number; this is the paper's rule.

    Args:
      problem: the model and the loss.
      local: how a client trains, with learning rate eta_l.
      rho: rho, at least 0: the length of e, in the unit of the params; 0 is the variant's frame.
      variant: the frame: FedAvg with equal weights ("plain"), SCAFFOLD (FedLESAM-S) or FedDyn
        (FedLESAM-D).
      alpha: FedDyn's alpha, for the variant "feddyn".
      server_learning_rate: eta_g, above 0, for the variants "plain" and "scaffold".
    """
    rate = {"server_learning_rate": server_learning_rate}

    def frame_of(first: Correction) -> Algorithm:
        if variant == "feddyn":
            return feddyn(problem, local, first, alpha=alpha)
        frame = scaffold if variant == "scaffold" else fedavg
        return frame(problem, local, first, weighting="uniform", **rate)

    frame = frame_of(uncorrected)

    def client_init(params, key):
        return ClientState(params, jnp.zeros((), bool), frame.client_init(params, key))

    def client_update(broadcast, state, data, dispatch, key):
        x = broadcast.params if variant == "scaffold" else broadcast
        move = unit(optax.tree.sub(state.last, x))
        e = scale(jnp.where(state.received, rho, 0), move)

        def displaced(gradient, y, step):
            return step.gradient_at(optax.tree.add(y, e))

        update = frame_of(displaced).client_update
        row, sent, report = update(broadcast, state.row, data, dispatch, key)
        return ClientState(x, jnp.ones((), bool), row), sent, report

    return frame._replace(client_init=client_init, client_update=client_update)
