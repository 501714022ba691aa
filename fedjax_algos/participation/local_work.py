"""Local work: how much of its local update each client finishes, and how fast clients are.

Draws depend on the seed, the round and the position in the cohort, and clients' speeds on the seed
and the client. So the same clients are stragglers in all compared algorithms.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.core import Local
from fedjax_algos.core.options import Count, Positive, UnitInterval
from fedjax_algos.core.registry import Registry

Speeds = Literal["homogeneous", "normal", "exponential"]

CLIENTS_IN_BLOCK = 4096  # clients whose speeds are drawn in one call
_PARTIAL, _SPEEDS = 11, 12  # tags of NumPy's streams; samplers' tags are below 10


class SpeedDistribution(NamedTuple):
    """The distribution of t_i / mu: t_i is client i's mean time of a local step, and mu its mean.

    "homogeneous" is 1; "normal" is N(1, 0.3^2), drawn again while it is at most 0.05;
    "exponential" has mean 1. An exponential draw may be so near zero that one client makes almost
    all server steps. So draws can be binned, `t <- (floor(t / b) + 1/2) b`, and then raised to the
    floor, `t <- max(t, floor)`.

    FedCompass (https://arxiv.org/abs/2309.14675) draws from Exp and says nothing about values near
    zero. An early driver, `examples/flamby_async_mpi_update.py` of https://github.com/APPFL/APPFL,
    has the option `exp_bin_size` of 0.1 s for an average of 0.15 s (b = 0.667), but no released
    code reads it. The middle of the bin keeps the mean, up to a factor of about 1 + b^2 / 12.
    """

    name: Speeds
    floor: float = 0.01  # the least t_i; 0 for none
    bin_width: float | None = None  # b of exponential draws; None for none

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draws independent t_i / mu, float[shape]."""
        if self.name == "homogeneous":
            times = np.ones(shape)
        elif self.name == "exponential":
            times = rng.standard_exponential(shape)
        else:
            times = rng.normal(1, 0.3, shape)
            while (low := times <= 0.05).any():
                times[low] = rng.normal(1, 0.3, low.sum())
        if self.bin_width is not None:
            times = (np.floor(times / self.bin_width) + 0.5) * self.bin_width
        return np.maximum(times, self.floor)


def speed_distribution(
    name: Speeds, floor: float, bin_width: float | None, owner: str
) -> SpeedDistribution:
    """Makes the distribution from the options of `owner`; bins need exponential speeds."""
    wrong = f"{owner}: time_bin={bin_width} is for exponential speeds, but speeds={name}"
    fits = bin_width is None or name == "exponential"
    require(fits, f"{wrong}; leave time_bin out, or give speeds=exponential")
    return SpeedDistribution(name, floor, bin_width)


def relative_times(distribution: SpeedDistribution, seed: int, num_clients: int) -> np.ndarray:
    """Returns t_i / mu, float[num_clients]; each depends on (seed, client) alone."""
    blocks = range(-(-num_clients // CLIENTS_IN_BLOCK))
    return np.concatenate([block_of_times(distribution, seed, n) for n in blocks])[:num_clients]


@functools.lru_cache(maxsize=256)
def block_of_times(distribution: SpeedDistribution, seed: int, block: int) -> np.ndarray:
    """Draws t_i / mu of clients from `block * CLIENTS_IN_BLOCK` on, float[CLIENTS_IN_BLOCK]."""
    return distribution.draw(np.random.default_rng([seed, _SPEEDS, block]), (CLIENTS_IN_BLOCK,))


class LocalWork(Protocol):
    """Decides how much of its complete local update each client of each cohort finishes."""

    def __call__(
        self,
        seed: int,
        rounds: np.ndarray,
        clients: np.ndarray,
        full_steps: np.ndarray,
        local: Local,
        /,
    ) -> np.ndarray:
        """Returns numbers of local steps, int32[rounds, cohort_size], from 1 to `full_steps`.

        Args:
          seed: the seed of the run.
          rounds: int32[rounds], consecutive round numbers from 0.
          clients: int32[rounds, cohort_size], client ids.
          full_steps: int32[rounds, cohort_size], the steps of complete local updates.
          local: how clients train.
        """


local_works = Registry[LocalWork]("local work", Callable)


@local_works.register
def full() -> LocalWork:
    """Every client finishes its local update."""
    return lambda seed, rounds, clients, full_steps, local: full_steps


@local_works.register
def partial(*, share: UnitInterval = 0.5, tau_max: Count | None = None) -> LocalWork:
    """Makes a random part of every cohort stragglers, as in FedLGA.

    floor(share M + 1/2) random members of each cohort do partial work. Each misses a number of its
    E epochs (or E steps, if local work is given in steps), uniform on 1..tau_max.

    Li et al., "FedLGA", https://arxiv.org/abs/2112.11989, which does not specify the draw: here the
    number of stragglers is fixed, and each of them does some work.

    Args:
      share: the share of stragglers in a cohort, from 0 to 1; 0 for complete local updates.
      tau_max: the most epochs (or steps) that are missed, from 1 to E - 1; None for E - 1.

    Raises:
      ValueError: when the result is called, if `tau_max` is E or more, or E is 1 or not whole.
    """

    def work(seed, rounds, clients, full_steps, local):
        if share == 0:
            return full_steps
        name, value = ("steps", local.steps) if local.epochs is None else ("epochs", local.epochs)
        units = int(value or 0)
        max_missed = units - 1 if tau_max is None else tau_max
        found = f"partial: tau_max={tau_max} allows no partial work of {name}={value}"
        fix = f"give {name} as a whole number and a smaller tau_max, or share=0 for no stragglers"
        require(units == value and 1 <= max_missed < units, f"{found}; {fix}")
        cohort_size, num_steps = clients.shape[1], full_steps.astype(np.int64)
        number = int(share * cohort_size + 0.5)
        for row, round_number in zip(num_steps, map(int, rounds), strict=True):
            rng = np.random.default_rng([seed, _PARTIAL, round_number])
            members = rng.permutation(cohort_size)[:number]
            missed = rng.integers(1, max_missed, number, endpoint=True)
            row[members] = row[members] * (units - missed) // units  # exact
        return num_steps.astype(np.int32)

    return work


@local_works.register
def deadline(
    *,
    seconds: Positive,
    speeds: Speeds = "normal",
    seconds_per_step: Positive = 0.1,
    time_floor: UnitInterval = 0.01,
    time_bin: Positive | None = None,
) -> LocalWork:
    """A round ends after `seconds`: client i does min(full, floor(seconds / t_i)) steps.

    A step of client i takes t_i seconds, drawn once around mu = `seconds_per_step`; communication
    and aggregation take no time. See `SpeedDistribution` for the floor and the bins.

    Args:
      seconds: length of a round in simulated seconds, above 0.
      speeds: the distribution of t_i, as in FedCompass, https://arxiv.org/abs/2309.14675:
        "homogeneous" is mu; "normal" is N(mu, (0.3 mu)^2), drawn again while it is at most 0.05 mu;
        "exponential" has mean mu.
      seconds_per_step: mu, the mean time of a local step in simulated seconds, above 0.
      time_floor: the least t_i, in units of mu, from 0 (none) to 1.
      time_bin: the width of the bins of exponential t_i, in units of mu, above 0; None for none.

    Raises:
      ValueError: for bins of other speeds; when the result is called, if any client up to the
        largest id of the cohorts cannot finish a step.
    """
    distribution = speed_distribution(speeds, time_floor, time_bin, "deadline")

    def work(seed, rounds, clients, full_steps, local):
        times = seconds_per_step * relative_times(distribution, seed, int(clients.max()) + 1)
        return deadline_of(times, seconds)(seed, rounds, clients, full_steps, local)

    return work


def deadline_of(seconds_per_step: np.ndarray, seconds: float) -> LocalWork:
    """Like `deadline`, with given times, such as measured ones.

    Args:
      seconds_per_step: float[num_clients]: t_i, the time of a local step of each client.
      seconds: length of a round, in the same unit.

    Raises:
      ValueError: if a time is not positive and finite, or longer than the round; when the result is
        called, for a client without a time.
    """
    times = np.array(seconds_per_step, float)
    message = f"seconds_per_step has shape {times.shape}; give a time for each client"
    require(times.ndim == 1 and times.size, message)
    positive = np.where(times > 0, times, np.inf)
    max_steps = np.floor(seconds / positive + 1e-9)  # .3 / .1 is 2.9999999999999996
    worst = positive.argmax()
    wrong = f"client {worst} takes {times[worst]} s for a step, so seconds={seconds} leaves it none"
    fix = f"give seconds={times.max()} or more, and times above 0"
    require(max_steps[worst] >= 1, f"{wrong}; {fix}")

    def work(seed, rounds, clients, full_steps, local):
        largest = clients.max(initial=0)
        found = f"client {largest} is in a cohort, but seconds_per_step has {times.size} clients"
        require(largest < times.size, f"{found}; give a time for each client")
        return np.minimum(full_steps, max_steps[clients]).astype(np.int32)

    return work
