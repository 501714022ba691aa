"""Weights of stale updates, and the sums that asynchronous algorithms share."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.core import Dispatch, Params, Update
from fedjax_algos.core.trees import scale

StaleWeighting = Literal["examples", "uniform"]  # p_i: n_i / n over ALL clients, or 1/m


class StaleSum(NamedTuple):
    """`sum_i st(d_i) p_i update_i`; with "uniform" weighting the factor 1/m is left out."""

    total: Params


def staleness_weight(staleness: jax.Array, alpha, exponent) -> jax.Array:
    """Returns `alpha (d + 1)^(-exponent)`, float[...], for a staleness d in server steps."""
    return alpha * (1.0 + staleness) ** (-exponent)


def weighted_by_staleness(
    alpha, exponent, weighting: StaleWeighting
) -> Callable[[Update, Dispatch, jax.Array], StaleSum]:
    """Returns a `contribute` with the weight `st(d_i) p_i`; p_i is 1 if weighted "uniform".

    The p_i are not renormalised in a group: a group moves the model only by its share of all
    clients. The server divides the sum by `weight_divisor`.
    """

    def contribute(update, dispatch, staleness):
        share = dispatch.share if weighting == "examples" else jnp.ones_like(dispatch.share)
        weight = staleness_weight(staleness.astype(share.dtype), alpha, exponent) * share
        return StaleSum(scale(weight, update))

    return contribute


def weight_divisor(weighting: StaleWeighting, num_clients: int) -> jax.Array:
    """Returns the divisor of a `StaleSum`, float[]: m if p_i is 1/m ("uniform"), else 1."""
    return jnp.asarray(num_clients if weighting == "uniform" else 1, float)
