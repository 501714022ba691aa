"""Folders of papers and of their claims."""

from pathlib import Path
from typing import NamedTuple

from fedjax_algos.analysis.claims.claim_files import Claim, Paper, read_claim, read_paper
from fedjax_algos.analysis.claims.verdicts import Judged, judge
from fedjax_algos.core.options import unknown

_PAPER = "paper.toml"
# begin the names of files with a paper's own settings and of their stand-ins, which are no claims
_SETTINGS = ("full_", "small_")


class PaperClaims(NamedTuple):
    """The claims of one paper.

    Attributes:
      paper: whose claims they are.
      claims: with their verdicts, in the order of the paper's tables and figures.
    """

    paper: Paper
    claims: tuple[Judged, ...]


def read_claims(folder: str | Path, paper: str | None = None) -> list[PaperClaims]:
    """Reads and judges all claims.

    Args:
      folder: with a folder for each paper, or the folder of one paper.
      paper: the name of the only paper to read; None for all.

    Raises:
      ValueError: for a folder without papers, an unknown paper, a table or figure without a claim,
        and an experiment that no claim names; as `read_paper`, `read_claim` and `judge`.
    """
    folder = Path(folder)
    files = sorted(folder.glob(f"*/{_PAPER}")) or [*folder.glob(_PAPER)]
    if not files:
        raise ValueError(f"{str(folder)!r} has no {_PAPER} in its folders; name a folder of papers")
    names = [file.resolve().parent.name for file in files]
    if paper is not None and paper not in names:
        raise ValueError(unknown("paper", paper, names))
    return [_of_paper(f) for f, name in zip(files, names, strict=True) if paper in (None, name)]


def _of_paper(file: Path) -> PaperClaims:
    paper = read_paper(file)
    items = list(paper.with_results)
    paths = [p for p in sorted(file.parent.glob("*.toml")) if not p.name.startswith(_SETTINGS)]
    read = [read_claim(path) for path in paths if path != file]
    for claim in read:
        if claim.item not in items:
            problem = unknown("item", claim.item, items)
            raise ValueError(f"{str(claim.path)!r}: {problem} in {_PAPER}")
    claims = [claim for claim in read if not claim.of]
    missing = [item for item in items if item not in {claim.item for claim in claims}]
    if missing:
        raise ValueError(f"{str(file)!r} has items without a claim: {', '.join(missing)}")
    _check_named(read, claims)
    claims.sort(key=lambda claim: items.index(claim.item))
    return PaperClaims(paper, tuple(judge(claim) for claim in claims))


def _check_named(read: list[Claim], claims: list[Claim]) -> None:
    named = {name for claim in claims for name in claim.shown_by}
    for claim in read:
        if claim.of and claim.path.stem not in named:
            raise ValueError(
                f"{str(claim.path)!r} is an experiment, but no claim names it in shown_by; add "
                f"{claim.path.stem!r} to {claim.of}.toml"
            )
