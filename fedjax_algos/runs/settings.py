"""The settings that every command shares, and what they make: data, problem, algorithms."""

import dataclasses
import itertools
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import optax

from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import schedules, weathers
from fedjax_algos.asynchrony.compatibility import default_schedule, fit
from fedjax_algos.core import Algorithm, Batches, Local, Problem
from fedjax_algos.core.registry import (
    NonNegative,
    Positive,
    Range,
    check_value,
    options,
    parse_value,
)
from fedjax_algos.data import Dataset, FederatedData, Partition, datasets, federate, partitions
from fedjax_algos.engine.placement import chunk_size
from fedjax_algos.models import models
from fedjax_algos.schedules import cohort_count, rates, samplers, works

Count = Annotated[int, Range(1)]
_CLIENT_RATE = "client_learning_rate"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """One experiment's settings. Names may carry options, as in `dirichlet:alpha=0.3`.

    `cohort` is a number of clients or, below 1, a fraction of them. `local_steps` is 10 if neither
    it nor `local_epochs` is given. The learning rates, where given, hold for all methods; otherwise
    each method brings its own. `rate_schedule` moves the clients' rate, by rounds or by a client's
    own visits. Clients clip their gradients to the norm `clip_norm` and then add `weight_decay`
    times the params, after the algorithm's own correction; 0 does neither. `target` is the test
    accuracy whose cost is measured, the first method's best one if None.

    With `seconds`, methods run on the virtual clock for that time, each on its own schedule, in the
    same `weather`, and are evaluated `evaluations` times; all clients take part, so `cohort`,
    `sampler`, `work`, `rounds` and `eval_every` say nothing. `local_steps` is then the work of the
    schedules that do not choose it.

    A cohort, a wave or a sweep is divided over `devices`. None leaves it to `choose_layout` in
    rounds of layout "auto", takes one where a layout is named, and otherwise all (of a CPU no more
    than it has cores). `examples` are on all of them, or "sharded": each client's on one.
    """

    dataset: str = "digits"
    model: str = "mlp"
    partition: str = "dirichlet:alpha=0.1"
    clients: Count = 100
    cohort: Positive = 10
    sampler: str = "uniform"
    work: str = "full"
    rounds: Count = 100
    local_steps: Count | None = None
    local_epochs: Positive | None = None
    batch_size: Count = 10
    batches: Batches = "short"
    client_learning_rate: Positive | None = None
    rate_schedule: str = "constant"
    rate_by: Literal["round", "visit"] = "round"
    weight_decay: NonNegative = 0.0
    clip_norm: NonNegative = 0.0
    server_learning_rate: Positive | None = None
    seeds: tuple[int, ...] = (0,)
    eval_every: Count = 5
    target: Annotated[float, Range(0, 1, low_open=True)] | None = None
    seconds: Positive | None = None
    weather: str = "simulated"
    evaluations: Count = 20
    layout: str = "auto"
    devices: Count | None = None
    client_state: Literal["device", "host"] = "device"
    examples: Literal["replicated", "sharded"] = "replicated"

    def check(self) -> None:
        """Raises ValueError for settings that are wrong or contradict each other."""
        for option in options(Settings).values():
            check_value(option, getattr(self, option.name), "")
        for registry, spec in (
            (datasets, self.dataset),
            (models, self.model),
            (partitions, self.partition),
        ):
            registry.parse(spec)
        samplers.make(self.sampler)
        works.make(self.work)
        rates.make(self.rate_schedule, 1.0)
        weathers.make(self.weather)
        if self.seconds is not None and self.local_epochs is not None:
            raise ValueError(
                f"local_epochs={self.local_epochs} is not counted on the virtual clock; give "
                "local_steps"
            )
        if self.seconds is not None and self.examples == "sharded":
            raise ValueError(
                "examples='sharded' is not for the virtual clock; give examples='replicated'"
            )
        if self.local_steps is not None and self.local_epochs is not None:
            raise ValueError(
                f"local_steps={self.local_steps} and local_epochs={self.local_epochs} are both "
                "given; give one of them"
            )
        if self.seconds is None and self.cohort > self.clients:
            raise ValueError(
                f"cohort={self.cohort:g} is out of range; give at most clients={self.clients}"
            )
        if self.seconds is None:
            cohort_count(self.cohort, self.clients)
        if len(set(self.seeds)) < len(self.seeds) or not all(0 <= s < 2**31 for s in self.seeds):
            raise ValueError(
                f"seeds={self.seeds} is out of range; give different numbers from 0 to {2**31 - 1}"
            )
        chunk_size(self.layout, 1)

    @property
    def cohort_size(self) -> int:
        """Clients in a round."""
        return cohort_count(self.cohort, self.clients)

    def loop(self) -> dict[str, Any]:
        """What `simulate` and `run_together` are told about rounds."""
        return {
            "cohort_size": self.cohort_size,
            "rounds": self.rounds,
            "sampler": samplers.make(self.sampler),
            "work": works.make(self.work),
            "eval_every": self.eval_every,
        }

    @property
    def steps(self) -> int | None:
        """Local steps of a turn; None where epochs are counted."""
        return self.local_steps or (10 if self.local_epochs is None else None)

    def local(self, learning_rate: float) -> Local:
        """A client's work at this rate, which the schedule of rates may move."""
        # clipping before decay, as in the GHBM paper's code
        transforms = [optax.clip_by_global_norm(self.clip_norm)] * (self.clip_norm > 0)
        transforms += [optax.add_decayed_weights(self.weight_decay)] * (self.weight_decay > 0)
        return Local(
            self.batch_size,
            rates.make(self.rate_schedule, learning_rate),
            self.steps,
            self.local_epochs,
            optax.chain(*transforms) if transforms else optax.identity(),
            self.batches,
            self.rate_by,
        )

    def problem(self, dataset: Dataset) -> Problem:
        """The model for a data set."""
        return models.make(self.model, dataset.example_shape, dataset.num_classes)

    def load(self) -> Dataset:
        """The data set."""
        return datasets.make(self.dataset)

    def split(self, dataset: Dataset, seed: int) -> tuple[FederatedData, Partition]:
        """The data set divided over the clients."""
        natural = partitions.parse(self.partition)[0] == "natural"
        source = dataset.users if natural else np.asarray(dataset.train["y"])
        if source is None:
            raise ValueError(
                f"partition={self.partition!r} needs a data set with clients of its own, which "
                f"{self.dataset!r} is not; choose another partition"
            )
        partition = partitions.make(self.partition, source, self.clients, seed)
        return federate(dataset.train, partition), partition


class Method(NamedTuple):
    """An algorithm with settings of its own."""

    label: str
    algorithm: str
    hyperparameters: dict[str, Any]
    client_learning_rate: float
    schedule: str = ""  # of the virtual clock, "" in synchronous rounds

    @classmethod
    def of(cls, spec: str, settings: Settings) -> "Method":
        """From a spec such as `fedprox:mu=0.1,client_learning_rate=0.3`.

        On the virtual clock a schedule may follow, as in `fedbuff:alpha=0.6@buffered:size=5`;
        without one it is the algorithm's own. Rates given in `settings` take the place of the
        spec's.

        Raises:
          ValueError: for an unknown algorithm, schedule or option, a value out of range, or a
            schedule that the algorithm does not run on.
        """
        spec, _, schedule = spec.partition("@")
        name, _, text = spec.partition(":")
        parts = [part for part in text.split(",") if part]
        rate = 0.1
        for part in [part for part in parts if part.startswith(f"{_CLIENT_RATE}=")]:
            rate = parse_value(options(Settings)[_CLIENT_RATE], part.partition("=")[2], name)
            parts.remove(part)
        name, values = algorithms.parse(f"{name}:{','.join(parts)}")
        if settings.server_learning_rate is not None:
            values["server_learning_rate"] = settings.server_learning_rate
        if settings.seconds is None and schedule:
            raise ValueError(
                f"{name}@{schedule} names a schedule of the virtual clock; give seconds=..., the "
                "virtual time to run"
            )
        if settings.seconds is not None:
            schedule = complete_schedule(schedule or default_schedule(name), settings)
            fit(name, values, schedules.parse(schedule)[0])
        return cls(name, name, values, settings.client_learning_rate or rate, schedule)

    def build(self, problem: Problem, settings: Settings) -> Algorithm:
        """The algorithm for a problem."""
        local = settings.local(self.client_learning_rate)
        return algorithms[self.algorithm](problem, local, **self.hyperparameters)

    def configuration(self) -> dict[str, Any]:
        """Everything that the method is, defaults included."""
        known = options(algorithms[self.algorithm])
        values = {o.name: self.hyperparameters.get(o.name, o.default) for o in known.values()}
        return {
            "algorithm": self.algorithm,
            _CLIENT_RATE: self.client_learning_rate,
            **({"schedule": self.schedule} if self.schedule else {}),
            **{key: value for key, value in values.items() if known[key].kind is not object},
        }


def complete_schedule(spec: str, settings: Settings) -> str:
    """A schedule's spec with the settings' local steps, where it needs steps and gives none.

    Raises:
      ValueError: for an unknown schedule or option, or a value out of range.
    """
    name, values = schedules.parse(spec)
    if "steps" in options(schedules[name]) and "steps" not in values:
        spec += f"{',' if ':' in spec else ':'}steps={settings.steps}"
    schedules.make(spec)
    return spec


def methods_of(specs: tuple[str, ...], settings: Settings) -> list[Method]:
    """The methods of several specs, labelled by algorithm and by what tells namesakes apart.

    Raises:
      ValueError: for a spec that is wrong, or two that mean the same.
    """
    methods = [Method.of(spec, settings) for spec in specs]
    values = [method.configuration() for method in methods]
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(
                f"the methods {specs[values.index(value)]} and {specs[index]} name one of them "
                "twice; leave one out"
            )
    labels = [
        _label(value, [v for v in values if v["algorithm"] == value["algorithm"]])
        for value in values
    ]
    return [m._replace(label=label) for m, label in zip(methods, labels, strict=True)]


def _label(configuration: dict[str, Any], namesakes: list[dict[str, Any]]) -> str:
    """The algorithm's name and the values of the fewest options that tell all namesakes apart."""
    differing = [
        name for name in configuration if any(v[name] != configuration[name] for v in namesakes)
    ]
    # choices first, as they need no name, and the rate last, as it is usually tuned for the rest
    differing.sort(key=lambda name: (name == _CLIENT_RATE, not _is_choice(configuration, name)))
    for size in range(len(differing) + 1):
        for chosen in itertools.combinations(differing, size):
            if len({tuple(v[name] for name in chosen) for v in namesakes}) == len(namesakes):
                told = [_told(configuration, name) for name in chosen]
                return " ".join([configuration["algorithm"], *told])
    raise AssertionError("namesakes differ in at least one option")


def _is_choice(configuration: dict[str, Any], name: str) -> bool:
    known = options(algorithms[configuration["algorithm"]])
    return name in known and bool(known[name].choices)


def _told(configuration: dict[str, Any], name: str) -> str:
    value = configuration[name]
    if _is_choice(configuration, name):
        return str(value)
    if isinstance(value, float) and float(f"{value:g}") == value:
        value = f"{value:g}"
    return f"{name}={str(value).lower()}"
