"""Parses specs and other texts of options.

A spec is `name`, `name:value`, the value of the first option or `name:option=value,option=value`.
In a method's spec, specs of wrappers may follow after pluses, and a planner's spec after an @, as
in `fedprox:mu=0.1+identity@buffered:size=5`. A plus begins a wrapper only before a letter, a dot or
a slash; write ++ for a plus in a path or a value. Write a backslash before a comma in a value.
"""

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_algos.base.errors import require
from fedjax_algos.core.options import Option, check_value, is_number, require_option

_COMMA = re.compile(r"(?<!\\),")  # without a backslash
_SPEC = "client_optimizer"  # the value of this option is a spec, so it comes last
_MAX_SEEDS = 10_000  # each has a partition and runs of its own


def parse_value(option: Option, given: Any, owner: str = "") -> Any:
    """Parses and checks an option's value: a text, or a value of a TOML or JSON file."""
    value, is_one = given, not isinstance(given, list | dict)
    require(option.kind is not object, f"{owner}: {option.name} is an object; give it in Python")
    require(is_one, f"{option.name}={given!r:.200} is not one value; give a number or a text")
    if option.kind is str:
        value = str(given)
    elif option.kind is bool and isinstance(given, str):
        value = {"true": True, "false": False}.get(given.lower(), given)
    elif option.kind in (int, float):
        value = _number(given)
    check_value(option, value, owner)
    try:
        return option.kind(value) if option.kind in (int, float) else value
    except OverflowError as error:  # an integer of hundreds of digits does not fit a float
        raise ValueError(f"{option.name} has too many digits; give a smaller number") from error


def _number(given):
    """Parses a finite number; returns anything else unchanged."""
    try:
        number = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        return given
    if not math.isfinite(number):
        return given
    return int(number) if number.is_integer() else number


def parse_options(
    text: str, known: Mapping[str, Option], owner: str, *, first: str = "", last: str = ""
) -> dict[str, Any]:
    """Parses `option=value,...`: a bare value is `first`'s; `last` takes all text after it."""
    text, *rest = re.split(f"(?:^|,){last}=", text, maxsplit=1) if last else [text]
    parts = [part.replace("\\,", ",") for part in _COMMA.split(text) if part]
    pairs = [part.partition("=") for part in parts]
    values: dict[str, Any] = {}
    for key, equals, given in [*pairs, *((last, "=", each) for each in rest)]:
        has_value = equals or not values or key not in known
        require(has_value, f"{owner}: {key} has no value; give {key}=...")
        name, value = (key, given) if equals else (first, key)
        option = require_option(known, name, owner)
        fix = "give it once" if equals else f"write a comma in a value as \\,, as before {key!r}"
        require(name not in values, f"{owner}: {name} is given twice; {fix}")
        values[name] = parse_value(option, value, owner)
    return values


def parse_seeds(given: Any, owner: str = "") -> tuple[int, ...]:
    """Parses seeds: a text (`5`, `10-14` or `3,7`), or a number or a list of a file."""
    seeds: Sequence[int] = ()
    if isinstance(given, list):
        seeds = given if all(is_number(seed, int) for seed in given) else ()
    else:
        with contextlib.suppress(ValueError):
            seeds = _seeds(str(given))
    # len() of a range fails above 2**63 - 1
    if not seeds or (isinstance(seeds, range) and seeds[-1] - seeds[0] >= _MAX_SEEDS):
        text = f"seeds={given!r} is not a seed count (5), range (10-14) or list (3,7)"
        fix = f"give one of them, with at most {_MAX_SEEDS} seeds"
        raise ValueError(f"{owner}: " * bool(owner) + f"{text}; {fix}")
    return tuple(seeds)


def _seeds(text):
    if "-" in text:
        first, last = map(int, text.split("-"))
        return range(first, last + 1)
    return [int(part) for part in text.split(",") if part] if "," in text else range(int(text))


def split_specs(text: str) -> list[str]:
    """Splits comma-separated specs; a part `option=value` belongs to the spec before it."""
    specs: list[str] = []
    for part in _COMMA.split(text):
        if specs and re.match(r"\w+=", part):
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    return specs


def split_planner(spec: str) -> tuple[str, str]:
    """Splits a method's spec at the @ before its planner; folder names may contain an @."""
    folder, slash, rest = spec.rpartition("/")
    rest, at, planner = rest.partition("@")
    fix = "leave the @ out, or name one"
    require(planner or not at, f"{spec!r} names no planner after the @; {fix}")
    return folder + slash + rest, planner


def split_wrappers(spec: str) -> list[str]:
    """Splits the specs of a method and its wrappers at single pluses."""
    parts = re.split(r"(?<!\+)\+(?=[A-Za-z./])", spec) if spec else []
    are_named = all(parts) and not any(re.search(r"(?<!\+)(\+\+)*\+$", part) for part in parts)
    require(are_named, f"{spec!r} has a plus without a wrapper; leave it out, or name one")
    return [part.replace("++", "+") for part in parts]


def join_wrappers(specs: Sequence[str]) -> str:
    """Joins specs into the text that `split_wrappers` splits."""
    return "+".join(spec.replace("+", "++") for spec in specs)


def split_grid(text: str) -> tuple[str, str, str]:
    """Splits `[ALGORITHM:]OPTION=VALUES` into the algorithm ("" for all), option and values."""
    name, _, listed = text.partition("=")
    owner, _, option = name.rpartition(":")
    require(listed, f"grid={text!r} has no values; give {name}=VALUE,VALUE or LOW..HIGH")
    return owner, option.replace("-", "_"), listed


def spec_of(name: str, values: Mapping, planner: str = "", wrappers: Sequence[str] = ()) -> str:
    """Writes the spec of a name and its options' values; leaves out None."""
    texts = []
    for option, value in values.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        text = text if option == _SPEC else text.replace(",", "\\,")
        texts += [f"{option}={text}"] * (value is not None)
    spec = name + f":{','.join(texts)}" * bool(texts)
    return join_wrappers([spec, *wrappers]) + f"@{planner}" * bool(planner)
