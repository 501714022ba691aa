"""The runs of `run_batched`, and their rows as they are measured."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.analysis.rows import metrics_row
from fedjax_algos.core import Local, Model, Row
from fedjax_algos.core.representation import describe
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.exchange import Transfer
from fedjax_algos.engine.non_finite import NonFinite, check_excluded
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.runs.divergence import count_excluded, has_diverged, named_errors
from fedjax_algos.schedules.synchronous import Position


class Run(NamedTuple):
    """One of many runs.

    `swept` distinguishes it from the others: some of its hyperparameters, "client_learning_rate",
    or anything else that its `local` was made from. The values must be hashable.

    Attributes:
      label: `method` in its rows.
      seed: of the run.
      data: the clients' examples.
      local: how clients train.
      hyperparameters: of the algorithm's factory.
      swept: the values that distinguish it from the other runs, by name.
      test_rows: int32[rows], the examples of `data.examples` to evaluate on, in place of the test
        examples of all runs; None for those.
    """

    label: str
    seed: int
    data: FederatedData
    local: Local
    hyperparameters: dict[str, Any]
    swept: dict[str, Any]
    test_rows: np.ndarray | None = None

    def __repr__(self) -> str:
        return describe(self, label=repr(self.label), seed=self.seed, swept=self.swept)


class CallStop(NamedTuple):
    """The runs of a call after some rounds; leaves [runs, ...]."""

    rounds: int
    metrics: dict[str, np.ndarray]
    flops: np.ndarray  # float64[runs]: since the start
    excluded: Any  # `Excluded`, or () if updates that are not finite are kept
    finite: Any  # bool[runs]: whether all params are
    states: FederatedState
    positions: Position  # of the runs' schedules


class Recorder:
    """Makes the rows of all runs, and hands them on as they are measured.

    Args:
      runs: all runs.
      cohort_size: clients in a round.
      on_evaluation: called with each row.
      on_end: called with the label, the seed and the last model of each run, if given.
      non_finite: what is done with updates that are not finite.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        cohort_size: int,
        on_evaluation: Callable[[Row], None],
        on_end: Callable[[str, int, Model], None] | None,
        non_finite: NonFinite,
    ):
        self.runs, self.cohort_size = runs, cohort_size
        self.on_evaluation, self.on_end = on_evaluation, on_end
        self.non_finite = non_finite
        self.histories: list[list[Row]] = [[] for _ in runs]
        self.diverged: set[int] = set()  # indices of runs whose rows end
        self.start = time.perf_counter()

    def measure(self, call: Iterable[int], transfer: Transfer, stop: CallStop) -> None:
        """Adds a row to each run of a call.

        Args:
          call: indices of its runs.
          transfer: bytes of a dispatch.
          stop: where the call is.
        """
        dispatched = stop.rounds * self.cohort_size
        for position, index in enumerate(call):
            if index in self.diverged:
                continue
            of_run = jax.tree.map(lambda leaf, i=position: leaf[i], stop.excluded)
            with named_errors(f"{self.name(index)}: "):
                check_excluded(self.non_finite, of_run)
            row = metrics_row(
                stop.rounds,
                {name: float(values[position]) for name, values in stop.metrics.items()},
                download_bytes=dispatched * transfer.download,
                upload_bytes=dispatched * transfer.upload,
                excluded_updates=count_excluded(of_run),
                flops=float(stop.flops[position]),
                wall_seconds=time.perf_counter() - self.start,
            )
            run = self.runs[index]
            self.histories[index].append({"method": run.label, "seed": run.seed} | row)
            self.on_evaluation(self.histories[index][-1])
            if has_diverged(self.non_finite, row, stop.finite[position]):
                self.diverged.add(index)

    def name(self, index: int) -> str:
        """A run in messages.

        Args:
          index: of the run.
        """
        return f"{self.runs[index].label}, seed {self.runs[index].seed}"

    def restore(
        self, call: Iterable[int], histories: list[list[Row]], diverged: list[bool]
    ) -> None:
        """Adds the rows of a checkpoint to the runs of a call.

        Args:
          call: indices of its runs.
          histories: the rows of each run.
          diverged: whether each of them has.
        """
        last = histories[0][-1]["wall_seconds"]
        self.start = min(self.start, time.perf_counter() - last)
        self.diverged |= {index for index, ended in zip(call, diverged, strict=True) if ended}
        for index, rows in zip(call, histories, strict=True):
            self.histories[index] += rows
            for row in rows:
                self.on_evaluation(row)

    def end(self, call: Iterable[int], states: FederatedState) -> None:
        """Hands on the last models of the runs of a call.

        Args:
          call: indices of its runs.
          states: leaves [runs, ...].
        """
        if self.on_end is None:
            return
        models = jax.device_get(states.model)
        for position, index in enumerate(call):
            model = jax.tree.map(lambda leaf, i=position: leaf[i], models)
            self.on_end(self.runs[index].label, self.runs[index].seed, model)
