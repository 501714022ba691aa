"""Reads and writes the values of a claim: one for each case, measure, method and seed."""

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.statistics import confidence_half_width

COLUMNS = ["case", "method", "measure", "seed", "value"]


class Quantity(NamedTuple):
    """A measure such as "rounds to 65%", of a method in a case of the claim."""

    measure: str
    case: str
    method: str


class Measured(NamedTuple):
    """A quantity over seeds.

    Attributes:
      seeds: their numbers.
      values: float[seeds]; NaN for a seed that has diverged. Where a target was not reached, the
        cost of the whole run, which is less than the target's.
      censored: bool[seeds]; whether the target was not reached.
    """

    seeds: tuple[int, ...]
    values: np.ndarray
    censored: np.ndarray

    @property
    def mean(self) -> float:
        """The mean over seeds; NaN if one of them has diverged."""
        return float(self.values.mean())

    def text(self) -> str:
        """The mean and half its 95% interval, and the seeds that reach the target if not all do."""
        if np.isnan(self.values).any():
            return f"{int(np.isnan(self.values).sum())}/{len(self.seeds)} diverged"
        shown = f"{self.mean:.4g}"
        if len(self.seeds) > 1:
            shown += f" ± {confidence_half_width(self.values):.2g}"
        if not self.censored.any():
            return shown
        return f"> {shown} ({int((~self.censored).sum())}/{len(self.seeds)} reached)"


def read_measured(path: Path) -> dict[Quantity, Measured]:
    """Reads what was seen.

    Args:
      path: of a CSV file with the columns case, method, measure, seed and value. A value is a
        number, `>` and a number if a target was not reached at this cost, or empty for a run that
        has diverged.

    Raises:
      ValueError: for other columns, and for a wrong or repeated value, with its line.
    """
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    if header != COLUMNS:
        raise ValueError(f"{path} begins with {header}, not with {COLUMNS}")
    found: dict[Quantity, dict[int, tuple[float, bool]]] = {}
    for number, line in enumerate(lines, start=2):
        case, method, measure, seed, value = line
        of_seeds = found.setdefault(Quantity(measure, case, method), {})
        if int(seed) in of_seeds:
            raise ValueError(f"{path}, line {number}: seed {seed} is there twice")
        cost = float(value.removeprefix(">") or "nan")
        if not math.isfinite(cost) and value != "":
            raise ValueError(f"{path}, line {number}: {value!r} is not a finite number")
        of_seeds[int(seed)] = cost, value.startswith(">")
    return {key: _measured(of_seeds) for key, of_seeds in found.items()}


def _measured(of_seeds):
    seeds = tuple(sorted(of_seeds))
    values, censored = zip(*(of_seeds[seed] for seed in seeds), strict=True)
    return Measured(seeds, np.array(values), np.array(censored))


def rows_of(measured: Mapping[Quantity, Measured]) -> list[tuple[str, str, str, int, str]]:
    """Rows (case, method, measure, seed, value) of values that were read, to write them again."""
    return [
        (case, method, measure, seed, f"{'>' * bool(ended)}{value:.6g}".removesuffix("nan"))
        for (measure, case, method), seen in measured.items()
        for seed, value, ended in zip(*seen, strict=True)
    ]


def write_measured(path: Path, rows: Iterable[tuple[str, str, str, int, object]]) -> None:
    """Writes rows (case, method, measure, seed, value) as a CSV file; values as they are."""
    rows = list(rows)  # all of them are made before a file is replaced
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
