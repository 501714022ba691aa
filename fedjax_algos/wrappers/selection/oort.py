"""Oort: clients with a large utility are exploited, and others are explored."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Algorithm
from fedjax_algos.core.algorithm import Selection
from fedjax_algos.wrappers.registry import check_order, wrappers
from fedjax_algos.wrappers.selection.values import Candidates, Share, remembering

_UNCERTAINTY = 0.1


class Known(NamedTuple):
    """What the server knows of a client."""

    utility: Any  # float32[]: n_i times the mean loss of its last local update
    round_number: Any  # int32[]: of that update, from 1; 0 if there is none


def current_utility(known: Known, round_number: jax.Array) -> jax.Array:
    """`U_i + sqrt(.1 ln t / t_i)`: a client that trained long ago is more worth a try."""
    last = jnp.maximum(known.round_number, 1)
    return known.utility + jnp.sqrt(_UNCERTAINTY * jnp.log(round_number) / last)


@wrappers.register
def oort(
    algorithm: Algorithm,
    *,
    candidates: Candidates = 2.0,
    exploration: Share = 0.9,
    decay: Share = 0.98,
    least_exploration: Share = 0.2,
    cutoff: Share = 0.95,
) -> Algorithm:
    """Most clients of a cohort are drawn in proportion to their utility, the rest are new ones.

    The utility of client i in round t is `U_i + sqrt(.1 ln t / t_i)`: t_i is the round in which it
    trained last, from 1, and U_i is n_i times its mean training loss there. Of the M clients a
    share of `1 - exploration decay^(t - 1)` is drawn from those that have trained, in proportion to
    their utility, among those with at least `cutoff` times the smallest utility that would be
    needed; the rest are drawn uniformly from those that have not trained. If there are too few of
    one kind, there are more of the other. Nothing is reported: the server knows the losses.

    Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021,
    https://arxiv.org/abs/2010.06081.

    Deviations: the mean loss stands for the root of the mean squared loss of the examples, with
    which it agrees if their losses are equal. Rounds have no seconds, so slow clients have no
    smaller utility, and new clients are not drawn by their speed. The released code (FedScale)
    scales U_i to [0, 1], clips it, and has a cutoff of .05.

    Args:
      algorithm: what is wrapped; selection is the last wrapper.
      candidates: candidates for each client of the cohort, at least 1, whom the sampler draws.
      exploration: the share of new clients in the first round, from 0 to 1.
      decay: its factor in each round, from 0 to 1.
      least_exploration: below which the share does not fall, from 0 to 1.
      cutoff: see above, from 0 to 1.

    Raises:
      ValueError: as for `power_of_choice`.
    """
    check_order("oort", algorithm)

    def seen(report, data, dispatch):
        examples = dispatch.num_examples.astype(jnp.float32)
        loss = report.metrics["train_loss"].value().astype(jnp.float32)
        return Known(examples * loss, dispatch.server_step + 1)

    def choose(known, dispatches, answered, cohort_size, key):
        round_number = dispatches.server_step[0] + 1
        utility = current_utility(known, round_number)
        has_trained = answered & (known.round_number > 0)
        new = answered & ~has_trained
        share = jnp.maximum(exploration * decay ** (round_number - 1), least_exploration)
        wanted = jnp.round((1 - share) * cohort_size).astype(jnp.int32)
        exploited = jnp.clip(wanted, cohort_size - new.sum(), has_trained.sum())
        sorted_utility = -jnp.sort(jnp.where(has_trained, -utility, jnp.inf))
        worst = sorted_utility[jnp.maximum(exploited - 1, 0)]
        good = has_trained & (utility >= cutoff * worst)
        noise = jax.random.gumbel(key, utility.shape)  # the largest sums are such a draw
        by_utility = _order(jnp.log(utility) + noise, good, answered)
        at_random = _order(noise, new, answered)
        place = jnp.arange(cohort_size)
        explored = at_random[jnp.clip(place - exploited, 0)]
        return jnp.where(place < exploited, by_utility[:cohort_size], explored)

    algorithm = remembering(algorithm, Known(np.float32(0), np.int32(0)), seen)
    selection = Selection(candidates, lambda model, row, *_: row.known, choose, asks=False)
    return algorithm._replace(selection=selection)


def _order(score, allowed, answered):
    """int32[candidates]: the allowed ones by score, then those that have not answered, then all."""
    rank = jnp.where(allowed, 0, 1 + answered)
    return jnp.lexsort((-score, rank)).astype(jnp.int32)
