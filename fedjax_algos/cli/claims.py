"""The command that shows the claims of papers with their verdicts: `claims`."""

import io
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedjax_algos.analysis.claims import (
    VERDICTS,
    Judged,
    PaperClaims,
    judge,
    read_claim,
    read_claims,
)
from fedjax_algos.cli.claim_pages import claim_page, overview_page, paper_page
from fedjax_algos.cli.options import Command
from fedjax_algos.cli.tables import plain_table

_DEFAULT = Path("experiments", "papers")


@click.command(cls=Command)
@click.argument("folder", required=False, metavar="[FOLDER]")
@click.option("--paper", metavar="NAME", help="only this paper: the name of its folder")
@click.option("--json", "as_json", is_flag=True, help="print everything as JSON")
@click.option(
    "--markdown", "as_markdown", is_flag=True, help="print a page of all papers, or of one"
)
def claims(folder: str | None, paper: str | None, as_json: bool, as_markdown: bool) -> None:
    """Show the claims of papers with what was seen of them, and the verdict that follows.

    FOLDER has a folder for each paper; by default it is experiments/papers of the checkout in which
    the command runs. For the file of one claim (CLAIM.toml), all of its numbers are shown.
    """
    if as_json and as_markdown:
        raise ValueError("--json and --markdown are both given; leave one of them out")
    path = Path(folder) if folder is not None else _default_folder()
    if path.suffix == ".toml":
        if paper or as_json or as_markdown:
            raise ValueError(f"{folder!r} is one claim, which has no options; leave them out")
        return click.echo(claim_page(judge(read_claim(path))), nl=False)
    papers = read_claims(path, paper)
    if as_json:
        return click.echo(json.dumps([_record(each) for each in papers], allow_nan=False))
    if as_markdown:
        page = overview_page(papers) if paper is None else paper_page(papers[0])
        return click.echo(page, nl=False)
    return click.echo(_overview(papers), nl=False)


def _default_folder() -> Path:
    here = Path.cwd()
    for parent in (here, *here.parents):
        if (parent / _DEFAULT).is_dir():
            return parent / _DEFAULT
    raise ValueError(f"no folder {str(_DEFAULT)!r} in {str(here)!r} or above it; name a folder")


def _overview(papers: Sequence[PaperClaims]) -> str:
    rows = [
        [each.paper.name, judged.claim.item, judged.verdict, judged.claim.path.stem]
        for each in papers
        for judged in each.claims
    ]
    console = Console(width=1000, file=io.StringIO())
    console.print(plain_table(["paper", "item", "verdict", "claim"], rows, "left"), "")
    counts = Counter(judged.verdict for each in papers for judged in each.claims)
    for verdict, meaning in VERDICTS.items():
        console.out(f"{counts[verdict]:4} {verdict}: {meaning}", highlight=False)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def _record(each: PaperClaims) -> dict[str, Any]:
    return {**each.paper._asdict(), "claims": [_claim_record(judged) for judged in each.claims]}


def _claim_record(judged: Judged) -> dict[str, Any]:
    claim = judged.claim
    printed = [
        {"measure": measure, "case": case, "method": method, "value": value}
        for (measure, case, method), value in claim.paper.items()
    ]
    seen = [
        {
            **key._asdict(),
            "seeds": measured.seeds,
            "values": [value if math.isfinite(value) else None for value in measured.values],
            "censored": measured.censored.tolist(),
        }
        for key, measured in judged.measured.items()
    ]
    checks = [check._asdict() for check in judged.checks]
    own = {**claim._asdict(), "path": claim.path.name, "paper": printed}
    shown_by = [_claim_record(experiment) for experiment in judged.shown_by]
    found = {"verdict": judged.verdict, "measured": seen, "checks": checks, "shown_by": shown_by}
    return own | found
