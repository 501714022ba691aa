"""FADAS: FedBuff's mean goes through AMSGrad, with a rate that falls with the largest staleness.

Wang et al., "FADAS: Towards Federated Adaptive Asynchronous Optimization", ICML 2024,
https://arxiv.org/abs/2407.18365.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Asynchrony, Local, Params, Problem, Traits, WeightedSum
from fedjax_algos.core.options import Decay, NonNegative, Positive

_BINS = 64  # of the histogram of the staleness; the last one has all larger values


class ServerState(NamedTuple):
    params: Params  # x
    first: Params  # m
    second: Params  # v
    largest: Params  # vmax
    steps: jax.Array  # int32[]


class Sums(NamedTuple):
    delta: WeightedSum  # of x_i - y_i
    staleness: jax.Array  # int32[64]: how many updates have each staleness


@algorithms.register
def fadas(
    problem: Problem,
    local: Local,
    *,
    b1: Decay = 0.9,
    b2: Decay = 0.99,
    epsilon: Positive = 1e-8,
    delay: NonNegative = 1.0,
    debias: bool = True,
    server_learning_rate: Positive = 1e-3,
) -> Algorithm:
    """`x <- x - r m / (sqrt(vmax) + epsilon)`.

    `m <- b1 m + (1 - b1) G` and `v <- b2 v + (1 - b2) G^2`, both from 0. G is the buffer's mean of
    x_i - y_i, and vmax the largest v so far in each entry. r is eta, or eta / tau_max if the
    buffer's largest staleness tau_max is above tau_c, as in the released code
    (https://github.com/yujiaw98/FADAS). A staleness above 63 counts as 63. The released code
    corrects the bias of m and vmax; the paper's algorithm does not. There, new clients also start
    from other models than those that their updates are measured from; here both are the same.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      b1: beta_1, from 0 to below 1.
      b2: beta_2, from 0 to below 1.
      epsilon: epsilon, above 0, in the unit of G.
      delay: tau_c, at least 0, in server steps; a large one keeps the rate at eta.
      debias: whether m is divided by 1 - b1^t and vmax by 1 - b2^t in server step t, from 1.
      server_learning_rate: eta, above 0.
    """
    frame = fedavg(problem, local, weighting="uniform")

    def init(params, population):
        zeros = optax.tree.zeros_like(params)
        return ServerState(params, zeros, zeros, zeros, jnp.int32(0))

    def contribute(update, dispatch, staleness):
        one = (jnp.arange(_BINS) == jnp.minimum(staleness, _BINS - 1)).astype(jnp.int32)
        return Sums(frame.contribute(update, dispatch, staleness), one)

    def server_update(server, sums, count, group):
        delta, t = sums.delta.mean(), server.steps + 1
        m = optax.tree.update_moment(delta, server.first, b1, 1)
        v = optax.tree.update_moment(delta, server.second, b2, 2)
        largest = jax.tree.map(jnp.maximum, server.largest, v)
        oldest = jnp.where(sums.staleness > 0, jnp.arange(_BINS), 0).max()
        slow = jnp.minimum(1, 1 / jnp.maximum(oldest, 1).astype(float))
        rate = server_learning_rate * jnp.where(oldest > delay, slow, 1)
        first, second = (1 - b**t if debias else 1.0 for b in (b1, b2))

        def moved(x, m, v):
            step = m / first / (jnp.sqrt(v / second) + epsilon)
            return (x - rate.astype(x.dtype) * step).astype(x.dtype)

        x = jax.tree.map(moved, server.params, m, largest)
        return ServerState(x, m, v, largest, t)

    return frame._replace(
        init=init,
        contribute=contribute,
        server_update=server_update,
        traits=Traits(asynchrony=Asynchrony("buffered")),
    )
