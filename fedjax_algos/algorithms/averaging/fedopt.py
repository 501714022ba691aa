"""FedAvg with a server optimiser: FedAvgM, FedAdam, FedYogi, FedAdagrad and FedRMSProp.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295.
FedAvgM is Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", 2019, https://arxiv.org/abs/1909.06335.

G is the mean of the deltas x - y_i. All five update their moments before they use them, and none
corrects the moments' bias.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm, Local, Params, Problem, Weighting
from fedjax_algos.core.optimizers import trusted
from fedjax_algos.core.options import Decay, NonNegative, Positive

SecondMoment = Callable[[jax.Array, jax.Array], jax.Array]  # (v, G) -> v, leaf by leaf


class Moments(NamedTuple):
    first: Params  # m
    second: Params  # v


def scale_by_moments(
    second_moment: SecondMoment, b1, tau, initial_v
) -> optax.GradientTransformation:
    """`m <- b1 m + (1 - b1) G`, `v <- second_moment(v, G)`, direction `m / (sqrt(v) + tau)`."""

    def init(params):
        second = jax.tree.map(lambda p: jnp.full_like(p, initial_v), params)
        return Moments(optax.tree.zeros_like(params), second)

    def update(gradient, moments, params=None):
        first = optax.tree.update_moment(gradient, moments.first, b1, 1)
        second = jax.tree.map(second_moment, moments.second, gradient)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + tau), first, second)
        return direction, Moments(first, second)

    return optax.GradientTransformation(init, update)


def _adaptive(problem, local, next_v, b1, tau, initial_v, server_learning_rate, weighting):
    initial_v = tau * tau if initial_v is None else initial_v
    return fedavg(
        problem,
        local,
        server_learning_rate=server_learning_rate,
        weighting=weighting,
        server_transform=trusted(scale_by_moments(next_v, b1, tau, initial_v)),
    )


@algorithms.register
def fedavgm(
    problem: Problem,
    local: Local,
    *,
    beta: Decay = 0.9,
    dampened: bool = False,
    nesterov: bool = False,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
) -> Algorithm:
    """Server momentum: `v <- beta v + G` from v = 0, `x <- x - eta v`.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      beta: beta, from 0 to below 1; 0 is FedAvg.
      dampened: `v <- beta v + (1 - beta) G` instead, the server SGDm of the FedGBO paper's
        AdaptiveFedOpt. With 1 / (1 - beta) times the rate it equals the plain form.
      nesterov: `x <- x - eta (G + beta v)` instead, as in DiLoCo's outer optimiser and in torch.
        The dampened form has no such step.
      server_learning_rate: eta, above 0.
      weighting: G's weights: "examples" (proportional to n_i) or "uniform".

    Raises:
      ValueError: if both `dampened` and `nesterov` are true.
    """
    both = dampened and nesterov
    require(not both, "fedavgm: nesterov=true needs dampened=false; give one of them")
    momentum = optax.ema(beta, debias=False) if dampened else optax.trace(beta, nesterov)
    return fedavg(
        problem,
        local,
        server_learning_rate=server_learning_rate,
        weighting=weighting,
        server_transform=trusted(momentum),
    )


@algorithms.register
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
    """Server Adam: `v <- beta_2 v + (1 - beta_2) G^2`, `x <- x - eta m / (sqrt(v) + tau)`.

    `m <- beta_1 m + (1 - beta_1) G` from m = 0.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      b1: beta_1, the decay of m, from 0 to below 1.
      b2: beta_2, the decay of v, from 0 to below 1.
      tau: tau, the degree of adaptivity, above 0, in units of G.
      initial_v: the first v, at least 0, in units of G^2. None is tau^2, as in Reddi et al.; the
        FedGBO paper's code starts at 1.
      server_learning_rate: eta, above 0.
      weighting: G's weights: "examples" (proportional to n_i) or "uniform".
    """

    def next_v(v, g):
        return b2 * v + (1 - b2) * g**2

    return _adaptive(problem, local, next_v, b1, tau, initial_v, server_learning_rate, weighting)


@algorithms.register
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
    """FedAdam with Yogi's second moment, `v <- v - (1 - beta_2) G^2 sign(v - G^2)`.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      b1: beta_1, the decay of m, from 0 to below 1.
      b2: beta_2, from 0 to below 1; v follows G^2 at the rate 1 - beta_2.
      tau: tau as in `fedadam`, above 0.
      initial_v: the first v as in `fedadam`, at least 0; None is tau^2.
      server_learning_rate: eta, above 0.
      weighting: G's weights: "examples" (proportional to n_i) or "uniform".
    """

    def next_v(v, g):
        return v - (1 - b2) * g**2 * jnp.sign(v - g**2)

    return _adaptive(problem, local, next_v, b1, tau, initial_v, server_learning_rate, weighting)


@algorithms.register
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
    """FedAdam with Adagrad's second moment, `v <- v + G^2`.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      b1: beta_1, the decay of m, from 0 to below 1; 0 in Reddi et al.
      tau: tau as in `fedadam`, above 0.
      initial_v: the first v as in `fedadam`, at least 0; None is tau^2.
      server_learning_rate: eta, above 0.
      weighting: G's weights: "examples" (proportional to n_i) or "uniform".
    """

    def next_v(v, g):
        return v + g**2

    return _adaptive(problem, local, next_v, b1, tau, initial_v, server_learning_rate, weighting)


@algorithms.register
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
    """Server RMSProp: `v <- beta v + (1 - beta) G^2`, `x <- x - eta G / (sqrt(v) + tau)`.

    It is the server RMSProp of the FedGBO paper's AdaptiveFedOpt.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      beta: beta, the decay of v, from 0 to below 1.
      tau: epsilon in the FedGBO paper, above 0, in units of G.
      initial_v: the first v, at least 0, in units of G^2; 1 in the FedGBO paper's code.
      server_learning_rate: eta, above 0.
      weighting: G's weights: "examples" (proportional to n_i) or "uniform".
    """

    def next_v(v, g):
        return beta * v + (1 - beta) * g**2

    return _adaptive(problem, local, next_v, 0.0, tau, initial_v, server_learning_rate, weighting)
