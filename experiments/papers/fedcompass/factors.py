"""FedAvg's time to 90% divided by another method's, from the values of claims of Table 1."""

import math
from collections.abc import Iterable, Mapping

MEASURE = "log2 of FedAvg's seconds divided by the method's"


def factors(run, claims: Iterable[str], methods: Mapping[str, str]) -> list[tuple]:
    """The rows of the factors, as logarithms to base 2.

    The time of a run that did not reach the target is its length.

    Args:
      run: of the claim.
      claims: names of claims of this folder, whose values are read.
      methods: what each method is called in them.
    """
    of = {
        (quantity.case, quantity.method, seed): value
        for name in claims
        for quantity, seen in run.measured(name).items()
        for seed, value in zip(seen.seeds, seen.values.tolist(), strict=True)
    }
    return [
        (case, name, MEASURE, seed, f"{math.log2(of[case, 'fedavg', seed] / seconds):.6g}")
        for (case, method, seed), seconds in of.items()
        for name, label in methods.items()
        if method == label
    ]
