"""The marks of the best method in tables, and what a table says of them."""

import math
from collections.abc import Sequence

from fedjax_algos.analysis.statistics import (
    LEVEL,
    MIN_SEEDS_OF_A_TEST,
    Estimate,
    Mark,
    mark_best,
)
from fedjax_algos.analysis.summary import MethodSummary


def marks_of(summary: Sequence[MethodSummary], estimates: Sequence[Estimate]) -> list[Mark]:
    """The marks of a column; empty for one method, which is compared with none.

    Args:
      summary: of all methods.
      estimates: of the column, one for each method.
    """
    values = {
        line.label: (math.nan,) if line.seeds_diverged else estimate.values
        for line, estimate in zip(summary, estimates, strict=True)
    }
    return [*mark_best(values).values()] if len(summary) > 1 else []


def describe_marks(summary: Sequence[MethodSummary]) -> str:
    """What the marks mean, with {best} and {other} for their names.

    Args:
      summary: of all methods.
    """
    diverged = any(line.seeds_diverged for line in summary)
    compared = sum(not line.seeds_diverged for line in summary) - 1
    tests = "the comparison" if compared == 1 else f"all {compared} comparisons"
    test = (
        f" {{other}}: cannot be told from it by a two-sided paired t test on the same "
        f"{summary[0].seeds} seeds, at {100 * LEVEL:g}% over {tests} with it (Holm's correction)."
    )
    return (
        "{best}: the highest mean over seeds of the column."
        + test * (compared > 0)
        + " Methods that have diverged on a seed are not compared." * diverged
    )


def why_not_marked(summary: Sequence[MethodSummary]) -> list[str]:
    """Why no method is marked as the best, where that is so.

    Args:
      summary: of all methods.
    """
    if len(summary) < 2:
        return []
    if summary[0].seeds < MIN_SEEDS_OF_A_TEST:
        few = f"at least {MIN_SEEDS_OF_A_TEST} seeds are needed to tell methods apart by a test"
        return [f"The best is not marked: {few}."]
    diverged = all(line.seeds_diverged for line in summary)
    return ["The best is not marked: every method has diverged on a seed."] * diverged
