"""How much a stale update counts, and the sums that asynchronous methods share."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.core import Params, Update, Visit
from fedjax_algos.core.trees import scale

Share = Literal["examples", "uniform"]


def polynomial(staleness: jax.Array, alpha, exponent) -> jax.Array:
    """`st(d) = alpha (d + 1)^(-exponent)`: alpha when fresh, falling with every server step."""
    return alpha * (1.0 + staleness) ** (-exponent)


class StaleSum(NamedTuple):
    """`sum_i st(d_i) p_i update_i`, where p_i still misses the 1/m if it is "uniform"."""

    total: Params


def stale_share(
    alpha, exponent, weighting: Share
) -> Callable[[Update, Visit, jax.Array], StaleSum]:
    """A `contribute` with the weight st(d) p_i; p_i = n_i / n over ALL clients, or 1 (see above).

    The p_i are not renormalised in a group, so a group moves the model by its part only.
    """

    def contribute(update, visit, staleness):
        share = visit.share if weighting == "examples" else jnp.ones_like(visit.share)
        weight = polynomial(staleness.astype(share.dtype), alpha, exponent) * share
        return StaleSum(scale(weight, update))

    return contribute


def clients_in(weighting: Share, num_clients: int) -> jax.Array:
    """What a sum of `stale_share` is divided by: 1, or m where p_i = 1/m."""
    return jnp.asarray(num_clients if weighting == "uniform" else 1, float)
