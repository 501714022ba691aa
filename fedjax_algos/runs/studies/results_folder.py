"""Reads and writes a results folder: `config.json`, rows as CSV files, and the ended runs."""

import contextlib
import csv
import io
import itertools
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedjax_algos.base.errors import DamagedError, require
from fedjax_algos.base.files import (  # fmt: skip
    SUMS,
    check_sums,
    checked_json,
    file_digest,
    parse_json,
    read_file,
    write_json,
    write_sums,
    writing,
    written,
)
from fedjax_algos.base.reprs import describe
from fedjax_algos.core import Model, Row
from fedjax_algos.engine.placed.processes import from_first, only_first
from fedjax_algos.runs.loops.checkpoints import Checkpoints
from fedjax_algos.runs.loops.model_file import save_model
from fedjax_algos.runs.loops.run import OtherRunError, differences, off_grid, warn_of_devices
from fedjax_algos.runs.studies.shares import RunName, Share, run_name

# entries compared in addition to the settings
_COMPARED = ("methods", "grid", "tuning", "partition_sha256", "own_functions", "shares")
_OF_SEEDS = ("partition_sha256", "shares")
METRICS_SUM = "metrics_sha256"  # the checksum of metrics.csv in config.json
_OF_RUN = ("metrics.csv", "clients.csv", "model.npz")  # the files of a run that has ended
_TEXTS, _WHOLE = {"method"}, {"seed", "round"}  # columns that every row has
LOCK = ".lock"
_FIX = "name a folder that compare, run or sweep wrote"
_MAX_DIGITS = 300  # of a whole number; more may not fit into a float


class ResultsFolder:
    """The results folder of a comparison or a sweep, while it is written; see `open_folder`.

    Only process 0 reads and writes it, and sends the others what it has read.
    """

    def __init__(self, path: Path, every: float, keep: int, share: Share | None = None):
        self.path, self.every, self.keep, self.share = path, every, keep, share
        self.own: frozenset[RunName] | None = None  # the runs of the share; None for all
        self.names: dict[str, str] = {}  # of the methods' folders, by label
        self.rows: dict[tuple[str, int], list[Row]] = {}  # by label and seed
        self.extends = False

    def __repr__(self) -> str:
        return describe(self, path=str(self.path), methods=len(self.names))

    @property
    @from_first
    def configuration(self) -> dict[str, Any] | None:
        """The content of `config.json`, after a check of its checksum; None before `begin`."""
        content = read_configuration(self.path)
        try:
            return None if content is None else checked_json(content)
        except DamagedError as error:
            what = f"{str(self.path / 'config.json')!r} is not as it was written ({error})"
            fix = "so the runs cannot go on; begin them in another folder"
            raise ValueError(f"{what}, {fix}") from None

    @property
    def client_state(self) -> Path:
        """The folder for client state on disk, until all runs have ended."""
        return self.path / "client_state"

    @property
    def is_complete(self) -> bool:
        """True if all runs have ended and all files are written."""
        return bool((self.configuration or {}).get("complete"))

    def divide(self, runs: Sequence[RunName]) -> dict[str, Any]:
        """Chooses the runs of the share; returns the entry of `config.json` on shares, if any.

        `runs` are in the order of their computation, so that a share has few programs.
        """
        if self.share is None:
            return {}
        shares = self.share.divide(runs)
        self.own = frozenset(shares[self.share.number - 1])
        return {"shares": [[run_name(*run) for run in each] for each in shares]}

    def takes(self, label: str, seed: int) -> bool:
        """Returns True if this process computes a run."""
        return self.own is None or (label, seed) in self.own

    def begin(self, configuration: dict[str, Any], *, extends: bool = False) -> str | None:
        """Writes `config.json`, or checks that an earlier process's file is of the same runs.

        If it `extends`, runs keep their last checkpoints and may go on to more rounds, except in
        shares. If they do, it returns a line that says so.
        """
        self.extends = extends and self.share is None
        self.names = folders_of_methods(configuration["methods"])
        return self._begin(self.configuration, configuration)

    @from_first
    def _begin(self, earlier, configuration):
        """Does the reading and writing of `begin`."""
        if earlier is None and not self._write_first(configuration):
            earlier = self.configuration
        if earlier is not None:
            return self._go_on(earlier, configuration)
        self._make_folders()
        return None

    def _make_folders(self):
        for name in self.names.values():
            with writing(self.path):
                (self.path / "runs" / name).mkdir(parents=True, exist_ok=True)

    def _go_on(self, earlier, configuration):
        """Checks an earlier process's configuration; returns a line if runs become longer."""
        self._check_parts(len(earlier.get("shares", ())))
        here = json.loads(json.dumps(configuration))
        longer = _check_same(self.path, earlier, here, extends=self.extends)
        runs = itertools.product(self.names.values(), here["settings"]["seeds"])
        is_search = {"grid", "tuning"} <= earlier.keys()  # a search keeps scores, not runs
        for name, seed in runs if earlier["complete"] and not is_search else ():
            fix = f"put it back, or remove {self.path} and run again"
            check_sums(self.path / "runs" / name / f"seed-{seed}", _OF_RUN, fix)
        if self.share is not None:  # the writer of config.json may have been killed before this
            self._make_folders()
        return self._extend(earlier, configuration) if longer else None

    def _check_parts(self, parts):
        """Raises ValueError unless the folder has as many shares, or none, as this command."""
        if parts != (self.share.parts if self.share else 0):
            given = f"share='{self.share}': " if self.share else ""
            how, fix = f"in {parts} shares", f"give --share I/{parts}"
            if not parts:
                how, fix = "without shares", "leave --share out"
            what = f"{given}the runs in {str(self.path)!r} are computed {how}"
            raise ValueError(f"{what}; {fix}, or name another folder")

    def _extend(self, earlier, configuration):
        """Unmarks runs that have ended, unless they ended early; returns a line about it."""
        before, rounds = (each["settings"]["rounds"] for each in (earlier, configuration))
        self._write({n: v for n, v in earlier.items() if n not in ("runs", "complete")})
        anew = 0
        for sums in self.path.glob(f"runs/*/seed-*/{SUMS}"):
            if read_rows(sums.parent / "metrics.csv")[-1]["round"] == before:
                sums.unlink()
                places = [sums.parent / "checkpoints", self.path / "runs" / "checkpoints"]
                anew += not any(map(Path.exists, places))
        self._write(configuration)
        line = f"{self.path} goes on from {before} to {rounds} rounds"
        if anew:
            line += f"; {anew} of its runs have no checkpoint and begin again at round 0"
        return line

    def _write(self, configuration, complete=False, name="config.json"):
        content = configuration | {"runs": self.names, "complete": complete}
        write_json(self.path / name, content)

    def _write_first(self, configuration):
        """Writes `config.json`, or returns False if another share has already made the link."""
        if self.share is None:
            self._write(configuration)
            return True
        name = f".config-{self.share.number}.json"
        self._write(configuration, name=name)
        with writing(self.path):
            try:
                os.link(self.path / name, self.path / "config.json")
                return True
            except FileExistsError:
                return False
            finally:
                (self.path / name).unlink(missing_ok=True)

    @only_first
    def add_row(self, row: Row) -> None:
        """Writes a row, with `method` and `seed`, to the table of its run."""
        rows = self.rows.setdefault((row["method"], row["seed"]), [])
        rows.append(row)
        folder = self._of_run(row["method"], row["seed"])
        with writing(folder):
            folder.mkdir(exist_ok=True)
        write_table(folder / "metrics.csv", rows)

    @only_first
    def add_clients(self, rows: list[Row]) -> None:
        """Writes the metrics of each client at the end of a run, its `client_rows`."""
        folder = self._of_run(rows[0]["method"], rows[0]["seed"])
        write_table(folder / "clients.csv", rows)

    @only_first
    def end(self, label: str, seed: int, model: Model) -> None:
        """Writes a run's last model, and the checksums that mark the run as ended."""
        folder = self._of_run(label, seed)
        save_model(folder / "model.npz", model, overwrite=True)
        write_sums(folder, _OF_RUN)
        if not self.extends:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)

    @from_first
    def has_ended(self, label: str, seed: int) -> bool:
        """Returns True if a run has ended, in this process or another one."""
        return (self._of_run(label, seed) / SUMS).exists()

    @from_first
    def rows_of_ended(self, label: str, seed: int) -> list[Row] | None:
        """Returns the rows of a run that has ended, in this process or an earlier one, or None."""
        if not self.has_ended(label, seed):
            return None
        folder = self._of_run(label, seed)
        fix = f"remove the folder {str(folder)!r}, and the run is computed again"
        check_sums(folder, _OF_RUN, fix)
        return self._rows_in(label, seed, "metrics.csv")

    def checkpoints(self, label: str | None = None, seed: int | None = None) -> Checkpoints:
        """Returns the checkpoints of runs computed together: all runs, a method's, or one."""
        folder = self.path / "runs" / self.names.get(label or "", "")
        if label is not None and seed is not None:
            folder = folder / f"seed-{seed}"
        alone = seed is not None  # no last checkpoint, because its model is written at once
        folder = folder / "checkpoints"
        if self.share is not None and not alone:
            folder = folder / f"share-{self.share.number}"
        return Checkpoints(folder, self.every, self.keep, last=not alone)

    @from_first
    def complete(self, configuration: dict[str, Any]) -> None:
        """Marks the folder as complete, and removes files that only unfinished runs need."""
        table = self.path / "metrics.csv"
        sums = {METRICS_SUM: file_digest(table)} if table.exists() else {}
        self._write(configuration | sums, complete=True)
        found = () if self.extends else self.path.glob("runs/**/checkpoints")
        for folder in [*found, self.client_state]:
            shutil.rmtree(folder, ignore_errors=True)

    def rows_in(self, label: str, seed: int, name: str) -> list[Row]:
        """Reads the rows of a run's table, "metrics.csv" or "clients.csv"."""
        return from_first(self._rows_in)(label, seed, name)

    def _rows_in(self, label, seed, name):
        folder = self._of_run(label, seed)
        rows = read_rows(folder / name)
        for row in rows:
            if (row["method"], row["seed"]) != (label, seed):
                what = f"{folder / name} has a row of {row['method']}, seed {row['seed']}, among"
                fix = f"remove {folder}, and this run is made again"
                raise ValueError(f"{what} rows of {label}, seed {seed}; {fix}")
        return rows

    def _of_run(self, label, seed):
        return self.path / "runs" / self.names[label] / f"seed-{seed}"


def read_configuration(path: Path) -> dict[str, Any] | None:
    """Reads and checks a folder's `config.json`; returns None without one."""
    file = path / "config.json"
    try:
        content = parse_json(read_file(file))
        settings, packages = content["settings"], content["environment"]["packages"]
        kinds: list[tuple[Any, Any]] = [(settings, dict), (packages, dict)]
        kinds += [(content["methods"], dict), (settings["seeds"], list)]
        kinds += [(content["complete"], bool)]
        shares = content.get("shares", [])
        kinds += [(shares, list), *((name, str) for each in shares for name in each)]
        if (layout := content["layout"]) is not None:
            kinds += [(layout["source"], str), (layout["layout"], str | int)]
            kinds += [(layout["devices"], int)]
        valid = all(isinstance(value, kind) for value, kind in kinds) and content["methods"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError):
        valid = False
    fix = "name another folder"
    require(valid, f"{str(file)!r} is not what compare, run or sweep wrote; {fix}")
    return content


def facts(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the facts that all folders of one comparison share; only their seeds differ."""
    settings = {name: value for name, value in content["settings"].items() if name != "seeds"}
    own = {name: content.get(name) for name in _COMPARED if name not in _OF_SEEDS}
    return {"settings": settings, **own}


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


def _check_same(
    path: Path, earlier: dict[str, Any], configuration: dict[str, Any], *, extends: bool
) -> bool:
    """Returns True if the folder's runs get more rounds; raises OtherRunError for other runs."""
    there, here = ({n: each.get(n) for n in _COMPARED} for each in (earlier, configuration))
    settings, own = earlier["settings"], configuration["settings"] | {"devices": None}
    settings = settings | {"devices": None}
    before, rounds = settings.get("rounds"), own.get("rounds")
    lines = differences(settings, own, "in the folder") + differences(there, here, "in the folder")
    longer = extends and isinstance(before, int) and rounds is not None and before < rounds
    if longer and len(lines) == 1:
        lines = []
        if before % own["eval_every"]:
            why = off_grid(before, own["eval_every"])
            lines = [f"rounds: {before} in the folder, {rounds} here; {why}"]
    if lines:
        fix = "Give the command that made it, or another folder"
        raise OtherRunError(f"{str(path)!r} holds other runs", lines, fix)
    packages = [each["environment"]["packages"] for each in (earlier, configuration)]
    if packages[0] != packages[1]:
        told = f"{path} was begun with {packages[0]} and goes on with {packages[1]}"
        warnings.warn(f"{told}, which may round differently", stacklevel=4)
    layouts = [each["layout"] or each["settings"] for each in (earlier, configuration)]
    warn_of_devices(str(path), *(each.get("devices") for each in layouts))
    return longer


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows to a CSV file; missing columns of a row are empty."""
    columns = dict.fromkeys(name for row in rows for name in row)
    with written(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[Row]:
    """Reads the rows that `write_table` wrote; ValueError unless they are a whole metrics table."""
    try:
        text = read_file(path).decode()
        require("\0" not in text, "it has a null character")
        columns, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    except OSError:
        begun = (path.parent / LOCK).exists()
        fix = "repeat its command, which ended before the first row" if begun else _FIX
        raise ValueError(f"{path} cannot be read; {fix}") from None
    except (ValueError, csv.Error) as error:  # not a text, not a line, or not a table
        raise ValueError(f"{path} cannot be read ({error}); {_FIX}") from None
    require(rows and set(columns) >= _TEXTS | _WHOLE, f"{path} holds no metrics; {_FIX}")
    for name in columns:
        require(columns.count(name) == 1, f"{path} has the column {name!r} twice; {_FIX}")
    seen: dict[tuple[str, ...], int] = {}
    for number, cells in enumerate(rows, start=1):
        if len(cells) != len(columns):
            what = f"row {number} of {path} has {len(cells)} cells for {len(columns)} columns"
            raise ValueError(f"{what}; {_FIX}")
        if (first := seen.setdefault(tuple(cells), number)) != number:
            raise ValueError(f"row {number} of {path} is row {first} again; remove one of them")
    if not text.endswith("\n"):
        raise ValueError(f"{path} is cut off in row {len(rows)}, which has no end of line; {_FIX}")
    return [
        {
            name: _value(name, cell, f"row {number} of {path}")
            for name, cell in zip(columns, cells, strict=True)
            if cell or name in _TEXTS | _WHOLE
        }
        for number, cells in enumerate(rows, start=1)
    ]


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
    raise ValueError(f"{place} has {name}={cell!r}, which is not a {kind}; {_FIX}")
