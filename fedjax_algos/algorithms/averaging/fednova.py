"""FedNova: updates are divided by the work that they hold, so that unequal work is no bias.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", NeurIPS 2020, https://arxiv.org/abs/2007.07481.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting
from fedjax_algos.core.local_training import local_training
from fedjax_algos.core.registry import Decay, NonNegative, Positive
from fedjax_algos.core.trees import add_scaled, scale


class Upload(NamedTuple):
    direction: Params  # d_i = (x - y_i) / a_i
    work: jax.Array  # float[]: a_i, or the number of steps with a proximal term


def accumulated_weight(num_steps, learning_rate, momentum, mu):
    """a_i: how often each gradient counts in (x - y_i) / rate, summed over the gradients.

    `V <- momentum V + 1 - rate mu A`, `A <- A + V` in each step: the step count for plain SGD, the
    authors' recursions for momentum alone and for a proximal term alone, and exact for both.
    """

    def step(k, carry):
        del k
        total, velocity = carry
        velocity = momentum * velocity + 1 - learning_rate * mu * total
        return total + velocity, velocity

    zero = jnp.zeros((), jnp.result_type(learning_rate))
    total, _ = jax.lax.fori_loop(0, num_steps, step, (zero, zero))
    return total


@algorithms
def fednova(
    problem: Problem,
    local: Local,
    *,
    momentum: Decay = 0.0,
    mu: NonNegative = 0.0,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`d_i = (x - y_i) / a_i`; `x <- x - server_learning_rate tau_eff sum_i p_i d_i`.

    `tau_eff = sum_i p_i a_i`, or `sum_i p_i K_i` with a proximal term; p_i = n_i over the cohort's
    n. The local step is SGD with momentum (`v <- momentum v + g + mu (y - x)`, `y <- y - rate v`);
    a_i does not see `local.transform`.
    """
    transform = optax.chain(local.transform, optax.trace(momentum))
    train = local_training(problem, local)

    def client_update(x, state, data, visit, key):
        def proximal(gradient, local_params, step):
            del step
            return add_scaled(gradient, mu, optax.tree.sub(local_params, x))

        trained = train(x, data, visit, key, correct=proximal, transform=transform)
        a = accumulated_weight(visit.num_steps, visit.learning_rate, momentum, mu)
        # without a step there is no direction
        direction = scale(1 / jnp.where(a > 0, a, 1), optax.tree.sub(x, trained.params))
        work = jnp.where(mu > 0, visit.num_steps.astype(a.dtype), a)
        return state, Upload(direction, work), trained.report

    def server_update(server, sums, count, group):
        del count, group
        mean = sums.mean()
        factor = -server_learning_rate * mean.work  # tau_eff
        return server._replace(params=add_scaled(server.params, factor, mean.direction))

    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting=weighting)
    return frame._replace(client_update=client_update, server_update=server_update)
