"""Active federated learning: clients with a high value are more likely, others are explored."""

import math

import jax
import jax.numpy as jnp

from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm
from fedjax_algos.core.options import Positive
from fedjax_algos.core.randomness import selection_key
from fedjax_algos.wrappers.refusals import check_order
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.selection.values import (
    Candidates,
    Loss,
    Share,
    by_score,
    chosen_by_loss,
    joined,
)

_ROUNDING = 1e-12  # (1 - .9) * 10 is .9999999999999998


@wrappers.register
def active(
    algorithm: Algorithm,
    *,
    candidates: Candidates = 4.0,
    alpha1: Share = 0.75,
    alpha2: Positive = 0.01,
    alpha3: Share = 0.1,
    loss: Loss = "full",
) -> Algorithm:
    """Draws most clients in proportion to `exp(alpha2 v_i)`, and the rest uniformly.

    The value of client i is `v_i = sqrt(n_i) F_i(x)`. Of the d candidates that answer, the
    floor(alpha1 d) with the lowest values are left out, and floor((1 - alpha3) M) of the others are
    drawn without replacement. The rest of the M clients is drawn uniformly from all other
    candidates, including the low values. x is the server's model. Clients with a large loss are
    preferred, so the model converges to another point than the minimum of the mean loss.

    Goetz et al., "Active Federated Learning", 2019, https://arxiv.org/abs/1909.12641. Its text was
    not at hand. The rule and the constants follow Plato, which implements its Algorithm 1
    (https://github.com/TL-System/plato, examples/client_selection/afl), and the authors of power of
    choice, who compare with it. The value follows FLSim, by the authors' institution
    (https://github.com/facebookresearch/FLSim). Plato divides the mean loss by sqrt(n_i).

    Deviations: in the paper all clients are candidates, and a client's value is taken at the model
    that it received when it trained last. Here candidates report the value of the present model, or
    with `loss=last` the server knows an approximate one.

    Args:
      algorithm: the algorithm to wrap; selection is the last wrapper.
      candidates: d/M, at least 1; d is rounded up. The paper has N/M.
      alpha1: the share of candidates that are left out, from 0 to 1.
      alpha2: the inverse temperature of the draw, above 0, in units of 1 / v_i.
      alpha3: the share of M that is drawn uniformly, from 0 to 1; rounded up to whole clients.
      loss: how F_i is found, as for `power_of_choice`. With "last", clients that have not trained
        yet have the highest value, and the sampler's first ones among them are drawn first.

    Raises:
      ValueError: if fewer candidates are left than clients to be drawn by value, and as for
        `power_of_choice`.
    """
    check_order("active", algorithm)
    left, wanted = candidates * (1 - alpha1), 1 - alpha3
    found = f"active: candidates={candidates:g} and alpha1={alpha1:g} leave {left:g} candidates"
    fix = "give more candidates, or a smaller alpha1"
    enough = left >= wanted * (1 - _ROUNDING)
    require(enough, f"{found} for {wanted:g} places of a cohort; {fix}")

    def choose(losses, dispatches, answered, cohort_size, seed):
        values = jnp.sqrt(dispatches.num_examples.astype(losses.dtype)) * losses
        key = selection_key(seed, dispatches.server_step[0])
        noise = jax.random.gumbel(key, (2, *values.shape), values.dtype)
        number, place = answered.sum(), jnp.arange(len(values))
        rank = jnp.zeros_like(place).at[by_score(values, answered, answered)].set(place)
        high = answered & (rank < number - jnp.floor(alpha1 * number))
        by_value = math.floor(wanted * cohort_size * (1 + _ROUNDING))
        by_value = jnp.minimum(by_value, high.sum())
        first = by_score(alpha2 * values + noise[0], high, answered)
        drawn = jnp.zeros_like(answered).at[first].set(place < by_value)
        rest = by_score(noise[1], answered & ~drawn, answered)
        return joined(first, by_value, rest, cohort_size)

    return chosen_by_loss(algorithm, loss, candidates, choose)
