"""Work: who finishes how much of a turn, whatever the algorithm.

Draws depend on the seed, the round and the cohort, so that compared algorithms meet the same ones.
"""

import functools
from typing import Annotated, Literal

import numpy as np

from fedjax_algos.core import Local
from fedjax_algos.core.registry import Positive, Range, Registry
from fedjax_algos.schedules.synchronous import Work

works = Registry("work")

Speeds = Literal["homogeneous", "normal", "exponential"]

_PARTIAL, _SPEEDS = 11, 12  # streams of NumPy's generators; those of samplers are below 10
CLIENTS_IN_BLOCK = 4096  # whose speeds are drawn together


@works
def full() -> Work:
    """Everybody does complete turns."""

    def work(seed, rounds, clients, full_steps, local):
        del seed, rounds, clients, local
        return full_steps

    return work


@works
def partial(
    *,
    share: Annotated[float, Range(0, 1)] = 0.5,
    tau_max: Annotated[int, Range(1)] | None = None,
) -> Work:
    """In every round a random part of the cohort does too little: the heterogeneity of FedLGA.

    floor(share M + 1/2) members, others in each round, are partial. Each of them misses a number of
    its E epochs (or E steps, where local work is given in steps) that is uniform on 1..tau_max.

    Li et al., "FedLGA", https://arxiv.org/abs/2112.11989, which leaves the draw open: here the
    number of partial clients is fixed, and nobody does nothing.

    Args:
      share: of the cohort; 0 for complete turns.
      tau_max: the most units that are missed, at most E - 1, which is the default.

    Raises:
      ValueError: when called where `tau_max` is E or more, where E is 1, or with epochs that are
        not whole.
    """

    def work(seed, rounds, clients, full_steps, local):
        if share == 0:
            return full_steps
        units, most = _missable(local, tau_max)
        cohort_size = clients.shape[1]
        number = int(share * cohort_size + 0.5)
        num_steps = full_steps.astype(np.int64)
        for row, round_number in zip(num_steps, map(int, rounds), strict=True):
            rng = np.random.default_rng([seed, _PARTIAL, round_number])
            members = rng.permutation(cohort_size)[:number]
            missed = rng.integers(1, most, number, endpoint=True)
            row[members] = row[members] * (units - missed) // units  # exact: E units are a turn
        return num_steps.astype(np.int32)

    return work


def _missable(local: Local, tau_max: int | None) -> tuple[int, int]:
    """E, and the most units of it that a partial client misses."""
    name, given = ("steps", local.steps) if local.epochs is None else ("epochs", local.epochs)
    units = int(given or 0)
    if units != given:
        raise ValueError(
            f"partial work misses whole epochs, but {name}={given}; give a whole number of epochs, "
            "or steps"
        )
    if units == 1:
        raise ValueError(
            f"{name}=1 leaves nothing between no work and all of it; give at least 2 for partial "
            "work, or share=0"
        )
    if tau_max is not None and tau_max > units - 1:
        raise ValueError(
            f"partial: tau_max={tau_max} is out of range; give 1 to {units - 1}, so that some of "
            f"{name}={units} is done"
        )
    return units, units - 1 if tau_max is None else tau_max


@works
def deadline(
    *,
    seconds: Positive,
    speeds: Speeds = "normal",
    seconds_per_step: Positive = 0.1,
) -> Work:
    """A round ends after `seconds`: client i does min(full, floor(seconds / t_i)) steps.

    A step takes t_i seconds, drawn once for each client around mu = `seconds_per_step`; sending
    and averaging take none. The distributions are those of FedCompass,
    https://arxiv.org/abs/2309.14675: "homogeneous" is mu; "normal" is N(mu, (0.3 mu)^2), drawn
    again while it is 0.05 mu or less; "exponential" has mean mu, and is at least 0.01 mu.

    Args:
      seconds: of a round.
      speeds: the distribution of t_i.
      seconds_per_step: mu.

    Raises:
      ValueError: when called with clients up to a number among which one cannot finish a step.
    """

    def work(seed, rounds, clients, full_steps, local):
        times = seconds_per_step * _relative_times(speeds, seed, int(clients.max()) + 1)
        return deadline_of(times, seconds)(seed, rounds, clients, full_steps, local)

    return work


def deadline_of(seconds_per_step: np.ndarray, seconds: float) -> Work:
    """As `deadline`, with speeds of your own, such as measured ones.

    Args:
      seconds_per_step: float[num_clients]: t_i.
      seconds: of a round.

    Raises:
      ValueError: if a time is not positive and finite or too long for one step, and when called
        with clients that have none.
    """
    times = np.array(seconds_per_step, float)
    if times.ndim != 1 or not len(times):
        raise ValueError(
            f"seconds_per_step has shape {times.shape}; give a time for each client, in one axis"
        )
    wrong = ~(np.isfinite(times) & (times > 0))
    if wrong.any():
        raise ValueError(
            f"seconds_per_step={times[wrong][0]} of client {wrong.argmax()} is out of range; give "
            "a number above 0"
        )
    possible = np.floor(seconds / times + 1e-9)  # .3 / .1 is 2.9999999999999996
    slowest = times.argmax()
    if not possible[slowest] >= 1:
        raise ValueError(
            f"client {slowest} takes {times[slowest]} s for a step, so seconds={seconds} leaves it "
            f"none; give seconds={times[slowest]} or more"
        )

    def work(seed, rounds, clients, full_steps, local):
        del seed, rounds, local
        if clients.max() >= len(times):
            raise ValueError(
                f"client {clients.max()} has no time in seconds_per_step, which has {len(times)}; "
                "give one for each client"
            )
        return np.minimum(full_steps, possible[clients]).astype(np.int32)

    return work


def _relative_times(speeds: Speeds, seed: int, num_clients: int) -> np.ndarray:
    """float[num_clients]: t_i / mu, each from (seed, client) alone."""
    blocks = range(-(-num_clients // CLIENTS_IN_BLOCK))
    return np.concatenate([block_of_times(speeds, seed, block) for block in blocks])[:num_clients]


@functools.lru_cache(maxsize=256)
def block_of_times(speeds: Speeds, seed: int, block: int) -> np.ndarray:
    """float[CLIENTS_IN_BLOCK]: t_i / mu of the clients from block * CLIENTS_IN_BLOCK on."""
    return draw_times(speeds, np.random.default_rng([seed, _SPEEDS, block]), (CLIENTS_IN_BLOCK,))


def draw_times(speeds: Speeds, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Independent t_i / mu."""
    if speeds == "homogeneous":
        return np.ones(shape)
    if speeds == "exponential":
        return np.maximum(rng.standard_exponential(shape), 0.01)
    times = rng.normal(1, 0.3, shape)
    while (low := times <= 0.05).any():
        times[low] = rng.normal(1, 0.3, low.sum())
    return times
