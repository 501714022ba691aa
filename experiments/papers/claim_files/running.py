"""Runs a row of a claim: `fedjax-algos compare` by its settings, or its program.

Each case of a row with settings is one `fedjax-algos compare`, with its results in a folder of
results/papers whose name is a hash of the settings. So rows with the same settings share their
runs, a case that is finished is not run again, and one that was interrupted goes on.
"""

import hashlib
import importlib.util
import math
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tomli_w
from paper_measures.runs import runs_of

from claim_files.measured import Measured, Quantity, read_measured, write_measured
from claim_files.reading import Row, read_row
from fedjax_algos.analysis.statistics import METRIC, first_at
from fedjax_algos.runs.results import read_folders

TIME = "simulated_seconds"


class Run(NamedTuple):
    """The argument of a row's program: `rows(run)` gives (case, method, measure, seed, value).

    Attributes:
      row: one of those that share the values.
      seeds: their numbers.
      folder: where what is seen is written; None for the files beside the claims.
    """

    row: Row
    seeds: tuple[int, ...]
    folder: Path | None = None

    @property
    def csv(self) -> Path:
        """The file for the values."""
        own = self.row.csv
        return own if self.folder is None else self.folder / own.parent.name / own.name

    def measured(self, name: str) -> dict[Quantity, Measured]:
        """The values of another row of the same paper, which is run with new seeds first."""
        other = self._replace(row=read_row(self.row.path.parent, name))
        if not other.csv.exists():
            run_row(other)
        return read_measured(other.csv)


def run_row(run: Run) -> None:
    """Runs a row, or an experiment, and writes what was seen."""
    row = run.row
    if row.needs:
        raise ValueError(f"{row.name} cannot be run here: {row.needs}")
    if row.prepare:
        module_of(row.path.with_name(row.prepare)).make()
    if row.program:
        rows = module_of(row.path.with_name(row.program)).rows(run)
    else:
        rows = rows_of_settings(row, run.seeds)
    run.csv.parent.mkdir(parents=True, exist_ok=True)
    write_measured(run.csv, rows)


def module_of(path: Path):
    """The module of a program, which imports modules of its own folder by their names."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of_settings(row: Row, seeds):
    """Runs the settings of a row, and returns (case, method, measure, seed, value)."""
    found = []
    fixed = tuple(range(row.num_seeds))
    chosen = {} if seeds == fixed else {"seeds": list(seeds)}
    for case in row.cases:
        folder = compare({**row.settings, **case.get("settings", {}), **chosen})
        runs = [
            run
            | {"method": row.labels.get(run["method"], run["method"])}
            | {"bytes": run["download_bytes"] + run["upload_bytes"]}
            for run in read_folders([str(folder)])
        ]
        for measure, how in row.measures.items():
            values = measured(runs, **how)
            found += [(case["name"], m, measure, s, v) for (m, s), v in values.items()]
    return found


def compare(settings):
    """Runs `fedjax-algos compare`, or continues it, and returns the folder of its results."""
    text = tomli_w.dumps(settings)
    folder = Path("results/papers", hashlib.sha256(text.encode()).hexdigest()[:12])
    config = folder.with_name(f"{folder.name}.toml")
    folder.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(text)
    command = [sys.executable, "-m", "fedjax_algos", "compare", "--config", str(config)]
    command += ["--out", str(folder), *["--resume"] * folder.exists()]
    print(shlex.join(command[1:]), flush=True)
    subprocess.run(command, check=True)
    return folder


def measured(rows, *, metric=METRIC, reference=None, **how):
    """One value for each method and seed, as a text; a reference's best quality is the target."""
    runs = {(run.method, run.seed): run for own in runs_of(rows, metric).values() for run in own}
    if reference is not None:  # on the same seed
        return {
            (method, seed): value_of(run, target=best(runs[reference, seed]), **how)
            for (method, seed), run in runs.items()
        }
    return {key: value_of(run, **how) for key, run in runs.items()}


def value_of(run, *, first=None, target=None, last=None, at=None, column=None, scale=None, **how):
    """A measure of one run.

    Args:
      run: its evaluations.
      first: column of a cost; its value at the first evaluation that reaches `target`.
      target: quality to reach.
      last: mean of the column over this share of the run, at its end.
      at: the column's value at the last evaluation up to this round or simulated second.
      column: for `last` and `at`; that of the quality without it.
      scale: what the value is divided by; for the quality .01, so that it is in percent.
      how: best=True is the highest quality.
    """
    if first is not None:
        index = first_at(run.quality, target)
        if index is None and run.has_diverged():
            return ""  # it may have ended early
        value = run.columns[first][-1 if index is None else index] / (scale or 1)
        return f"{'>' * (index is None)}{value:.6g}"
    values = run.quality if column is None else run.columns[column]
    clock = run.columns[TIME if TIME in run.columns else "round"]
    if how.get("best"):
        value = best(run)
    elif last is not None:
        chosen = values[clock > (1 - last) * clock[-1]]
        value = sum(chosen) / len(chosen)
    else:
        value = values[clock <= at][-1]
    value /= scale or (0.01 if column is None else 1)
    return f"{value:.6g}" if math.isfinite(value) else ""


def best(run):
    """The highest quality of a run; NaN if none is finite."""
    return float(np.fmax.reduce(run.quality))
