"""The rounds between two evaluations: their dispatches and the operations of these."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.analysis.costs.measured import UncountedError, count_flops
from fedjax_algos.core import Algorithm, Dispatch
from fedjax_algos.engine.fingerprint import array_fingerprint
from fedjax_algos.engine.placed.sharded_data import data_shapes
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.schedules import Synchronous
from fedjax_algos.schedules.synchronous import Position

_COMPARED = 20  # rounds
FlopCounter = Callable[[Dispatch], np.ndarray]  # the operations of each dispatch


class Window(NamedTuple):
    """The rounds between two evaluations."""

    rounds: int
    dispatches: Dispatch  # leaves [longest, cohort]: all windows have the shape of the longest
    flops: float  # of all their dispatches
    position: Position  # of the schedule after them


def draw_windows(
    schedule: Synchronous,
    count: FlopCounter,
    rounds: int,
    eval_every: int,
    keeping: bool,
) -> Iterator[Window]:
    """The windows of a run, each drawn when the iterator is advanced.

    Args:
      schedule: of the run; the windows begin with its next round.
      count: the operations of each dispatch.
      rounds: of the run.
      eval_every: rounds of a window; the last one may be shorter.
      keeping: whether clients keep state, so that a client may be in a cohort once only.

    Raises:
      ValueError: for a client that is twice in a cohort while clients keep state.
    """
    longest = min(eval_every, rounds)
    for done in range(schedule.next_round, rounds, longest):
        number = min(longest, rounds - done)
        dispatches = schedule.dispatches(number)
        if keeping:
            check_no_repeats(dispatches)
        index = np.arange(longest) % number
        repeated = jax.tree.map(lambda leaf, index=index: leaf[index], dispatches)
        flops = float(count(dispatches).sum())
        yield Window(number, repeated, flops, schedule.position())


def identify_rounds(schedules: Sequence[Synchronous], rounds: int) -> dict[str, list[str]]:
    """By what other samplers, local work and rate schedules are recognised.

    Args:
      schedules: new ones, of runs that are computed together.
      rounds: of the runs.

    Returns:
      Hashes of each of the first rounds, at most 20.
    """
    number = min(rounds, _COMPARED)
    drawn = [schedule.dispatches(number) for schedule in schedules]
    parts: dict[str, list[Any]] = {
        "first_cohorts": [each.client for each in drawn],
        "first_learning_rates": [each.learning_rate for each in drawn],
        "first_steps": [(each.num_steps, each.full_steps, each.first_step) for each in drawn],
    }
    return {
        name: [
            array_fingerprint(jax.tree.map(lambda leaf, t=t: leaf[t], part)) for t in range(number)
        ]
        for name, part in parts.items()
    }


def check_no_repeats(dispatches: Dispatch) -> None:
    """Checks that no client is twice in a cohort, where its state would be written twice.

    Args:
      dispatches: leaves [rounds, cohort].

    Raises:
      ValueError: for the first client that is.
    """
    ordered = np.sort(dispatches.client, axis=1)
    twice = ordered[:, 1:] == ordered[:, :-1]
    if twice.any():
        row, column = np.argwhere(twice)[0]
        raise ValueError(
            f"client {ordered[row, column]} is twice in the cohort of round "
            f"{dispatches.server_step[row, 0]}, but this algorithm's clients keep state; give a "
            "sampler without replacement"
        )


def flop_counter(algorithm: Algorithm, state: FederatedState, data: Any) -> FlopCounter:
    """Counts the operations of each dispatch; NaN and a warning if they cannot be counted.

    Args:
      algorithm: what is computed.
      state: its shapes.
      data: the clients' examples, or their shapes.
    """
    try:
        return count_flops(algorithm, state, data_shapes(data)).of
    except (UncountedError, KeyError, AttributeError) as error:  # of jaxprs of another jax version
        warnings.warn(f"the column flops will hold NaN: {error}", stacklevel=3)
        return lambda dispatches: np.full(dispatches.client.shape, np.nan)
