"""Runs an algorithm on every setting of a grid and every seed, in few compiled programs."""

import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from fedjax_algos.algorithms import algorithms
from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import describe
from fedjax_algos.core import Algorithm, Local, Problem, Row
from fedjax_algos.core.checks import check_callable, check_kind
from fedjax_algos.core.options import Bytes, Count, Option, options
from fedjax_algos.data import AnyDataset, FederatedData
from fedjax_algos.engine.placed.devices import default_num_devices
from fedjax_algos.runs.loops.run import CLIENT_LEARNING_RATE, Run
from fedjax_algos.runs.loops.run_batched import (
    BatchedOptions,
    BatchedResult,
    BatchedRuns,
    run_batched,
)
from fedjax_algos.runs.studies.experiment import Experiment, prepare
from fedjax_algos.runs.studies.method import LOCAL_OPTIONS, LOCAL_WORK, Method, method_options
from fedjax_algos.runs.studies.results_folder import ResultsFolder
from fedjax_algos.runs.studies.search_space import Columns, checked, columns_of
from fedjax_algos.runs.studies.settings import Settings, refuse


def sweep(
    algorithm: str | Callable[..., Algorithm],
    problem: Problem,
    local: Local,
    data: FederatedData | Mapping[int, FederatedData],
    *,
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int] = (0,),
    hyperparameters: Mapping[str, Any] | None = None,
    **batched: Unpack[BatchedOptions],
) -> BatchedResult:
    """Runs every setting of a grid on every seed, in as few programs as possible.

    Args:
      algorithm: a registered name, or a factory `(problem, local, *, ...) -> Algorithm`.
      problem: what is learned.
      local: a client's local work.
      data: the clients' examples, for all seeds or by seed. Seeds share a program if their data
        hold the same arrays of examples: `data._replace(indices=..., offsets=...)`.
      grid: the values of options of the algorithm, of "client_learning_rate" (numbers, or functions
        as in `Local`), or of the other fields of `Local`. Only floats share a program.
      seeds: as in `simulate`.
      hyperparameters: the algorithm's other options.
      **batched: `cohort_size`, `rounds`, `test` and the other keywords of `run_batched`.

    Returns:
      The rows of `simulate`, up to rounding, with `method` (the algorithm's name and the setting)
      and `seed`; and notes on the programs.

    Raises:
      ValueError: for an unknown option, a value out of range or given twice, no values, or a seed
        without data.
    """
    if not isinstance(algorithm, str):
        check_callable("algorithm", algorithm, "give a name or a factory, such as 'fedprox'")
    check_kind("grid", grid, Mapping, "give {option: values}")
    for each in data.values() if isinstance(data, Mapping) else [data]:
        check_kind("data", each, FederatedData, "give what federate returned, or a dict by seed")
    by_seed = data if isinstance(data, Mapping) else dict.fromkeys(seeds, data)
    once = len(seeds) and len(set(seeds)) == len(seeds) and by_seed.keys() >= set(seeds)
    require(once, f"seeds={seeds!r}: give at least one seed, each once and with its data")
    factory = algorithms[algorithm] if isinstance(algorithm, str) else algorithm
    fixed, rate = dict(hyperparameters or {}), CLIENT_LEARNING_RATE
    fields = {n: Option(n, object, None, None, (), True) for n in Local._fields}
    del fields["learning_rate"]
    known = {**fields, **options(factory), rate: LOCAL_OPTIONS[rate]}
    runs = []
    for label, point in Columns(factory.__name__, known, fixed, checked).points(grid).items():
        changes = {name: value for name, value in point.items() if name in fields}
        work = local._replace(**changes, learning_rate=point.get(rate, local.learning_rate))
        swept = {n: value for n, value in point.items() if n not in fields and n != rate}
        runs += [Run(label, s, by_seed[s], work, fixed | swept, point) for s in seeds]
    return run_batched(factory, problem, runs, **batched)


class Sweep(NamedTuple):
    """A sweep that is ready to run.

    The methods of the `experiment` are the settings of the grid. `batched` has a run for each
    setting and seed, checked and grouped by program.
    """

    experiment: Experiment
    batched: BatchedRuns

    @property
    def runs(self) -> Sequence[Run]:
        """A run for each setting and seed, in the order of computation."""
        return self.batched.in_order

    def __repr__(self) -> str:
        return describe(self, experiment=self.experiment, runs=len(self.runs))

    def of_share(self, folder: ResultsFolder) -> "Sweep":
        """Keeps the runs of a share, or none if all have ended.

        Args:
          folder: from `open_folder` with a share, after its `begin`; without one, all runs stay.
        """
        if folder.share is None:
            return self
        names = [(run.label, run.seed) for run in self.runs if folder.takes(run.label, run.seed)]
        have_ended = all(itertools.starmap(folder.has_ended, names))
        return self._replace(batched=self.batched.only(frozenset(() if have_ended else names)))


def prepare_sweep(
    settings: Settings,
    method: str,
    grid: Mapping[str, Sequence[Any]],
    dataset: AnyDataset | None = None,
    *,
    runs_per_device: Count | None = None,
    memory: Bytes | None = None,
) -> Sweep:
    """Loads the data, splits it for each seed, and checks all settings.

    Args:
      settings: the settings of all runs.
      method: an algorithm, with options that all runs share, as in `fedprox:weighting=uniform`.
      grid: values, or their texts, of the algorithm's other options, "client_learning_rate",
        "client_optimizer", and the settings of a client's local work, such as local_steps.
      dataset: replaces the settings' data set.
      runs_per_device, memory: as in `run_batched`.

    Raises:
      ValueError: for wrong settings, a wrong grid, or too little memory.
    """
    names = "client_state", "examples", "evaluate_clients", "devices_per_client", "seconds"
    refuse(settings, "sweeps", *names)
    base = Method.of(method, settings)
    known = {**method_options(base.algorithm), **LOCAL_WORK}
    points = columns_of(base, method, settings, known).points(grid)
    chosen = [base.with_values(label, point) for label, point in points.items()]
    for each in chosen:
        each.own_settings(settings).check()
    experiment = prepare(settings, [base], dataset, searched={base.label: chosen})
    experiment = experiment._replace(methods=chosen)
    limits: dict[str, Any] = {"runs_per_device": runs_per_device, "memory": memory}
    return Sweep(experiment, batched_runs(experiment, chosen, test=experiment.test, **limits))


def batched_runs(
    experiment: Experiment,
    chosen: Sequence[Method],
    test_rows: Mapping[int, np.ndarray] = types.MappingProxyType({}),
    **options: Any,
) -> BatchedRuns:
    """Batches settings of one method on each seed; `options` override the experiment's."""
    settings, choice = experiment.settings, experiment.layout
    runs = []
    for method in chosen:
        work = method.local(settings), method.hyperparameters, dict(method.swept)
        for seed, data in experiment.data.items():
            runs.append(Run(method.label, seed, data, *work, test_rows.get(seed)))
    layout = choice.layout if choice and choice.source == "memory" else settings.layout
    assert experiment.rounds is not None
    defaults = experiment.rounds._replace(test=None)._asdict()
    defaults |= {"layout": layout, "non_finite": settings.non_finite}
    defaults |= {"devices": settings.devices or default_num_devices()}
    return BatchedRuns(chosen[0].factory(settings), experiment.problem, runs, **defaults | options)


def run_sweep(
    prepared: Sweep,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    folder: ResultsFolder | None = None,
) -> BatchedResult:
    """Runs a sweep; see `run_batched`.

    Args:
      prepared: the result of `prepare_sweep`.
      on_evaluation: called with each row as it is measured.
      folder: the folder for rows, last models and checkpoints, from `open_folder`.
    """
    if folder is None:
        return prepared.batched.run(on_evaluation)

    def report(row: Row) -> None:
        folder.add_row(row)
        on_evaluation(row)

    return prepared.batched.run(report, folder.end, folder.checkpoints())
