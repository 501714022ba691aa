"""Runs an algorithm on every setting of a grid and every seed, in few compiled programs."""

import dataclasses
import itertools
import numbers
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from fedjax_algos.algorithms import algorithms
from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import describe
from fedjax_algos.core import Algorithm, Local, Problem, Row
from fedjax_algos.core.checks import check_callable, check_kind, check_seed
from fedjax_algos.core.optimizers import canonical
from fedjax_algos.core.options import Bytes, Count, Option, check_value, options, require_option
from fedjax_algos.core.specs import parse_value
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
from fedjax_algos.runs.studies.method import (
    CLIENT_OPTIMIZER,
    LOCAL_OPTIONS,
    Method,
    method_options,
    parse_spec,
)
from fedjax_algos.runs.studies.results_folder import ResultsFolder
from fedjax_algos.runs.studies.settings import Settings, refuse

# settings of a client's local work, also allowed in a grid
_LOCAL_WORK = (
    "local_steps", "local_epochs", "batch_size", "batches", "weight_decay", "clip_norm",
    "rate_schedule", "rate_by",
)  # fmt: skip


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
    factory = algorithms[algorithm] if isinstance(algorithm, str) else algorithm
    name, fixed, known = factory.__name__, dict(hyperparameters or {}), dict(options(factory))
    known[CLIENT_LEARNING_RATE] = LOCAL_OPTIONS[CLIENT_LEARNING_RATE]
    fields = [field for field in Local._fields if field != "learning_rate"]
    known = {field: Option(field, object, None, None, (), True) for field in fields} | known
    for option, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
            raise TypeError(f"grid has {option}={values!r}; give a list of values, such as [...]")
        required = require_option(known, option, name)
        require(option not in fixed, f"{name}: {option} is also in the grid; leave one of them out")
        for value in values:
            if not callable(value):
                check_value(required, value, name)
    require(len(seeds), f"seeds={seeds!r} has no seed; give at least one, such as [0]")
    for seed in seeds:
        check_seed(seed)
        once = list(seeds).count(seed) == 1 and (not isinstance(data, Mapping) or seed in data)
        fix = "give each seed once, with data"
        require(once, f"seed {seed} has no data or is given twice; {fix}")
    by_seed = data if isinstance(data, Mapping) else dict.fromkeys(seeds, data)
    runs = []
    for label, point in points_of(name, grid, known):
        own = {n: v for n, v in point.items() if n not in fields and n != CLIENT_LEARNING_RATE}
        work = {n: v for n, v in point.items() if n in fields}
        work["learning_rate"] = point.get(CLIENT_LEARNING_RATE, local.learning_rate)
        of_point = local._replace(**work)
        runs += [Run(label, s, by_seed[s], of_point, fixed | own, point) for s in seeds]
    return run_batched(factory, problem, runs, **batched)


class Setting(NamedTuple):
    """A method with some `values` of its options and of a client's local work, by name."""

    method: Method
    local: Local
    values: dict[str, Any]

    def __repr__(self) -> str:
        return describe(self, method=self.method.label, **self.values)


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
        own = [(run.label, run.seed) for run in self.runs if folder.takes(run.label, run.seed)]
        left = frozenset(() if all(itertools.starmap(folder.has_ended, own)) else own)
        return self._replace(batched=self.batched.only(lambda *run: run in left))


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
    if settings.seconds is not None:
        fix = "leave it out, or use compare"
        raise ValueError(f"seconds={settings.seconds:g} is for the virtual clock; {fix}")
    names = "client_state", "examples", "evaluate_clients", "devices_per_client"
    refuse(settings, "sweeps", *names)
    base = Method.of(method, settings)
    known = swept_options(base)
    points = points_of(base.label, parse_grid(base, method, settings, grid), known)
    chosen = [make_setting(settings, base, label, point) for label, point in points]
    experiment = prepare(settings, [chosen[0].method], dataset)
    for setting in chosen:  # raises for an optimiser that one of the settings cannot have
        setting.method.build(experiment.problem, settings)
    experiment = experiment._replace(methods=[setting.method for setting in chosen])
    limits: dict[str, Any] = {"runs_per_device": runs_per_device, "memory": memory}
    return Sweep(experiment, batched_runs(experiment, chosen, test=experiment.test, **limits))


def batched_runs(
    experiment: Experiment,
    chosen: Sequence[Setting],
    test_rows: Mapping[int, np.ndarray] = types.MappingProxyType({}),
    **options: Any,
) -> BatchedRuns:
    """Batches settings of one method on each seed of an experiment; `options` override it."""
    settings, runs = experiment.settings, []
    for method, local, values in chosen:
        for seed, data in experiment.data.items():
            own = local, method.hyperparameters, values, test_rows.get(seed)
            runs.append(Run(method.label, seed, data, *own))
    layout, choice = settings.layout, experiment.layout
    if choice is not None and choice.source == "memory":
        layout = choice.layout
    assert experiment.rounds is not None
    given = experiment.rounds._replace(test=None)._asdict()
    given |= {"layout": layout, "non_finite": settings.non_finite}
    given |= {"devices": settings.devices or default_num_devices(), **options}
    return BatchedRuns(chosen[0].method.factory(settings), experiment.problem, runs, **given)


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


def swept_options(base: Method) -> dict[str, Option]:
    """Returns the options that a sweep's grid can have, including the clients' local work."""
    of_work = {name: options(Settings)[name] for name in _LOCAL_WORK}
    return {**method_options(base.algorithm), **of_work}


def make_setting(settings: Settings, base: Method, label: str, values: dict[str, Any]) -> Setting:
    """Changes `swept_options` of a method, by name, and checks their values."""
    changes = {name: value for name, value in values.items() if name in _LOCAL_WORK}
    changed = dataclasses.replace(settings, **changes)
    changed.check()
    own = {n: v for n, v in values.items() if n in options(algorithms[base.algorithm])}
    method = base._replace(
        label=label,
        hyperparameters=base.hyperparameters | own,
        client_learning_rate=values.get(CLIENT_LEARNING_RATE, base.client_learning_rate),
        client_optimizer=canonical(values.get(CLIENT_OPTIMIZER, base.client_optimizer)),
    )
    local = changed.local(method.client_learning_rate, method.client_optimizer)
    return Setting(method, local, values)


def parse_grid(
    base: Method, spec: str, settings: Settings, grid: Mapping[str, Sequence[Any]]
) -> dict[str, list[Any]]:
    """Checks the values of a grid's options; `spec` is the method's text."""
    known, in_spec, values = swept_options(base), parse_spec(spec)[1], {}
    given = base.hyperparameters | {
        name: getattr(base, name)
        for name in LOCAL_OPTIONS
        if getattr(settings, name) is not None or name in in_spec
    }
    for name, listed in grid.items():
        option = require_option(known, name, base.label)
        told = f"{base.label}: {name}={given.get(name)} is given beside the grid's values"
        require(name not in given, f"{told}; leave it out")
        values[name] = [parse_value(option, value, base.label) for value in listed]
    return values


def points_of(
    name: str, grid: Mapping[str, Sequence[Any]], known: Mapping[str, Option]
) -> list[tuple[str, dict[str, Any]]]:
    """Lists settings: a label that begins with `name`, and values; `known` floats become floats."""
    columns = []
    for option, values in grid.items():
        require(len(values), f"{name}: {option} has no values in the grid; give at least one")
        real, column = known[option].kind is float, dict[str, Any]()
        for given in values:
            value = float(given) if real and isinstance(given, numbers.Real) else given
            text = text_of(value, len(column))
            if text in column:
                raise ValueError(f"{name}: {option}={text} is twice in the grid; give it once")
            column[text] = value
        columns.append([(f"{option}={text}", (option, value)) for text, value in column.items()])
    return [
        (" ".join([name, *(text for text, _ in point)]), dict(value for _, value in point))
        for point in itertools.product(*columns)
    ]


def label_of(name: str, values: Mapping[str, Any]) -> str:
    """Returns the label of a method with these values, such as `fedprox mu=0.1`."""
    return " ".join([name, *(f"{option}={text_of(v, 0)}" for option, v in values.items())])


def text_of(value: Any, position: int) -> str:
    """Formats a value for a label; an object shows its position in the grid."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value) if isinstance(value, str | int | None) else f"#{position}"
