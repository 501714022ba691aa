"""Optimisers as FedGBO needs them: an update that reads statistics and does not move them.

optax's own momentum, RMSProp and Adam move their moments first and step with the new ones (and its
Adam corrects their bias), so freezing optax's state gives another algorithm. These three step with
the OLD statistics.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.core import Params
from fedjax_algos.core.trees import add_scaled


class BiasedOptimizer(NamedTuple):
    """Three pure functions of the gradient g and the statistics s, and the initial statistics.

    `update` is the paper's U divided by the learning rate. For fixed s it is affine in g, and
    `inverse(update(g, s), s) == g`.
    """

    init: Callable[[Params], Any]  # x -> s
    update: Callable[[Params, Any], Params]  # (g, s) -> direction of the step
    track: Callable[[Params, Any], Any]  # (g, s) -> s
    inverse: Callable[[Params, Any], Params]  # (mean direction, s) -> mean g

    def transform(self) -> optax.GradientTransformation:
        """The same as an optax transformation, whose update reads the old statistics."""

        def update(gradient, statistics, params=None):
            del params
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
    """No statistics: `U = g`."""
    return BiasedOptimizer(
        init=lambda x: (),
        update=lambda g, s: g,
        track=lambda g, s: (),
        inverse=lambda d, s: d,
    )


def momentum(*, beta=0.9) -> BiasedOptimizer:
    """Plain momentum, not dampened: `U = m' = beta m + g`, `T: m <- m'`, m starts at 0."""
    return BiasedOptimizer(
        init=lambda x: SGDmStatistics(optax.tree.zeros_like(x)),
        update=lambda g, s: add_scaled(g, beta, s.m),
        track=lambda g, s: SGDmStatistics(add_scaled(g, beta, s.m)),
        inverse=lambda d, s: add_scaled(d, -beta, s.m),
    )


def sgdm(*, beta=0.9) -> BiasedOptimizer:
    """Dampened momentum: `U = m' = beta m + (1 - beta) g`, `T: m <- m'`, m starts at 0."""
    return BiasedOptimizer(
        init=lambda x: SGDmStatistics(optax.tree.zeros_like(x)),
        update=lambda g, s: optax.tree.update_moment(g, s.m, beta, 1),
        track=lambda g, s: SGDmStatistics(optax.tree.update_moment(g, s.m, beta, 1)),
        inverse=lambda d, s: jax.tree.map(lambda d, m: (d - beta * m) / (1 - beta), d, s.m),
    )


def rmsprop(*, beta=0.9, eps=1e-3) -> BiasedOptimizer:
    """`U = g / (sqrt(v) + eps)`, `T: v <- beta v + (1 - beta) g^2`, v starts at 1."""
    return BiasedOptimizer(
        init=lambda x: RMSPropStatistics(optax.tree.ones_like(x)),
        update=lambda g, s: jax.tree.map(lambda g, v: g / (jnp.sqrt(v) + eps), g, s.v),
        track=lambda g, s: RMSPropStatistics(optax.tree.update_moment(g, s.v, beta, 2)),
        inverse=lambda d, s: jax.tree.map(lambda d, v: d * (jnp.sqrt(v) + eps), d, s.v),
    )


def adam(*, b1=0.9, b2=0.99, eps=1e-3) -> BiasedOptimizer:
    """`U = (b1 m + (1 - b1) g) / (sqrt(v) + eps)`; m and v as above, no bias correction."""
    momentum, scaling = sgdm(beta=b1), rmsprop(beta=b2, eps=eps)
    return BiasedOptimizer(
        init=lambda x: AdamStatistics(momentum.init(x).m, scaling.init(x).v),
        update=lambda g, s: scaling.update(momentum.update(g, s), s),
        track=lambda g, s: AdamStatistics(momentum.track(g, s).m, scaling.track(g, s).v),
        inverse=lambda d, s: momentum.inverse(scaling.inverse(d, s), s),
    )


Name = Literal["sgdm", "rmsprop", "adam"]


def named(name: Name, *, beta, b2, eps) -> BiasedOptimizer:
    """One of the three by name; `beta` is SGDm's and RMSProp's decay, and Adam's b1."""
    return {
        "sgdm": lambda: sgdm(beta=beta),
        "rmsprop": lambda: rmsprop(beta=beta, eps=eps),
        "adam": lambda: adam(b1=beta, b2=b2, eps=eps),
    }[name]()


def frozen(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """`transform` with its state left as it was: every step reads the statistics of the first."""

    def update(gradient, state, params=None):
        direction, _ = transform.update(gradient, state, params)
        return direction, state

    return optax.GradientTransformation(transform.init, update)


def accumulate() -> optax.GradientTransformation:
    """The identity, with the sum of all gradients that it saw as its state."""

    def update(gradient, total, params=None):
        del params
        return gradient, optax.tree.add(total, gradient)

    return optax.GradientTransformation(optax.tree.zeros_like, update)
