"""Samplers: who is in the cohort of a round, drawn from (seed, round) alone."""

import functools
from collections.abc import Callable
from typing import Annotated

import numpy as np

from fedjax_algos.core.registry import Positive, Range, Registry
from fedjax_algos.data.partitioning.base import log_dirichlet
from fedjax_algos.schedules.synchronous import Sampler
from fedjax_algos.schedules.synchronous import uniform as uniform_cohorts

samplers = Registry("sampler")

# One stream for each purpose. NumPy takes [seed, tag] and [seed, tag, 0] for the same seed, so what
# is drawn once has a tag of its own, and no tag is 0.
_GROUPS, _MEMBERS, _SHARES, _CHOICE, _REPLACED = range(1, 6)


def cohort_count(cohort: float, num_clients: int) -> int:
    """M, from a fraction of the N clients, max(floor(C N), 1), or from a whole count.

    Args:
      cohort: C if below 1, else M, so 1 is one client.
      num_clients: N.

    Raises:
      ValueError: if it is neither.
    """
    if 0 < cohort < 1:
        return max(int(cohort * num_clients + 1e-9), 1)  # .29 * 100 is 28.999999999999996
    if not (1 <= cohort <= num_clients and cohort == int(cohort)):
        raise ValueError(
            f"a cohort of {cohort} is out of range; give a whole number from 1 to {num_clients}, "
            "the number of clients, or a fraction of them between 0 and 1"
        )
    return int(cohort)


def _cohorts(
    seed: int,
    tag: int,
    rounds: np.ndarray,
    cohort_size: int,
    draw: Callable[[np.random.Generator, int], np.ndarray],
) -> np.ndarray:
    """int32[rounds, cohort_size]: `draw(generator of the round, round)` for each round."""
    cohorts = np.empty((len(rounds), cohort_size), np.int32)
    for row, number in enumerate(map(int, rounds)):
        cohorts[row] = draw(np.random.default_rng([seed, tag, number]), number)
    return cohorts


@samplers
def uniform() -> Sampler:
    """Every cohort is as likely as any other, without replacement; see `schedules.uniform`."""
    return uniform_cohorts


@samplers
def cyclic(*, num_groups: Annotated[int, Range(1)]) -> Sampler:
    """Groups of clients take turns: round t, from 0, draws in group t mod `num_groups`.

    A random permutation of the clients is cut into groups whose sizes differ by at most one, and
    cohorts are drawn in them without replacement. In cohorts as large as the groups everybody takes
    part exactly once in `num_groups` rounds, as the papers on heavy-ball momentum have it (a period
    of 1 / C rounds for a fraction C).

    Args:
      num_groups: the period in rounds.

    Raises:
      ValueError: when called with a cohort larger than the smallest group.
    """

    @functools.lru_cache(maxsize=1)
    def groups(seed, num_clients):
        order = np.random.default_rng([seed, _GROUPS]).permutation(num_clients)
        return np.array_split(order, num_groups)

    def sampler(seed, rounds, num_clients, cohort_size):
        smallest = num_clients // num_groups
        if cohort_size > smallest:
            smaller = f", or cohort_size of at most {smallest}" if smallest else ""
            raise ValueError(
                f"cohort_size={cohort_size} is more than the {smallest} of {num_clients} clients "
                f"in the smallest of num_groups={num_groups} groups; give num_groups of at most "
                f"{num_clients // cohort_size}{smaller}"
            )

        def members(rng, number):
            group = groups(seed, num_clients)[number % num_groups]
            return rng.choice(group, cohort_size, replace=False)

        return _cohorts(seed, _MEMBERS, rounds, cohort_size, members)

    return sampler


def _log_shares(seed: int, num_clients: int, gamma: float) -> np.ndarray:
    """float[num_clients]: log p of the sampler `dirichlet`."""
    rng = np.random.default_rng([seed, _SHARES])
    return log_dirichlet(rng, np.full(num_clients, gamma))


@samplers
def dirichlet(*, gamma: Positive = 1.0) -> Sampler:
    """Some clients are more likely than others: p ~ Dir(gamma 1_N) once, for all rounds.

    A cohort is drawn without replacement, one client after another, by p renormalised over those
    that are left. The Gumbel-top-k rule draws it at once: the largest of log p_i + g_i.

    Args:
      gamma: concentration; with a small one the same few clients are drawn in nearly all rounds.
    """

    @functools.lru_cache(maxsize=1)
    def logs(seed, num_clients):
        return _log_shares(seed, num_clients, gamma)

    def sampler(seed, rounds, num_clients, cohort_size):
        def first(rng, number):
            del number
            keys = -logs(seed, num_clients) - rng.gumbel(size=num_clients)
            chosen = np.argpartition(keys, cohort_size - 1)[:cohort_size]
            return chosen[np.argsort(keys[chosen])]

        return _cohorts(seed, _CHOICE, rounds, cohort_size, first)

    return sampler


@samplers
def with_replacement() -> Sampler:
    """Each member of a cohort is any of the N clients, whoever else is in it.

    The setting of most theory. It cannot be simulated for algorithms whose clients keep state.
    """

    def sampler(seed, rounds, num_clients, cohort_size):
        def members(rng, number):
            del number
            return rng.integers(num_clients, size=cohort_size)

        return _cohorts(seed, _REPLACED, rounds, cohort_size, members)

    return sampler
