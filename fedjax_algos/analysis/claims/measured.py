"""What was seen of a claim: a CSV file with one value for each case, measure, method and seed."""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.statistics import confidence_half_width
from fedjax_algos.core.files import max_text_bytes, open_regular, read_bounded

_COLUMNS = ["case", "method", "measure", "seed", "value"]


class Quantity(NamedTuple):
    """What was measured.

    Attributes:
      measure: such as "rounds to 65%".
      case: of the claim; empty if there is only one.
      method: label of the method.
    """

    measure: str
    case: str
    method: str


class Measured(NamedTuple):
    """A quantity over seeds.

    Attributes:
      seeds: their numbers.
      values: float[seeds]; NaN for a seed that has diverged. Where a target was not reached, the
        cost of the whole run, which is less than that of the target.
      censored: bool[seeds]; whether it is such a cost.
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
        if not np.isfinite(self.values).all():
            return f"{int(np.isnan(self.values).sum())}/{len(self.seeds)} diverged"
        shown = f"{self.mean:.4g}"
        if len(self.seeds) > 1:
            shown += f" ± {confidence_half_width(self.values):.2g}"
        if not self.censored.any():
            return shown
        reached = int((~self.censored).sum())
        return f"> {shown} ({reached}/{len(self.seeds)} reached)"


def read_measured(path: str | Path) -> dict[Quantity, Measured]:
    """Reads what was seen.

    Args:
      path: of a CSV file with the columns case, method, measure, seed and value. A value is a
        number, `>` and a number if a target was not reached at this cost, or empty for a run that
        has diverged.

    Raises:
      ValueError: for a file that cannot be read, other columns, or a wrong or repeated value, with
        its line.
    """
    try:
        with open_regular(path) as file:
            text = read_bounded(file, max_text_bytes()).decode()
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be read ({error.strerror})") from None
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{str(path)!r} is no CSV file: {error}") from None
    if lines[:1] != [_COLUMNS]:
        raise ValueError(f"{str(path)!r} begins with {lines[:1]}, not with {_COLUMNS}")
    found: dict[Quantity, dict[int, tuple[float, bool]]] = {}
    for number, line in enumerate(lines[1:], start=2):
        place = f"{str(path)!r}, line {number}"
        if len(line) != len(_COLUMNS):
            raise ValueError(
                f"{place} has {len(line)} cells, but there are {len(_COLUMNS)} columns"
            )
        case, method, measure, seed, value = line
        of_seeds = found.setdefault(Quantity(measure, case, method), {})
        if not seed.isdecimal() or not seed.isascii() or int(seed) in of_seeds:
            raise ValueError(f"{place}: seed {seed!r} is no number from 0, or is there twice")
        of_seeds[int(seed)] = _value(value, place)
    return {key: _measured(of_seeds) for key, of_seeds in found.items()}


def write_measured(path: str | Path, rows: Iterable[tuple[str, str, str, int, object]]) -> None:
    """Writes what was seen.

    Args:
      path: of the CSV file, which is replaced.
      rows: (case, method, measure, seed, value); a value is written as it is.
    """
    with Path(path).open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([_COLUMNS, *rows])


def _value(text: str, place: str) -> tuple[float, bool]:
    censored = text.startswith(">")
    if text == "":
        return math.nan, False
    try:
        number = float(text[1:] if censored else text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{place}: {text!r} is no value; give a number, >NUMBER, or nothing")
    return number, censored


def _measured(of_seeds: Mapping[int, tuple[float, bool]]) -> Measured:
    seeds = tuple(sorted(of_seeds))
    values, censored = zip(*(of_seeds[seed] for seed in seeds), strict=True)
    return Measured(seeds, np.array(values), np.array(censored))
