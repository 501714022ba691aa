"""The files of a paper and of its claims."""

import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_algos.core.files import MAX_TOML_BYTES, open_regular, parse_toml, read_bounded
from fedjax_algos.core.options import is_number, unknown

_OF_RUNNER = ("settings", "cases", "measures", "labels")  # what the claim's command reads
_TEXTS = ("item", "claim", "printed", "command", "seen", "needs", "reason", "of")
_CHECKS: dict[str, dict[str, type]] = {
    "orders": {
        "measure": str,
        "cases": list,
        "method": str,
        "lower": str,
        "higher": str,
        "than": list,
    },
    "ties": {"measure": str, "cases": list, "methods": list, "margin": float},
    "equals": {"measure": str, "cases": list, "relative": float},
}


class Paper(NamedTuple):
    """A paper whose claims are in a folder.

    Attributes:
      name: of the folder.
      title: of the paper.
      authors: as the paper has them.
      year: of publication.
      link: to the paper.
      with_results: what each table and figure with results shows, by its name.
      without_results: why there is nothing to check in the others, by their names.
    """

    name: str
    title: str
    authors: str
    year: int
    link: str
    with_results: Mapping[str, str]
    without_results: Mapping[str, str]


class Claim(NamedTuple):
    """A claim of a paper, or an experiment that shows why one is not reproduced.

    Attributes:
      path: of the file.
      item: the table or figure.
      claim: in a sentence.
      printed: the setting that the paper prints.
      differences: of the setting that is run here.
      command: that runs it; empty if it was not run.
      minutes: that the command takes.
      seen: what the numbers say.
      needs: what a claim that was not run needs.
      reason: why it is not reproduced.
      shown_by: names of the experiments that show the reason.
      of: the claim whose reason this experiment shows; empty for a claim.
      paper: the paper's values, by measure, case and method.
      orders: methods or cases of which one is better than others.
      ties: methods between which no difference is claimed.
      equals: measures whose values are those of the paper.
    """

    path: Path
    item: str
    claim: str
    printed: str
    differences: tuple[str, ...]
    command: str
    minutes: float
    seen: str
    needs: str
    reason: str
    shown_by: tuple[str, ...]
    of: str
    paper: Mapping[tuple[str, str, str], float]
    orders: tuple[Mapping[str, Any], ...]
    ties: tuple[Mapping[str, Any], ...]
    equals: tuple[Mapping[str, Any], ...]


def read_paper(path: str | Path) -> Paper:
    """Reads `paper.toml`.

    Args:
      path: of the file; its folder has the name of the paper.

    Raises:
      ValueError: for a file that cannot be read, and for a key that is wrong or missing.
    """
    content = _read(path)
    kinds = {"title": str, "authors": str, "year": int, "link": str}
    _check_keys(path, content, {*kinds, "with_results", "without_results"})
    values = {name: _get(path, content, name, kind) for name, kind in kinds.items()}
    for name in ("with_results", "without_results"):
        table = _get(path, content, name, dict)
        if not all(isinstance(text, str) for text in table.values()):
            raise ValueError(f"{str(path)!r}: {name} has a value that is no text; give a sentence")
        values[name] = table
    return Paper(Path(path).resolve().parent.name, **values)


def read_claim(path: str | Path) -> Claim:
    """Reads the file of a claim.

    Args:
      path: of the file.

    Raises:
      ValueError: for a file that cannot be read, and for a key that is wrong, missing, or not for
        this kind of claim.
    """
    content = _read(path)
    lists = ("differences", "shown_by")
    _check_keys(path, content, {*_TEXTS, *lists, "minutes", "paper", *_CHECKS, *_OF_RUNNER})
    values: dict[str, Any] = {
        name: " ".join(_get(path, content, name, str, "").split()) for name in _TEXTS
    }
    for name in lists:
        values[name] = tuple(_texts(path, name, _get(path, content, name, list, [])))
    values["minutes"] = _get(path, content, "minutes", float, 0.0)
    values["paper"] = _printed_values(path, content)
    for name, kinds in _CHECKS.items():
        checks = _get(path, content, name, list, [])
        values[name] = tuple(_check_entry(path, name, entry, kinds) for entry in checks)
    claim = Claim(path=Path(path), **values)
    _check_parts(claim)
    return claim


def _check_parts(claim: Claim) -> None:
    """Raises ValueError for what a claim lacks, or has without need."""
    has = {name for name in ("command", "seen", "reason") if getattr(claim, name)}
    has |= {name for name in ("minutes", "shown_by", *_CHECKS) if getattr(claim, name)}
    needed = {"item", "claim"} | ({"printed"} if not claim.of else set())
    needed |= set() if claim.needs else {"command", "minutes", "seen"}
    missing = sorted(name for name in needed if not getattr(claim, name))
    if missing:
        raise ValueError(f"{str(claim.path)!r} lacks {', '.join(missing)}")
    if claim.needs and has:
        raise ValueError(
            f"{str(claim.path)!r} has needs, because it was not run, and also "
            f"{', '.join(sorted(has))}; leave one of them out"
        )
    if not claim.needs and not (claim.orders or claim.ties or claim.equals):
        raise ValueError(f"{str(claim.path)!r} has no orders, ties or equals; say what to check")
    if bool(claim.reason) != bool(claim.shown_by):
        raise ValueError(f"{str(claim.path)!r} needs both reason and shown_by, or neither")


def _printed_values(path, content) -> dict[tuple[str, str, str], float]:
    found: dict[tuple[str, str, str], float] = {}
    for entry in _get(path, content, "paper", list, []):
        kinds = {"case": str, "measure": str, "values": dict}
        own = {"case": "", **_check_entry(path, "paper", entry, kinds)}
        for name in ("measure", "values"):
            _get(path, own, name, kinds[name])
        for method, value in own["values"].items():
            if not _is_finite(value, float):
                shown = reprlib.repr(value)
                raise ValueError(f"{str(path)!r}: paper has {method}={shown}; give a number")
            key = own["measure"], own["case"], method
            if key in found:
                raise ValueError(f"{str(path)!r}: paper has {key} twice; leave one out")
            found[key] = float(value)
    return found


def _check_entry(path, name: str, entry: Any, kinds: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ValueError(
            f"{str(path)!r}: {name} has {reprlib.repr(entry)}; write a table [[{name}]]"
        )
    _check_keys(path, entry, set(kinds), f" in {name}")
    values = {key: _get(path, entry, key, kinds[key]) for key in entry}
    for key, value in values.items():
        if isinstance(value, list):
            _texts(path, f"{name}.{key}", value)
    if name != "paper":
        required = {"orders": {"measure", "than"}, "ties": {"measure", "methods", "margin"}}
        for key in sorted(required.get(name, {"measure", "relative"})):
            _get(path, entry, key, kinds[key])
        if name == "orders" and ("lower" in entry) == ("higher" in entry):
            raise ValueError(f"{str(path)!r}: orders has to have lower or higher, not both")
    return values


def _read(path: str | Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            return parse_toml(read_bounded(file, MAX_TOML_BYTES))
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is no TOML file: {error}") from None


def _check_keys(path, content: Mapping[str, Any], known: set[str], where: str = "") -> None:
    for key in content:
        if key not in known:
            raise ValueError(f"{str(path)!r}: {unknown(f'key{where}', key, sorted(known))}")


def _get(path, content: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = content.get(name, default)
    if value is None:
        raise ValueError(f"{str(path)!r} lacks {name}")
    good = _is_finite(value, kind) if kind in (int, float) else isinstance(value, kind)
    if not good:
        raise ValueError(f"{str(path)!r}: {name}={reprlib.repr(value)} is no {_KINDS[kind]}")
    return kind(value)


def _is_finite(value: Any, kind: type) -> bool:
    try:
        return is_number(value, kind) and math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def _texts(path, name: str, values: list[Any]) -> list[str]:
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{str(path)!r}: {name}={reprlib.repr(values)} is no list of texts")
    return values


_KINDS = {str: "text", int: "whole number", float: "number", list: "list", dict: "table"}
