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
      holds: whether it holds; an order holds only if its effect is there with 95% confidence.
      seen: the numbers, in a text.
      effect: of an order, over paired seeds. For a quality (`higher`), the mean difference. For a
        cost (`lower`), the geometric mean of the ratios, because costs of seeds differ by factors.
        Seeds on which the other one diverged are left out. None for other checks, and where the
        first one has diverged.
      paper_effect: the same of the paper's values; None where it prints none.
      is_order: whether it is an order, which has an effect.
    """

    text: str
    holds: bool
    seen: str
    effect: float | None = None
    paper_effect: float | None = None
    is_order: bool = False

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
      ValueError: for a measure, case or method that was not measured, an entry that compares
        nothing, and for fewer than three seeds where a difference is checked.
    """
    found: list[Check] = []
    for check, entries in ((_order, claim.orders), (_tie, claim.ties), (_equal, claim.equals)):
        for entry in entries:
            own = list(check(claim, entry, measured))
            if not own:  # a claim must not hold because nothing is compared
                raise ValueError(f"{str(claim.path)!r}: {dict(entry)} compares nothing")
            found += own
    return found


def _order(claim, order: Mapping[str, Any], measured) -> Iterator[Check]:
    lower = "lower" in order
    first = order["lower" if lower else "higher"]
    for case, other in _pairs(claim, order, measured, order["than"]):
        keys = _keys(order, case, first), _keys(order, case, other)
        one, two = (_get(claim, measured, key) for key in keys)
        where = f", {order.get('method') or case}" if order.get("method") or case else ""
        text = f"{order['measure']}{where}: {first} {'<' if lower else '>'} {other}"
        _check_seeds(claim, text, one, two)
        effects = _logarithms(claim, text, one, two) if lower else one.values - two.values
        effects = effects[np.isfinite(two.values)]  # seeds on which the other diverged are won
        mean, half = _mean_and_half(effects)
        clear = mean - half > 0 if len(effects) >= MIN_SEEDS else bool((effects > 0).all())
        printed = (claim.paper.get(key) for key in keys)
        yield Check(
            text,
            clear and bool(np.isfinite(one.values).all()),
            f"{one.text()} and {two.text()}{_shown(lower, mean, half)}",
            None if math.isnan(mean) else math.exp(mean) if lower else mean,
            _paper_effect(lower, *printed),
            is_order=True,
        )


def _tie(claim, tie: Mapping[str, Any], measured) -> Iterator[Check]:
    first, *others = tie["methods"]
    for case, other in _pairs(claim, tie, measured, others):
        one, two = (
            _get(claim, measured, Quantity(tie["measure"], case, m)) for m in (first, other)
        )
        text = f"{tie['measure']}{', ' * bool(case)}{case}: {first} = {other} ± {tie['margin']:g}"
        _check_seeds(claim, text, one, two)
        difference = one.values - two.values
        mean, half = _mean_and_half(difference)
        seen = f"{one.text()} and {two.text()}{_shown(False, mean, half)}"
        reached = not (one.censored.any() or two.censored.any())
        yield Check(text, reached and abs(mean) + half <= tie["margin"], seen)


def _equal(claim, equal: Mapping[str, Any], measured) -> Iterator[Check]:
    cases = equal.get("cases")
    keys = [Quantity(*key) for key in claim.paper if key[0] == equal["measure"]]
    keys = [key for key in keys if cases is None or key.case in cases]
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


def _check_seeds(claim, text: str, one: Measured, two: Measured) -> None:
    if one.seeds != two.seeds or len(one.seeds) < MIN_SEEDS:
        raise ValueError(
            f"{str(claim.path)!r}: {text!r} compares seeds {one.seeds} with {two.seeds}; the same "
            f"seeds are needed, at least {MIN_SEEDS}"
        )


def _logarithms(claim, text: str, one: Measured, two: Measured) -> np.ndarray:
    """Of the ratio of two costs on each seed; NaN where a run has diverged."""
    if (one.values <= 0).any() or (two.values <= 0).any():
        raise ValueError(
            f"{str(claim.path)!r}: {text!r} compares a cost that is not above 0; lower compares "
            "ratios of costs, so write higher and exchange the two"
        )
    return np.log(two.values / one.values)


def _mean_and_half(effects: np.ndarray) -> tuple[float, float]:
    """The mean and half its 95% confidence interval; NaN where that is not known."""
    if not len(effects):
        return math.nan, math.nan
    return float(effects.mean()), float(confidence_half_width(effects))


def _shown(ratio: bool, mean: float, half: float) -> str:
    if math.isnan(mean):
        return ""
    if ratio:
        low, middle, high = (math.exp(mean + part) for part in (-half, 0, half))
        return f", ratio {middle:.3g} from {low:.3g} to {high:.3g}"
    return f", difference {mean:+.3g} ± {half:.2g}"


def _paper_effect(lower: bool, one: float | None, two: float | None) -> float | None:
    if one is None or two is None:
        return None
    if lower:
        return two / one if one else None
    return one - two
