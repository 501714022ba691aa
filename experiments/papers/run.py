"""Runs a claim of a paper and writes what was seen beside it.

COMMAND   python experiments/papers/run.py experiments/papers/fedlga/table_5.toml
EXPECTED  the table of the claim, and table_5.csv with one value for each case, method and seed
TIME      `minutes` of the claim

Each case of the claim is one `fedjax-algos compare`, with its results in a folder of results/papers
whose name is a hash of the settings. So claims with the same settings share their runs, a case that
is finished is not run again, and one that was interrupted goes on.
"""

import argparse
import hashlib
import math
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import tomli_w

from fedjax_algos.analysis.claims import write_measured
from fedjax_algos.analysis.statistics import METRIC, TOLERANCE, finite_quality
from fedjax_algos.runs.results import read_folders

TIME = "simulated_seconds"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("claim", type=Path)
    path = parser.parse_args().claim
    claim = tomllib.loads(path.read_text())
    rows = []
    for case in claim.get("cases", [{"name": ""}]):
        folder = compare(claim["settings"] | case.get("settings", {}))
        runs = runs_of(folder, claim.get("labels", {}))
        for measure, how in claim["measures"].items():
            values = measured(runs, **how)
            rows += [(case["name"], m, measure, s, v) for (m, s), v in values.items()]
    write_measured(path.with_suffix(".csv"), rows)
    subprocess.run([sys.executable, "-m", "fedjax_algos", "claims", str(path)], check=True)


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


if __name__ == "__main__":
    main()
