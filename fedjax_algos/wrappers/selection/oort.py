"""Oort: exploits clients with a large utility, and explores others."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.asynchrony import SystemModelFactory
from fedjax_algos.core import Algorithm
from fedjax_algos.core.options import NonNegative, Positive, UnitInterval
from fedjax_algos.core.randomness import selection_key
from fedjax_algos.participation.in_rounds import seconds_in
from fedjax_algos.wrappers.refusals import check_order
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.selection import by_loss
from fedjax_algos.wrappers.selection.by_loss import Candidates

_UNCERTAINTY = 0.1


class Known(NamedTuple):
    """The server's knowledge of a client from its last local update."""

    utility: Any  # float32[]: n_i times its mean loss
    round_number: Any  # int32[]: its round, from 1; 0 before the first
    number: Any  # int32[]: number of its dispatch
    num_steps: Any  # int32[]: its local steps


def current_utility(known: Known, round_number: jax.Array) -> jax.Array:
    """Returns `U_i + sqrt(.1 ln t / t_i)`: more for a client that trained long ago."""
    last = jnp.maximum(known.round_number, 1)
    return known.utility + jnp.sqrt(_UNCERTAINTY * jnp.log(round_number) / last)


def system_utility(time: jax.Array, preferred: float, alpha: float) -> jax.Array:
    """Returns the factor `(T / time_i)^alpha` of a client that is slower than T, else 1."""
    return jnp.where(time > preferred, (preferred / time) ** alpha, 1)


@wrappers.register
def oort(
    algorithm: Algorithm,
    *,
    candidates: Candidates = 2.0,
    exploration: UnitInterval = 0.9,
    decay: UnitInterval = 0.98,
    least_exploration: UnitInterval = 0.2,
    cutoff: UnitInterval = 0.95,
    seconds: Positive | None = None,
    alpha: NonNegative = 2.0,
    system: SystemModelFactory | None = None,
) -> Algorithm:
    """Draws most clients of a cohort in proportion to their utility, the rest from new clients.

    The utility of client i in round t is `U_i + sqrt(.1 ln t / t_i)`. It trained last in round t_i,
    counted from 1, and U_i is n_i times its mean training loss there. If that took the time time_i,
    longer than T, the utility is multiplied by `(T / time_i)^alpha`. Of the M clients, a share of
    `1 - exploration decay^(t - 1)`, say k clients, is drawn from clients that have trained, in
    proportion to their utility, if it is at least `cutoff` times the k-th largest. The rest is
    drawn from clients that have not trained, in proportion to 1 / time_i of the dispatch of the
    round, or uniformly without T. If one kind has too few clients, more of the other are drawn.
    Nothing is reported: the server knows the losses and the times.

    Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021,
    https://arxiv.org/abs/2010.06081.

    Deviations: the mean loss replaces the root of the mean squared loss of the examples; both agree
    if the losses are equal. T is fixed, and no pacer changes it. The paper does not say how new
    clients are explored by their speed. The released code scales U_i to [0, 1], clips it, has a
    cutoff of .05, and draws new clients in proportion to their size.

    Args:
      algorithm: the algorithm to wrap; selection is the last wrapper.
      candidates: candidates that the sampler draws for each client of the cohort, at least 1.
      exploration: the share of new clients in the first round, from 0 to 1.
      decay: its factor in each round, from 0 to 1.
      least_exploration: the smallest share of new clients, from 0 to 1.
      cutoff: see above, from 0 to 1.
      seconds: T, in simulated seconds, above 0. None ignores times.
      alpha: alpha, at least 0; 2 in the paper.
      system: makes the system model of a seed, which has the times. On the command line, `--system`
        gives it. The bytes of the method take no time, as for the failures `late`.

    Raises:
      ValueError: for `seconds` without a system model, and as for `power_of_choice`.
    """
    check_order("oort", algorithm)
    time_of = None if seconds is None else seconds_in(system, "oort")

    def seen(report, data, dispatch):
        examples = dispatch.num_examples.astype(jnp.float32)
        loss = report.metrics["train_loss"].value().astype(jnp.float32)
        return Known(examples * loss, dispatch.server_step + 1, dispatch.number, dispatch.num_steps)

    def choose(known, dispatches, answered, cohort_size, seed):
        round_number = dispatches.server_step[0] + 1
        has_trained = answered & (known.round_number > 0)
        new = answered & ~has_trained
        utility, time = current_utility(known, round_number), jnp.float32(1)
        if time_of is not None:
            present = dispatches.client, dispatches.number, dispatches.num_steps
            last = dispatches.client, known.number, known.num_steps
            columns = (jnp.where(has_trained, *each) for each in zip(last, present, strict=True))
            time = time_of(seed, *(jnp.where(answered, each, 0) for each in columns))
            utility *= system_utility(time, seconds, alpha)
        share = jnp.maximum(exploration * decay ** (round_number - 1), least_exploration)
        wanted = jnp.round((1 - share) * cohort_size).astype(jnp.int32)
        exploited = jnp.clip(wanted, cohort_size - new.sum(), has_trained.sum())
        sorted_utility = -jnp.sort(jnp.where(has_trained, -utility, jnp.inf))
        worst = sorted_utility[jnp.maximum(exploited - 1, 0)]
        good = has_trained & (utility >= cutoff * worst)
        noise = jax.random.gumbel(selection_key(seed, round_number - 1), utility.shape)
        by_utility = by_loss.by_score(jnp.log(utility) + noise, good, answered)
        explored = by_loss.by_score(noise - jnp.log(time), new, answered)
        return by_loss.joined(by_utility, exploited, explored, cohort_size)

    first = Known(np.float32(0), np.int32(0), np.int32(0), np.int32(0))
    return by_loss.chosen_by_memory(algorithm, first, seen, candidates, choose)
