"""Methods: what a comparison compares, and the specs and labels that name them."""

import itertools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import schedules
from fedjax_algos.asynchrony.planners import check_schedule
from fedjax_algos.core import Algorithm, Problem
from fedjax_algos.core.optimizers import PLAIN, canonical, client_optimizers
from fedjax_algos.core.options import options, parse_value
from fedjax_algos.models import models
from fedjax_algos.runs.settings import Settings

CLIENT_LEARNING_RATE = "client_learning_rate"  # its name in specs, grids and settings
CLIENT_OPTIMIZER = "client_optimizer"  # likewise
_DEFAULT_CLIENT_LEARNING_RATE = 0.1


def parse_spec(spec: str) -> tuple[str, dict[str, Any], float | None, str, str | None]:
    """Splits a spec such as `fedbuff:alpha=0.6,client_learning_rate=0.3@buffered:size=5`.

    A client optimiser comes last and has options of its own, as in
    `fedavg:client_learning_rate=0.3,client_optimizer=sgd:momentum=0.9,nesterov=true@buffered`.

    Args:
      spec: see `Method.of`.

    Returns:
      The algorithm's name, its options, the client learning rate or None, the schedule, which is
      not checked and "" if there is none, and the client optimiser or None.

    Raises:
      ValueError: for an unknown algorithm, optimiser or option, or a value out of range.
    """
    spec, schedule = _split_schedule(spec)
    spec, *optimizers = re.split(f"[:,]{CLIENT_OPTIMIZER}=", spec, maxsplit=1)
    for optimizer in optimizers:
        client_optimizers.parse(optimizer)
    folder, slash, rest = spec.rpartition("/")
    name, colon, text = rest.rpartition(":")
    key, parts = f"{CLIENT_LEARNING_RATE}=", text.split(",")
    rates = [part.removeprefix(key) for part in parts if part.startswith(key)]
    others = ",".join(part for part in parts if not part.startswith(key))
    if len(rates) > 1:
        raise ValueError(f"{rest}: {CLIENT_LEARNING_RATE} is given twice; give it once")
    if "=" in spec and ":" not in spec:
        raise ValueError(
            f"{spec!r} is no method; options follow the name of the method and a colon, as in "
            "fedprox:mu=0.1"
        )
    try:
        algorithm, values = algorithms.parse(folder + slash + name + colon + others)
    except ValueError as error:
        raise ValueError(f"{error}{_of_schedule(rest, parts)}") from None
    option = options(Settings)[CLIENT_LEARNING_RATE]
    rate = parse_value(option, rates[-1], algorithm) if rates else None
    return algorithm, values, rate, schedule, optimizers[0] if optimizers else None


def _of_schedule(spec: str, parts: list[str]) -> str:
    """A hint for the first option that is not of the algorithm but of a schedule."""
    name = spec.partition(":")[0]
    own = options(algorithms[name]) if name in algorithms else {}
    for part in parts:
        key = part.partition("=")[0]
        owners = [s for s in schedules if key in options(schedules[s])]
        if owners and key not in own:
            return f"; {key} is an option of a schedule, as in {name}@{owners[0]}:{part}"
    return ""


def _split_schedule(spec):
    """What is before and after the @, which a folder's name may contain, too."""
    folder, slash, rest = spec.rpartition("/")
    rest, at, schedule = rest.partition("@")
    if at and not schedule:
        raise ValueError(f"{spec!r} names no schedule after the @; leave the @ out, or name one")
    if rest.endswith(":"):
        raise ValueError(f"{spec!r} has no options after the colon; leave it out, or give one")
    return folder + slash + rest, schedule


class Method(NamedTuple):
    """An algorithm with the values of its options, a client learning rate and a schedule.

    Attributes:
      label: its name in tables and pictures.
      algorithm: a registered name, `FILE.py:NAME` or `package.module:NAME`.
      hyperparameters: options of its factory by name.
      client_learning_rate: eta_l.
      schedule: of the virtual clock; "" in synchronous rounds.
      client_optimizer: of the local steps; see `core.client_optimizer`.
    """

    label: str
    algorithm: str
    hyperparameters: dict[str, Any]
    client_learning_rate: float
    schedule: str = ""
    client_optimizer: str = PLAIN

    @classmethod
    def of(
        cls, spec: str, settings: Settings, changes: Mapping[str, str] | None = None
    ) -> "Method":
        """The method that a spec such as `fedprox:mu=0.1,client_learning_rate=0.3` names.

        The algorithm may be the user's own, as in `my_file.py:fedspeed:rho=0.1` or
        `package.module:fedspeed`. On the virtual clock a schedule may follow, as in
        `fedbuff:alpha=0.6@buffered:size=5`; the default is the algorithm's own schedule. A
        schedule that needs local steps and names none takes those of the settings.

        Args:
          spec: the text. The client learning rate is 0.1 by default, and the client optimiser sgd.
          settings: learning rates and an optimiser that are given here replace those of the spec.
          changes: texts of options, which replace those of the spec.

        Raises:
          ValueError: for an unknown algorithm, schedule or option, a value out of range, or a
            schedule that the algorithm does not run on.
        """
        name, values, rate, schedule, optimizer = parse_spec(spec)
        known = options(algorithms[name])
        for option, text in (changes or {}).items():
            values[option] = parse_value(known[option], text, name)
        if settings.server_learning_rate is not None:
            values["server_learning_rate"] = settings.server_learning_rate
        if settings.seconds is None and schedule:
            raise ValueError(
                f"{name}@{schedule} names a schedule of the virtual clock; give seconds=..., the "
                "simulated time to run"
            )
        rate = settings.client_learning_rate or rate or _DEFAULT_CLIENT_LEARNING_RATE
        optimizer = canonical(settings.client_optimizer or optimizer or PLAIN)
        label = algorithms[name].__name__
        method = cls(label, name, values, rate, client_optimizer=optimizer)
        if settings.seconds is None:
            return method
        algorithm = method.build(models["linear"]((1,), 2), settings)  # its fields, for any problem
        schedule = schedule or algorithm.schedules.default
        planner, given = schedules.parse(schedule)
        if "steps" in options(schedules[planner]) and "steps" not in given:
            schedule += f"{',' if ':' in schedule else ':'}steps={settings.steps}"
        schedules.make(schedule)  # checks it
        try:
            check_schedule(algorithm, planner)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        return method._replace(schedule=schedule)

    def build(self, problem: Problem, settings: Settings) -> Algorithm:
        """The algorithm for a problem.

        Args:
          problem: what is learned.
          settings: give a client's local work.

        Raises:
          ValueError: for a missing option, a factory of the user's own that returns no
            `Algorithm`, or a client optimiser that the algorithm cannot have.
        """
        local = settings.local(self.client_learning_rate, self.client_optimizer)
        algorithm = algorithms[self.algorithm](problem, local, **self.hyperparameters)
        if algorithm.requires_sgd and self.client_optimizer != PLAIN:
            raise ValueError(
                f"{self.algorithm}: {CLIENT_OPTIMIZER}={self.client_optimizer!r} is not for it, "
                f"because {algorithm.requires_sgd}; leave it out, or give it to other methods "
                f"alone, as in fedavg:{CLIENT_OPTIMIZER}={self.client_optimizer}"
            )
        return algorithm

    @property
    def spec(self) -> str:
        """The text that names the method; see `of`. Options that were not given are left out."""
        optimizer = None if self.client_optimizer == PLAIN else self.client_optimizer
        named = {"algorithm": self.algorithm, "schedule": self.schedule}
        local = {CLIENT_LEARNING_RATE: self.client_learning_rate, CLIENT_OPTIMIZER: optimizer}
        return spec_of({**named, **self.hyperparameters, **local})

    def configuration(self) -> dict[str, Any]:
        """The algorithm, the rate, the schedule and all options, with the defaults of the rest."""
        known = options(algorithms[self.algorithm])
        values = {o.name: self.hyperparameters.get(o.name, o.default) for o in known.values()}
        return {
            "algorithm": self.algorithm,
            CLIENT_LEARNING_RATE: self.client_learning_rate,
            CLIENT_OPTIMIZER: self.client_optimizer,
            **({"schedule": self.schedule} if self.schedule else {}),
            **{key: value for key, value in values.items() if known[key].kind is not object},
        }


def spec_of(configuration: Mapping[str, Any]) -> str:
    """The text that names a method; see `Method.of`.

    Args:
      configuration: of `Method.configuration`; options with None are left out.
    """
    values = {name: value for name, value in configuration.items() if value is not None}
    name, schedule = values.pop("algorithm"), values.pop("schedule", None)
    if CLIENT_OPTIMIZER in values:  # the last one, because it has options of its own
        values[CLIENT_OPTIMIZER] = values.pop(CLIENT_OPTIMIZER)
    texts = [f"{n}={str(v).lower() if isinstance(v, bool) else v}" for n, v in values.items()]
    return name + f":{','.join(texts)}" * bool(texts) + (f"@{schedule}" if schedule else "")


def methods_of(specs: tuple[str, ...], settings: Settings) -> list[Method]:
    """The methods of several specs.

    A label is the algorithm's name, followed by the values of the fewest options that distinguish
    methods of the same name, and by the client optimiser if the methods have different ones.

    Args:
      specs: see `Method.of`.
      settings: of all methods.

    Raises:
      ValueError: for a spec that is wrong, or two that mean the same.
    """
    methods = [Method.of(spec, settings) for spec in specs]
    values = [method.configuration() for method in methods]
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(
                f"the methods {specs[values.index(value)]} and {specs[index]} are the same; "
                "leave one out"
            )
    labels = [
        _label(method, [v for m, v in zip(methods, values, strict=True) if m.label == method.label])
        for method in methods
    ]
    if len({method.client_optimizer for method in methods}) > 1:  # then every label says it
        labels = [
            label
            if f" {method.client_optimizer}" in label
            else f"{label} {method.client_optimizer}"
            for method, label in zip(methods, labels, strict=True)
        ]
    return [m._replace(label=label) for m, label in zip(methods, labels, strict=True)]


def _label(method: Method, namesakes: list[dict[str, Any]]) -> str:
    """The name and the values of the fewest options that distinguish all namesakes."""
    configuration = method.configuration()
    differing = [
        name
        for name in configuration
        if any(other.get(name) != configuration[name] for other in namesakes)
    ]
    # choices first, because they need no name, and the rate last, because it is usually tuned
    choices = {o.name for o in options(algorithms[method.algorithm]).values() if o.choices}
    choices.add(CLIENT_OPTIMIZER)
    differing.sort(
        key=lambda name: (name == CLIENT_LEARNING_RATE, name not in {"algorithm", *choices})
    )
    for size in range(len(differing) + 1):
        for chosen in itertools.combinations(differing, size):
            if len({tuple(v.get(name) for name in chosen) for v in namesakes}) == len(namesakes):
                texts = [
                    str(configuration[name]) if name in choices else _setting(configuration, name)
                    for name in chosen
                ]
                return " ".join([method.label, *texts])
    raise AssertionError("namesakes differ in at least one option")


def _setting(configuration: dict[str, Any], name: str) -> str:
    value = configuration[name]
    if name == "algorithm":
        return f"({value})"
    if isinstance(value, float) and float(f"{value:g}") == value:
        value = f"{value:g}"
    return f"{name}={str(value).lower()}"
