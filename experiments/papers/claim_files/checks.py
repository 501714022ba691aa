"""The checks of a row: orders, ties and equal values, each against what was seen."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from claim_files.measured import Measured, Quantity
from claim_files.reading import Row
from fedjax_algos.analysis.statistics import confidence_half_width

MIN_SEEDS = 3
SAME_SIZE = 1.5  # up to this factor
MAX_CHANCE = 0.025  # of a sign test, one-sided, as one end of a 95% interval


class Check(NamedTuple):
    """One comparison of a row, and whether it holds.

    Attributes:
      text: what is compared.
      holds: whether it holds; an order holds only if its effect is there with 95% confidence.
      seen: the numbers, in a text.
      effect: of an order, over paired seeds. For a quality (`higher`), the mean difference. For a
        cost (`lower`), the mean logarithm of the ratio, because costs of seeds differ by factors.
        Seeds on which the other one diverged are left out. None for other checks, where the first
        one has diverged, and where a target was not reached, so that the cost is not known.
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


def check_row(row: Row, measured: Mapping[Quantity, Measured]) -> list[Check]:
    """Every check of a row.

    Args:
      row: that was run.
      measured: what was seen of it.

    Raises:
      ValueError: for what was not measured, an entry that compares nothing, and for fewer than
        three seeds where a difference is checked.
    """
    found: list[Check] = []
    for check, entries in ((_order, row.orders), (_tie, row.ties), (_equal, row.equals)):
        for entry in entries:
            own = list(check(row, entry, measured))
            if not own:  # a row must not hold because nothing is compared
                raise ValueError(f"{row.path}, {row.name}: {dict(entry)} compares nothing")
            found += own
    return found


def _order(row, order: Mapping[str, Any], measured) -> Iterator[Check]:
    lower = "lower" in order
    first = order["lower" if lower else "higher"]
    for case, other in _pairs(order, measured, order["than"]):
        keys = _keys(order, case, first), _keys(order, case, other)
        one, two = (_get(row, measured, key) for key in keys)
        where = f", {order.get('method') or case}" if order.get("method") or case else ""
        text = f"{order['measure']}{where}: {first} {'<' if lower else '>'} {other}"
        _check_seeds(row, text, one, two)
        holds, effect, seen = compare(lower, one, two)
        if _any_censored(one, two):
            effect = None
            ended = f"{one.censored.sum()} and {two.censored.sum()}"
            seen = f"{seen}; {ended} of {len(one.seeds)} runs end before the target"
        printed = paper_effect(lower, *(row.printed_values.get(key) for key in keys))
        if printed is not None:
            shown = f"{math.exp(printed) if lower else printed:.3g}"
            seen = f"{seen}; the paper's {shown}"
        if printed is not None and printed <= 0:
            holds, seen = False, f"{seen}, which is not this order"
        yield Check(text, holds, f"{one.text()} and {two.text()}{seen}", effect, printed, True)


def compare(lower: bool, one: Measured, two: Measured) -> tuple[bool, float | None, str]:
    """Compares two methods: whether the first is better with 95% confidence, its effect, a text.

    Args:
      lower: whether these are costs.
      one: what has to be better.
      two: of the same seeds.
    """
    clear, effect, seen = (_by_sign if one.censored.any() else _by_mean)(lower, one, two)
    return clear and not np.isnan(one.values).any(), effect, seen


def _by_mean(lower: bool, one: Measured, two: Measured) -> tuple[bool, float | None, str]:
    """Compares two methods by Student's t distribution.

    Where only the other one's runs end before the target, the ratios are at least these.
    """
    least = min(np.nanmin([*each.values, 1]) for each in (one, two))  # all seeds may have diverged
    if lower and not least > 0:
        raise ValueError("lower compares ratios of costs, and one is not above 0; write higher")
    effects = np.log(two.values / one.values) if lower else one.values - two.values
    effects = effects[np.isfinite(two.values)]  # a seed is won if the other diverged
    mean, half = _mean_and_half(effects)
    clear = mean - half > 0 if len(effects) >= MIN_SEEDS else bool((effects > 0).all())
    return clear, None if math.isnan(mean) else mean, _shown(lower, mean, half)


def _by_sign(lower: bool, one: Measured, two: Measured) -> tuple[bool, None, str]:
    """Compares two methods by a sign test, where the first one's runs do not all reach.

    A seed is won if it is certain that the first one reaches the target before the other one, or
    that the other one diverges, and lost in the opposite case. Seeds that say nothing, such as
    one on which both end before the target, are left out.
    """
    won, lost = _before(one, two), _before(two, one)
    number, wins = int((won | lost).sum()), int(won.sum())
    chance = sum(math.comb(number, k) for k in range(wins, number + 1)) / 2**number
    seen = f", first on {wins} of the {number} seeds that are decided"
    return lower and chance <= MAX_CHANCE, None, seen


def _before(one: Measured, two: Measured) -> np.ndarray:
    """Marks the seeds on which one reaches the target, and two only later or not at all."""
    later = (one.values < two.values) | (two.censored & (one.values == two.values))
    return ~one.censored & np.isfinite(one.values) & (later | np.isnan(two.values))


def _any_censored(one: Measured, two: Measured) -> bool:
    return bool(one.censored.any() or two.censored.any())


def _tie(row, tie: Mapping[str, Any], measured) -> Iterator[Check]:
    first, *others = tie["methods"]
    for case, other in _pairs(tie, measured, others):
        one, two = (_get(row, measured, Quantity(tie["measure"], case, m)) for m in (first, other))
        text = f"{tie['measure']}{', ' * bool(case)}{case}: {first} = {other} ± {tie['margin']:g}"
        _check_seeds(row, text, one, two)
        mean, half = _mean_and_half(one.values - two.values)
        seen = f"{one.text()} and {two.text()}{_shown(False, mean, half)}"
        small = abs(mean) + half <= tie["margin"]
        small &= tie.get("small_difference", False) or abs(mean) <= half
        yield Check(text, small and not _any_censored(one, two), seen)


def _equal(row, equal: Mapping[str, Any], measured) -> Iterator[Check]:
    cases = equal.get("cases")
    for key, printed in row.printed_values.items():
        quantity = Quantity(*key)
        if quantity.measure == equal["measure"] and (cases is None or quantity.case in cases):
            seen = _get(row, measured, quantity).mean
            where = f"{', ' * bool(quantity.case)}{quantity.case}"
            text = f"{quantity.measure}{where}: {quantity.method} is {printed:.6g}"
            yield Check(
                text, bool(abs(seen - printed) <= equal["relative"] * abs(printed)), f"{seen:.6g}"
            )


def _pairs(entry, measured, others: Sequence[str]) -> Iterator[tuple[str, str]]:
    if "method" in entry:
        cases = [""]  # the cases are what is compared
    else:
        known = dict.fromkeys(key.case for key in measured if key.measure == entry["measure"])
        cases = entry.get("cases", list(known))
    for case in cases:
        for other in others:
            yield case, other


def _keys(order, case: str, name: str) -> Quantity:
    if "method" in order:
        return Quantity(order["measure"], name, order["method"])
    return Quantity(order["measure"], case, name)


def _get(row, measured: Mapping[Quantity, Measured], key: Quantity) -> Measured:
    if key not in measured:
        raise ValueError(
            f"{row.path}, {row.name}: {key.measure!r} of {key.method!r} in case {key.case!r} was "
            "not measured"
        )
    return measured[key]


def _check_seeds(row, text: str, one: Measured, two: Measured) -> None:
    if one.seeds != two.seeds or len(one.seeds) < MIN_SEEDS:
        raise ValueError(
            f"{row.path}, {row.name}: {text!r} compares seeds {one.seeds} with {two.seeds}; the "
            f"same seeds are needed, at least {MIN_SEEDS}"
        )


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


def paper_effect(lower: bool, one: float | None, two: float | None) -> float | None:
    """The effect of two values that a paper prints; None if it does not print both."""
    if one is None or two is None:
        return None
    if lower:
        return math.log(two / one) if one and two else None
    return one - two
