"""Finds, makes and locks a results folder, and writes its configuration, rows and ended runs."""

import contextlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_algos.base import files
from fedjax_algos.base.errors import require
from fedjax_algos.core import Model, Row
from fedjax_algos.core.options import Count, NonNegative
from fedjax_algos.engine.placed.processes import from_first, only_first
from fedjax_algos.runs.loops.checkpoints import Checkpoints
from fedjax_algos.runs.loops.model_file import save_model
from fedjax_algos.runs.studies import folder_content
from fedjax_algos.runs.studies.folder_content import RunName

METRICS_SUM = "metrics_sha256"  # the checksum of metrics.csv in config.json
_OF_RUN = ("metrics.csv", "clients.csv", "model.npz")  # the files of a run that has ended
_LOCK = ".lock"


class Share(NamedTuple):
    """One of several parts of the runs; `number` counts from 1."""

    number: int
    parts: int

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Parses a text such as "1/4"; raises ValueError for other texts."""
        numbers = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        share = cls(*map(int, numbers.groups())) if numbers else cls(0, 0)
        fix = "give I/N with I from 1 to N, such as 1/4"
        require(1 <= share.number <= share.parts, f"share={text!r} is not a part; {fix}")
        return share

    def divide(self, runs: Sequence[RunName]) -> list[list[RunName]]:
        """Returns the runs of all parts, in order; sizes differ by at most one."""
        if self.parts > (n := len(runs)):
            raise ValueError(f"share='{self}': there are only {n} runs; give at most {n} parts")
        ends = [n * part // self.parts for part in range(self.parts + 1)]
        return [[*runs[start:end]] for start, end in itertools.pairwise(ends)]


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
        self.client_state = path / "client_state"  # for rows on disk, until all runs have ended

    @property
    @from_first
    def configuration(self) -> dict[str, Any] | None:
        """The content of `config.json`, after a check of its checksum; None before `begin`."""
        content = folder_content.read_configuration(self.path)
        fix = "the runs cannot go on, so begin them in another folder"
        with files.reading(self.path / "config.json", "as it was written", fix):
            return None if content is None else files.checked_json(content)

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
        return {"shares": [list(itertools.starmap(folder_content.run_name, s)) for s in shares]}

    def takes(self, label: str, seed: int) -> bool:
        """Returns True if this process computes a run."""
        return self.own is None or (label, seed) in self.own

    def begin(self, configuration: dict[str, Any], *, extends: bool = False) -> str | None:
        """Writes `config.json`, or checks that an earlier process's file is of the same runs.

        If it `extends`, runs keep their last checkpoints and may go on to more rounds, except in
        shares. Returns a line about runs that become longer, if any do.
        """
        self.extends = extends and self.share is None
        self.names = folder_content.folders_of_methods(configuration["methods"])
        return self._begin(configuration)

    @from_first
    def _begin(self, configuration):
        """Reads and writes `config.json` for `begin`, in process 0."""
        earlier, line = self.configuration, None
        if earlier is not None or not self._write_first(configuration):
            line = self._go_on(earlier or self.configuration, configuration)
        for name in self.names.values():
            with files.writing(self.path):
                (self.path / "runs" / name).mkdir(parents=True, exist_ok=True)
        return line

    def _go_on(self, earlier, configuration):
        """Checks an earlier process's configuration; returns a line if runs become longer."""
        here = json.loads(json.dumps(configuration))
        longer = folder_content.check_same(self.path, earlier, here, extends=self.extends)
        runs = itertools.product(self.names.values(), here["settings"]["seeds"])
        is_search = {"grid", "tuning"} <= earlier.keys()  # a search keeps scores, not runs
        for name, seed in runs if earlier["complete"] and not is_search else ():
            fix = f"put it back, or remove {self.path} and run again"
            files.check_sums(self.path / "runs" / name / f"seed-{seed}", _OF_RUN, fix)
        return self._extend(earlier, configuration) if longer else None

    def _extend(self, earlier, configuration):
        """Removes the marks of ended runs, except runs that stopped early; returns a line on it."""
        before, rounds = (each["settings"]["rounds"] for each in (earlier, configuration))
        self._write({n: v for n, v in earlier.items() if n not in ("runs", "complete")})
        restarted = 0
        for sums in self.path.glob(f"runs/*/seed-*/{files.SUMS}"):
            if folder_content.read_rows(sums.parent / "metrics.csv")[-1]["round"] == before:
                sums.unlink()
                places = [sums.parent / "checkpoints", self.path / "runs" / "checkpoints"]
                restarted += not any(map(Path.exists, places))
        self._write(configuration)
        more = f"; {restarted} of its runs have no checkpoint and begin again at round 0"
        return f"{self.path} goes on from {before} to {rounds} rounds{more if restarted else ''}"

    def _write(self, configuration, complete=False, name="config.json"):
        facts = {"runs": self.names, "complete": complete}
        files.write_json(self.path / name, configuration | facts)

    def _write_first(self, configuration):
        """Writes `config.json`, or returns False if another share has already made the link."""
        if self.share is None:
            self._write(configuration)
            return True
        name = f".config-{self.share.number}.json"
        self._write(configuration, name=name)
        with files.writing(self.path):
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
        with files.writing(folder):
            folder.mkdir(exist_ok=True)
        folder_content.write_table(folder / "metrics.csv", rows)

    @only_first
    def add_clients(self, rows: list[Row]) -> None:
        """Writes the metrics of each client at the end of a run, its `client_rows`."""
        folder = self._of_run(rows[0]["method"], rows[0]["seed"])
        folder_content.write_table(folder / "clients.csv", rows)

    @only_first
    def end(self, label: str, seed: int, model: Model) -> None:
        """Writes a run's last model, and the checksums that mark the run as ended."""
        folder = self._of_run(label, seed)
        save_model(folder / "model.npz", model, overwrite=True)
        files.write_sums(folder, _OF_RUN)
        if not self.extends:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)

    @from_first
    def has_ended(self, label: str, seed: int) -> bool:
        """Returns True if a run has ended, in this process or another one."""
        return (self._of_run(label, seed) / files.SUMS).exists()

    def misses(self, label: str, seed: int) -> bool:
        """Returns True if this process has yet to end a run."""
        return self.takes(label, seed) and not self.has_ended(label, seed)

    @from_first
    def rows_of_ended(self, label: str, seed: int) -> list[Row] | None:
        """Returns the rows of a run that has ended, in this process or an earlier one, or None."""
        if not self.has_ended(label, seed):
            return None
        folder = self._of_run(label, seed)
        fix = f"remove the folder {str(folder)!r}, and the run is computed again"
        files.check_sums(folder, _OF_RUN, fix)
        return self.rows_in(label, seed, "metrics.csv")

    def checkpoints(self, label: str | None = None, seed: int | None = None) -> Checkpoints:
        """Returns the checkpoints of runs computed together: all runs, a method's, or one."""
        if seed is not None:  # no last checkpoint, because its model is written at once
            folder = self._of_run(label, seed) / "checkpoints"
            return Checkpoints(folder, self.every, self.keep, last=False)
        folder = self.path / "runs" / self.names.get(label or "", "") / "checkpoints"
        if self.share is not None:
            folder = folder / f"share-{self.share.number}"
        return Checkpoints(folder, self.every, self.keep)

    @from_first
    def complete(self, configuration: dict[str, Any]) -> None:
        """Marks the folder as complete, and removes files that only unfinished runs need."""
        table = self.path / "metrics.csv"
        sums = {METRICS_SUM: files.file_digest(table)} if table.exists() else {}
        self._write(configuration | sums, complete=True)
        found = () if self.extends else self.path.glob("runs/**/checkpoints")
        for folder in [*found, self.client_state]:
            shutil.rmtree(folder, ignore_errors=True)

    @from_first
    def rows_in(self, label: str, seed: int, name: str) -> list[Row]:
        """Reads the rows of a run's table, "metrics.csv" or "clients.csv"."""
        folder = self._of_run(label, seed)
        rows = folder_content.read_rows(folder / name)
        for row in rows:
            if (row["method"], row["seed"]) != (label, seed):
                found = f"{folder / name} has a row of {row['method']}, seed {row['seed']}"
                raise ValueError(f"{found}; remove {folder}, and the run is computed again")
        return rows

    def _of_run(self, label, seed):
        return self.path / "runs" / self.names[label] / f"seed-{seed}"


@contextlib.contextmanager
def open_folder(
    out: str | None,
    default: str,
    *,
    resume: bool = False,
    every: NonNegative = 300.0,
    keep: Count = 2,
    share: str | None = None,
) -> Iterator[ResultsFolder]:
    """Makes and locks a results folder, by default `results/DEFAULT-N`, or opens one to `resume`.

    `every` and `keep` are as in `Checkpoints`. An empty folder is removed at the end. Processes
    with different shares ("1/4") may open one folder at once, and each resumes its own share.
    """
    part = None if share is None else Share.parse(share)
    if out is None and (resume or part):
        option = "resume" if part is None else f"share={share!r}"
        raise ValueError(f"{option} needs the folder that the runs are in; give --out FOLDER")
    with contextlib.ExitStack() as opened:
        locked = _locked(out, default, resume, part)
        path = from_first(lambda: opened.enter_context(locked))()
        yield ResultsFolder(path, every, keep, part)


@contextlib.contextmanager
def _locked(out: str | None, default: str, resume: bool, part: Share | None) -> Iterator[Path]:
    """Opens and locks the folder of `open_folder`, in process 0."""
    import filelock

    with files.writing(Path(out or "results")):
        first = Path("results", default) if out is None else Path(out)
        made = {folder for folder in (first, *first.parents) if not folder.exists()}
        path = _new_path(default) if out is None else first
        path.mkdir(parents=True, exist_ok=True)
    file = path / (_LOCK if part is None else f"{_LOCK}-{part.number}-of-{part.parts}")
    had_lock = file.exists()
    lock = filelock.FileLock(file)
    with files.writing(path):
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            what = f"out={str(path)!r}" if part is None else f"share='{part}' of out={str(path)!r}"
            fix = "wait for its end, or name another folder"
            raise ValueError(f"{what} is in use by another run; {fix}") from None
    try:
        resumes = (resume or part) and folder_content.read_configuration(path)
        # another share may be about to write config.json
        names = (entry.name for entry in path.iterdir())
        if not (resumes or all(name == _LOCK or (part and name[0] == ".") for name in names)):
            hint = "" if resume else " or, if it holds a run that stopped, go on with --resume"
            fix = f"name another folder or remove it{hint}"
            raise ValueError(f"out={str(path)!r} is not empty; {fix}")
        yield path
    finally:
        _unlock(lock, file, made | ({path} if out is None else set()), had_lock)


def _new_path(default):
    """Makes the first of `results/DEFAULT`, `results/DEFAULT-2`, ... that does not exist."""
    for number in itertools.count(1):
        path = Path("results", default if number == 1 else f"{default}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path


def _unlock(lock, file, made, had_lock):
    """Releases the lock; removes its file unless a run can go on, and our own empty folders."""
    path = file.parent
    with contextlib.suppress(OSError):
        empty = not any(entry.name != file.name for entry in path.iterdir())
        try:
            content = folder_content.read_configuration(path)
            stays = content is not None and not content["complete"] and "shares" not in content
        except ValueError:  # nothing of an unreadable folder is changed
            stays = had_lock
        if not stays:
            file.unlink(missing_ok=True)
        for folder in sorted(made, reverse=True) if empty else ():
            folder.rmdir()
    lock.release()
