"""Specs and other texts of options, which are read here alone.

A spec is `name`, `name:value` (of its first option) or `name:option=value,option=value`. In that of
a method, wrappers may follow after pluses, and a planner after an @; they have specs of their own,
as in `fedprox:mu=0.1+identity@buffered:size=5`. A plus that a letter, a dot or a slash follows
separates; one that belongs to a path or a value is written twice. A comma in a value has a
backslash before it.
"""

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_algos.base.errors import require
from fedjax_algos.core.options import Option, check_value, is_number, require_option

_COMMA = re.compile(r"(?<!\\),")  # one that separates
_SPEC = "client_optimizer"  # the value of this option is a spec, which is the last in its own
_MAX_SEEDS = 10_000  # each has a partition and runs of its own


def parse_value(option: Option, given: Any, owner: str = "") -> Any:
    """The checked value that a text, or a value of a TOML or JSON file, means for an option."""
    value = given
    is_object = option.kind is object
    require(not is_object, f"{owner}: {option.name} is an object; give it in Python")
    if option.kind is str:
        value = str(given)
    elif option.kind is bool and isinstance(given, str):
        value = {"true": True, "false": False}.get(given.lower(), given)
    elif option.kind in (int, float):
        value = _number(given)
    check_value(option, value, owner)
    return option.kind(value) if option.kind in (int, float) else value


def _number(given):
    """The number that a text means; what is none, or not finite, is returned as it is."""
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
    """The values of `option=value,...`: a bare one is that of `first`, the rest that of `last`."""
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
    """The seeds that a text (`5`, `10-14` or `3,7`), or a number or a list of a file, means."""
    seeds: Sequence[int] = ()
    if isinstance(given, list):
        seeds = given if all(is_number(seed, int) for seed in given) else ()
    else:
        with contextlib.suppress(ValueError):
            seeds = _seeds(str(given))
    # len() of a range fails above 2**63 - 1
    if not seeds or (isinstance(seeds, range) and seeds[-1] - seeds[0] >= _MAX_SEEDS):
        text = f"seeds={given!r} is no number of seeds (5), range (10-14) or list (3,7)"
        fix = f"give one of them, with at most {_MAX_SEEDS} seeds"
        raise ValueError(f"{owner}: " * bool(owner) + f"{text}; {fix}")
    return tuple(seeds)


def _seeds(text):
    if "-" in text:
        first, last = map(int, text.split("-"))
        return range(first, last + 1)
    return [int(part) for part in text.split(",") if part] if "," in text else range(int(text))


def split_specs(text: str) -> list[str]:
    """The specs that commas separate; a part `option=value` belongs to the spec before it."""
    specs: list[str] = []
    for part in _COMMA.split(text):
        if specs and re.match(r"\w+=", part):
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    return specs


def split_planner(spec: str) -> tuple[str, str]:
    """A method's spec before and after the @, which the name of a folder may contain, too."""
    folder, slash, rest = spec.rpartition("/")
    rest, at, planner = rest.partition("@")
    fix = "leave the @ out, or name one"
    require(planner or not at, f"{spec!r} names no planner after the @; {fix}")
    return folder + slash + rest, planner


def split_wrappers(spec: str) -> list[str]:
    """The specs that single pluses separate: a method's own one and those of its wrappers."""
    parts = re.split(r"(?<!\+)\+(?=[A-Za-z./])", spec) if spec else []
    are_named = all(parts) and not any(re.search(r"(?<!\+)(\+\+)*\+$", part) for part in parts)
    require(are_named, f"{spec!r} has a plus without a wrapper; leave it out, or name one")
    return [part.replace("++", "+") for part in parts]


def join_wrappers(specs: Sequence[str]) -> str:
    """The text that `split_wrappers` splits into these specs."""
    return "+".join(spec.replace("+", "++") for spec in specs)


def split_grid(text: str) -> tuple[str, str, str]:
    """The algorithm ("" for all), the option and the values of `[ALGORITHM:]OPTION=VALUES`."""
    name, _, listed = text.partition("=")
    owner, _, option = name.rpartition(":")
    require(listed, f"grid={text!r} has no values; give {name}=VALUE,VALUE or LOW..HIGH")
    return owner, option.replace("-", "_"), listed


def spec_of(
    name: str, values: Mapping[str, Any], planner: str = "", wrappers: Sequence[str] = ()
) -> str:
    """The spec that means these values; those that are None are left out."""
    texts = []
    for option, value in values.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        text = text if option == _SPEC else text.replace(",", "\\,")
        texts += [f"{option}={text}"] * (value is not None)
    own = name + f":{','.join(texts)}" * bool(texts)
    return join_wrappers([own, *wrappers]) + f"@{planner}" * bool(planner)
