"""Grids of values: the settings of a sweep, and search spaces of `tune` with equal budgets.

A text of a search space is `OPTION=VALUE,VALUE,...` or `OPTION=LOW..HIGH`, for all methods that
have the option. `ALGORITHM:OPTION=...` is for the methods of one algorithm and takes precedence. A
custom algorithm may be named without its file: `qfedavg:q=0.1` for `qfed.py:qfedavg`.
"""

import itertools
import math
import numbers
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.algorithms import algorithms
from fedjax_algos.base.errors import require
from fedjax_algos.core.options import Option, check_value, require_option, unknown
from fedjax_algos.core.specs import parse_value, split_grid
from fedjax_algos.runs.loops.run import CLIENT_LEARNING_RATE
from fedjax_algos.runs.studies.method import LOCAL_OPTIONS, Method, method_options, parse_spec
from fedjax_algos.runs.studies.settings import Settings

_DIGITS = 3  # of a number drawn from an interval
_EDGE = 0.05  # the share of an interval, on its logarithmic scale, that counts as its edge
_MAX_DRAWS = 100  # for each number of an interval, until it differs from the others


def checked(option: Option, value: Any, owner: str) -> Any:
    """Checks a value that is not a text; returns a number of a float option as a float."""
    if not callable(value):
        check_value(option, value, owner)
    return float(value) if option.kind is float and isinstance(value, numbers.Real) else value


class Columns(NamedTuple):
    """Reads the options of a grid.

    `known` has the options that a grid may have, and `given` the values of options that are set
    elsewhere. `read(option, value, owner)` checks a value, and parses it if it is a text.
    """

    owner: str
    known: Mapping[str, Option]
    given: Mapping[str, Any]
    read: Callable[[Option, Any, str], Any] = parse_value

    def values(self, name: str, listed: Sequence[Any]) -> dict[str, Any]:
        """Returns the checked values of an option, by their texts "name=value" in labels."""
        option, found = require_option(self.known, name, self.owner), dict[str, Any]()
        fixed = f"{self.owner}: {name}={self.given.get(name)}"
        require(name not in self.given, f"{fixed} is given beside the grid's values; leave it out")
        is_list = isinstance(listed, Sequence | np.ndarray) and not isinstance(listed, str)
        fix = "give a list of at least one value, such as [0.1]"
        require(is_list and len(listed), f"{self.owner}: the grid has {name}={listed!r}; {fix}")
        for each in listed:
            value = self.read(option, each, self.owner)
            text = f"{name}={text_of(value, len(found))}"
            require(text not in found, f"{self.owner}: {text} is twice in the grid; give it once")
            found[text] = value
        return found

    def points(self, grid: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
        """Returns all combinations of values, by a label that names them."""
        columns = (self.values(name, listed).items() for name, listed in grid.items())
        points = {}
        for point in itertools.product(*columns):
            label = " ".join([self.owner, *(text for text, _ in point)])
            points[label] = dict(zip(grid, (value for _, value in point), strict=True))
        return points


def columns_of(
    method: Method, spec: str, settings: Settings, known: Mapping[str, Option]
) -> Columns:
    """Reads a grid of a method, whose text is `spec`."""
    in_spec = parse_spec(spec)[1]
    local = {
        name: getattr(method, name)
        for name in LOCAL_OPTIONS
        if name in in_spec or getattr(settings, name) is not None
    }
    return Columns(method.label, known, method.hyperparameters | local)


def text_of(value: Any, position: int) -> str:
    """Formats a value for a label; an object shows its position in the grid."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value) if isinstance(value, str | int | None) else f"#{position}"


class Interval(NamedTuple):
    """Real numbers from `low` to `high`, drawn uniformly on a logarithmic scale."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"

    def at(self, share: float) -> float:
        """Returns the number at a share, 0 to 1, of the logarithmic scale, with three digits."""
        value = self.low * (self.high / self.low) ** share
        return min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high)


class SearchSpace(NamedTuple):
    """The values to try for one method, by option: a list or an interval."""

    method: Method
    values: dict[str, list[Any] | Interval]

    @property
    def size(self) -> float:
        """The number of settings; infinite with an interval."""
        sizes = [math.inf if isinstance(v, Interval) else len(v) for v in self.values.values()]
        return math.prod(sizes) if sizes else 0

    def methods(self, trials: int | None, seed: int) -> list[Method]:
        """Returns the method with the values of each of the `points`."""
        methods = []
        for point in self.points(trials, seed):
            texts = (f"{name}={text_of(value, 0)}" for name, value in point.items())
            label = " ".join([self.method.label, *texts])
            methods.append(self.method.with_values(label, point))
        return methods

    def points(self, trials: int | None, seed: int) -> list[dict[str, Any]]:
        """Returns all points of a grid, or draws different ones.

        Methods with the same values of the client learning rate get the same rates, each equally
        often, whatever else is drawn for them.
        """
        if trials is None or trials == self.size:
            columns = ([(name, value) for value in self.values[name]] for name in self.values)
            return [dict(point) for point in itertools.product(*columns)]
        hashes = {name: zlib.crc32(name.encode()) for name in self.values}
        generators = {n: np.random.default_rng([seed, code]) for n, code in hashes.items()}
        decks = {n: _deck(v, trials, generators[n]) for n, v in self.values.items()}
        streams = {n: _cycles(deck, generators[n]) for n, deck in decks.items()}
        points: dict[tuple, dict[str, Any]] = {}
        for _ in range(trials):
            drawn = {name: next(stream) for name, stream in streams.items()}
            shared = {n: [drawn[n]] for n in drawn if n == CLIENT_LEARNING_RATE}
            others = itertools.product(*(decks | shared).values())
            candidates = itertools.chain([tuple(drawn.values())], others)
            new = next((values for values in candidates if values not in points), None)
            if new is None:
                found = f"{self.method.label} has fewer than trials={trials} settings"
                raise ValueError(f"{found} of {_DIGITS} digits; give fewer, or wider intervals")
            points[new] = dict(zip(self.values, new, strict=True))
        return list(points.values())

    def edges(self, point: Mapping[str, Any]) -> list[str]:
        """Names a point's options that have the smallest or the largest number tried."""
        texts = []
        for name, values in self.values.items():
            value = point[name]
            if isinstance(values, Interval):
                place = math.log(value / values.low) / math.log(values.high / values.low)
                at_edge = min(place, 1 - place) < _EDGE
            else:
                real = [v for v in values if isinstance(v, float | int) and not isinstance(v, bool)]
                at_edge = len(real) > 1 and value in (min(real), max(real))
            texts += [f"{name}={value}"] * at_edge
        return texts


def _deck(values: list[Any] | Interval, trials: int, generator: np.random.Generator) -> list[Any]:
    """Returns an option's values to try, each once; draws different numbers from an interval."""
    if not isinstance(values, Interval):
        return list(values)
    drawn: dict[float, None] = {}
    for _ in range(_MAX_DRAWS * trials):
        drawn[values.at(generator.random())] = None
        if len(drawn) == trials:
            break
    return list(drawn)


def _cycles(deck: list[Any], generator: np.random.Generator) -> Iterator[Any]:
    """Yields the values of a deck again and again, each time in a new order."""
    while True:
        yield from (deck[i] for i in generator.permutation(len(deck)))


def parse_spaces(
    texts: Sequence[str],
    methods: Sequence[Method],
    specs: Sequence[str],
    settings: Settings,
    trials: int | None = None,
) -> list[SearchSpace]:
    """Parses the search space of each method, named by `specs`; see the module for the texts."""
    parts = [(text, *split_grid(text)) for text in texts]
    grids = [(text, _algorithm(owner, methods), *rest) for text, owner, *rest in parts]
    names = [(owner, option) for _, owner, option, _ in grids]
    twice = {option for owner, option in names if names.count((owner, option)) > 1}
    require(not twice, f"{', '.join(twice)} is in two grids; give all its values in one")
    spaces, used = [], set[tuple[str, str]]()
    for method, spec in zip(methods, specs, strict=True):
        known = method_options(method.algorithm)
        owners = {  # the grid of one algorithm takes precedence
            option: owner
            for owner in ("", method.algorithm)
            for named, option in names
            if named == owner and option in known
        }
        used |= {(owner, option) for option, owner in owners.items()}
        columns = columns_of(method, spec, settings, known)
        listed = {option: text for _, owner, option, text in grids if owners.get(option) == owner}
        values = {option: _values(columns, option, text) for option, text in listed.items()}
        spaces.append(SearchSpace(method, values))
    for text, owner, option, _ in grids:
        if (owner, option) not in used:
            raise ValueError(f"grid={text!r}: {_why_unused(owner, option, methods)}")
    sizes = {space.method.label: space.size for space in spaces}
    number = max(sizes.values()) if trials is None else trials
    least = min(sizes, key=sizes.__getitem__)
    require(sizes[least], f"{least} has nothing to tune; give --grid client_learning_rate=0.03,0.1")
    require(number < math.inf, "an interval needs a number of draws; give trials=N (--trials N)")
    few = f"{least} has {sizes[least]} settings, but each method needs {number}"
    fix = "give grids of one size, or fewer trials (--trials N)"
    require(0 < number <= sizes[least], f"{few}; {fix}")
    return spaces


def _algorithm(owner: str, methods: Sequence[Method]) -> str:
    """Finds the algorithm that the owner of a grid names, in full or as tables show it."""
    names = dict.fromkeys(method.algorithm for method in methods)
    alike = [name for name in names if algorithms[name].__name__ == owner]
    return alike[0] if owner not in names and len(alike) == 1 else owner


def _why_unused(owner: str, option: str, methods: Sequence[Method]) -> str:
    """Explains why no method uses a grid."""
    names = [method.algorithm for method in methods]
    known = [each for name in names if owner in ("", name) for each in method_options(name)]
    if owner and owner not in names:
        return unknown("method", owner, names)
    if option not in known:
        return f"{owner or 'all methods'}: {unknown('option', option, known)}"
    return "no method uses it, because each has its own; leave it out"


def _values(columns: Columns, option: str, text: str) -> list[Any] | Interval:
    """Parses a list or an interval."""
    is_interval = columns.known[option].kind is float and ".." in text
    values = [*columns.values(option, text.split(".." if is_interval else ",")).values()]
    if not is_interval:
        return values
    ascends = len(values) == 2 and 0 < values[0] < values[1]
    what = f"{columns.owner}: {option}={text} is not an interval of real numbers above 0"
    require(ascends, f"{what}; give LOW..HIGH, such as 0.001..1, or a list")
    return Interval(*values)
