"""FedGBO's optimisers: a step only reads the statistics, and `track` updates them.

Mills et al., https://arxiv.org/abs/2108.09134, Table II, as in the released code.

optax's RMSProp and Adam divide by the root of the NEW v (and its Adam corrects bias), so freezing
optax's state would not give Table II. Here a step reads the OLD m and v. m starts at 0 and v at 1;
eps is added to the root of v.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.core import Params
from fedjax_algos.core.algorithm import PartKinds
from fedjax_algos.core.trees import add_scaled

# the reason to refuse a client optimiser; see `Traits.requires_sgd`
OWN_OPTIMIZER = "its clients step with the server's optimiser, which the algorithm's options choose"


class ServerState(NamedTuple):
    params: Params  # x
    optimizer_statistics: Any  # s


class BiasedOptimizer(NamedTuple):
    """The initial statistics s, and three pure functions of s and a gradient or a direction.

    `update` is the paper's U divided by the learning rate. For fixed s it is affine in g, and
    `inverse(update(g, s), s) == g`.
    """

    init: Callable[[Params], Any]  # x -> s
    update: Callable[[Params, Any], Params]  # U: (g, s) -> direction of the step
    track: Callable[[Params, Any], Any]  # T: (g, s) -> s
    inverse: Callable[[Params, Any], Params]  # I: (mean direction, s) -> mean g
    parts: PartKinds = "count"  # the kind of each part of s, as in `Traits.broadcast`

    def transform(self) -> optax.GradientTransformation:
        """Returns an optax transformation whose update reads the old statistics."""

        def update(gradient, statistics, params=None):
            return self.update(gradient, statistics), self.track(gradient, statistics)

        return optax.GradientTransformation(self.init, update)


class SGDmStatistics(NamedTuple):
    m: Params


class RMSPropStatistics(NamedTuple):
    v: Params


class AdamStatistics(NamedTuple):
    m: Params
    v: Params


def sgd() -> BiasedOptimizer:
    """SGD, which has no statistics: `U = g`."""
    return BiasedOptimizer(
        init=lambda x: (),
        update=lambda g, s: g,
        track=lambda g, s: (),
        inverse=lambda d, s: d,
        parts=(),
    )


def momentum(*, beta=0.9) -> BiasedOptimizer:
    """Momentum without dampening: `U = m' = beta m + g`, `T: m <- m'`."""
    return BiasedOptimizer(
        init=lambda x: SGDmStatistics(optax.tree.zeros_like(x)),
        update=lambda g, s: add_scaled(g, beta, s.m),
        track=lambda g, s: SGDmStatistics(add_scaled(g, beta, s.m)),
        inverse=lambda d, s: add_scaled(d, -beta, s.m),
        parts=SGDmStatistics("vector"),
    )


def sgdm(*, beta=0.9) -> BiasedOptimizer:
    """Dampened momentum: `U = m' = beta m + (1 - beta) g`, `T: m <- m'`."""
    return BiasedOptimizer(
        init=lambda x: SGDmStatistics(optax.tree.zeros_like(x)),
        update=lambda g, s: optax.tree.update_moment(g, s.m, beta, 1),
        track=lambda g, s: SGDmStatistics(optax.tree.update_moment(g, s.m, beta, 1)),
        inverse=lambda d, s: jax.tree.map(lambda d, m: (d - beta * m) / (1 - beta), d, s.m),
        parts=SGDmStatistics("vector"),
    )


def rmsprop(*, beta=0.9, eps=1e-3) -> BiasedOptimizer:
    """`U = g / (sqrt(v) + eps)`, `T: v <- beta v + (1 - beta) g^2`."""
    return BiasedOptimizer(
        init=lambda x: RMSPropStatistics(optax.tree.ones_like(x)),
        update=lambda g, s: jax.tree.map(lambda g, v: g / (jnp.sqrt(v) + eps), g, s.v),
        track=lambda g, s: RMSPropStatistics(optax.tree.update_moment(g, s.v, beta, 2)),
        inverse=lambda d, s: jax.tree.map(lambda d, v: d * (jnp.sqrt(v) + eps), d, s.v),
        parts=RMSPropStatistics("moments"),
    )


def adam(*, b1=0.9, b2=0.99, eps=1e-3) -> BiasedOptimizer:
    """`U = (b1 m + (1 - b1) g) / (sqrt(v) + eps)`, without bias correction; T updates m and v."""
    momentum, scaling = sgdm(beta=b1), rmsprop(beta=b2, eps=eps)
    return BiasedOptimizer(
        init=lambda x: AdamStatistics(momentum.init(x).m, scaling.init(x).v),
        update=lambda g, s: scaling.update(momentum.update(g, s), s),
        track=lambda g, s: AdamStatistics(momentum.track(g, s).m, scaling.track(g, s).v),
        inverse=lambda d, s: momentum.inverse(scaling.inverse(d, s), s),
        parts=AdamStatistics("vector", "moments"),
    )


OptimizerName = Literal["sgdm", "rmsprop", "adam"]


def biased_optimizer(name: OptimizerName, *, beta, b2, eps) -> BiasedOptimizer:
    """Returns SGDm, RMSProp or Adam; beta is the decay of SGDm's m, RMSProp's v or Adam's m."""
    if name == "sgdm":
        return sgdm(beta=beta)
    return rmsprop(beta=beta, eps=eps) if name == "rmsprop" else adam(b1=beta, b2=b2, eps=eps)


def frozen(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """Keeps the state of a transformation constant: every step reads the first state."""

    def update(gradient, state, params=None):
        direction, _ = transform.update(gradient, state, params)
        return direction, state

    return optax.GradientTransformation(transform.init, update)


def sum_gradients() -> optax.GradientTransformation:
    """Returns the identity, with the sum of all gradients so far as its state."""

    def update(gradient, total, params=None):
        return gradient, optax.tree.add(total, gradient)

    return optax.GradientTransformation(optax.tree.zeros_like, update)
