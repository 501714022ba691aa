"""Differences between two methods on the same seeds."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.statistics.estimates import Estimate


class Difference(NamedTuple):
    """A method's quantity minus the reference's on the same seed.

    Seeds share data, cohorts and batches, so differences vary less than the quantities themselves.

    Attributes:
      estimate: of the differences, on the seeds where both are finite.
      without: the other seeds, on which one of the two has diverged.
    """

    estimate: Estimate
    without: tuple[int, ...]

    def text(self, show: Callable[[float], str]) -> str:
        """The difference as tables show it, such as `+0.5 ± 0.3 (without seed 7)`.

        Args:
          show: the text of a number with its sign.
        """
        text = self.estimate.text(show) if self.estimate.values else "none"
        if not self.without:
            return text
        plural = "s" * (len(self.without) > 1)
        return f"{text} (without seed{plural} {', '.join(map(str, self.without))})"

    def record(self, name: str) -> dict[str, float | str]:
        """The difference as numbers for a file, by column; the seeds left out are a text.

        Args:
          name: of the quantity.
        """
        known = self.estimate if self.estimate.values else Estimate((float("nan"),))
        return {
            **known.record(f"{name}_difference"),
            f"{name}_difference_seeds": len(self.estimate.values),
            f"{name}_difference_without": " ".join(map(str, self.without)),
        }


def paired_difference(
    values: np.ndarray, reference: np.ndarray, seeds: Sequence[int]
) -> Difference:
    """A method's values minus the reference's.

    Args:
      values: float[seeds]; NaN for a seed that has diverged, whatever the quantity.
      reference: float[seeds], likewise.
      seeds: their numbers.
    """
    differences = values - reference
    finite = np.isfinite(differences)
    return Difference(
        Estimate(tuple(differences[finite].tolist())),
        tuple(int(seed) for seed, known in zip(seeds, finite, strict=True) if not known),
    )
