"""Sweeps: an algorithm on every setting of a grid and every seed, in as few programs as can be."""

import dataclasses
import itertools
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_algos.algorithms import algorithms
from fedjax_algos.core import Algorithm, Local, Problem
from fedjax_algos.core.registry import Option, check_value, options, parse_value, unknown
from fedjax_algos.data import Dataset, FederatedData
from fedjax_algos.engine.autotune import Choice
from fedjax_algos.engine.devices import usual_devices
from fedjax_algos.runs import comparison
from fedjax_algos.runs.batched import Run, Together, run_together
from fedjax_algos.runs.batched_program import RATE
from fedjax_algos.runs.comparison import Experiment
from fedjax_algos.runs.settings import Count, Method, Settings
from fedjax_algos.runs.simulation import Row

# settings of a client's work, which a grid may hold as well
_WORK = (
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
    **how: Any,
) -> Together:
    """Every setting of a grid on every seed: `simulate`'s numbers, in as few programs as can be.

    Args:
      algorithm: a registered name, or a factory `(problem, local, *, ...) -> Algorithm`.
      problem: what is learned.
      local: a client's work.
      data: the clients' examples, or those of each seed. Seeds run together where these hold the
        same arrays of examples: `data._replace(indices=..., offsets=...)`.
      grid: the values of options of the algorithm, of "client_learning_rate" (numbers, or functions
        as in `Local`), or of `Local`'s other fields. Floats, and only they, share a program.
      seeds: see `simulate`.
      hyperparameters: the algorithm's other options.
      **how: `cohort_size`, `rounds` and so on, see `run_together`.

    Returns:
      Rows as `simulate` has them, with `method` (the algorithm's name and the setting) and `seed`;
      and notes on how they were run.

    Raises:
      ValueError: for an unknown option, a value out of range or given twice, no values, or a seed
        without data.
    """
    factory = algorithms[algorithm] if isinstance(algorithm, str) else algorithm
    name, fixed, known = factory.__name__, dict(hyperparameters or {}), dict(options(factory))
    known |= {RATE: options(Settings)[RATE]}
    fields = [field for field in Local._fields if field != "learning_rate"]
    for option, values in grid.items():
        if option not in known and option not in fields:
            raise ValueError(f"{name}: {unknown('option', option, [*known, *fields])}")
        if option in fixed:
            raise ValueError(f"{name}: {option} stands in the grid too; leave one of them out")
        for value in values:
            if option in known and not callable(value):
                check_value(known[option], value, name)
    for seed in seeds:
        if list(seeds).count(seed) > 1 or (isinstance(data, Mapping) and seed not in data):
            raise ValueError(
                f"seed {seed} has no data or stands twice; give each seed once, with data"
            )
    runs = []
    for label, point in _points(name, grid, known):
        own = {option: value for option, value in point.items() if option in fields}
        own |= {"learning_rate": point[RATE]} if RATE in point else {}
        chosen = {n: v for n, v in point.items() if n not in fields and n != RATE}
        for seed in seeds:
            of_seed = data[seed] if isinstance(data, Mapping) else data
            runs.append(Run(label, seed, of_seed, local._replace(**own), fixed | chosen, point))
    return run_together(factory, problem, runs, **how)


def _points(
    name: str, grid: Mapping[str, Sequence[Any]], known: Mapping[str, Option]
) -> list[tuple[str, dict[str, Any]]]:
    """Each setting's label and values; whole numbers of a float option become floats."""
    columns = []
    for option, values in grid.items():
        if not len(values):
            raise ValueError(f"{name}: {option} has no values in the grid; give at least one")
        real = option in known and known[option].kind is float
        column: dict[str, Any] = {}
        for given in values:
            value = float(given) if real and isinstance(given, numbers.Real) else given
            told = _told(value, len(column))
            if told in column:
                raise ValueError(f"{name}: {option}={told} stands twice in the grid; give it once")
            column[told] = value
        columns.append([(f"{option}={told}", (option, value)) for told, value in column.items()])
    return [
        (" ".join([name, *(text for text, _ in point)]), dict(value for _, value in point))
        for point in itertools.product(*columns)
    ]


def _told(value: Any, place: int) -> str:
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value) if isinstance(value, str | int | None) else f"#{place}"


class Sweep(NamedTuple):
    """A sweep of settings, made real."""

    experiment: Experiment  # its methods are the settings of the grid
    runs: list[Run]


def prepare_sweep(
    settings: Settings,
    method: str,
    grid: Mapping[str, Sequence[Any]],
    dataset: Dataset | None = None,
) -> Sweep:
    """Loads the data (unless it is given), splits it for each seed, and checks all settings.

    Args:
      settings: of all runs.
      method: an algorithm, with options that all runs share, as in `fedprox:weighting=uniform`.
      grid: values, or texts of them, of the algorithm's other options, of "client_learning_rate",
        and of the settings of a client's work (local_steps, batch_size, ...).
      dataset: what `settings.load()` gives.

    Raises:
      ValueError: for settings or a grid that are wrong.
    """
    if settings.seconds is not None:
        raise ValueError(
            f"seconds={settings.seconds:g} asks for the virtual clock, where a sweep does not run; "
            "leave seconds out, or use compare"
        )
    if settings.client_state == "host":
        raise ValueError("client_state='host' is not for sweeps; give client_state='device'")
    if settings.examples == "sharded":
        raise ValueError("examples='sharded' is not for sweeps; give examples='replicated'")
    base = Method.of(method, settings)
    name, given = base.algorithm, dict(base.hyperparameters)
    if settings.client_learning_rate is not None or f"{RATE}=" in method:
        given[RATE] = base.client_learning_rate
    known = {**options(algorithms[name]), **{n: options(Settings)[n] for n in (RATE, *_WORK)}}
    values: dict[str, list[Any]] = {}
    for option, texts in grid.items():
        if option not in known:
            raise ValueError(f"{name}: {unknown('option', option, known)}")
        if option in given:
            raise ValueError(
                f"{name}: {option}={given[option]} is given beside the grid's values; leave it out"
            )
        values[option] = [parse_value(known[option], str(text), name) for text in texts]
    methods, wholes = [], []
    for label, point in _points(name, values, known):
        own = dataclasses.replace(settings, **{n: v for n, v in point.items() if n in _WORK})
        own.check()
        chosen = {n: v for n, v in point.items() if n in options(algorithms[name])}
        rate = point.get(RATE, base.client_learning_rate)
        methods.append(Method(label, name, base.hyperparameters | chosen, rate))
        wholes.append((own.local(rate), methods[-1].hyperparameters, point))
    rule = Choice("auto", settings.devices or 1, (), "rule")  # runs are divided, not cohorts
    experiment = comparison.prepare(settings, methods[:1], dataset, rule)
    runs = [
        Run(method.label, seed, data, *whole)
        for method, whole in zip(methods, wholes, strict=True)
        for seed, data in experiment.data.items()
    ]
    return Sweep(experiment._replace(methods=methods), runs)


def run_sweep(
    prepared: Sweep,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    *,
    at_once: Count | None = None,
    memory: Count = 2**30,
) -> Together:
    """Runs what `prepare_sweep` made; see `run_together`."""
    experiment, runs = prepared
    settings = experiment.settings
    (engine,) = experiment.engines.values()
    return run_together(
        algorithms[experiment.methods[0].algorithm],
        engine.algorithm.problem,
        runs,
        **settings.loop(),
        test=experiment.test,
        on_evaluation=on_evaluation,
        layout=settings.layout,
        devices=settings.devices or usual_devices(),
        at_once=at_once,
        memory=memory,
    )
