"""The checks of a claim: orders, ties and equal values, each against what was seen."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.analysis.claims.claim_files import Claim
from fedjax_algos.analysis.claims.measured import Measured, Quantity
from fedjax_algos.analysis.statistics import confidence_half_width
from fedjax_algos.core.options import unknown

MIN_SEEDS = 3
SAME_SIZE = 1.5  # up to this factor


class Check(NamedTuple):
    """One comparison of a claim, and whether it holds.

    Attributes:
      text: what is compared.
      holds: whether it holds; an order holds only if the 95% confidence interval of the paired
        difference over seeds excludes 0.
      seen: the numbers, in a text.
      effect: of an order: the ratio of the means for a cost (`lower`), and their difference for a
        quality; None for other checks, and where a run has diverged.
      paper_effect: the same of the paper's values; None where it prints none.
    """

    text: str
    holds: bool
    seen: str
    effect: float | None = None
    paper_effect: float | None = None

    @property
    def same_size(self) -> bool:
        """Whether the effect is the paper's up to `SAME_SIZE`; False if one is not known."""
        if self.effect is None or not self.paper_effect:
            return False
        return 1 / SAME_SIZE <= self.effect / self.paper_effect <= SAME_SIZE


def check_claim(claim: Claim, measured: Mapping[Quantity, Measured]) -> list[Check]:
    """Every check of a claim.

    Args:
      claim: that was run.
      measured: what was seen of it.

    Raises:
      ValueError: for a measure, case or method that was not measured, and for fewer than three
        seeds where a difference is checked.
    """
    found: list[Check] = []
    for order in claim.orders:
        found += _order(claim, order, measured)
    for tie in claim.ties:
        found += _tie(claim, tie, measured)
    for equal in claim.equals:
        found += _equal(claim, equal, measured)
    return found


def _order(claim, order: Mapping[str, Any], measured) -> Iterator[Check]:
    lower = "lower" in order
    first = order["lower" if lower else "higher"]
    for case, other in _pairs(claim, order, measured, order["than"]):
        keys = _keys(order, case, first), _keys(order, case, other)
        one, two = (_get(claim, measured, key) for key in keys)
        where = f", {order.get('method') or case}" if order.get("method") or case else ""
        text = f"{order['measure']}{where}: {first} {'<' if lower else '>'} {other}"
        difference = _difference(claim, text, *((two, one) if lower else (one, two)))
        effects = (
            _effect(lower, one.mean, two.mean),
            _effect(lower, claim.paper.get(keys[0]), claim.paper.get(keys[1])),
        )
        yield Check(text, _clear(difference), _shown(difference, one, two), *effects)


def _tie(claim, tie: Mapping[str, Any], measured) -> Iterator[Check]:
    first, *others = tie["methods"]
    for case, other in _pairs(claim, tie, measured, others):
        one, two = (
            _get(claim, measured, Quantity(tie["measure"], case, m)) for m in (first, other)
        )
        text = f"{tie['measure']}{', ' * bool(case)}{case}: {first} = {other} ± {tie['margin']:g}"
        difference = _difference(claim, text, one, two)
        known = np.isfinite(difference).all()
        furthest = abs(difference.mean()) + confidence_half_width(difference)
        yield Check(text, bool(known and furthest <= tie["margin"]), _shown(difference, one, two))


def _equal(claim, equal: Mapping[str, Any], measured) -> Iterator[Check]:
    cases = equal.get("cases")
    keys = [Quantity(*key) for key in claim.paper if key[0] == equal["measure"]]
    keys = [key for key in keys if cases is None or key.case in cases]
    if not keys:
        raise ValueError(f"{str(claim.path)!r}: paper has no value of {equal['measure']!r}")
    for key in keys:
        seen, printed = _get(claim, measured, key).mean, claim.paper[key]
        text = f"{key.measure}{', ' * bool(key.case)}{key.case}: {key.method} is {printed:.6g}"
        holds = bool(abs(seen - printed) <= equal["relative"] * abs(printed))
        yield Check(text, holds, f"{seen:.6g}")


def _pairs(claim, entry, measured, others: Sequence[str]) -> Iterator[tuple[str, str]]:
    if "method" in entry:
        cases = [""]  # the cases are what is compared
    else:
        known = dict.fromkeys(key.case for key in measured if key.measure == entry["measure"])
        if not known:
            names = sorted({key.measure for key in measured})
            problem = unknown("measure", entry["measure"], names)
            raise ValueError(f"{str(claim.path)!r}: {problem}")
        cases = entry.get("cases", list(known))
    for case in cases:
        for other in others:
            yield case, other


def _keys(order, case: str, name: str) -> Quantity:
    if "method" in order:
        return Quantity(order["measure"], name, order["method"])
    return Quantity(order["measure"], case, name)


def _get(claim, measured: Mapping[Quantity, Measured], key: Quantity) -> Measured:
    if key not in measured:
        raise ValueError(
            f"{str(claim.path)!r}: {key.measure!r} of {key.method!r} in case {key.case!r} was not "
            f"measured; see {claim.path.with_suffix('.csv').name}"
        )
    return measured[key]


def _difference(claim, text: str, more: Measured, less: Measured) -> np.ndarray:
    """The paired differences over seeds; NaN where a run has diverged."""
    if more.seeds != less.seeds or len(more.seeds) < MIN_SEEDS:
        raise ValueError(
            f"{str(claim.path)!r}: {text!r} compares seeds {less.seeds} with {more.seeds}; the "
            f"same seeds are needed, at least {MIN_SEEDS}"
        )
    return more.values - less.values


def _clear(difference: np.ndarray) -> bool:
    if not np.isfinite(difference).all():
        return False
    return bool(difference.mean() - confidence_half_width(difference) > 0)


def _shown(difference: np.ndarray, one: Measured, two: Measured) -> str:
    shown = f"{one.text()} and {two.text()}"
    if np.isfinite(difference).all():
        half = confidence_half_width(difference)
        shown += f", difference {abs(difference.mean()):.3g} ± {half:.2g}"
    return shown


def _effect(lower: bool, one: float | None, two: float | None) -> float | None:
    if one is None or two is None or math.isnan(one + two):
        return None
    if lower:
        return two / one if one else None
    return one - two
