"""DiLoCo: workers keep their AdamW between rounds, and the server steps with Nesterov momentum.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023,
https://arxiv.org/abs/2311.08105.
"""

from typing import Literal

import optax

from fedjax_algos.algorithms.averaging.fedopt import fedavgm
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import Decay, NonNegative, Positive

OWN_OPTIMIZER = "its clients step with an optimiser of its own"
ONE_RATE = f"{OWN_OPTIMIZER} and divide the last update by one learning rate"


@algorithms.register
def diloco(
    problem: Problem,
    local: Local,
    *,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    weight_decay: NonNegative = 0.01,
    state: Literal["kept", "fresh"] = "kept",
    momentum: Decay = 0.9,
    server_learning_rate: Positive = 0.7,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """Clients run AdamW from x; the server: `v <- mu v + G`, `x <- x - eta (G + mu v)`.

    G is the mean of x - y_i. A client's moments and its count of steps go on from its last
    dispatch, while its model starts from x. The client learning rate is AdamW's; a rate that
    changes within a round is a schedule with `rate_by="step"`. `local.transform`, such as
    clipping, comes before AdamW. The state of a client is twice the model and a count, so use
    `client_state="host"` for many clients. With one dispatch in each server step (the planner
    immediate), this is asynchronous local SGD with momentum (https://arxiv.org/abs/2401.09135).

    Args:
      problem: the model and the loss.
      local: how a client trains.
      b1: beta_1 of AdamW, from 0 to below 1.
      b2: beta_2 of AdamW, from 0 to below 1.
      weight_decay: the decay of AdamW, at least 0: `y <- y - eta_l weight_decay y` in each step.
      state: "kept" as in the paper, or "fresh": each local update starts with moments of 0.
      momentum: mu, from 0 to below 1.
      server_learning_rate: eta, above 0.
      weighting: G's weights: "uniform" as in the paper, or "examples" (proportional to n_i).
    """
    adamw = optax.scale_by_adam(b1, b2), optax.add_decayed_weights(weight_decay)
    inner = optax.chain(local.transform, *adamw)
    train = local_training(problem, local)
    kept = state == "kept"

    def client_init(params, key):
        return inner.init(params) if kept else ()

    def client_update(x, row, data, dispatch, key):
        row = row if kept else None
        trained = train(x, data, dispatch, key, transform=inner, transform_state=row)
        delta = optax.tree.sub(x, trained.params)
        return trained.transform_state if kept else (), delta, trained.report

    frame = fedavgm(
        problem,
        local,
        beta=momentum,
        nesterov=True,
        server_learning_rate=server_learning_rate,
        weighting=weighting,
    )
    traits = frame.traits._replace(own_optimizer=OWN_OPTIMIZER)
    return frame._replace(client_init=client_init, client_update=client_update, traits=traits)
