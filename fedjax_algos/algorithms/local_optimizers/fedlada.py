"""FedLADA: local Adam-like steps, amended by the global update.

Sun et al., "Efficient Federated Learning via Local Adaptive Amended Optimizer with Linear Speedup",
2023, https://arxiv.org/abs/2308.00522.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.local_optimizers.fedadamw import Steps, moments_of_server
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem
from fedjax_algos.core.options import Decay, Positive
from fedjax_algos.core.trees import add_scaled, scale


@algorithms.register
def fedlada(
    problem: Problem,
    local: Local,
    *,
    gamma: Decay = 0.9,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    epsilon: Positive = 1e-8,
    server_learning_rate: Positive = 1.0,
) -> Algorithm:
    """`y <- y - eta_l (1 - gamma) m / (sqrt(v) + epsilon) - gamma G / K_i`; `x <- x - eta G`.

    G is the mean of x - y_i, which clients receive one round later. m starts at 0 in each local
    update and v at the mean of the clients' last v; neither is corrected for its bias. In the first
    round v starts at 0, so the first step has the length 3.16 eta_l (1 - gamma) in each entry.

    We know no code of the authors. This is the rule of FedAdamW's baseline
    (https://github.com/junkangLiu0/FedAdamW), which also multiplies G by this round's rate over the
    last round's, and has an L2 term, `--weight-decay` here. The paper's rule may differ: other code
    keeps the largest v, as AMSGrad does.

    Args:
      problem: the model and the loss.
      local: how a client trains: K_i steps with learning rate eta_l.
      gamma: gamma, the weight of the last update, from 0 to below 1.
      b1: beta_1, from 0 to below 1.
      b2: beta_2, from 0 to below 1.
      epsilon: epsilon, above 0, in the unit of the gradient.
      server_learning_rate: eta, above 0.
    """

    def steps(server, dispatch):
        work = dispatch.learning_rate * jnp.maximum(dispatch.num_steps, 1)  # eta_l K_i
        pull = scale(gamma / work, server.update)

        def update(gradient, state, params):
            m = optax.tree.update_moment(gradient, state.first, b1, 1)
            v = optax.tree.update_moment(gradient, state.second, b2, 2)
            step = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), m, v)
            return add_scaled(pull, 1 - gamma, step), Steps(state.number + 1, m, v)

        return optax.GradientTransformation(lambda params: (), update)

    return moments_of_server(problem, local, steps, server_learning_rate=server_learning_rate)
