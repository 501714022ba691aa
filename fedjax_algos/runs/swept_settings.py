"""The settings of a grid: a method with other values of its options and of the local work."""

import dataclasses
import itertools
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.algorithms import algorithms
from fedjax_algos.core import Local
from fedjax_algos.core.optimizers import canonical
from fedjax_algos.core.options import Option, options, parse_value, unknown
from fedjax_algos.core.representation import describe
from fedjax_algos.data import FederatedData
from fedjax_algos.runs.batched import Run
from fedjax_algos.runs.method import CLIENT_LEARNING_RATE, CLIENT_OPTIMIZER, Method
from fedjax_algos.runs.settings import Settings

_OF_METHOD = (CLIENT_LEARNING_RATE, CLIENT_OPTIMIZER)
# settings of a client's local work, which a grid may contain too
_LOCAL_WORK = (
    "local_steps", "local_epochs", "batch_size", "batches", "weight_decay", "clip_norm",
    "rate_schedule", "rate_by",
)  # fmt: skip


class Setting(NamedTuple):
    """A method with some values of its options and of a client's local work.

    Attributes:
      method: with these values; its label names them.
      local: how clients train.
      values: of the options that distinguish it from other settings, by name.
    """

    method: Method
    local: Local
    values: dict[str, Any]

    def __repr__(self) -> str:
        return describe(self, method=self.method.label, **self.values)

    def run(self, seed: int, data: FederatedData, test_rows: np.ndarray | None = None) -> Run:
        """A run of `run_batched`.

        Args:
          seed: of the run.
          data: the clients' examples.
          test_rows: the examples to evaluate on; see `Run`.
        """
        label, hyperparameters = self.method.label, self.method.hyperparameters
        return Run(label, seed, data, self.local, hyperparameters, self.values, test_rows)


def own_options(base: Method) -> dict[str, Option]:
    """The options of a method's algorithm, its client learning rate and its client optimiser.

    Args:
      base: the method.
    """
    of_method = {name: options(Settings)[name] for name in _OF_METHOD}
    return {**options(algorithms[base.algorithm]), **of_method}


def swept_options(base: Method) -> dict[str, Option]:
    """The options whose values a sweep's grid can have: also those of the clients' local work.

    Args:
      base: the method.
    """
    return {**own_options(base), **{name: options(Settings)[name] for name in _LOCAL_WORK}}


def make_setting(settings: Settings, base: Method, label: str, values: dict[str, Any]) -> Setting:
    """A method with other values.

    Args:
      settings: of all runs.
      base: the method.
      label: of the setting.
      values: of `swept_options`, by name.

    Raises:
      ValueError: for values of the local work that are wrong.
    """
    changes = {name: value for name, value in values.items() if name in _LOCAL_WORK}
    changed = dataclasses.replace(settings, **changes)
    changed.check()
    own = options(algorithms[base.algorithm])
    hyperparameters = base.hyperparameters | {n: v for n, v in values.items() if n in own}
    rate = values.get(CLIENT_LEARNING_RATE, base.client_learning_rate)
    optimizer = canonical(values.get(CLIENT_OPTIMIZER, base.client_optimizer))
    method = base._replace(
        label=label,
        hyperparameters=hyperparameters,
        client_learning_rate=rate,
        client_optimizer=optimizer,
    )
    return Setting(method, changed.local(rate, optimizer), values)


def parse_grid(
    base: Method, spec: str, settings: Settings, grid: Mapping[str, Sequence[Any]]
) -> dict[str, list[Any]]:
    """The checked values of a grid's options.

    Args:
      base: the method.
      spec: the text that names it.
      settings: of all runs.
      grid: values, or texts of them, by option.

    Raises:
      ValueError: for an unknown option, a value out of range, or an option that is given elsewhere
        too.
    """
    known, given = swept_options(base), dict(base.hyperparameters)
    for name in _OF_METHOD:
        if getattr(settings, name) is not None or f"{name}=" in spec:
            given[name] = getattr(base, name)
    values = {}
    for option, texts in grid.items():
        if option not in known:
            raise ValueError(f"{base.label}: {unknown('option', option, known)}")
        if option in given:
            raise ValueError(
                f"{base.label}: {option}={given[option]} is given beside the grid's values; leave "
                "it out"
            )
        values[option] = [parse_value(known[option], str(text), base.label) for text in texts]
    return values


def points_of(
    name: str, grid: Mapping[str, Sequence[Any]], known: Mapping[str, Option]
) -> list[tuple[str, dict[str, Any]]]:
    """Each setting's label and values; whole numbers of a float option become floats.

    Args:
      name: the first part of the labels.
      grid: values by option.
      known: options whose texts are known.

    Raises:
      ValueError: for an option without values, or a value that is given twice.
    """
    columns = []
    for option, values in grid.items():
        if not len(values):
            raise ValueError(f"{name}: {option} has no values in the grid; give at least one")
        real = option in known and known[option].kind is float
        column: dict[str, Any] = {}
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
    """The label of a setting, such as `fedprox mu=0.1`.

    Args:
      name: of the method.
      values: numbers, texts and booleans by option.
    """
    return " ".join([name, *(f"{option}={text_of(v, 0)}" for option, v in values.items())])


def text_of(value: Any, position: int) -> str:
    """A value in a label; an object is known by its position in the grid.

    Args:
      value: of an option.
      position: in the grid.
    """
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value) if isinstance(value, str | int | None) else f"#{position}"
