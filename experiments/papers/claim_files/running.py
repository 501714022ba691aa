"""Runs a claim: `fedjax-algos compare` by its settings, or its program.

Each case of a claim with settings is one `fedjax-algos compare`, with its results in a folder of
results/papers whose name is a hash of the settings. So claims with the same settings share their
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

import tomli_w

from claim_files.measured import Measured, Quantity, read_measured, write_measured
from claim_files.reading import Claim, read_claim
from fedjax_algos.analysis.statistics import METRIC, TOLERANCE, finite_quality
from fedjax_algos.runs.results import read_folders

TIME = "simulated_seconds"


class Run(NamedTuple):
    """What a program of a claim is given: `rows(run)` gives (case, method, measure, seed, value).

    Attributes:
      claim: that is run.
      seeds: their numbers.
      folder: where what is seen is written; None for the files beside the claims.
    """

    claim: Claim
    seeds: tuple[int, ...]
    folder: Path | None = None

    @property
    def csv(self) -> Path:
        """Where what is seen is written."""
        return self.claim.csv if self.folder is None else self.folder / f"{self.claim.name}.csv"

    def measured(self, name: str) -> dict[Quantity, Measured]:
        """What was seen of another claim of the same paper, which is run with new seeds first."""
        other = self._replace(claim=read_claim(self.claim.path.with_name(f"{name}.toml")))
        if not other.csv.exists():
            run_claim(other)
        return read_measured(other.csv)


def run_claim(run: Run) -> None:
    """Runs a claim, or an experiment, and writes what was seen."""
    claim = run.claim
    if claim.needs:
        raise ValueError(f"{claim.name} cannot be run here: {claim.needs}")
    if claim.prepare:
        module_of(claim.path.with_name(claim.prepare)).make()
    if claim.program:
        rows = module_of(claim.path.with_name(claim.program)).rows(run)
    else:
        rows = rows_of_settings(claim, run.seeds)
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


def rows_of_settings(claim, seeds):
    """What is seen of a claim with settings: (case, method, measure, seed, value)."""
    rows = []
    fixed = tuple(range(claim.num_seeds))
    chosen = {} if seeds == fixed else {"seeds": list(seeds)}
    for case in claim.cases:
        folder = compare({**claim.settings, **case.get("settings", {}), **chosen})
        runs = runs_of(folder, claim.labels)
        for measure, how in claim.measures.items():
            values = measured(runs, **how)
            rows += [(case["name"], m, measure, s, v) for (m, s), v in values.items()]
    return rows


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


def runs_of(folder, labels):
    """The rows of each run, by method and seed, with the bytes of both directions."""
    runs = {}
    for row in read_folders([str(folder)]):
        row["bytes"] = row["download_bytes"] + row["upload_bytes"]
        label = labels.get(row["method"], row["method"])
        runs.setdefault((label, row["seed"]), []).append(row)
    return runs


def measured(runs, *, reference=None, **how):
    """One value for each method and seed, as a text."""
    if reference is None:
        return {key: value_of(rows, **how) for key, rows in runs.items()}
    metric = how.get("metric", METRIC)
    return {  # the target is the best quality of the reference on the same seed
        (method, seed): value_of(rows, target=best(runs[reference, seed], metric), **how)
        for (method, seed), rows in runs.items()
    }


def value_of(rows, *, first=None, target=None, last=None, at=None, column=None, scale=None, **how):
    """A measure of one run.

    Args:
      rows: of the run.
      first: column of a cost; its value at the first evaluation that reaches `target`.
      target: quality to reach.
      last: mean of the column over this share of the run, at its end.
      at: the column's value at the last evaluation up to this round or simulated second.
      column: for `last` and `at`; that of the quality without it.
      scale: what the value is divided by; for the quality .01, so that it is in percent.
      how: best=True is the highest quality; metric is its column, test_accuracy without it.
    """
    metric = how.get("metric", METRIC)
    if first is not None:
        reached = [row for row in rows if finite_quality(row, metric) >= target - TOLERANCE]
        if not reached and math.isnan(finite_quality(rows[-1], metric)):
            return ""  # it has diverged, and may have ended early
        value = (reached or rows)[0 if reached else -1][first] / (scale or 1)
        return f"{value:.6g}" if reached else f">{value:.6g}"
    column = column or metric
    clock = TIME if TIME in rows[-1] else "round"
    if how.get("best"):
        value = best(rows, metric)
    elif last is not None:
        start = (1 - last) * rows[-1][clock]
        chosen = [number(row, column, metric) for row in rows if row[clock] > start]
        value = sum(chosen) / len(chosen)
    else:
        value = number([row for row in rows if row[clock] <= at][-1], column, metric)
    scale = scale or (0.01 if column == metric else 1)
    return f"{value / scale:.6g}" if math.isfinite(value) else ""


def number(row, column, metric):
    """A value of a row; NaN if the model is not finite or nothing was measured."""
    value = finite_quality(row, metric) if column == metric else row.get(column)
    return math.nan if value is None or value == "" else float(value)


def best(rows, metric):
    """The highest quality of a run."""
    values = [finite_quality(row, metric) for row in rows]
    return max((value for value in values if math.isfinite(value)), default=math.nan)
