"""Reads and writes the files of a results folder, and names its runs that are missing.

The files are `config.json` and tables of rows; `results_folder.py` says when they are written.
"""

import contextlib
import csv
import io
import itertools
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import SUMS, parse_json, read_file, reading, written
from fedjax_algos.core import Row
from fedjax_algos.runs.loops.run import OtherRunError, differences, off_grid, warn_of_devices

RunName = tuple[str, int]  # the label of a method and the seed

# entries compared in addition to the settings
_COMPARED = ("methods", "grid", "tuning", "partition_sha256", "own_functions", "shares")
_OF_SEEDS = ("partition_sha256", "shares")
_TEXTS, _WHOLE = {"method"}, {"seed", "round"}
_ALWAYS = _TEXTS | _WHOLE  # columns that every row has
FIX = "name a folder that compare, run or sweep wrote"
_MAX_DIGITS = 300  # of a whole number; more may not fit into a float


def read_configuration(path: Path) -> dict[str, Any] | None:
    """Reads and checks a folder's `config.json`; returns None without one."""
    file = path / "config.json"
    try:
        content = parse_json(read_file(file))
        settings, packages = content["settings"], content["environment"]["packages"]
        shares = content.get("shares", [])
        kinds: list[tuple[Any, Any]] = [
            *((settings, dict), (packages, dict), (content["methods"], dict)),
            *((settings["seeds"], list), (content["complete"], bool), (shares, list)),
            *((name, str) for each in shares for name in each),
        ]
        if (layout := content["layout"]) is not None:
            types = {"source": str, "layout": str | int, "devices": int}
            kinds += [(layout[name], kind) for name, kind in types.items()]
        valid = all(isinstance(value, kind) for value, kind in kinds) and content["methods"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError):
        valid = False
    require(valid, f"{str(file)!r} is not what compare, run or sweep wrote; name another folder")
    return content


def facts(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the facts that all folders of one comparison share; only their seeds differ."""
    settings = {name: value for name, value in content["settings"].items() if name != "seeds"}
    others = {name: content.get(name) for name in _COMPARED if name not in _OF_SEEDS}
    return {"settings": settings, **others}


def folders_of_methods(labels: Iterable[str]) -> dict[str, str]:
    """Returns the names of the methods' folders, by label."""
    return {
        label: f"{number:02d}-{re.sub(r'[^A-Za-z0-9_.=+-]+', '-', label)[:80]}"
        for number, label in enumerate(labels, 1)
    }


def missing_runs(path: Path, content: dict[str, Any]) -> list[RunName]:
    """Lists the runs of a folder with this `config.json` that have not ended."""
    names, seeds = folders_of_methods(content["methods"]), content["settings"]["seeds"]
    ended = {(each.parts[-3], each.parts[-2]) for each in path.glob(f"runs/*/seed-*/{SUMS}")}
    runs = itertools.product(names, seeds)
    return [(label, seed) for label, seed in runs if (names[label], f"seed-{seed}") not in ended]


def check_same(
    path: Path, earlier: dict[str, Any], configuration: dict[str, Any], *, extends: bool
) -> bool:
    """Returns whether the folder's runs only get more rounds; OtherRunError if they are others."""
    both = earlier, configuration
    there, here = (each["settings"] | {"devices": None} for each in both)
    lines = differences(there, here, "in the folder")
    before, rounds, eval_every = there.get("rounds"), here.get("rounds"), here.get("eval_every")
    there, here = ({name: each.get(name) for name in _COMPARED} for each in both)
    lines += differences(there, here, "in the folder")
    longer = extends and isinstance(before, int) and rounds is not None and before < rounds
    if longer and len(lines) == 1:
        reason = off_grid(before, eval_every)
        line = f"rounds: {before} in the folder, {rounds} here; {reason}"
        lines = [line] if before % eval_every else []
    if lines:
        fix = "Give the command that made it, or another folder"
        raise OtherRunError(f"{str(path)!r} holds other runs", lines, fix)
    old, new = (each["environment"]["packages"] for each in both)
    if old != new:
        message = f"{path} was begun with {old} and goes on with {new}, which may round differently"
        warnings.warn(message, stacklevel=4)
    layouts = [each["layout"] or each["settings"] for each in both]
    warn_of_devices(str(path), *(layout.get("devices") for layout in layouts))
    return longer


def run_name(label: str, seed: int) -> str:
    """Names a run in `config.json` and in messages."""
    return f"{label}, seed {seed}"


def describe_missing(
    missing: Sequence[RunName], shares: Sequence[Sequence[str]] = (), listed: int = 8
) -> str:
    """Lists the first missing runs with their shares, and counts the others."""
    numbers = {name: number for number, names in enumerate(shares, 1) for name in names}
    groups: dict[tuple[int, str], list[int]] = {}  # seeds, by share and label
    for label, seed in missing:
        groups.setdefault((numbers.get(run_name(label, seed), 0), label), []).append(seed)
    in_order, texts = sorted(groups.items(), key=lambda group: group[0][0]), []
    for (number, label), seeds in in_order[:listed]:
        runs = f"{label} on seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        texts.append(f"{runs}{_options([number], shares)}")
    if others := in_order[listed:]:
        more = sum(len(seeds) for _, seeds in others)
        left = dict.fromkeys(number for (number, _), _ in others)
        texts.append(f"{more}{' more' * bool(texts)} runs{_options(left, shares)}")
    return "; ".join(texts)


def describe_incomplete(path: Path, content: dict[str, Any], missing: Sequence[RunName]) -> str:
    """Describes a folder's ended and missing runs, and how to go on."""
    shares, number = content.get("shares", ()), len(content["methods"])
    number *= len(content["settings"]["seeds"])
    text = f"{str(path)!r} is not complete: {number - len(missing)} of {number} runs have ended"
    options = f"and {'their' if missing else 'any'} --share" if shares else "--out and --resume"
    text += f"; go on with the same command, {options}, or wait for the end"
    return f"{text}; missing: {describe_missing(missing, shares)}" if missing else text


def _options(numbers, shares):
    """Formats the option --share; leaves out 0, which stands for runs that are in no share."""
    texts = [f"{number}/{len(shares)}" for number in numbers if number]
    return f" (--share {', '.join(texts)})" if texts else ""


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows to a CSV file; missing columns of a row are empty."""
    columns = [*dict.fromkeys(name for row in rows for name in row)]
    with written(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[Row]:
    """Reads the rows that `write_table` wrote; ValueError unless they are a whole metrics table."""
    with reading(path, "a table of metrics", FIX, csv.Error):
        text = read_file(path).decode()
        columns, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        named = len({*columns}) == len(columns) and {*columns} >= _ALWAYS
        whole = rows and text.endswith("\n") and "\0" not in text
        wrong = f"is cut off, has a null character, lacks one of {sorted(_ALWAYS)}"
        require(named and whole, f"it {wrong}, or has a column twice")
        seen, read = set[tuple[str, ...]](), list[Row]()
        for number, cells in enumerate(rows, start=1):
            size = f"{len(cells)} cells for {len(columns)} columns"
            valid = len(cells) == len(columns) and tuple(cells) not in seen
            require(valid, f"row {number} has {size}, or repeats an earlier row")
            seen.add(tuple(cells))
            filled = {n: c for n, c in zip(columns, cells, strict=True) if c or n in _ALWAYS}
            read.append({n: _value(n, c, f"row {number}") for n, c in filled.items()})
        return read


def _value(name: str, cell: str, place: str) -> str | int | float:
    """Parses a cell; raises ValueError if it does not fit its column."""
    kind = "text" if name in _TEXTS else "whole number" if name in _WHOLE else "number"
    if kind == "text" and cell:
        return cell
    if kind != "text" and cell.removeprefix("-").isdecimal() and len(cell) < _MAX_DIGITS:
        return int(cell)
    with contextlib.suppress(ValueError):
        if kind == "number":
            return float(cell)
    raise ValueError(f"{place} has {name}={cell!r}, which is not a {kind}")
