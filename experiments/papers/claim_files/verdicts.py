"""The verdict on a claim, which follows from its checks, and the claims of a paper."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from claim_files.checks import Check, check_claim
from claim_files.measured import Measured, Quantity, read_measured
from claim_files.reading import PAPERS, SETTINGS, Claim, Paper, read_claim, read_paper

REPRODUCED = "reproduced"
IN_ORDER = "in order"
ON_STAND_IN = "in order, on a stand-in"
AFTER_CHANGE = "in order, after a change"
NOT_REPRODUCED = "not reproduced"
OPEN = "open"
NOT_RUN = "not run"
VERDICTS = {
    REPRODUCED: "every check holds on the paper's own data, model and setting, and the effects "
    "have the paper's size up to a factor of 1.5",
    IN_ORDER: "every check holds on the paper's own data, model and setting, but an effect has "
    "another size, is not known because runs end before the target, or is not printed",
    ON_STAND_IN: "every check holds, but other data, another model or a smaller setting stand in "
    "for the paper's, as the line says",
    AFTER_CHANGE: "every check holds, but the target or the setting was changed after a miss, as "
    "the page says",
    NOT_REPRODUCED: "a check does not hold, and an experiment shows the reason by one change",
    OPEN: "a check does not hold, and the reason is not shown",
    NOT_RUN: "needs data, or more computation, as the claim says",
}


class Judged(NamedTuple):
    """A claim with its verdict.

    Attributes:
      claim: from its file.
      verdict: one of `VERDICTS`.
      checks: of the claim; none if it was not run.
      measured: what was seen; nothing if it was not run.
      shown_by: the experiments about its reason, judged as claims are.
    """

    claim: Claim
    verdict: str
    checks: tuple[Check, ...]
    measured: Mapping[Quantity, Measured]
    shown_by: tuple["Judged", ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return bool(self.checks) and all(check.holds for check in self.checks)


def judge(claim: Claim, seen: Path | None = None) -> Judged:
    """The verdict on a claim.

    Args:
      claim: as of `read_claim`.
      seen: the CSV file of other seeds; None for the one beside the claim, whose seeds are those
        that were fixed before the run.

    Raises:
      ValueError: for other seeds than those that were fixed, and for a reason of a claim that
        holds; as `check_claim` and `read_claim`.
    """
    if claim.needs:
        return Judged(claim, NOT_RUN, (), {})
    measured = read_measured(seen or claim.csv)
    fixed = tuple(range(claim.num_seeds))
    for key, values in measured.items():
        if seen is None and values.seeds != fixed:
            raise ValueError(f"{claim.csv}: {key} has seeds {values.seeds}, not {fixed}")
    checks = tuple(check_claim(claim, measured))
    experiments = tuple(_experiment(claim, name) for name in claim.shown_by)
    if all(check.holds for check in checks):
        if claim.reason and seen is None:
            raise ValueError(f"{claim.path} holds, so there is no reason to give; leave it out")
        return Judged(claim, _verdict_where_it_holds(claim, checks), checks, measured)
    shown = bool(experiments) and not claim.open and all(each.holds for each in experiments)
    return Judged(claim, NOT_REPRODUCED if shown else OPEN, checks, measured, experiments)


def _verdict_where_it_holds(claim: Claim, checks: tuple[Check, ...]) -> str:
    if claim.changed:
        return AFTER_CHANGE
    if claim.stand_ins:
        return ON_STAND_IN
    orders = [check for check in checks if check.is_order]
    return REPRODUCED if all(check.same_size for check in orders) else IN_ORDER


def _experiment(claim: Claim, name: str) -> Judged:
    experiment = read_claim(claim.path.with_name(f"{name}.toml"))
    if experiment.of != claim.path.stem:
        raise ValueError(f"{experiment.path} has of={experiment.of!r}, but {claim.path} names it")
    return judge(experiment)


class PaperClaims(NamedTuple):
    """The claims of one paper with their verdicts, in the order of its tables and figures."""

    paper: Paper
    claims: tuple[Judged, ...]


def read_claims(folder: Path = PAPERS) -> list[PaperClaims]:
    """Reads and judges all claims.

    Args:
      folder: with a folder for each paper.

    Raises:
      ValueError: for a table or figure without a claim, or a claim without one, and an experiment
        that no claim names; as `read_paper`, `read_claim` and `judge`.
    """
    return [_of_paper(file) for file in sorted(folder.glob("*/paper.toml"))]


def _of_paper(file: Path) -> PaperClaims:
    paper = read_paper(file)
    paths = [p for p in sorted(file.parent.glob("*.toml")) if not p.name.startswith(SETTINGS)]
    read = [read_claim(path) for path in paths if path != file]
    claims = [claim for claim in read if not claim.of]
    items = list(paper.with_results)
    if {claim.item for claim in claims} != set(items):
        wrong = {claim.item for claim in claims} ^ set(items)
        raise ValueError(f"{file}: only one of paper.toml and the claims has {sorted(wrong)}")
    named = {name for claim in claims for name in claim.shown_by}
    if lost := [str(claim.path) for claim in read if claim.of and claim.path.stem not in named]:
        raise ValueError(f"no claim names these experiments in shown_by: {', '.join(lost)}")
    claims.sort(key=lambda claim: items.index(claim.item))
    return PaperClaims(paper, tuple(judge(claim) for claim in claims))
