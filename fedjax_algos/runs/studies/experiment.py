"""Prepares an experiment: the examples of each seed, and the compiled methods."""

import hashlib
import itertools
import types
from collections.abc import Callable, Mapping
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
    StoredData,
    federate,
    hold_out,
    in_memory,
    partitions,
)
from fedjax_algos.data.federated_data import check_examples
from fedjax_algos.data.partitioning.simple import choose_clients
from fedjax_algos.data.stored.stored_data import load_test
from fedjax_algos.engine.asynchronous.executor import Executor, InFlightMemory, make_executor
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
from fedjax_algos.runs.loops import run as checks
from fedjax_algos.runs.loops.planned_runs import Clock, PlannedRun, plan_runs
from fedjax_algos.runs.loops.run import Rounds
from fedjax_algos.runs.studies.method import Method, check_different
from fedjax_algos.runs.studies.settings import Settings
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

    def speed_ratios(self) -> dict[int, float]:
        """Returns by seed the slowest client's seconds per step, divided by the fastest one's."""
        return {seed: float(times.max() / times.min()) for seed, times in self.speeds.items()}


def prepare(
    settings: Settings,
    methods: list[Method],
    dataset: AnyDataset | None = None,
    *,
    files: bool = False,
    client_state_folder: Path | None = None,
    on_plan: Callable[[str, int], None] = lambda label, seed: None,
) -> Experiment:
    """Loads the data, splits it for each seed, and builds and checks all methods.

    `dataset` replaces the settings' data set. With `files`, the examples of a `ClientDataset` stay
    in files unless the settings or a method need all clients' examples. `on_plan` is called with
    each method's label and seed before its plan, which may take minutes.
    """
    settings.check()
    dataset = dataset or settings.load()
    problem = settings.problem(dataset)
    algorithms = {method.label: method.build(problem, settings) for method in methods}
    methods = [method.on_the_clock(algorithms[method.label], settings) for method in methods]
    check_different(methods, [*algorithms])

    pools = any(algorithm.traits.pools_examples for algorithm in algorithms.values())
    if isinstance(dataset, ClientDataset) and (pools or not (files and _stays_in_files(settings))):
        dataset = in_memory(dataset, settings.test_examples)
    test, evaluate, labels = _load_test_examples(settings, dataset), make_evaluate(problem), None
    checks.check_metrics(problem, test, settings.target_metric)
    if isinstance(dataset, Dataset):
        check_examples("training examples", dataset.train)  # before the device changes numbers
        labels = np.asarray(dataset.train["y"])
        dataset = dataset._replace(train=jax.device_put(dataset.train))  # once for all seeds
    splits = {seed: split(settings, dataset, seed) for seed in settings.seeds}
    data: dict[int, Any] = {seed: own for seed, (own, _) in splits.items()}
    partitions = {seed: partition for seed, (_, partition) in splits.items()}
    client_data: Any = data if settings.evaluate_clients == "train" else None
    if isinstance(dataset, Dataset) and settings.evaluate_clients == "held_out":
        client_data = {seed: split_held_out(settings, dataset, seed) for seed in settings.seeds}

    first, layout = next(iter(data.values())), None
    engines: dict[str, Any] = {
        label: _engine(settings, each, client_state_folder) for label, each in algorithms.items()
    }
    rounds: Rounds | None = None
    planned: dict[str, dict[int, PlannedRun]] = {}
    if settings.seconds is None:
        rounds = Rounds(**settings.loop(), test=test)
        layout = _choose_layout(settings, engines, first, rounds)
        engines = {label: each.with_layout(layout.layout) for label, each in engines.items()}
        _check_rounds(settings, engines, data, rounds)
    else:
        for method in methods:
            given = engines[method.label], data, _clock(settings, method, test, evaluate)
            planned[method.label] = plan_runs(*given, partial(on_plan, method.label))
    return Experiment(
        settings,
        methods,
        labels if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu" else None,
        dataset.notes + _unused_examples(labels, partitions[settings.seeds[0]]),
        test,
        data,
        partitions,
        engines,
        evaluate,
        rounds,
        planned,
        in_flight={},
        layout=layout,
        client_data=client_data,
        speeds=_client_speeds(settings),
        own_functions=_own_functions(engines, first, evaluate, test),
    )


def _stays_in_files(settings: Settings) -> bool:
    """Returns True if the settings need only one cohort's examples at a time."""
    return _is_natural(settings) and settings.evaluate_clients == "none"


def _unused_examples(labels: Any, partition: Partition | None) -> tuple[str, ...]:
    """Makes a note of examples that belong to no client, if there are any."""
    lost = 0 if labels is None or partition is None else len(labels) - len(partition.indices)
    return (f"{lost} of the training examples belong to no client of the partition",) * (lost > 0)


def _engine(settings: Settings, algorithm: Algorithm, folder: Path | None) -> Engine | Executor:
    """Compiles the algorithm; `folder` is for client state on disk."""
    shared, place = settings.devices_per_client, cast(Any, settings.client_state)
    options: dict[str, Any] = {"non_finite": settings.non_finite, "devices_per_client": shared}
    options["devices"] = settings.devices or default_num_devices(alone=shared)
    if settings.seconds is not None:
        return make_executor(algorithm, **options)
    if place == "disk":
        if folder is None:
            fix = "give prepare(..., client_state_folder=...)"
            raise ValueError(f"client_state='disk' has no folder; {fix}")
        place = RowsOnDisk(folder)
    options |= {"layout": settings.layout, "examples": settings.examples}
    return make_engine(algorithm, client_state=place, **options)


def _clock(settings: Settings, method: Method, test: Any, evaluate: Callable) -> Clock:
    """Makes the arguments of a method's runs on the virtual clock."""
    how = settings.system_model(), settings.seconds or 0.0, test, settings.evaluations
    return Clock(planners.make(method.planner), *how, evaluate=evaluate)


def _choose_layout(
    settings: Settings, engines: dict[str, Engine], data: RunData, rounds: Rounds
) -> LayoutChoice:
    """Chooses one layout for all engines; "auto" takes the smallest chunks that any one needs."""
    per_client, counts, layouts = settings.devices_per_client, data.counts(), []
    devices = settings.devices or default_num_devices(alone=per_client)
    if settings.layout != "auto":
        return LayoutChoice(settings.layout, devices, "given", per_client)
    if jax.default_backend() == "cpu":
        return LayoutChoice(default_layout(), devices, "rule", per_client)
    population = Population(len(counts), settings.cohort_size, int(counts.sum()))
    for engine in engines.values():
        cohorts = rounds.cohorts(data, engine.algorithm, engine.algorithm.local, 0)
        first = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
        layouts.append(str(engine.choose_layout(engine.shapes(population), data, first)))
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
    factory, clients = settings.system_model(), range(settings.clients)
    return {
        seed: np.array([system.expected_seconds_per_step(i) for i in clients])
        for seed in settings.seeds
        if isinstance(system := factory(seed), SystemModelWithSpeeds)
    }


def _check_rounds(
    settings: Settings, engines: dict[str, Engine], data: dict[int, Any], rounds: Rounds
) -> None:
    """Traces an exchange of each method and draws rounds of all runs, before any training.

    All methods have the same cohorts, except for the number of candidates.
    """
    first, factors, keeping = next(iter(data.values())), {}, False
    for label, engine in engines.items():
        algorithm, state = engine.algorithm, _first_state(engine, first, rounds.cohort_size)
        keeping |= bool(jax.tree.leaves(state.origin))
        most = min(first.num_clients, rounds.rounds * rounds.cohort_size)
        checks.check_room_for_rows(state, most)
        count_transfer(algorithm, state._replace(clients=()), first, blank_dispatches(1))
        rate_at(algorithm.local.learning_rate, np.arange(rounds.rounds))
        factors[algorithm.selection and algorithm.selection.factor] = label, algorithm
    for (seed, own), (label, algorithm) in itertools.product(data.items(), factors.values()):
        try:
            cohorts = rounds.cohorts(own, algorithm, algorithm.local, seed)
        except ValueError as error:
            if algorithm.selection is None:
                raise
            raise ValueError(f"{label}: {error}") from None
        arrived, size = False, rounds.eval_every
        for begin in range(0, rounds.rounds, size):
            dispatches = cohorts.dispatches(min(size, rounds.rounds - begin))
            if keeping:
                check_no_repeats(dispatches, own.num_clients)
            all_arrive = isinstance(dispatches.arrives, tuple)
            arrived |= bool(
                np.any(cohorts.position().dispatched if all_arrive else dispatches.arrives)
            )
            if arrived and not keeping:  # with client state, later cohorts may repeat a client
                break
        found = f"sampler={settings.sampler}: no client participates in {rounds.rounds} rounds"
        fix = "give one that samples more clients, or more rounds"
        require(cohorts.position().dispatched.any(), f"{found}, with seed {seed}; {fix}")
        found = f"failures={settings.failures}: no update arrives in {rounds.rounds} rounds"
        require(arrived, f"{found}, with seed {seed}; give rarer failures, or more rounds")


def _is_natural(settings: Settings) -> bool:
    """Returns True if the clients are the data set's own."""
    return partitions.parse(settings.partition)[0] == "natural"


def _load_test_examples(settings: Settings, dataset: AnyDataset) -> Batch:
    """Returns the test examples of a loaded data set, at most `test_examples`."""
    if isinstance(dataset, ClientDataset):
        return load_test(dataset, settings.test_examples)
    total = len(dataset.test["x"])
    if settings.test_examples is None or settings.test_examples >= total:
        return dataset.test
    rows = np.random.default_rng(0).choice(total, settings.test_examples, replace=False)
    return {name: leaf[np.sort(rows)] for name, leaf in dataset.test.items()}


def split(
    settings: Settings, dataset: AnyDataset, seed: int
) -> tuple[FederatedData | StoredData, Partition | None]:
    """Returns a seed's training examples by client, without held-out ones, and their partition."""
    if isinstance(dataset, ClientDataset):
        options = partitions.parse(settings.partition)[1]
        chosen = choose_clients(dataset.train.counts, settings.clients, seed, **options)
        return StoredData(dataset.train, chosen), None
    partition = _partition(settings, dataset, seed)
    if settings.evaluate_clients == "held_out":
        partition, _ = hold_out(partition, settings.held_out, seed)
    return federate(dataset.train, partition), partition


def split_held_out(settings: Settings, dataset: Dataset, seed: int) -> FederatedData:
    """Returns the examples of each client that `split` holds out, for the same arguments."""
    _, partition = hold_out(_partition(settings, dataset, seed), settings.held_out, seed)
    if not partition.indices.size:
        what = f"held_out={settings.held_out:g} of the examples of each of the {settings.clients} "
        what += "clients is less than one"
        raise ValueError(f"{what}; give a larger share or fewer clients")
    return federate(dataset.train, partition, allow_empty=True)


def _partition(settings: Settings, dataset: Dataset, seed: int) -> Partition:
    natural = _is_natural(settings)
    source = dataset.users if natural else np.asarray(dataset.train["y"])
    if source is None:
        what = f"partition={settings.partition!r} needs a data set with its own clients"
        raise ValueError(f"{what}, which {settings.dataset!r} is not; choose another partition")
    try:
        partition = partitions.make(settings.partition, source, settings.clients, seed)
        found = f"partition={settings.partition!r} has {partition.num_clients} clients"
        fix = f"return so many, or give clients={partition.num_clients}"
        fits = partition.num_clients == settings.clients
        require(fits, f"{found}, and not clients={settings.clients}; {fix}")
        return partition
    except ValueError as error:
        if natural or dataset.users is None:
            raise
        own = len(np.unique(dataset.users))
        fix = f"give partition='natural' for the {own} clients of the data set"
        raise ValueError(f"{error}; or {fix}") from error
