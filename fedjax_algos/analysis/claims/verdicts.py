"""The verdict on a claim, which follows from its checks."""

from collections.abc import Mapping
from typing import NamedTuple

from fedjax_algos.analysis.claims.checks import Check, check_claim
from fedjax_algos.analysis.claims.claim_files import Claim, read_claim
from fedjax_algos.analysis.claims.measured import Measured, Quantity, read_measured

REPRODUCED = "reproduced"
REPRODUCED_IN_ORDER = "reproduced in order"
NOT_REPRODUCED = "not reproduced"
OPEN = "open"
NOT_RUN = "not run"
VERDICTS = {
    REPRODUCED: "every check holds, and the effects have the paper's size up to a factor of 1.5",
    REPRODUCED_IN_ORDER: "every check holds, but the paper's effects have another size, or none is "
    "printed",
    NOT_REPRODUCED: "a check does not hold, and an experiment shows the reason",
    OPEN: "a check does not hold, and the reason is not shown yet",
    NOT_RUN: "needs data, or more computation, as the claim says",
}


class Judged(NamedTuple):
    """A claim with its verdict.

    Attributes:
      claim: from its file.
      verdict: one of `VERDICTS`.
      checks: of the claim; none if it was not run.
      measured: what was seen; nothing if it was not run.
      shown_by: the experiments that show why it is not reproduced, judged as claims are.
    """

    claim: Claim
    verdict: str
    checks: tuple[Check, ...]
    measured: Mapping[Quantity, Measured]
    shown_by: tuple["Judged", ...] = ()


def judge(claim: Claim) -> Judged:
    """The verdict on a claim, from the CSV file beside it.

    Args:
      claim: as of `read_claim`.

    Raises:
      ValueError: for a CSV file that is missing, wrong, or there without need, and for a `reason`
        of a claim that is reproduced; as `check_claim` and `read_claim`.
    """
    seen = claim.path.with_suffix(".csv")
    if claim.needs:
        if seen.exists():
            raise ValueError(f"{str(claim.path)!r} was not run, but there is {seen.name}")
        return Judged(claim, NOT_RUN, (), {})
    measured = read_measured(seen)
    checks = tuple(check_claim(claim, measured))
    if all(check.holds for check in checks):
        if claim.reason:
            raise ValueError(
                f"{str(claim.path)!r} is reproduced, so there is no reason to give; leave reason "
                "and shown_by out"
            )
        return Judged(claim, _size(checks), checks, measured)
    experiments = tuple(_experiment(claim, name) for name in claim.shown_by)
    good = (REPRODUCED, REPRODUCED_IN_ORDER)
    shown = bool(experiments) and all(each.verdict in good for each in experiments)
    return Judged(claim, NOT_REPRODUCED if shown else OPEN, checks, measured, experiments)


def _size(checks: tuple[Check, ...]) -> str:
    orders = [check for check in checks if check.is_order]
    printed = [check for check in orders if check.paper_effect is not None]
    known = bool(printed) or not orders
    return REPRODUCED if known and all(c.same_size for c in printed) else REPRODUCED_IN_ORDER


def _experiment(claim: Claim, name: str) -> Judged:
    experiment = read_claim(claim.path.with_name(f"{name}.toml"))
    if experiment.of != claim.path.stem:
        raise ValueError(
            f"{str(experiment.path)!r} has of={experiment.of!r}, but {claim.path.name} names it; "
            f"write of = {claim.path.stem!r}"
        )
    return judge(experiment)
