"""The files of a paper and of its claims."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

PAPERS = Path(__file__).parents[1]
# begin the names of files with a paper's own settings and of their stand-ins, which are no claims
SETTINGS = ("full_", "small_")
_CHECKS = {
    "orders": {"measure", "cases", "method", "lower", "higher", "than"},
    "ties": {"measure", "cases", "methods", "margin", "small_difference"},
    "equals": {"measure", "cases", "relative"},
    "paper": {"measure", "case", "values"},
}


@dataclass(frozen=True)
class Paper:
    """A paper, or a subject with several sources: what its tables and figures show, by their names.

    Attributes:
      authors, year, link: of a paper.
      sources: of a subject, which has no authors.
      with_results: what each table and figure with results shows.
      without_results: why there is nothing to check in the others.
      without_claim: results that no claim covers, and why.
    """

    path: Path
    title: str
    with_results: Mapping[str, str]
    authors: str = ""
    year: int = 0
    link: str = ""
    sources: Sequence[str] = ()
    without_results: Mapping[str, str] = field(default_factory=dict)
    without_claim: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The folder's."""
        return self.path.parent.name

    @property
    def source(self) -> str:
        """Who claims it, as Markdown."""
        return "; ".join(self.sources) or f"{self.authors}, {self.year}. <{self.link}>"


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, or an experiment about one; README.md says what the keys mean."""

    path: Path
    item: str
    claim: str
    printed: str = ""
    differences: Sequence[str] = ()
    stand_ins: Sequence[str] | None = None
    changed: str = ""
    trains: bool = True
    program: str = ""
    prepare: str = ""
    seeds: int = 1
    minutes: float = 0.0
    seen: str = ""
    needs: str = ""
    reason: str = ""
    open: str = ""
    shown_by: Sequence[str] = ()
    of: str = ""
    paper: Sequence[Mapping[str, Any]] = ()
    orders: Sequence[Mapping[str, Any]] = ()
    ties: Sequence[Mapping[str, Any]] = ()
    equals: Sequence[Mapping[str, Any]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    cases: Sequence[Mapping[str, Any]] = ({"name": ""},)
    measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Such as fedlga/table_5_fmnist."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def csv(self) -> Path:
        """What was seen."""
        return self.path.with_suffix(".csv")

    @property
    def num_seeds(self) -> int:
        """The number that was fixed before the run; the seeds are those from 0."""
        return self.settings.get("seeds", self.seeds)

    @property
    def printed_values(self) -> dict[tuple[str, str, str], float]:
        """The paper's values, by measure, case and method."""
        return {
            (entry["measure"], entry.get("case", ""), method): float(value)
            for entry in self.paper
            for method, value in entry["values"].items()
        }


def read_paper(path: Path) -> Paper:
    """Reads `paper.toml`.

    Raises:
      ValueError: for an unknown key, and if there is not one kind of source.
    """
    paper = Paper(path=path, **_read(path, Paper))
    given = [bool(each) for each in (paper.authors, paper.year, paper.link)]
    if not (all(given) or paper.sources) or (any(given) and paper.sources):
        raise ValueError(f"{path} needs either authors, year and link, or sources")
    return paper


def read_claim(path: Path) -> Claim:
    """Reads the file of a claim.

    Raises:
      ValueError: for a key that is unknown, missing, or not for this kind of claim.
    """
    content = _read(path, Claim)
    for name, known in _CHECKS.items():
        for entry in content.get(name, ()):
            if not set(entry) <= known:
                raise ValueError(f"{path}: {name} has {set(entry) - known}; known are {known}")
    for entry in content.get("orders", ()):
        if ("lower" in entry) == ("higher" in entry):
            raise ValueError(f"{path}: an order has lower or higher, and not both")
    claim = Claim(path=path, **content)
    _check_parts(claim)
    return claim


def _read(path: Path, kind: type) -> dict[str, Any]:
    content = tomllib.loads(path.read_text())
    known = {f.name for f in fields(kind)} - {"path"}
    if not set(content) <= known:
        raise ValueError(f"{path} has unknown keys {set(content) - known}; known are {known}")
    return {k: " ".join(v.split()) if isinstance(v, str) else v for k, v in content.items()}


def _check_parts(claim: Claim) -> None:
    """Raises ValueError for what a claim lacks, or has without need."""
    ran = {"minutes", "seen"} | ({"stand_ins"} if claim.trains and not claim.of else set())
    needed = {"item", "claim"} if claim.of else {"item", "claim", "printed"}
    needed |= set() if claim.needs else ran
    missing = [n for n in sorted(needed) if getattr(claim, n) in ("", 0.0, None)]
    if missing:
        raise ValueError(f"{claim.path} lacks {', '.join(missing)}")
    checks = (*claim.orders, *claim.ties, *claim.equals)
    if claim.needs and (checks or claim.seen or claim.settings or claim.program):
        raise ValueError(f"{claim.path} has needs, because it was not run; leave the rest out")
    if not claim.needs and not checks:
        raise ValueError(f"{claim.path} has no orders, ties or equals; say what to check")
    if not claim.needs and bool(claim.settings) == bool(claim.program):
        raise ValueError(f"{claim.path} needs either settings or a program")
    if bool(claim.reason) != bool(claim.shown_by):
        raise ValueError(f"{claim.path} needs both reason and shown_by, or neither")
    if claim.open and not claim.reason:
        raise ValueError(f"{claim.path}: open says why a reason is not shown, but there is none")
