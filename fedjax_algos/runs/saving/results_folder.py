"""A results folder: its lock, its `config.json`, rows as CSV files, and what has ended."""

import contextlib
import csv
import io
import itertools
import json
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from fedjax_algos.core import Model, Row
from fedjax_algos.core.files import (
    SUMS,
    DamagedError,
    check_sums,
    checked_json,
    parse_json,
    read_file,
    require,
    unwritable,
    write_json,
    write_sums,
    writing,
    written,
)  # fmt: skip
from fedjax_algos.core.options import Count, NonNegative
from fedjax_algos.core.reprs import describe
from fedjax_algos.engine.placed.processes import from_first, only_first
from fedjax_algos.runs.identity import OtherRunError, differences, off_grid, warn_of_devices
from fedjax_algos.runs.saving.checkpoints import Checkpoints
from fedjax_algos.runs.saving.model_file import save_model

# besides the settings
_COMPARED = ("methods", "grid", "tuning", "partition_sha256", "own_functions")
_LOCK = ".lock"
_OF_RUN = ("metrics.csv", "clients.csv", "model.npz")  # what is there of a run that has ended
_TEXTS, _WHOLE = {"method"}, {"seed", "round"}  # columns that every row has
_FIX = "name a folder that compare, run or sweep wrote"
_MAX_DIGITS = 300  # of a number that fits into a float


class ResultsFolder:
    """The results folder of a comparison or a sweep, while it is written; see `open_folder`.

    Process 0 alone reads and writes it, and tells the others what it has read.
    """

    def __init__(self, path: Path, every: float, keep: int):
        self.path, self.every, self.keep = path, every, keep
        self.names: dict[str, str] = {}  # of the methods' folders, by label
        self.rows: dict[tuple[str, int], list[Row]] = {}  # by label and seed
        self.extends = False

    def __repr__(self) -> str:
        return describe(self, path=str(self.path), methods=len(self.names))

    @property
    @from_first
    def configuration(self) -> dict[str, Any] | None:
        """The content of `config.json`, whose checksum is compared; None before `begin`."""
        content = read_configuration(self.path)
        try:
            return None if content is None else checked_json(content)
        except DamagedError as error:
            what = f"{str(self.path / 'config.json')!r} is not as it was written ({error})"
            fix = "so the runs cannot go on; begin them in another folder"
            raise ValueError(f"{what}, {fix}") from None

    @property
    def client_state(self) -> Path:
        """The folder of the rows of client state on disk, until all runs have ended."""
        return self.path / "client_state"

    @property
    def is_complete(self) -> bool:
        """Whether all runs have ended and all files are written."""
        return bool((self.configuration or {}).get("complete"))

    def begin(self, configuration: dict[str, Any], *, extends: bool = False) -> str | None:
        """Writes `config.json`, or checks that the one of an earlier process is of the same runs.

        If it `extends`, runs keep their last checkpoints and may go on to more rounds; where they
        do, a line that says so is returned.
        """
        self.extends = extends
        self.names = {
            label: f"{number:02d}-{re.sub(r'[^A-Za-z0-9_.=+-]+', '-', label)[:80]}"
            for number, label in enumerate(configuration["methods"], 1)
        }
        return self._begin(self.configuration, configuration, extends)

    @from_first
    def _begin(self, earlier, configuration, extends):
        """Of `begin`, what reads and writes."""
        if earlier is None:
            self._write(configuration)
            for name in self.names.values():
                with writing(self.path):
                    (self.path / "runs" / name).mkdir(parents=True, exist_ok=True)
            return None
        here = json.loads(json.dumps(configuration))
        longer = _check_same(self.path, earlier, here, extends=extends)
        runs = itertools.product(self.names.values(), here["settings"]["seeds"])
        is_search = {"grid", "tuning"} <= earlier.keys()  # which keeps scores in place of runs
        for name, seed in runs if earlier["complete"] and not is_search else ():
            fix = f"put it back, or remove {self.path} and run again"
            check_sums(self.path / "runs" / name / f"seed-{seed}", _OF_RUN, fix)
        return self._extend(earlier, configuration) if longer else None

    def _extend(self, earlier, configuration):
        """Runs that have ended are no longer marked so, unless they ended early."""
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

    def _write(self, configuration, complete=False):
        content = configuration | {"runs": self.names, "complete": complete}
        write_json(self.path / "config.json", content)

    @only_first
    def add_row(self, row: Row) -> None:
        """Writes a row, with `method` and `seed`, to the table of its run."""
        rows = self.rows.setdefault((row["method"], row["seed"]), [])
        rows.append(row)
        write_table(self._of_run(row["method"], row["seed"]) / "metrics.csv", rows)

    @only_first
    def add_clients(self, rows: list[Row]) -> None:
        """Writes the metrics of each client at the end of a run, the `client_rows` of this run."""
        folder = self._of_run(rows[0]["method"], rows[0]["seed"])
        write_table(folder / "clients.csv", rows)

    @only_first
    def end(self, label: str, seed: int, model: Model) -> None:
        """Writes the last model of a run, and the checksums that mark that the run has ended."""
        folder = self._of_run(label, seed)
        save_model(folder / "model.npz", model, overwrite=True)
        write_sums(folder, _OF_RUN)
        if not self.extends:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)

    @from_first
    def rows_of_ended(self, label: str, seed: int) -> list[Row] | None:
        """The rows of a run that has ended, in this process or an earlier one; else None."""
        folder = self._of_run(label, seed)
        if not (folder / SUMS).exists():
            return None
        fix = f"remove the folder {str(folder)!r}, and the run is computed again"
        check_sums(folder, _OF_RUN, fix)
        return self._rows_in(label, seed, "metrics.csv")

    def checkpoints(self, label: str | None = None, seed: int | None = None) -> Checkpoints:
        """Where runs that are computed together are saved: all, those of a method, or one."""
        folder = self.path / "runs" / self.names.get(label or "", "")
        if label is not None and seed is not None:
            folder = folder / f"seed-{seed}"
        alone = seed is not None  # its last model is written at once, which is enough
        return Checkpoints(folder / "checkpoints", self.every, self.keep, last=not alone)

    @from_first
    def complete(self, configuration: dict[str, Any]) -> None:
        """Marks the folder as complete, and removes what only runs that go on need."""
        self._write(configuration, complete=True)
        found = () if self.extends else self.path.glob("runs/**/checkpoints")
        for folder in [*found, self.client_state]:
            shutil.rmtree(folder, ignore_errors=True)

    def rows_in(self, label: str, seed: int, name: str) -> list[Row]:
        """The rows of a table of a run, "metrics.csv" or "clients.csv"."""
        return from_first(self._rows_in)(label, seed, name)

    def _rows_in(self, label, seed, name):
        folder = self._of_run(label, seed)
        rows = read_rows(folder / name)
        for row in rows:
            if (row["method"], row["seed"]) != (label, seed):
                what = f"{folder / name} has a row of {row['method']}, seed {row['seed']}, among"
                fix = f"remove {folder}, and this run is made again"
                raise ValueError(f"{what} those of {label}, seed {seed}; {fix}")
        return rows

    def _of_run(self, label, seed):
        folder = self.path / "runs" / self.names[label] / f"seed-{seed}"
        with writing(folder):
            folder.mkdir(exist_ok=True)
        return folder


@contextlib.contextmanager
def open_folder(
    out: str | None,
    default: str,
    *,
    resume: bool = False,
    every: NonNegative = 300.0,
    keep: Count = 2,
) -> Iterator[ResultsFolder]:
    """Makes and locks a results folder, by default `results/DEFAULT-N`, or opens one to `resume`.

    `every` and `keep` are those of `Checkpoints`. An empty folder is removed at the end.
    """
    with contextlib.ExitStack() as opened:
        path = from_first(lambda: opened.enter_context(_locked(out, default, resume=resume)))()
        yield ResultsFolder(path, every, keep)


@contextlib.contextmanager
def _locked(out: str | None, default: str, *, resume: bool) -> Iterator[Path]:
    """The folder of `open_folder`, in process 0."""
    if resume and out is None:
        raise ValueError("resume needs the folder in which a run stopped; give --out FOLDER")
    with writing(Path(out or "results")):
        wanted = Path("results", default) if out is None else Path(out)
        made = {each for each in (wanted, *wanted.parents) if not each.exists()}
        path = _new_path(default) if out is None else wanted
        path.mkdir(parents=True, exist_ok=True)
    had_lock = (path / _LOCK).exists()
    lock = filelock.FileLock(path / _LOCK)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        fix = "wait for its end, or name another folder"
        raise ValueError(f"out={str(path)!r} is in use by another run; {fix}") from None
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        if any(entry.name != _LOCK for entry in path.iterdir()) and not (
            resume and read_configuration(path)
        ):
            hint = "" if resume else " or, if it holds a run that stopped, go on with --resume"
            fix = f"name another folder or remove it{hint}"
            raise ValueError(f"out={str(path)!r} is not empty; {fix}")
        yield path
    finally:
        _unlock(lock, path, made | ({path} if out is None else set()), had_lock)


def _new_path(default):
    """The first of `results/DEFAULT`, `results/DEFAULT-2`, ... that does not exist; makes it."""
    for number in itertools.count(1):
        path = Path("results", default if number == 1 else f"{default}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path


def _unlock(lock, path, made, had_lock):
    """Releases the lock; its file stays only where a run can go on. Empty folders of ours go."""
    with contextlib.suppress(OSError):
        empty = not any(entry.name != _LOCK for entry in path.iterdir())
        try:
            content = read_configuration(path)
            stays = content is not None and not content["complete"]
        except ValueError:  # nothing of an unreadable folder is changed
            stays = had_lock
        if not stays:
            (path / _LOCK).unlink(missing_ok=True)
        for folder in sorted(made, reverse=True) if empty else ():
            folder.rmdir()
    lock.release()


def read_configuration(path: Path) -> dict[str, Any] | None:
    """The content of a folder's `config.json`, which is checked; None if it has none."""
    file = path / "config.json"
    try:
        content = parse_json(read_file(file))
        settings, packages = content["settings"], content["environment"]["packages"]
        kinds: list[tuple[Any, Any]] = [(settings, dict), (packages, dict)]
        kinds += [(content["methods"], dict), (settings["seeds"], list)]
        kinds += [(content["complete"], bool)]
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


def check_complete(path: Path) -> None:
    """Raises ValueError, which says what is missing, for a folder whose runs have not all ended."""
    content = read_configuration(path)
    if content is None or content["complete"]:
        return
    number = len(content["methods"]) * len(content["settings"]["seeds"])
    ended = sum(1 for _ in path.glob(f"runs/*/seed-*/{SUMS}"))
    what = f"{str(path)!r} is not complete: {ended} of {number} runs have ended"
    fix = "go on with the same command, --out and --resume, or wait for the end"
    raise ValueError(f"{what}; {fix}")


def _check_same(
    path: Path, earlier: dict[str, Any], configuration: dict[str, Any], *, extends: bool
) -> bool:
    """Whether the runs of now are those of a folder with more rounds; OtherRunError for others."""
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
    """Writes rows to a CSV file; a column that a row does not have is empty."""
    columns = dict.fromkeys(name for row in rows for name in row)
    with written(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[Row]:
    """The rows that `write_table` wrote; ValueError for what is no whole table of metrics."""
    try:
        text = read_file(path).decode()
        require("\0" not in text, "it has a null character")
        columns, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    except OSError:
        raise ValueError(f"{path} cannot be read; {_FIX}") from None
    except (ValueError, csv.Error) as error:  # no text, no line, or no table
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
    """What a cell holds; ValueError for something else than its column."""
    kind = "text" if name in _TEXTS else "whole number" if name in _WHOLE else "number"
    if kind == "text" and cell:
        return cell
    if kind != "text" and cell.removeprefix("-").isdecimal() and len(cell) < _MAX_DIGITS:
        return int(cell)
    with contextlib.suppress(ValueError):
        if kind == "number":
            return float(cell)
    raise ValueError(f"{place} has {name}={cell!r}, which is no {kind}; {_FIX}")
