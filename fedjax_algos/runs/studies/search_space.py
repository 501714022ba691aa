"""The values that tuning tries: lists and intervals for each method, with equal budgets.

A text is `OPTION=VALUE,VALUE,...` or `OPTION=LOW..HIGH`, for all methods that have the option.
`ALGORITHM:OPTION=...` is for the methods of one algorithm, and prevails. A custom algorithm may be
named without its file: `qfedavg:q=0.1` for `qfed.py:qfedavg`.
"""

import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.algorithms import algorithms
from fedjax_algos.base.errors import needed, require
from fedjax_algos.base.reprs import describe
from fedjax_algos.core.options import unknown
from fedjax_algos.core.specs import split_grid
from fedjax_algos.runs.loops.run import CLIENT_LEARNING_RATE
from fedjax_algos.runs.studies.method import Method, method_options
from fedjax_algos.runs.studies.settings import Settings
from fedjax_algos.runs.studies.sweeps import Setting, label_of, make_setting, parse_grid

_DIGITS = 3  # of a number drawn from an interval
_EDGE = 0.05  # the share of an interval, on its logarithmic scale, that counts as its edge
_MAX_DRAWS = 100  # for each number of an interval, until it differs from the others
_BATCHES = 4  # of settings that are proposed and run together
_MAX_PROPOSALS = 20  # for each point, until it differs from the others


class Interval(NamedTuple):
    """Real numbers from `low` to `high`, drawn uniformly on a logarithmic scale."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"

    def at(self, share: float) -> float:
        """Returns the number at a share, 0 to 1, of the logarithmic scale, with three digits."""
        return self.rounded(self.low * (self.high / self.low) ** share)

    def rounded(self, value: float) -> float:
        """Rounds a number to three digits, within the interval."""
        return min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high)


class SearchSpace(NamedTuple):
    """The values to try for one method, by option: a list or an interval."""

    method: Method
    values: dict[str, list[Any] | Interval]

    def __repr__(self) -> str:
        texts = {name: str(values) for name, values in self.values.items()}
        return describe(self, method=self.method.label, **texts)

    @property
    def size(self) -> float:
        """The number of settings; infinite with an interval."""
        sizes = [math.inf if isinstance(v, Interval) else len(v) for v in self.values.values()]
        return math.prod(sizes)

    def planned_by(self, planner: str) -> "SearchSpace":
        """Returns the same values for the method with a planner."""
        return self._replace(method=self.method._replace(planner=planner))

    def setting(self, settings: Settings, point: Mapping[str, Any]) -> Setting:
        """Returns the method with the values of a point."""
        label = label_of(self.method.label, point)
        return make_setting(settings, self.method, label, dict(point))

    def points(self, trials: int | None, seed: int) -> list[dict[str, Any]]:
        """Returns all points of a grid, or draws different ones.

        Methods with the same values of the client learning rate get the same rates, each equally
        often, whatever else is drawn for them.
        """
        if trials is None or trials == self.size:
            columns = ([(name, value) for value in self.values[name]] for name in self.values)
            return [dict(point) for point in itertools.product(*columns)]
        hashes = {name: zlib.crc32(name.encode()) for name in self.values}
        generators = {n: np.random.default_rng([seed, own]) for n, own in hashes.items()}
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
                fewer = f"fewer than trials={trials} settings within {_DIGITS} digits"
                raise ValueError(f"{self.method.label} has {fewer}; give fewer, or wider intervals")
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
    parts = map(split_grid, texts)
    grids = [(_algorithm(owner, methods), name, listed) for owner, name, listed in parts]
    chosen: list[dict[str, int]] = []  # for each method, by option, the place of its grid
    for method in methods:
        known, own = method_options(method.algorithm), dict[str, int]()
        for owner in (method.algorithm, ""):  # the grid of one algorithm prevails
            for place, (given, option, _) in enumerate(grids):
                if given != owner or option not in known:
                    continue
                if option in own and grids[own[option]][0] == owner:
                    what = f"{method.label}: {option} is in two grids"
                    raise ValueError(f"{what}; give all its values in one")
                own.setdefault(option, place)
        chosen.append(own)
    for place, (owner, option, _) in enumerate(grids):
        if not any(place in own.values() for own in chosen):
            _refuse(texts[place], owner, option, methods)
    spaces = []
    for method, spec, own in zip(methods, specs, chosen, strict=True):
        listing = {grids[place][1]: grids[place][2] for place in sorted(own.values())}
        spaces.append(SearchSpace(method, _values(method, spec, settings, listing)))
    _check_sizes(spaces, trials)
    return spaces


def _algorithm(owner, methods):
    """Finds the algorithm that the owner of a grid names, in full or as tables show it."""
    given = dict.fromkeys(method.algorithm for method in methods)
    alike = [name for name in given if algorithms[name].__name__ == owner]
    if len(alike) > 1 and owner not in given:
        raise ValueError(f"the grid of {owner!r} may be of {' or '.join(alike)}; name one of them")
    return owner if owner in given or not alike else alike[0]


def _refuse(text, owner, option, methods):
    """Raises a ValueError that says why no method uses a grid."""
    names = [method.algorithm for method in methods]
    known = [each for name in names if owner in ("", name) for each in method_options(name)]
    if owner and owner not in names:
        raise ValueError(f"the grid of {option}: {unknown('method', owner, names)}")
    if option not in known:
        reason = unknown("option", option, known)
        raise ValueError(f"the grid of {owner or 'all methods'}: {reason}")
    raise ValueError(f"grid={text!r} is used by no method, because each has its own; leave it out")


def _values(
    method: Method, spec: str, settings: Settings, grid: Mapping[str, str]
) -> dict[str, list[Any] | Interval]:
    """Returns the checked lists and intervals of a method."""
    known = method_options(method.algorithm)
    intervals = {n for n, text in grid.items() if known[n].kind is float and ".." in text}
    texts = {n: text.split(".." if n in intervals else ",") for n, text in grid.items()}
    values: dict[str, list[Any] | Interval] = {}
    for name, listed in parse_grid(method, spec, settings, texts).items():
        given = f"{method.label}: {name}={grid[name]}"
        values[name] = listed
        if name in intervals:
            fix = "give LOW..HIGH, such as 0.001..1, or a list"
            ascends = len(listed) == 2 and 0 < listed[0] < listed[1]
            require(ascends, f"{given} is not an interval of real numbers above 0; {fix}")
            values[name] = Interval(*listed)
        elif len(set(listed)) < len(listed):
            raise ValueError(f"{given} names a value twice; give it once")
    return values


def _check_sizes(spaces, trials):
    """Checks that all methods have the same budget."""
    sizes = {space.method.label: space.size for space in spaces}
    fewest = min(sizes.values())
    for space in spaces:
        label = space.method.label
        require(space.values, f"{label} has nothing to tune; give --grid client_learning_rate=...")
        if trials is None and math.isinf(space.size):
            name = next(n for n, v in space.values.items() if isinstance(v, Interval))
            fix = "say with trials=N (--trials N) how many settings are drawn, or give a list"
            raise ValueError(f"{label}: {name}={space.values[name]} is an interval; {fix}")
        few = f"{label} has {space.size} settings and trials={trials}"
        fits = trials is None or trials <= space.size
        require(fits, f"{few}; give at most {fewest} trials, or more values")
    listed = ", ".join(f"{label} {size}" for label, size in sizes.items())
    fix = f"give trials={fewest} (--trials {fewest}), or grids of the same size"
    same = trials is not None or len(set(sizes.values())) == 1
    require(same, f"the methods have different numbers of settings ({listed}); {fix}")


class ModelBasedSearch:
    """Proposes `trials` different points by optuna's tree-structured Parzen estimator.

    If the estimator repeats itself, as it may with lists, a point is drawn without it.
    """

    def __init__(self, space: SearchSpace, trials: int, seed: int):
        optuna = needed("optuna", "search='optuna'")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space, self.trials, self.seed = space, trials, seed
        self.batch = -(-trials // _BATCHES)
        estimator = optuna.samplers.TPESampler
        sampler = estimator(seed=seed, n_startup_trials=self.batch, constant_liar=True)
        self.failed = optuna.trial.TrialState.FAIL
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        self.distributions: dict[str, Any] = {
            name: optuna.distributions.FloatDistribution(*values, log=True)
            if isinstance(values, Interval)
            else optuna.distributions.CategoricalDistribution(values)
            for name, values in space.values.items()
        }
        self.points: dict[tuple, dict[str, Any]] = {}  # all proposed points, by their values
        self.asked: list[Any] = []

    def ask(self) -> list[dict[str, Any]]:
        """Returns one or more new points, or none at the end."""
        before = len(self.points)
        self.asked = [self._ask_one() for _ in range(min(self.batch, self.trials - before))]
        return list(self.points.values())[before:]

    def _ask_one(self):
        """Returns a trial of the study whose point is new."""
        for _ in range(_MAX_PROPOSALS):
            trial = self.study.ask(self.distributions)
            if self._add(trial.params):
                return trial
            self.study.tell(trial, state=self.failed)  # the estimator ignores it
        drawn = self.space.points(self.trials, self.seed)
        self.study.enqueue_trial(next(point for point in drawn if self._add(point)))
        return self.study.ask(self.distributions)

    def _add(self, params):
        """Keeps the point of a proposal; returns True if it is new."""
        point = {
            name: known.rounded(params[name]) if isinstance(known, Interval) else params[name]
            for name, known in self.space.values.items()
        }
        is_new = (key := tuple(point.values())) not in self.points
        self.points.setdefault(key, point)
        return is_new

    def tell(self, scores: Sequence[float]) -> None:
        """Adds the scores of the last `ask`'s points, in their order; NaN counts as 0."""
        for trial, score in zip(self.asked, scores, strict=True):
            self.study.tell(trial, score if math.isfinite(score) else 0.0)
