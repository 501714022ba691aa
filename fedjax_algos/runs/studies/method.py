"""The methods of a comparison, and the specs and labels that name them."""

import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import planners
from fedjax_algos.asynchrony.planning import check_planner
from fedjax_algos.base.errors import prefix_errors
from fedjax_algos.core import Algorithm, Local, Problem
from fedjax_algos.core.optimizers import PLAIN, canonical, parse_optimizer
from fedjax_algos.core.options import Option, options
from fedjax_algos.core.registry import Registry
from fedjax_algos.core.specs import (
    join_wrappers,
    parse_value,
    spec_of,
    split_planner,
    split_wrappers,
)
from fedjax_algos.engine.checks import check_algorithm
from fedjax_algos.runs.loops.run import CLIENT_LEARNING_RATE
from fedjax_algos.runs.studies.settings import Settings
from fedjax_algos.wrappers import wrap, wrappers

CLIENT_OPTIMIZER = "client_optimizer"  # its name in specs, grids and settings
LOCAL_OPTIONS = {name: options(Settings)[name] for name in (CLIENT_LEARNING_RATE, CLIENT_OPTIMIZER)}
# settings of a client's local work, which the grid of a sweep may have
_LOCAL_WORK = (
    "local_steps", "local_epochs", "batch_size", "batches", "weight_decay", "clip_norm",
    "rate_schedule", "rate_by",
)  # fmt: skip
LOCAL_WORK = {name: options(Settings)[name] for name in _LOCAL_WORK}
_DEFAULT_CLIENT_LEARNING_RATE = 0.1


def method_options(algorithm: str) -> dict[str, Option]:
    """Returns a method's options: its algorithm's, the client learning rate and optimiser."""
    return {**options(algorithms[algorithm]), **LOCAL_OPTIONS}


def parse_spec(spec: str) -> tuple[str, dict[str, Any], tuple[str, ...], str]:
    """Parses a spec: the algorithm, its typed options, the wrappers and the planner or ""."""
    method, planner = split_planner(spec)
    text, *wrapped = split_wrappers(method)
    name, values = algorithms.parse(text, LOCAL_OPTIONS, CLIENT_OPTIMIZER)
    if CLIENT_OPTIMIZER in values:
        parse_optimizer(values[CLIENT_OPTIMIZER])
    for each in wrapped:
        wrappers.parse(each)
    return name, values, tuple(wrapped), planner


class Method(NamedTuple):
    """A method to compare: an algorithm with its options, wrappers, client optimiser and planner.

    Attributes:
      label: its name in tables and pictures.
      algorithm: a registered name, `FILE.py:NAME` or `package.module:NAME`.
      hyperparameters: options of its factory by name.
      client_learning_rate: eta_l.
      planner: the planner of the virtual clock. "" in synchronous rounds, and for the algorithm's
        own planner until an `Experiment` has built the algorithm.
      client_optimizer: the optimiser of the local steps; see `core.client_optimizer`.
      wrappers: the specs of its wrappers, the innermost first; `Settings.wrap` adds outer ones.
      swept: the values of a grid that the method was made with, by name: options of the method,
        and settings of its clients' local work, which replace those of all methods.
    """

    label: str
    algorithm: str
    hyperparameters: dict[str, Any]
    client_learning_rate: float
    planner: str = ""
    client_optimizer: str = PLAIN
    wrappers: tuple[str, ...] = ()
    swept: Mapping[str, Any] = types.MappingProxyType({})

    @classmethod
    def of(
        cls, spec: str, settings: Settings, changes: Mapping[str, str] | None = None
    ) -> "Method":
        """Parses a spec such as `fedprox:mu=0.1,client_learning_rate=0.3`; builds nothing.

        The algorithm may be a custom one, as in `my_file.py:fedinit:beta=0.1`. Wrappers may follow,
        as in `fedavg+identity`, and on the virtual clock a planner, as in
        `fedbuff:alpha=0.6@buffered:size=5`; the default is the algorithm's own. A planner that
        needs local steps and names none takes the settings' local steps.

        Args:
          spec: the text. The client learning rate is 0.1 by default, and the client optimiser sgd.
          settings: learning rates and an optimiser given here override the spec.
          changes: texts or values of options; they override the spec.

        Raises:
          ValueError: for an unknown algorithm, planner or option, or a value out of range.
        """
        name, values, wrapped, planner = parse_spec(spec)
        known = method_options(name)
        values |= {n: parse_value(known[n], value, name) for n, value in (changes or {}).items()}
        if settings.server_learning_rate is not None:
            values["server_learning_rate"] = settings.server_learning_rate
        if settings.seconds is None and planner:
            fix = "give seconds=..., the simulated time to run"
            raise ValueError(f"{name}@{planner} names a planner of the virtual clock; {fix}")
        rate = values.pop(CLIENT_LEARNING_RATE, _DEFAULT_CLIENT_LEARNING_RATE)
        optimizer = values.pop(CLIENT_OPTIMIZER, PLAIN)
        rate = settings.client_learning_rate or rate
        optimizer = canonical(settings.client_optimizer or optimizer)
        factories = [algorithms[name], *(wrappers[wrappers.parse(spec)[0]] for spec in wrapped)]
        label = "+".join(map(_label_of, factories))
        planner = planner and _with_steps(planner, settings)
        return cls(label, name, values, rate, planner, optimizer, wrapped)

    def on_the_clock(self, algorithm: Algorithm, settings: Settings) -> "Method":
        """Adds a planner, by default the algorithm's own; in rounds, returns the method unchanged.

        Args:
          algorithm: the result of `build`.
          settings: the settings, for the virtual clock and the number of local steps.

        Raises:
          ValueError: for a planner that the algorithm does not run with.
        """
        if settings.seconds is None:
            return self
        planner = self.planner or _with_steps(algorithm.traits.asynchrony.default, settings)
        with prefix_errors(f"{self.algorithm}: "):
            check_planner(algorithm, planners.parse(planner)[0])
        return self._replace(planner=planner)

    def with_values(self, label: str, values: Mapping[str, Any]) -> "Method":
        """Changes options of the method and settings of its clients' local work.

        Args:
          label: the new label.
          values: checked values by name.
        """
        known = options(algorithms[self.algorithm])
        chosen = {name: value for name, value in values.items() if name in known}
        return self._replace(
            label=label,
            hyperparameters=self.hyperparameters | chosen,
            client_learning_rate=values.get(CLIENT_LEARNING_RATE, self.client_learning_rate),
            client_optimizer=canonical(values.get(CLIENT_OPTIMIZER, self.client_optimizer)),
            swept=values,
        )

    def own_settings(self, settings: Settings) -> Settings:
        """Returns the settings with the method's own values of the clients' local work.

        Args:
          settings: the settings of all methods.
        """
        changes = {name: value for name, value in self.swept.items() if name in LOCAL_WORK}
        return dataclasses.replace(settings, **changes)

    def local(self, settings: Settings) -> Local:
        """Makes a client's local work.

        Args:
          settings: the settings of all methods.
        """
        rate, optimizer = self.client_learning_rate, self.client_optimizer
        return self.own_settings(settings).local(rate, optimizer)

    def build(self, problem: Problem, settings: Settings) -> Algorithm:
        """Builds the algorithm; ValueError for an option, optimiser or wrapper it cannot have.

        Args:
          problem: what is learned.
          settings: the settings, for a client's local work.
        """
        algorithm = self.factory(settings)(problem, self.local(settings), **self.hyperparameters)
        rates, refused, traits = self.own_settings(settings), [], algorithm.traits
        reason = traits.requires_sgd or traits.own_optimizer
        if self.client_optimizer != PLAIN and reason:
            refused.append(f"{CLIENT_OPTIMIZER}={self.client_optimizer!r}")
        if traits.requires_sgd and rates.rate_by == "step" and rates.rate_schedule != "constant":
            refused.append("rate_by='step'")
        if refused:
            fix = f"leave it out, or give it to others, as in fedavg:{CLIENT_OPTIMIZER}=..."
            found = f"{self.algorithm} does not take {' and '.join(refused)}, because {reason}"
            raise ValueError(f"{found}; {fix}")
        return algorithm

    def factory(self, settings: Settings) -> Callable[..., Algorithm]:
        """Wraps the algorithm's factory, first in the method's wrappers, then in all methods'.

        Args:
          settings: the settings, for the wrappers of all methods.
        """
        factory = algorithms[self.algorithm]
        specs = [*self.wrappers, *split_wrappers(settings.wrap or "")]
        sampling = settings.sampling() if settings.seconds is None and specs else None

        @functools.wraps(factory)
        def wrapped(*arguments: Any, **options: Any) -> Algorithm:
            algorithm = factory(*arguments, **options)
            with prefix_errors(f"{self.algorithm}: "):
                check_algorithm(algorithm)
                return wrap(algorithm, specs, settings.system_model(), sampling)

        return wrapped

    @property
    def spec(self) -> str:
        """The text that names the method; see `of`. Options that were not given are left out."""
        optimizer = None if self.client_optimizer == PLAIN else self.client_optimizer
        local = {CLIENT_LEARNING_RATE: self.client_learning_rate, CLIENT_OPTIMIZER: optimizer}
        return spec_of(self.algorithm, self.hyperparameters | local, self.planner, self.wrappers)

    def configuration(self) -> dict[str, Any]:
        """Returns the algorithm, the rate, the planner and all options, including defaults."""
        known = options(algorithms[self.algorithm])
        values = {o.name: self.hyperparameters.get(o.name, o.default) for o in known.values()}
        return {
            "algorithm": self.algorithm,
            CLIENT_LEARNING_RATE: self.client_learning_rate,
            CLIENT_OPTIMIZER: self.client_optimizer,
            **({"wrappers": join_wrappers(self.wrappers)} if self.wrappers else {}),
            **({"planner": self.planner} if self.planner else {}),
            **{key: value for key, value in values.items() if known[key].kind is not object},
        }


def _with_steps(planner: str, settings: Settings) -> str:
    """Adds the settings' local steps to a planner's spec if it needs them."""
    name, values = planners.parse(planner)
    if "steps" not in options(planners[name]) or "steps" in values:
        return planner
    return f"{planner}{',' if ':' in planner else ':'}steps={settings.steps}"


def configured_spec(configuration: Mapping[str, Any]) -> str:
    """Returns the spec of a method from its `Method.configuration`."""
    values = dict(configuration)
    name, planner = values.pop("algorithm"), values.pop("planner", "")
    wrapped = split_wrappers(values.pop("wrappers", ""))
    optimizer = values.pop(CLIENT_OPTIMIZER, None)  # goes last, because it has its own options
    return spec_of(name, {**values, CLIENT_OPTIMIZER: optimizer}, planner, wrapped)


def methods_of(specs: tuple[str, ...], settings: Settings) -> list[Method]:
    """Parses the methods of several specs, and labels them.

    A label is the algorithm's name, with the values of the fewest options that distinguish methods
    of this name, and with the client optimiser if the methods have different ones.

    Args:
      specs: see `Method.of`.
      settings: the settings of all methods.

    Raises:
      ValueError: for a wrong spec, or two specs with the same meaning.
    """
    methods = [Method.of(spec, settings) for spec in specs]
    check_different(methods, specs)
    default = {} if settings.seconds is None else {"planner": "default"}
    values = [default | method.configuration() for method in methods]
    optimizers_differ, labelled = len({method.client_optimizer for method in methods}) > 1, []
    for method, own in zip(methods, values, strict=True):
        pairs = zip(methods, values, strict=True)
        label = _label(method, own, [v for m, v in pairs if m.label == method.label])
        if optimizers_differ and (optimizer := f" {method.client_optimizer}") not in label:
            label += optimizer
        labelled.append(method._replace(label=label))
    return labelled


def check_different(methods: Sequence[Method], names: Sequence[str]) -> None:
    """Raises a ValueError with their names for two methods with the same meaning."""
    meanings = [_meaning(method) for method in methods]
    for index, meaning in enumerate(meanings):
        if meaning in meanings[:index]:
            two = f"{names[meanings.index(meaning)]} and {names[index]}"
            raise ValueError(f"the methods {two} are the same; leave one out")


def _meaning(method: Method) -> dict[str, Any]:
    """Returns the configuration, including defaults of wrappers and of the planner."""

    def with_defaults(registry: Registry, spec: str) -> tuple[str, dict[str, Any]]:
        name, values = registry.parse(spec)
        return name, {n: values.get(n, o.default) for n, o in options(registry[name]).items()}

    wrapped = [with_defaults(wrappers, spec) for spec in method.wrappers]
    planner = with_defaults(planners, method.planner) if method.planner else ()
    return {**method.configuration(), "wrappers": wrapped, "planner": planner}


def _label(method: Method, own: dict[str, Any], namesakes: list[dict[str, Any]]) -> str:
    """Returns the name and the values of the fewest options that distinguish all namesakes."""
    differing = [name for name in own if any(other.get(name) != own[name] for other in namesakes)]
    # choices first, because they need no name, and the rate last, because it is usually tuned
    choices = {o.name for o in options(algorithms[method.algorithm]).values() if o.choices}
    choices |= {CLIENT_OPTIMIZER, "wrappers"}
    differing.sort(key=lambda n: (n == CLIENT_LEARNING_RATE, n not in {"algorithm", *choices}))
    sizes = range(len(differing) + 1)
    for names in itertools.chain(*(itertools.combinations(differing, size) for size in sizes)):
        if len({tuple(v.get(name) for name in names) for v in namesakes}) == len(namesakes):
            break
    return " ".join([method.label, *(_setting(n, own[n], n in choices) for n in names)])


def _label_of(factory: Any) -> str:
    """Returns the name of an algorithm or a wrapper in labels: its `label`, if it has one."""
    return getattr(factory, "label", factory.__name__)


def _setting(name: str, value: Any, is_choice: bool) -> str:
    if name == "algorithm":
        return f"({value})"
    if name == "wrappers":  # as the label names them
        parts = [(spec, wrappers.parse(spec)[0]) for spec in split_wrappers(value)]
        return "+".join(_label_of(wrappers[name]) + spec[len(name) :] for spec, name in parts)
    if is_choice:
        return str(value)
    if isinstance(value, float) and float(f"{value:g}") == value:
        value = f"{value:g}"
    return f"{name}={str(value).lower()}"
