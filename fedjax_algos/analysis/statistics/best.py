"""Which methods cannot be told from the best one, with a correction for several comparisons."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
from scipy import special

MIN_SEEDS_OF_A_TEST = 3
LEVEL = 0.05  # of all comparisons with the best together
Mark: TypeAlias = Literal["best", "not told", ""]


def paired_p_value(differences: Sequence[float] | np.ndarray) -> float:
    """The p-value of Student's two-sided t test that the mean of paired differences is 0.

    Args:
      differences: float[seeds], of at least two seeds, all finite.

    Returns:
      From 0 to 1; without any variance 1 if the differences are 0, and else 0.
    """
    values = np.asarray(differences, float)
    error = values.std(ddof=1) / np.sqrt(len(values))
    if error == 0:
        return float(values[0] == 0)
    return float(2 * special.stdtr(len(values) - 1, -abs(values.mean() / error)))


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """P-values with Holm's correction: those below a level reject so that no error is more likely.

    The probability that any true hypothesis is rejected is at most the level, whatever the
    dependence between the tests.

    Args:
      p_values: float[tests].

    Returns:
      float[tests], from 0 to 1, in the order of the tests.
    """
    values = np.asarray(p_values, float)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * np.arange(len(values), 0, -1)
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return corrected


def mark_best(values: Mapping[str, Sequence[float]]) -> dict[str, Mark]:
    """Marks the method with the highest mean, and those that cannot be told from it.

    A method cannot be told from the best one if Holm's correction of `paired_p_value`, over all
    methods that are compared with the best, is above 5%. Methods with a value that is not finite
    are not compared.

    Args:
      values: float[seeds] of each method by label, on the same seeds.

    Returns:
      A mark for each label; none is marked below three seeds.
    """
    finite = {label: np.array(own) for label, own in values.items() if np.isfinite(own).all()}
    marks: dict[str, Mark] = dict.fromkeys(values, "")
    if not finite or min(map(len, finite.values())) < MIN_SEEDS_OF_A_TEST:
        return marks
    best = max(finite, key=lambda label: finite[label].mean())
    others = [label for label in finite if label != best]
    corrected = holm([paired_p_value(finite[best] - finite[label]) for label in others])
    told: dict[str, Mark] = {
        label: "" if p <= LEVEL else "not told" for label, p in zip(others, corrected, strict=True)
    }
    return marks | {best: "best"} | told
