"""FedAvg's time to 90% divided by another method's, from the values of claims of Table 1."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedjax_algos.analysis.claims import read_measured, write_measured

FOLDER = Path(__file__).parent
MEASURE = "log2 of FedAvg's seconds divided by the method's"


def seconds(claims: Iterable[str]) -> dict[tuple[str, str, int], float]:
    """The time to 90% by case, method and seed; the length of a run that did not reach it.

    Args:
      claims: names of claims in this folder.
    """
    return {
        (quantity.case, quantity.method, seed): value
        for name in claims
        for quantity, seen in read_measured(FOLDER / f"{name}.csv").items()
        for seed, value in zip(seen.seeds, seen.values.tolist(), strict=True)
    }


def write(path: str, claims: Iterable[str], methods: Mapping[str, str]) -> None:
    """Writes the factors beside a script, as logarithms to base 2, and prints their means.

    Args:
      path: of the script.
      claims: whose values are read.
      methods: what each method is called in them.
    """
    of = seconds(claims)
    rows = []
    for case, method, seed in of:
        for name, label in methods.items():
            if method == label:
                factor = of[case, "fedavg", seed] / of[case, method, seed]
                rows.append((case, name, MEASURE, seed, f"{math.log2(factor):.6g}"))
    for case, name in dict.fromkeys(row[:2] for row in rows):
        values = [float(row[4]) for row in rows if row[:2] == (case, name)]
        print(f"{case:30}{name:30}{sum(values) / len(values):8.3f}")
    write_measured(Path(path).with_suffix(".csv"), rows)
