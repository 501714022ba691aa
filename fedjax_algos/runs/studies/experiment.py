"""Prepares an experiment: the examples of each seed, and the compiled methods."""

import hashlib
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import jax
import numpy as np

from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis.evaluation import make_evaluate
from fedjax_algos.asynchrony import Plan, SystemModelWithSpeeds, planners
from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import describe
from fedjax_algos.core import Algorithm, Batch, Population, Problem
from fedjax_algos.core.types import blank_dispatches
from fedjax_algos.data import (
    AnyDataset,
    ClientDataset,
    Dataset,
    FederatedData,
    Partition,
    in_memory,
    partitions,
)
from fedjax_algos.data.federated_data import check_examples
from fedjax_algos.data.stored.stored_data import load_test
from fedjax_algos.engine.asynchronous.executor import InFlightMemory, make_executor
from fedjax_algos.engine.checks import check_no_repeats
from fedjax_algos.engine.engine import Engine, make_engine
from fedjax_algos.engine.exchange import count_transfer
from fedjax_algos.engine.fingerprint import algorithm_fingerprint, data_fingerprint
from fedjax_algos.engine.placed.devices import default_num_devices
from fedjax_algos.engine.placed.on_disk import RowsOnDisk
from fedjax_algos.engine.placed.sharded_data import RunData
from fedjax_algos.engine.slots import chunk_size, default_layout
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.models import losses, metrics, models
from fedjax_algos.participation.cohorts import rate_at
from fedjax_algos.runs.loops.planned_runs import Clock, PlannedRun, plan_runs
from fedjax_algos.runs.loops.run import Rounds, check_metrics, check_room_for_rows
from fedjax_algos.runs.studies.method import Method, check_different
from fedjax_algos.runs.studies.settings import Settings, split
from fedjax_algos.wrappers import wrappers


class LayoutChoice(NamedTuple):
    """The layout of rounds, the number of devices, and the source of the choice."""

    layout: str
    devices: int
    source: Literal["rule", "memory", "memory unknown", "given"]
    per_client: int = 1

    def __str__(self) -> str:
        name = f"chunks of {self.layout}" if self.layout.isdecimal() else self.layout
        shared = f", {self.per_client} for each client" * (self.per_client > 1)
        return f"{name} on {self.devices} device{'s' * (self.devices > 1)}{shared} ({self.source})"


class Experiment(NamedTuple):
    """A comparison that is ready to run: the data of each seed and the compiled methods.

    Attributes:
      settings: the settings of all methods.
      methods: the methods with their options.
      labels: int32[train examples]; None if an example has several labels or is in files.
      notes: lines on what the data set's reader left out.
      test: the test examples.
      data: by seed, `FederatedData` or `StoredData`.
      partitions: by seed; None for examples in files.
      algorithms: by label, also of the settings that a search tries.
      engines: by label, an `Engine`, or an `Executor` on the virtual clock.
      evaluate: the result of `make_evaluate`, for all methods.
      rounds: the rounds of all runs; None on the virtual clock.
      planned: by label and seed, the runs on the virtual clock before their training.
      in_flight: by label; added before a run on the virtual clock starts.
      layout: the layout of rounds, the same for all methods.
      client_data: by seed, the examples to evaluate each client on; None for no evaluation.
      speeds: by seed, float[clients]: mean seconds per step at the start, without communication;
        empty in rounds, and for system models that do not know them.
      own_functions: identifies what algorithms, models, losses and metrics compute if some are
        custom and so may change; else "".
    """

    settings: Settings
    methods: list[Method]
    labels: np.ndarray | None
    notes: tuple[str, ...]
    test: Any
    data: dict[int, Any]
    partitions: dict[int, Partition | None]
    algorithms: dict[str, Algorithm]
    engines: dict[str, Any]
    evaluate: Callable
    rounds: Rounds | None
    planned: Mapping[str, Mapping[int, PlannedRun]]
    in_flight: dict[str, InFlightMemory]
    layout: LayoutChoice | None = None
    client_data: dict[int, FederatedData] | None = None
    speeds: Mapping[int, np.ndarray] = types.MappingProxyType({})
    own_functions: str = ""

    def __repr__(self) -> str:
        settings, methods = self.settings, [method.label for method in self.methods]
        about = {"dataset": settings.dataset, "clients": settings.clients, "methods": methods}
        return describe(self, **about, seeds=list(self.data))

    @property
    def problem(self) -> Problem:
        """The problem that all methods learn."""
        return next(iter(self.engines.values())).algorithm.problem

    @property
    def plans(self) -> dict[str, Plan]:
        """The first seed's plans on the virtual clock, by label."""
        return {label: next(iter(runs.values())).plan for label, runs in self.planned.items()}

    def digest(self, seed: int) -> str:
        """Identifies which client holds which examples.

        Args:
          seed: the seed of the partition.
        """
        partition = self.partitions[seed]
        return data_fingerprint(self.data[seed]) if partition is None else partition.digest()

    def privacy(self) -> dict[str, str]:
        """Describes the epsilon of each private method after all rounds, by label."""
        if self.rounds is None:
            return {}
        data, rounds = next(iter(self.data.values())), self.rounds
        found = {name: rounds.accountant(data, e.algorithm) for name, e in self.engines.items()}
        return {name: each.describe(rounds.rounds) for name, each in found.items() if each}

    def speed_ratios(self) -> dict[int, float]:
        """Returns by seed the slowest client's seconds per step, divided by the fastest one's."""
        return {seed: float(times.max() / times.min()) for seed, times in self.speeds.items()}


def prepare(
    settings: Settings,
    methods: list[Method],
    dataset: AnyDataset | None = None,
    *,
    searched: Mapping[str, Sequence[Method]] | None = None,
    files: bool = False,
    client_state_folder: Path | None = None,
    on_plan: Callable[[str, int], None] = lambda label, seed: None,
) -> Experiment:
    """Loads the data, splits it for each seed, and builds and checks all methods.

    `dataset` replaces the settings' data set. `searched` has the settings of each method that a
    search tries, by label; the method's engine runs the first. With `files`, the examples of a
    `ClientDataset` stay in files unless the settings or a method need all clients' examples.
    `on_plan` is called with each method's label and seed before its plan, which may take minutes.
    """
    settings.check()
    dataset = dataset or settings.load()
    problem = settings.problem(dataset)
    searched = searched or {method.label: [method] for method in methods}
    tried = itertools.chain(*searched.values())
    algorithms = {method.label: method.build(problem, settings) for method in tried}
    firsts = {label: algorithms[choices[0].label] for label, choices in searched.items()}
    methods = [method.on_the_clock(firsts[method.label], settings) for method in methods]
    check_different(methods, [*firsts])

    if isinstance(dataset, ClientDataset):
        pools = any(algorithm.traits.pools_examples for algorithm in algorithms.values())
        is_natural = partitions.parse(settings.partition)[0] == "natural"
        if not (files and is_natural and settings.evaluate_clients == "none") or pools:
            dataset = in_memory(dataset, settings.test_examples)
    test, evaluate, labels = _load_test_examples(settings, dataset), make_evaluate(problem), None
    check_metrics(problem, test, settings.target_metric)
    if isinstance(dataset, Dataset):
        check_examples("training examples", dataset.train)  # before the device changes numbers
        labels = np.asarray(dataset.train["y"])
        dataset = dataset._replace(train=jax.device_put(dataset.train))  # once for all seeds
    splits: dict[int, Any] = {seed: split(settings, dataset, seed) for seed in settings.seeds}
    data: dict[int, Any] = {seed: part.train for seed, part in splits.items()}
    held_out: Any = {seed: part.held_out for seed, part in splits.items()}
    of_clients: Any = {"none": None, "train": data, "held_out": held_out}
    notes = dataset.notes
    if labels is not None:
        one = splits[settings.seeds[0]]
        num_held_out = 0 if one.held_out is None else len(one.held_out.indices)
        if (lost := len(labels) - len(one.partition.indices) - num_held_out) > 0:
            notes += (f"{lost} of the training examples belong to no client of the partition",)
        if labels.ndim != 1 or labels.dtype.kind not in "iu":  # they are not classes
            labels = None

    first, layout, rounds = next(iter(data.values())), None, None
    make = partial(engine_of, settings, folder=client_state_folder)
    engines: dict[str, Any] = {label: make(algorithm) for label, algorithm in firsts.items()}
    planned: dict[str, dict[int, PlannedRun]] = {}
    if settings.seconds is None:
        rounds = Rounds(**settings.loop(), test=test)
        layout = _choose_layout(settings, engines, first, rounds)
        engines = {label: engine.with_layout(layout.layout) for label, engine in engines.items()}
        _check_rounds(settings, engines, data, rounds)
    else:
        options = settings.system_model(), settings.seconds, test, settings.evaluations
        for method in methods:
            clock = Clock(planners.make(method.planner), *options, evaluate=evaluate)
            tell = partial(on_plan, method.label)
            planned[method.label] = plan_runs(engines[method.label], data, clock, tell)
    return Experiment(
        settings,
        methods,
        labels,
        notes,
        test,
        data,
        {seed: part.partition for seed, part in splits.items()},
        algorithms,
        engines,
        evaluate,
        rounds,
        planned,
        in_flight={},
        layout=layout,
        client_data=of_clients[settings.evaluate_clients],
        speeds=_client_speeds(settings),
        own_functions=_own_functions(engines, first, evaluate, test),
    )


def engine_of(settings: Settings, algorithm: Algorithm, folder: Path | None = None) -> Any:
    """Makes an `Engine` or an `Executor`; `folder` is for client state on disk."""
    shared, place = settings.devices_per_client, cast(Any, settings.client_state)
    options: dict[str, Any] = {"non_finite": settings.non_finite, "devices_per_client": shared}
    options["devices"] = settings.devices or default_num_devices(alone=shared)
    if settings.seconds is not None:
        return make_executor(algorithm, **options)
    if place == "disk" and folder is not None:
        place = RowsOnDisk(folder)
    options |= {"layout": settings.layout, "examples": settings.examples}
    return make_engine(algorithm, client_state=place, **options)


def _choose_layout(
    settings: Settings, engines: dict[str, Engine], data: RunData, rounds: Rounds
) -> LayoutChoice:
    """Chooses one layout for all engines; "auto" takes the smallest chunks that any one needs."""
    per_client, layouts = settings.devices_per_client, []
    devices = settings.devices or default_num_devices(alone=per_client)
    if settings.layout != "auto":
        return LayoutChoice(settings.layout, devices, "given", per_client)
    if jax.default_backend() == "cpu":
        return LayoutChoice(default_layout(), devices, "rule", per_client)
    for engine in engines.values():
        cohorts = rounds.cohorts(data, engine.algorithm, engine.algorithm.local, 0)
        one = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
        shapes = _first_state(engine, data, rounds.cohort_size)
        layouts.append(str(engine.choose_layout(shapes, data, one)))
    if "auto" in layouts:
        return LayoutChoice(default_layout(), devices, "memory unknown", per_client)
    smallest = min(layouts, key=partial(chunk_size, cohort_size=settings.cohort_size))
    return LayoutChoice(smallest, devices, "memory", per_client)


def _own_functions(engines, data, evaluate, test) -> str:
    """Identifies what algorithms, models, losses and metrics compute; "" if all are registered."""
    registries: Any = algorithms, wrappers, models, losses, metrics
    if not any(":" in name for registry in registries for name in registry):
        return ""
    texts = []
    for engine in engines.values():
        state = _first_state(engine, data, data.num_clients)
        texts.append(algorithm_fingerprint(engine.algorithm, state, data, blank_dispatches()))
        texts.append(jax.jit(evaluate).lower(state.model, test).as_text())
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def _first_state(engine: Any, data: Any, cohort_size: int) -> FederatedState:
    """Returns the shapes of the first state."""
    return engine.shapes(Population(data.num_clients, cohort_size, int(data.counts().sum())))


def _client_speeds(settings: Settings) -> dict[int, np.ndarray]:
    """Returns the clients' seconds per step by seed, float[clients], or {} if not known."""
    if settings.seconds is None:
        return {}
    systems = {seed: settings.system_model()(seed) for seed in settings.seeds}
    return {
        seed: np.array([*map(system.expected_seconds_per_step, range(settings.clients))])
        for seed, system in systems.items()
        if isinstance(system, SystemModelWithSpeeds)
    }


def _check_rounds(
    settings: Settings, engines: dict[str, Engine], data: dict[int, Any], rounds: Rounds
) -> None:
    """Traces an exchange of each method and draws rounds of all runs, before any training.

    All methods have the same cohorts, except for the number of candidates.
    """
    first, factors, keeping = next(iter(data.values())), {}, False
    for engine in engines.values():
        algorithm, state = engine.algorithm, _first_state(engine, first, rounds.cohort_size)
        keeping |= bool(jax.tree.leaves(state.origin))
        check_room_for_rows(state, min(first.num_clients, rounds.rounds * rounds.cohort_size))
        count_transfer(algorithm, state._replace(clients=()), first, blank_dispatches(1))
        rate_at(algorithm.local.learning_rate, np.arange(rounds.rounds))
        factors[algorithm.selection and algorithm.selection.factor] = algorithm
    for (seed, of_seed), algorithm in itertools.product(data.items(), factors.values()):
        cohorts = rounds.cohorts(of_seed, algorithm, algorithm.local, seed)
        arrived, size = False, rounds.eval_every
        for begin in range(0, rounds.rounds, size):
            dispatches = cohorts.dispatches(min(size, rounds.rounds - begin))
            if keeping:
                check_no_repeats(dispatches, of_seed.num_clients)
            arrives = dispatches.arrives
            arrived |= isinstance(arrives, tuple) or bool(arrives.any())
            if arrived and not keeping:  # with client state, later cohorts may repeat a client
                break
        found = f"sampler={settings.sampler} and failures={settings.failures}: with seed {seed}"
        fix = "give more rounds, a sampler that takes more clients, or rarer failures"
        require(arrived, f"{found} no update arrives in {rounds.rounds} rounds; {fix}")


def _load_test_examples(settings: Settings, dataset: AnyDataset) -> Batch:
    """Returns the test examples of a loaded data set, at most `test_examples`."""
    if isinstance(dataset, ClientDataset):
        return load_test(dataset, settings.test_examples)
    total = len(dataset.test["x"])
    if settings.test_examples is None or settings.test_examples >= total:
        return dataset.test
    rows = np.random.default_rng(0).choice(total, settings.test_examples, replace=False)
    return {name: leaf[np.sort(rows)] for name, leaf in dataset.test.items()}
