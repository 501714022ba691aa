"""FedNova: divides each delta by its amount of work, so that unequal work causes no bias.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", NeurIPS 2020, https://arxiv.org/abs/2007.07481.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.averaging.fedprox import proximal
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Traits, Weighting
from fedjax_algos.core.local_steps import local_training, repeat
from fedjax_algos.core.options import Decay, NonNegative, Positive
from fedjax_algos.core.trees import add_scaled, scale


class Upload(NamedTuple):
    direction: Params  # d_i = (x - y_i) / a_i
    work: Any  # float[]: a_i, or the number of steps if there is a proximal term


def accumulated_weight(num_steps, learning_rate, momentum, mu, most=None) -> jax.Array:
    """Computes a_i, the sum of the gradients' weights in (x - y_i) / eta_l, float[].

    `V <- rho V + 1 - eta_l mu A`, `A <- A + V` in each step. This equals the number of steps for
    plain SGD and the authors' recursions for momentum alone or a proximal term alone, and is exact
    for both together.
    """

    def step(k, carry):
        total, velocity = carry
        velocity = momentum * velocity + 1 - learning_rate * mu * total
        return total + velocity, velocity

    zero = jnp.zeros((), jnp.result_type(learning_rate))
    total, _ = repeat(step, num_steps, (zero, zero), most)
    return total


@algorithms.register
def fednova(
    problem: Problem,
    local: Local,
    *,
    momentum: Decay = 0.0,
    mu: NonNegative = 0.0,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """`d_i = (x - y_i) / a_i`; `x <- x - eta tau_eff sum_i p_i d_i`.

    `tau_eff = sum_i p_i a_i`, or `sum_i p_i tau_i` with a proximal term, where tau_i is the number
    of local steps. The local step is `v <- rho v + g + mu (y - x)`, `y <- y - eta_l v`. a_i ignores
    `local.transform`.

    Args:
      problem: the model and the loss.
      local: how a client trains: tau_i steps with learning rate eta_l.
      momentum: rho, from 0 to below 1.
      mu: mu, the factor of the proximal term, at least 0.
      server_learning_rate: eta, above 0; 1 in the paper.
      weighting: p_i over the cohort: "examples" is proportional to n_i, "uniform" is equal.
    """
    transform = optax.chain(local.transform, optax.trace(momentum))
    train = local_training(problem, local)
    most = local.reverse and local.reverse.max_steps

    def client_update(x, state, data, dispatch, key):
        trained = train(x, data, dispatch, key, correct=proximal(mu, x), transform=transform)
        a = accumulated_weight(dispatch.num_steps, dispatch.learning_rate, momentum, mu, most)
        # a is 0 for a client without steps, and so is its delta
        direction = scale(1 / jnp.where(a > 0, a, 1), optax.tree.sub(x, trained.params))
        work = jnp.where(mu > 0, dispatch.num_steps.astype(a.dtype), a)
        return state, Upload(direction, work), trained.report

    def server_update(server, sums, count, group):
        mean = sums.mean()
        factor = -server_learning_rate * mean.work  # tau_eff
        return server._replace(params=add_scaled(server.params, factor, mean.direction))

    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting=weighting)
    reason = "its a_i is computed for steps along the gradient or its own option momentum"
    traits = Traits(Upload("vector", "count"), requires_sgd=reason)
    return frame._replace(client_update=client_update, server_update=server_update, traits=traits)
