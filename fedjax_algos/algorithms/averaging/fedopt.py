"""FedAvg with a server optimiser: FedAvgM, FedAdam, FedYogi, FedAdagrad and FedRMSProp.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295.
FedAvgM is Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", 2019, https://arxiv.org/abs/1909.06335. With G the mean of x - y_i, all of
them move their moments before they use them, and none corrects a bias.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting
from fedjax_algos.core.registry import Decay, NonNegative, Positive


class Moments(NamedTuple):
    first: Params  # m
    second: Params  # v


def scale_by_moments(
    second_moment: Callable[[jax.Array, jax.Array], jax.Array], b1, tau, initial_v
) -> optax.GradientTransformation:
    """`m <- b1 m + (1 - b1) G`, `v <- second_moment(v, G)`, direction `m / (sqrt(v) + tau)`."""

    def init(params):
        second = jax.tree.map(lambda p: jnp.full_like(p, initial_v), params)
        return Moments(optax.tree.zeros_like(params), second)

    def update(gradient, moments, params=None):
        del params
        first = optax.tree.update_moment(gradient, moments.first, b1, 1)
        second = jax.tree.map(second_moment, moments.second, gradient)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + tau), first, second)
        return direction, Moments(first, second)

    return optax.GradientTransformation(init, update)


def _adaptive(problem, local, rate, weighting, second_moment, b1, tau, initial_v):
    initial_v = tau**2 if initial_v is None else initial_v
    transform = scale_by_moments(second_moment, b1, tau, initial_v)
    return fedavg(
        problem,
        local,
        server_learning_rate=rate,
        weighting=weighting,
        server_transform=transform,
    )


@algorithms
def fedavgm(
    problem: Problem,
    local: Local,
    *,
    beta: Decay = 0.9,
    dampened: bool = False,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """Server momentum: `v <- beta v + G`, `x <- x - server_learning_rate v`, the first v being G.

    With `dampened`, `v <- beta v + (1 - beta) G` from v = 0: the server SGDm of the FedGBO paper's
    AdaptiveFedOpt, equal to the plain form at 1 / (1 - beta) times the rate.
    """
    momentum = optax.ema(beta, debias=False) if dampened else optax.trace(beta)
    return fedavg(
        problem,
        local,
        server_learning_rate=server_learning_rate,
        weighting=weighting,
        server_transform=momentum,
    )


@algorithms
def fedadam(
    problem: Problem,
    local: Local,
    *,
    b1: Decay = 0.9,
    b2: Decay = 0.99,
    tau: Positive = 1e-3,
    initial_v: NonNegative | None = None,
    server_learning_rate: Positive = 0.1,
    weighting: Weighting = "examples",
) -> Algorithm:
    """Server Adam: `v <- b2 v + (1 - b2) G^2`, `x <- x - server_learning_rate m / (sqrt(v) + tau)`.

    `initial_v` is tau^2 if None, as Reddi et al. start; the FedGBO paper's code starts at 1.
    """

    def second_moment(v, g):
        return b2 * v + (1 - b2) * g**2

    rate = server_learning_rate
    return _adaptive(problem, local, rate, weighting, second_moment, b1, tau, initial_v)


@algorithms
def fedyogi(
    problem: Problem,
    local: Local,
    *,
    b1: Decay = 0.9,
    b2: Decay = 0.99,
    tau: Positive = 1e-3,
    initial_v: NonNegative | None = None,
    server_learning_rate: Positive = 0.1,
    weighting: Weighting = "examples",
) -> Algorithm:
    """FedAdam with Yogi's second moment, `v <- v - (1 - b2) G^2 sign(v - G^2)`."""

    def second_moment(v, g):
        return v - (1 - b2) * g**2 * jnp.sign(v - g**2)

    rate = server_learning_rate
    return _adaptive(problem, local, rate, weighting, second_moment, b1, tau, initial_v)


@algorithms
def fedadagrad(
    problem: Problem,
    local: Local,
    *,
    b1: Decay = 0.0,
    tau: Positive = 1e-3,
    initial_v: NonNegative | None = None,
    server_learning_rate: Positive = 0.1,
    weighting: Weighting = "examples",
) -> Algorithm:
    """FedAdam with Adagrad's second moment, `v <- v + G^2`; b1 is 0 as in Reddi et al."""

    def second_moment(v, g):
        return v + g**2

    rate = server_learning_rate
    return _adaptive(problem, local, rate, weighting, second_moment, b1, tau, initial_v)


@algorithms
def fedrmsprop(
    problem: Problem,
    local: Local,
    *,
    beta: Decay = 0.9,
    tau: Positive = 1e-3,
    initial_v: NonNegative = 1.0,
    server_learning_rate: Positive = 0.1,
    weighting: Weighting = "examples",
) -> Algorithm:
    """Server RMSProp: `v <- beta v + (1 - beta) G^2`, `x <- x - rate G / (sqrt(v) + tau)`.

    The server RMSProp of the FedGBO paper's AdaptiveFedOpt, where v starts at 1.
    """

    def second_moment(v, g):
        return beta * v + (1 - beta) * g**2

    rate = server_learning_rate
    return _adaptive(problem, local, rate, weighting, second_moment, 0.0, tau, initial_v)
