"""The files of a paper and of its claims."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

PAPERS = Path(__file__).parents[1]
# begin the names of files with a paper's own settings and of their stand-ins, which are not claims
SETTINGS = ("full_", "small_")
_CHECKS = {
    "orders": {"measure", "cases", "method", "lower", "higher", "than"},
    "ties": {"measure", "cases", "methods", "margin", "small_difference"},
    "equals": {"measure", "cases", "relative"},
    "paper": {"measure", "case", "values"},
}
_RUN = {"settings", "cases", "measures", "labels", "program", "prepare", "seeds"}


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
        """The authors or sources, as Markdown."""
        return "; ".join(self.sources) or f"{self.authors}, {self.year}. <{self.link}>"


@dataclass(frozen=True)
class Row:
    """One result of a claim, or an experiment about one; README.md says what the keys mean.

    Attributes:
      path: of the claim's file.
      csv: what was seen; rows of the same runs have the same file.
    """

    path: Path
    csv: Path
    name: str
    item: str
    claim: str
    printed: str = ""
    differences: Sequence[str] = ()
    stand_ins: Sequence[str] | None = None
    chosen: Sequence[str] = ()
    own: bool = False
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
    def num_seeds(self) -> int:
        """The number of seeds that the file fixes; seeds count from 0."""
        return self.settings.get("seeds", self.seeds)

    @property
    def printed_values(self) -> dict[tuple[str, str, str], float]:
        """The paper's values, by measure, case and method."""
        return {
            (entry["measure"], entry.get("case", ""), method): float(value)
            for entry in self.paper
            for method, value in entry["values"].items()
        }


class Claim(NamedTuple):
    """A table or figure of a paper, with a row for each of its results; or an experiment.

    Attributes:
      claim: what the paper says, in a sentence.
      rows: one at least; a file without rows is the only row itself.
    """

    path: Path
    item: str
    claim: str
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """Such as fedlga/table_5."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def of(self) -> str:
        """The row that an experiment belongs to; empty for a claim."""
        return self.rows[0].of

    @property
    def runs(self) -> list[Row]:
        """A row for each file of values, without those that were not run."""
        run = [row for row in self.rows if not row.needs]
        first = {row.csv: row for row in reversed(run)}
        return [row for row in run if first[row.csv] is row]

    @property
    def trained(self) -> list[Row]:
        """The rows that train a model and were run."""
        return [row for row in self.rows if row.trains and not row.needs]

    @property
    def minutes(self) -> float:
        """Its time on one CPU core."""
        return sum(row.minutes for row in self.runs)


def read_paper(path: Path) -> Paper:
    """Reads `paper.toml`.

    Raises:
      ValueError: for an unknown key, and if there is not one kind of source.
    """
    paper = Paper(path=path, **_known(path, tomllib.loads(path.read_text()), Paper))
    given = [bool(each) for each in (paper.authors, paper.year, paper.link)]
    if not (all(given) or paper.sources) or (any(given) and paper.sources):
        raise ValueError(f"{path} needs either authors, year and link, or sources")
    return paper


def claim_files(folder: Path) -> list[Path]:
    """The files of the claims and experiments in the folder of a paper."""
    files = sorted(folder.glob("*.toml"), key=lambda path: path.stem)
    return [f for f in files if f.name != "paper.toml" and not f.name.startswith(SETTINGS)]


def read_row(folder: Path, name: str) -> Row:
    """Reads a row by its name.

    Args:
      folder: of the paper.
      name: of the row, or of an experiment.

    Raises:
      ValueError: for a name that no file has.
    """
    found = (row for path in claim_files(folder) for row in read_claim(path).rows)
    for row in found:
        if row.name == name:
            return row
    raise ValueError(f"{folder} has no row {name!r}; `claims.py list` has the names")


def read_claim(path: Path) -> Claim:
    """Reads the file of a claim.

    Raises:
      ValueError: for a key that is unknown, missing, or not for this kind of row.
    """
    content = tomllib.loads(path.read_text())
    given = content.pop("rows", [{"name": path.stem}])
    names = {own.get("name") for own in given}
    if len(names) < len(given) or None in names:
        raise ValueError(f"{path}: each row needs a name of its own")
    by_name = {own["name"]: own for own in given}
    rows = tuple(_row(path, content, own, by_name) for own in given)
    return Claim(path, rows[0].item, " ".join(content.get("claim", "").split()), rows)


def _row(path: Path, claim: dict[str, Any], own: dict[str, Any], rows) -> Row:
    """A row, with what it does not say from the claim; its settings change some of the claim's."""
    own = dict(own)
    other = own.pop("values", None)
    if other is not None and (other not in rows or "values" in rows[other] or _RUN & set(own)):
        raise ValueError(
            f"{path}: {own['name']} has the values of {other!r}; that has to be a row with runs of "
            "its own, whose settings are not changed"
        )
    run = {key: value for key, value in rows.get(other, own).items() if key in _RUN}
    merged = claim | own | run
    if "needs" in own or "program" in run:
        merged = {
            key: value for key, value in merged.items() if key in {*run, "seeds"} or key not in _RUN
        }
    elif "settings" in run:
        merged["settings"] = claim.get("settings", {}) | run["settings"]
    stem = (other or own["name"]) if run else path.stem
    row = Row(path=path, csv=path.with_name(f"{stem}.csv"), **_known(path, merged, Row))
    _check_row(row)
    return row


def _known(path: Path, content: dict[str, Any], kind: type) -> dict[str, Any]:
    known = {f.name for f in fields(kind)} - {"path", "csv"}
    if not set(content) <= known:
        raise ValueError(f"{path} has unknown keys {set(content) - known}; known are {known}")
    return {k: " ".join(v.split()) if isinstance(v, str) else v for k, v in content.items()}


def _check_row(row: Row) -> None:
    """Raises ValueError for what a row lacks, or has without need."""
    where = f"{row.path}, {row.name}" if row.name != row.path.stem else str(row.path)
    for name, known in _CHECKS.items():
        for entry in getattr(row, name):
            if not set(entry) <= known:
                raise ValueError(f"{where}: {name} has {set(entry) - known}; known are {known}")
    if any(("lower" in order) == ("higher" in order) for order in row.orders):
        raise ValueError(f"{where}: an order has lower or higher, and not both")
    ran = {"minutes", "seen"} | ({"stand_ins"} if row.trains and not row.of else set())
    needed = {"item", "claim"} if row.of else {"item", "claim", "printed"}
    needed |= set() if row.needs else ran
    missing = [n for n in sorted(needed) if getattr(row, n) in ("", 0.0, None)]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    checks = (*row.orders, *row.ties, *row.equals)
    if row.needs and (checks or row.seen or row.settings or row.program):
        raise ValueError(f"{where} has needs, because it was not run; leave the rest out")
    if not row.needs and not checks:
        raise ValueError(f"{where} has no orders, ties or equals; say what to check")
    if not row.needs and bool(row.settings) == bool(row.program):
        raise ValueError(f"{where} needs either settings or a program")
    if bool(row.reason) != bool(row.shown_by):
        raise ValueError(f"{where} needs both reason and shown_by, or neither")
    if row.own and "our own" not in row.printed:
        raise ValueError(f"{where} has own, so its printed has to say that the claim is our own")
    if row.open and not row.reason:
        raise ValueError(f"{where}: open says why a reason is not shown, but there is none")
