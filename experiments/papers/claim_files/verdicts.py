"""The verdict on a row, which follows from its checks, and the claims of a paper."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from claim_files.checks import Check, check_row
from claim_files.measured import Measured, Quantity, read_measured
from claim_files.reading import PAPERS, Claim, Paper, Row, claim_files, read_claim, read_paper

REPRODUCED, IN_ORDER, HOLDS = "reproduced", "in order", "holds"
NOT_REPRODUCED, OPEN, DOES_NOT_HOLD = "not reproduced", "open", "does not hold"
NOT_RUN = "not run"
ON_STAND_IN, AFTER_CHANGE = ", on a stand-in", ", after a change"
VERDICTS = REPRODUCED, IN_ORDER, NOT_REPRODUCED, OPEN, HOLDS, DOES_NOT_HOLD, NOT_RUN
ENDINGS = "", ON_STAND_IN, AFTER_CHANGE, ON_STAND_IN + AFTER_CHANGE


class Judged(NamedTuple):
    """A row, or an experiment, with its verdict.

    Attributes:
      row: from its file.
      verdict: one of `VERDICTS` with one of `ENDINGS`.
      checks: of the row; none if it was not run.
      measured: what was seen; nothing if it was not run.
      shown_by: the experiments about its reason, judged as rows are.
    """

    row: Row
    verdict: str
    checks: tuple[Check, ...]
    measured: Mapping[Quantity, Measured]
    shown_by: tuple["Judged", ...] = ()

    @property
    def holds(self) -> bool:
        """True if every check holds."""
        return bool(self.checks) and all(check.holds for check in self.checks)


class JudgedClaim(NamedTuple):
    """A claim with its judged rows."""

    claim: Claim
    rows: tuple[Judged, ...]

    @property
    def verdict(self) -> str:
        """The verdict on all rows if it is one, or how many hold, with our own ones apart."""
        verdicts = {judged.verdict for judged in self.rows}
        if len(verdicts) == 1:
            number = len(self.rows)
            return verdicts.pop() + f" ({number} rows)" * (number > 1)
        run = [judged for judged in self.rows if judged.checks]
        said = run[0].verdict
        if len(run) > 1:
            own = [judged for judged in run if judged.row.own]
            papers = [judged for judged in run if not judged.row.own]
            counted = [judged.row for judged in papers or own]
            held = [judged.row for judged in papers or own if judged.holds]
            said = f"{len(held)} of {len(counted)} rows hold"
            said += _added(ON_STAND_IN, [bool(row.stand_ins) for row in held or counted])
            said += _added(AFTER_CHANGE, [bool(row.changed) for row in held])
            if papers and own:
                said += f"; of our own {sum(judged.holds for judged in own)} of {len(own)}"
        lost = len(self.rows) - len(run)
        return said + f"; {lost} not run" * bool(lost)


def _added(name: str, rows: list[bool]) -> str:
    """An addition to the rows of a claim that hold, with their number if it is not all of them."""
    if not any(rows):
        return ""
    return name if all(rows) else f", {sum(rows)}{name[1:]}"


def judge(row: Row, seen: Path | None = None) -> Judged:
    """The verdict on a row.

    Args:
      row: as of `read_claim`.
      seen: the CSV file of other seeds; None for the one beside the claim, whose seeds are those
        that the file fixes.

    Raises:
      ValueError: for other seeds than the file's, and for a reason of a row that holds; as
        `check_row` and `read_claim`.
    """
    if row.needs:
        return Judged(row, NOT_RUN, (), {})
    measured = read_measured(seen or row.csv)
    fixed = tuple(range(row.num_seeds))
    for key, values in measured.items():
        if seen is None and values.seeds != fixed:
            raise ValueError(f"{row.csv}: {key} has seeds {values.seeds}, not {fixed}")
    checks = tuple(check_row(row, measured))
    experiments = tuple(_experiment(row, name) for name in row.shown_by)
    if all(check.holds for check in checks):
        if row.reason and seen is None:
            raise ValueError(
                f"{row.path}, {row.name} holds, so there is no reason to give; leave it out"
            )
        return Judged(row, _verdict_where_it_holds(row, checks), checks, measured)
    shown = bool(experiments) and not row.open and all(each.holds for each in experiments)
    verdict = DOES_NOT_HOLD if row.own else NOT_REPRODUCED if shown else OPEN
    return Judged(row, verdict + _on_stand_in(row), checks, measured, experiments)


def _verdict_where_it_holds(row: Row, checks: tuple[Check, ...]) -> str:
    orders = [check for check in checks if check.is_order]
    whole = not (row.stand_ins or row.chosen or row.changed)
    same = whole and all(check.same_size for check in orders)
    verdict = HOLDS if row.own else REPRODUCED if same else IN_ORDER
    return verdict + _on_stand_in(row) + AFTER_CHANGE * bool(row.changed)


def _on_stand_in(row: Row) -> str:
    return ON_STAND_IN if row.stand_ins else ""


def _experiment(row: Row, name: str) -> Judged:
    experiment = read_claim(row.path.with_name(f"{name}.toml")).rows[0]
    if experiment.of != row.name:
        raise ValueError(f"{experiment.path} has of={experiment.of!r}, but {row.name} names it")
    return judge(experiment)


class PaperClaims(NamedTuple):
    """The claims of one paper with their verdicts, in the order of its tables and figures."""

    paper: Paper
    claims: tuple[JudgedClaim, ...]


def read_claims(folder: Path = PAPERS) -> list[PaperClaims]:
    """Reads and judges all claims.

    Args:
      folder: with a folder for each paper.

    Raises:
      ValueError: for a table or figure without a claim, or a claim without one, an experiment that
        no row names, and a name that two rows have; as `read_paper`, `read_claim` and `judge`.
    """
    return [_of_paper(file) for file in sorted(folder.glob("*/paper.toml"))]


def _of_paper(file: Path) -> PaperClaims:
    paper = read_paper(file)
    read = [read_claim(path) for path in claim_files(file.parent)]
    claims = [claim for claim in read if not claim.of]
    items = list(paper.with_results)
    if {claim.item for claim in claims} != set(items):
        wrong = {claim.item for claim in claims} ^ set(items)
        raise ValueError(f"{file}: only one of paper.toml and the claims has {sorted(wrong)}")
    names = [row.name for claim in read for row in claim.rows]
    names += [claim.path.stem for claim in claims if len(claim.rows) > 1]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{file.parent}: more than one claim or row has the name {twice}")
    named = {name for claim in claims for row in claim.rows for name in row.shown_by}
    if lost := [str(claim.path) for claim in read if claim.of and claim.path.stem not in named]:
        raise ValueError(f"no claim names these experiments in shown_by: {', '.join(lost)}")
    claims.sort(key=lambda claim: items.index(claim.item))
    return PaperClaims(
        paper,
        tuple(JudgedClaim(claim, tuple(map(judge, claim.rows))) for claim in claims),
    )
