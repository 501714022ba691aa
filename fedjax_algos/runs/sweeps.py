"""Sweeps: an algorithm on every setting of a grid and every seed, in few compiled programs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from fedjax_algos.algorithms import algorithms
from fedjax_algos.core import Algorithm, Local, Problem, Row
from fedjax_algos.core.checks import check_callable, check_kind, check_seed
from fedjax_algos.core.options import (
    Bytes,
    Count,
    check_value,
    options,
    unknown,
)
from fedjax_algos.core.representation import describe
from fedjax_algos.data import AnyDataset, FederatedData
from fedjax_algos.engine.placed.devices import default_num_devices
from fedjax_algos.runs.batched import BatchedOptions, BatchedResult, Run, run_batched
from fedjax_algos.runs.experiment import Experiment, prepare
from fedjax_algos.runs.method import CLIENT_LEARNING_RATE, Method
from fedjax_algos.runs.saving.results_folder import ResultsFolder
from fedjax_algos.runs.settings import Settings
from fedjax_algos.runs.swept_settings import make_setting, parse_grid, points_of, swept_options


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

    The numbers are those of `simulate`, up to rounding.

    Args:
      algorithm: a registered name, or a factory `(problem, local, *, ...) -> Algorithm`.
      problem: what is learned.
      local: a client's local work.
      data: the clients' examples, or those of each seed. Seeds share a program if their data hold
        the same arrays of examples: `data._replace(indices=..., offsets=...)`.
      grid: the values of options of the algorithm, of "client_learning_rate" (numbers, or functions
        as in `Local`), or of the other fields of `Local`. Only floats share a program.
      seeds: as in `simulate`.
      hyperparameters: the algorithm's other options.
      **batched: `cohort_size`, `rounds`, `test` and the other keywords of `run_batched`.

    Returns:
      Rows as `simulate` has them, with `method` (the algorithm's name and the setting) and `seed`;
      and notes on the programs.

    Raises:
      ValueError: for an unknown option, a value out of range or given twice, no values, or a seed
        without data.
    """
    _check_kinds(algorithm, data, grid, seeds)
    factory = algorithms[algorithm] if isinstance(algorithm, str) else algorithm
    name, fixed, known = factory.__name__, dict(hyperparameters or {}), dict(options(factory))
    known |= {CLIENT_LEARNING_RATE: options(Settings)[CLIENT_LEARNING_RATE]}
    fields = [field for field in Local._fields if field != "learning_rate"]
    for option, values in grid.items():
        if option not in known and option not in fields:
            raise ValueError(f"{name}: {unknown('option', option, [*known, *fields])}")
        if option in fixed:
            raise ValueError(f"{name}: {option} is in the grid too; leave one of them out")
        for value in values:
            if option in known and not callable(value):
                check_value(known[option], value, name)
    for seed in seeds:
        if list(seeds).count(seed) > 1 or (isinstance(data, Mapping) and seed not in data):
            raise ValueError(
                f"seed {seed} has no data or is given twice; give each seed once, with data"
            )
    runs = []
    for label, point in points_of(name, grid, known):
        work = {option: value for option, value in point.items() if option in fields}
        if CLIENT_LEARNING_RATE in point:
            work["learning_rate"] = point[CLIENT_LEARNING_RATE]
        own = {n: v for n, v in point.items() if n not in fields and n != CLIENT_LEARNING_RATE}
        for seed in seeds:
            of_seed = data[seed] if isinstance(data, Mapping) else data
            runs.append(Run(label, seed, of_seed, local._replace(**work), fixed | own, point))
    return run_batched(factory, problem, runs, **batched)


def _check_kinds(algorithm, data, grid, seeds):
    """Checks the types of a sweep's arguments, and its seeds."""
    if not isinstance(algorithm, str):
        check_callable("algorithm", algorithm, "give a name or a factory, such as 'fedprox'")
    check_kind("grid", grid, Mapping, "give {option: values}")
    of_seeds = data.values() if isinstance(data, Mapping) else [data]
    for each in of_seeds:
        check_kind("data", each, FederatedData, "give what federate returned, or that by seed")
    for option, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
            raise TypeError(f"grid has {option}={values!r}; give a list of values, such as [...]")
    if not len(seeds):
        raise ValueError(f"seeds={seeds!r} has no seed; give at least one, such as [0]")
    for seed in seeds:
        check_seed(seed)


class Sweep(NamedTuple):
    """A sweep that is ready to run.

    Attributes:
      experiment: its methods are the settings of the grid.
      runs: one for each setting and seed.
    """

    experiment: Experiment
    runs: list[Run]

    def __repr__(self) -> str:
        return describe(self, experiment=self.experiment, runs=len(self.runs))


def prepare_sweep(
    settings: Settings,
    method: str,
    grid: Mapping[str, Sequence[Any]],
    dataset: AnyDataset | None = None,
) -> Sweep:
    """Loads the data, splits it for each seed, and checks all settings.

    Args:
      settings: of all runs.
      method: an algorithm, with options that all runs share, as in `fedprox:weighting=uniform`.
      grid: values, or texts of them, of the algorithm's other options, of "client_learning_rate",
        of "client_optimizer", and of the settings of a client's local work (local_steps,
        batch_size, ...).
      dataset: replaces the one that the settings name.

    Raises:
      ValueError: for settings or a grid that are wrong.
    """
    if settings.seconds is not None:
        raise ValueError(
            f"seconds={settings.seconds:g} is for the virtual clock, where a sweep does not run; "
            "leave seconds out, or use compare"
        )
    settings.refuse("sweeps", "client_state", "examples")
    if settings.evaluate_clients != "none":
        raise ValueError(
            f"evaluate_clients={settings.evaluate_clients!r} is not for sweeps; leave it out, or "
            "use compare"
        )
    base = Method.of(method, settings)
    known = swept_options(base)
    points = points_of(base.label, parse_grid(base, method, settings, grid), known)
    chosen = [make_setting(settings, base, label, point) for label, point in points]
    experiment = prepare(settings, [chosen[0].method], dataset)
    (engine,) = experiment.engines.values()
    for setting in chosen:  # refuses an optimiser that one of the settings cannot have
        setting.method.build(engine.algorithm.problem, settings)
    runs = [setting.run(seed, data) for setting in chosen for seed, data in experiment.data.items()]
    return Sweep(experiment._replace(methods=[setting.method for setting in chosen]), runs)


def run_sweep(
    prepared: Sweep,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    folder: ResultsFolder | None = None,
    *,
    runs_per_device: Count | None = None,
    memory: Bytes | None = None,
) -> BatchedResult:
    """Runs a sweep; see `run_batched`.

    Args:
      prepared: of `prepare_sweep`.
      on_evaluation: called with each row as it is measured.
      folder: where rows, last models and checkpoints are written as they come; of `open_folder`.
      runs_per_device: runs that a device computes at once.
      memory: bytes for the runs of one call. None is 2**30, or what the runs that are computed at
        once need if this is more.
    """
    experiment, runs = prepared
    settings = experiment.settings
    (engine,) = experiment.engines.values()

    def report(row: Row) -> None:
        if folder is not None:
            folder.add_row(row)
        on_evaluation(row)

    return run_batched(
        algorithms[experiment.methods[0].algorithm],
        engine.algorithm.problem,
        runs,
        **settings.loop(),
        test=experiment.test,
        on_evaluation=report,
        on_end=None if folder is None else folder.end,
        checkpoints=None if folder is None else folder.checkpoints(),
        layout=settings.layout,
        devices=settings.devices or default_num_devices(),
        runs_per_device=runs_per_device,
        memory=memory,
        non_finite=settings.non_finite,
    )
