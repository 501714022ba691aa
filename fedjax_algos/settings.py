"""The settings that every command shares, and what they make: data, problem, algorithms."""

import dataclasses
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedjax_algos.algorithms import algorithms
from fedjax_algos.core import Algorithm, Local, Problem
from fedjax_algos.data import Dataset, FederatedData, Partition, datasets, federate, partitions
from fedjax_algos.engine import chunk_size
from fedjax_algos.models import models
from fedjax_algos.registry import Positive, Range, options, parse_value

Count = Annotated[int, Range(1)]
_CLIENT_RATE = "client_learning_rate"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """One experiment's settings. Names may carry options, as in `dirichlet:alpha=0.3`.

    `local_steps` is 10 if neither it nor `local_epochs` is given. The learning rates, where given,
    hold for all methods; otherwise each method brings its own.
    """

    dataset: str = "digits"
    model: str = "mlp"
    partition: str = "dirichlet:alpha=0.1"
    clients: Count = 100
    cohort: Count = 10
    rounds: Count = 100
    local_steps: Count | None = None
    local_epochs: Count | None = None
    batch_size: Count = 10
    client_learning_rate: Positive | None = None
    server_learning_rate: Positive | None = None
    seeds: tuple[int, ...] = (0,)
    eval_every: Count = 5
    layout: str = "auto"

    def check(self) -> None:
        """Raises ValueError for settings that contradict each other."""
        if self.local_steps is not None and self.local_epochs is not None:
            raise ValueError(
                f"local_steps={self.local_steps} and local_epochs={self.local_epochs} are both "
                "given; give one of them"
            )
        if self.cohort > self.clients:
            raise ValueError(
                f"cohort={self.cohort} is out of range; give at most clients={self.clients}"
            )
        if len(set(self.seeds)) < len(self.seeds) or not all(0 <= s < 2**31 for s in self.seeds):
            raise ValueError(
                f"seeds={self.seeds} is out of range; give different numbers from 0 to {2**31 - 1}"
            )
        chunk_size(self.layout, 1)

    def local(self, learning_rate: float) -> Local:
        """A client's work at this rate."""
        steps = self.local_steps or (10 if self.local_epochs is None else None)
        return Local(self.batch_size, learning_rate, steps, self.local_epochs)

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

    @classmethod
    def of(cls, spec: str, settings: Settings) -> "Method":
        """From a spec such as `fedprox:mu=0.1,client_learning_rate=0.3`.

        Rates given in `settings` take the place of the spec's.

        Raises:
          ValueError: for an unknown algorithm or option, or a value out of range.
        """
        name, _, text = spec.partition(":")
        parts = [part for part in text.split(",") if part]
        rate = 0.1
        for part in [part for part in parts if part.startswith(f"{_CLIENT_RATE}=")]:
            rate = parse_value(options(Settings)[_CLIENT_RATE], part.partition("=")[2], name)
            parts.remove(part)
        name, values = algorithms.parse(f"{name}:{','.join(parts)}")
        if settings.server_learning_rate is not None:
            values["server_learning_rate"] = settings.server_learning_rate
        return cls(name, name, values, settings.client_learning_rate or rate)

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
            **{key: value for key, value in values.items() if known[key].kind is not object},
        }


def methods_of(specs: tuple[str, ...], settings: Settings) -> list[Method]:
    """The methods of several specs, labelled by algorithm and by what tells namesakes apart.

    Raises:
      ValueError: for a spec that is wrong, or given twice.
    """
    if len(set(specs)) < len(specs):
        raise ValueError(f"the methods {' '.join(specs)} name one of them twice; leave one out")
    methods = [Method.of(spec, settings) for spec in specs]
    names = [method.algorithm for method in methods]
    short = [
        " ".join([m.algorithm, *(v for k, v in m.hyperparameters.items() if k == "optimizer")])
        for m in methods
    ]
    labels = [
        name if names.count(name) == 1 else label if short.count(label) == 1 else spec
        for name, label, spec in zip(names, short, specs, strict=True)
    ]
    return [m._replace(label=label) for m, label in zip(methods, labels, strict=True)]
