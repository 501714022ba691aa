"""The loop of a synchronous run: rounds, evaluations, and what was measured."""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.analysis.costs.measured import UncountedError, count_flops
from fedjax_algos.analysis.evaluation import make_evaluate
from fedjax_algos.core import Batch, Model, Params, Population, Visit
from fedjax_algos.engine.devices import one_copy
from fedjax_algos.engine.engine import Engine
from fedjax_algos.engine.federated_round import FederatedState
from fedjax_algos.engine.sharded_data import PlacedData, shapes_of
from fedjax_algos.schedules import Synchronous, uniform
from fedjax_algos.schedules.synchronous import Sampler, Work

Row = dict[str, Any]


def simulate(
    engine: Engine,
    data: PlacedData,
    *,
    cohort_size: int,
    rounds: int,
    seed: int = 0,
    sampler: Sampler = uniform,
    work: Work | None = None,
    test: Batch | None = None,
    eval_every: int = 10,
    params: Params | Model | None = None,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    evaluate: Callable | None = None,
) -> tuple[FederatedState, list[Row]]:
    """Runs a synchronous simulation.

    The rounds between two evaluations are one program, and while devices compute them the visits of
    the next ones are drawn. (On a CPU with several devices a program is waited for.)

    Args:
      engine: a compiled algorithm; give the same one again to run other seeds without compiling.
      data: the clients' examples, as federated or as the engine placed them.
      cohort_size: clients in a round.
      rounds: how many.
      seed: of the model, the cohorts and the clients' batches.
      sampler: draws the cohorts, by default uniformly without replacement.
      work: who finishes how much of a turn, by default everybody all of it; see `schedules`.
      test: examples to evaluate on (a tree like `data.examples`), or None for no evaluation.
      eval_every: rounds between evaluations; the start and the end are always evaluated.
      params: start from these instead of the problem's own initialisation.
      on_evaluation: called with each row as it is measured.
      evaluate: what `make_evaluate` returned, to share its compilation between engines.

    Returns:
      The last state, and one row an evaluation: `round`, `train_loss` (mean over all examples of
      all local steps since the last row), `test_loss` and the problem's metrics as `test_...`,
      `download_bytes`, `upload_bytes` and `flops` (of all clients of all cohorts, since the start;
      for the last see `count_flops`), `wall_seconds` (since the start, compilation included).
      `flops` is NaN, with a warning, for an algorithm whose operations cannot be counted.
    """
    if rounds < 1 or eval_every < 1:
        raise ValueError(f"rounds={rounds} and eval_every={eval_every} must be at least 1")
    counts, data = data.counts(), engine.place(data)
    schedule = Synchronous(
        counts,
        engine.algorithm.local,
        cohort_size=cohort_size,
        seed=seed,
        sampler=sampler,
        work=work,
    )
    population = Population(data.num_clients, cohort_size, int(counts.sum()))
    state = engine.init(seed, population, params)
    evaluate = evaluate or make_evaluate(engine.algorithm.problem)
    test = None if test is None else jax.device_put(test)
    start = time.perf_counter()
    history: list[Row] = []

    def measure(round_number, state, metrics):
        measured = {name: float(mean.value()) for name, mean in metrics.items()}
        if test is not None:
            values = evaluate(one_copy(Model(state.server.params, state.statistics)), test)
            measured |= {f"test_{name}": float(mean.value()) for name, mean in values.items()}
        turns = round_number * cohort_size
        row = {
            "round": round_number,
            **measured,
            "download_bytes": turns * transfer.download,
            "upload_bytes": turns * transfer.upload,
            "flops": flops,
            "wall_seconds": time.perf_counter() - start,
        }
        history.append(row)
        on_evaluation(row)

    count = flops_of(engine.algorithm, state, data)
    keeping = bool(jax.tree.leaves(state.origin))
    windows = draw_windows(schedule, count, rounds, eval_every, keeping)
    first = next(windows)
    transfer = engine.transfer(state, data, jax.tree.map(lambda leaf: leaf[0], first.visits))
    window: Window | None = first
    done, flops = 0, 0.0
    measure(done, state, {})
    while window is not None:
        state, metrics = engine.rounds(state, data, window.visits, window.rounds)
        done, flops = done + window.rounds, flops + window.flops
        window = next(windows, None)  # while the devices compute: what is measured is waited for
        measure(done, state, metrics)
    return state, history


class Window(NamedTuple):
    """The rounds between two evaluations."""

    rounds: int
    visits: Visit  # leaves [longest, cohort]: each has the longest one's shape, and so its program
    flops: float  # of all their visits


def draw_windows(
    schedule: Synchronous,
    count: Callable[[Visit], np.ndarray],
    rounds: int,
    eval_every: int,
    keeping: bool,
) -> Iterator[Window]:
    """A run's windows, each drawn when it is asked for.

    Args:
      schedule: of the run.
      count: operations of each visit.
      rounds: of the run.
      eval_every: rounds of a window, but for a shorter last one.
      keeping: whether clients keep state, so that a cohort may not have one twice.

    Raises:
      ValueError: for a client twice in a cohort, where clients keep state.
    """
    longest = min(eval_every, rounds)
    for done in range(0, rounds, longest):
        number = min(longest, rounds - done)
        visits = schedule.visits(number)
        if keeping:
            refuse_repeats(visits)
        index = np.arange(longest) % number
        repeated = jax.tree.map(lambda leaf, index=index: leaf[index], visits)
        yield Window(number, repeated, float(count(visits).sum()))


def refuse_repeats(visits: Visit) -> None:
    """Raises ValueError for a cohort with a client twice: its state would be written twice."""
    ordered = np.sort(visits.client, axis=1)
    twice = ordered[:, 1:] == ordered[:, :-1]
    if twice.any():
        round_number, place = np.argwhere(twice)[0]
        raise ValueError(
            f"client {ordered[round_number, place]} stands twice in the cohort of round "
            f"{visits.server_step[round_number, 0]}, but this algorithm's clients keep state; give "
            "a sampler without replacement"
        )


def flops_of(algorithm, state, data):
    """Operations of each visit, or NaN and a warning where they cannot be counted."""
    try:
        return count_flops(algorithm, state, shapes_of(data)).of
    except (UncountedError, KeyError, AttributeError) as error:  # another jax writes other jaxprs
        warnings.warn(f"the column flops will hold NaN: {error}", stacklevel=3)
        return lambda visits: np.full(visits.client.shape, np.nan)
