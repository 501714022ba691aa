"""Reads a factory's options from its keyword-only signature, and checks their values.

A signature gives a range as `Annotated[float, Range(0)]`. Tracers of sweeps are not checked.
"""

import difflib
import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fedjax_algos.base.limits import MAX_INT32, MAX_SEED

RateBy = Literal["round", "dispatch", "step"]
Batches = Literal[
    "short", "dropped", "wrapped", "persistent", "replacement", "poisson", "full"
]  # fmt: skip
NonFinite = Literal["exclude", "error", "keep"]
Row: TypeAlias = dict[str, Any]  # the measurements of one evaluation of a run, by column

_MAX_NAMES = 15  # in an error message; if there are more, it lists the nearest
_NEAREST = 5


class Range(NamedTuple):
    """Numbers from `low` to `high`, both included unless they are open."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    reason: str = ""  # why there is an upper bound

    def holds(self, value: float) -> bool:
        """Returns whether a value lies in the range; NaN never does."""
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def __str__(self) -> str:
        low = f"above {self.low:g}" if self.low_open else f"of at least {self.low:g}"
        high = f"below {self.high:g}" if self.high_open else f"at most {self.high:g}"
        has_high = self.high < math.inf and not self.reason
        bounds = [low] * (self.low > -math.inf) + [high] * has_high
        return "a number " + " and ".join(bounds) if bounds else "a number"

    def why(self, value: Any) -> str:
        """Returns the upper bound and its reason if a value is above it, else an empty text."""
        above = self.reason and is_number(value, float) and value > self.high
        return f" and at most {self.high}, because {self.reason}" if above else ""


Real = Annotated[float, Range()]
Positive = Annotated[float, Range(0, low_open=True)]
NonNegative = Annotated[float, Range(0)]
Decay = Annotated[float, Range(0, 1, high_open=True)]
Proportion = Annotated[float, Range(0, 1, low_open=True, high_open=True)]
UnitInterval = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(0, 1, low_open=True)]
Count = Annotated[int, Range(1, MAX_INT32, reason="it is counted in 32-bit integers")]
Bytes = Annotated[int, Range(1)]
Seed = Annotated[int, Range(0, MAX_SEED, reason="keys are made of 32 bits")]
NumpySeed = Annotated[int, Range(0)]
Layers = Annotated[int, Range(1, 1000, reason="each layer is compiled by itself")]


class Option(NamedTuple):
    """One keyword of a factory, as the command line and the checks read it."""

    name: str
    kind: Any  # float, int, bool, str, or object if no text can express its values
    default: Any  # inspect.Parameter.empty if required
    range: Range | None
    choices: tuple[str, ...]
    objects: bool  # whether it also takes values that are neither texts nor numbers

    @property
    def required(self) -> bool:
        """Returns whether the factory needs this keyword."""
        return self.default is inspect.Parameter.empty


@functools.cache
def options(factory: Callable) -> dict[str, Option]:
    """Returns a factory's options in order; without an annotation, the default gives the type."""
    factory = inspect.unwrap(factory)
    hints = typing.get_type_hints(factory, include_extras=True)
    return {
        name: _option(name, hints.get(name, type(parameter.default)), parameter.default)
        for name, parameter in inspect.signature(factory).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def _option(name: str, hint: Any, default: Any) -> Option:
    alternatives, limits = [], None
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    for part in typing.get_args(hint) if is_union else (hint,):
        kind = part
        if typing.get_origin(part) is Annotated:
            kind, limits = typing.get_args(part)
        if kind is not type(None):
            alternatives.append(kind)
    literals = [a for a in alternatives if typing.get_origin(a) is Literal]
    choices = tuple(choice for literal in literals for choice in typing.get_args(literal))
    plain = [a for a in alternatives if a in (float, int, bool, str)]
    kind = str if choices else plain[0] if plain else object
    return Option(name, kind, default, limits, choices, len(alternatives) > len(plain + literals))


def check_value(option: Option, value: Any, owner: str) -> None:
    """Raises ValueError for a value of the wrong type or out of range."""
    import jax

    if isinstance(value, jax.core.Tracer) or value is option.default:
        return
    name = f"{owner}: {option.name}" if owner else option.name
    if option.choices and (isinstance(value, str) or not option.objects):
        check_choice(name, value, option.choices)
    elif option.kind is bool and not option.objects and not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} is unknown; choose True or False")
    elif option.kind in (int, float) and not option.objects:
        limits = option.range or Range()
        if not (is_number(value, option.kind) and limits.holds(value)):
            number = "whole number" if option.kind is int else "number"
            problem = "is out of range" if is_number(value, option.kind) else f"is not a {number}"
            if isinstance(value, float) and math.isinf(value):
                problem = "is not finite"
            fix = f"give {str(limits).replace('number', number)}{limits.why(value)}"
            raise ValueError(f"{name}={value!r} {problem}; {fix}")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raises ValueError, which names the choices, for any other value."""
    if value not in tuple(choices):  # a tuple, because the value may have no hash
        raise ValueError(f"{name}={value!r} is unknown; choose {one_of(choices)}")


def is_number(value: Any, kind: type) -> bool:
    """Returns whether a value is a finite number; an array without axes counts as one."""
    import jax

    is_array = isinstance(value, jax.Array | np.ndarray)
    # a random key of jax is not a number
    if is_array and value.ndim == 0 and jax.numpy.issubdtype(value.dtype, np.number):
        value = value.item()
    is_kind = isinstance(value, numbers.Integral if kind is int else numbers.Real)
    # math.isfinite raises for huge whole numbers
    return is_kind and not isinstance(value, bool) and abs(value) < math.inf


def one_of(names: Iterable[str]) -> str:
    """Returns the names as a readable list: `a, b or c`."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def unknown(what: str, name: str, names: Iterable[str]) -> str:
    """Returns the error message for an unknown name, with the nearest or all known names."""
    known = {each.lstrip("-"): each for each in names}  # an option may lack its dashes
    plain = name.lstrip("-")
    ends = sorted(each for each in known if each.endswith((f"_{plain}", f"-{plain}")))
    if near := ends or difflib.get_close_matches(plain, known, n=1):
        fix = f"did you mean {one_of(known[each] for each in near)}?"
    elif len(known) > _MAX_NAMES:
        near = difflib.get_close_matches(plain, known, n=_NEAREST, cutoff=0)
        fix = f"choose {', '.join(known[n] for n in near)} or one of {len(known) - _NEAREST} others"
    else:
        fix = f"choose {one_of(known.values())}" if known else "leave it out, there are none"
    return f"unknown {what} {name!r}; {fix}"


def require_option(known: Mapping[str, Option], name: str, owner: str) -> Option:
    """Returns the option of a factory by name, or raises ValueError."""
    if name not in known:
        raise ValueError(f"{owner}: {unknown('option', name, known)}")
    return known[name]
