"""Pages of Markdown: of all papers, of one, and of a claim."""

import html
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from claim_files.checks import Check
from claim_files.headlines import headline_table
from claim_files.measured import Quantity
from claim_files.reading import Claim
from claim_files.verdicts import ENDINGS, VERDICTS, Judged, JudgedClaim, PaperClaims, judge
from claim_files.verdicts import read_claims as judged_claims
from fedjax_algos.analysis import tables as formats
from fedjax_algos.analysis.tables import MISSING, Column, ResultTable
from fedjax_algos.base.reprs import printable

WIDTH = 100
FEW = 6  # checks that are all on the page
FEW_NAMES = 1  # of stand-ins, on the line of a claim
WHOLE = "the paper's data, model and setting"
KNOWN = [verdict + ending for verdict in VERDICTS for ending in ENDINGS]
ABOUT = (
    "A claim has a row for each result. The verdict on a row follows from the numbers: an order "
    "holds if it is there with 95% confidence on paired seeds. [The files of the "
    "claims](claims_format.md) have the rules."
)
CELLS = (
    "Cells of the tables: the mean over seeds ± half its 95% interval here, and after a bar the "
    "paper's value. Settings, differences from the paper's, and commands are in the files."
)
EXPERIMENTS = "../../experiments/papers"  # from the page of a paper


def write_pages(out: Path) -> None:
    """Writes the page of all papers, and one for each.

    Args:
      out: folder for claims.md and the folder claims/.
    """
    papers = judged_claims()
    made = {"claims.md": overview_page(papers, headline_table())}
    made |= {f"claims/{each.paper.name}.md": paper_page(each) for each in papers}
    for name, page in made.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != page:  # Sphinx reads what is newer
            path.write_text(page)


def claim_page(claim: Claim) -> str:
    """A claim with its settings, numbers and checks, for a terminal.

    Args:
      claim: as of `read_claim`.
    """
    blocks = _section(JudgedClaim(claim, tuple(map(judge, claim.rows))), full=True)
    lines = html.unescape("\n\n".join(blocks)).split("\n")
    return _page(["\n".join(map(_wrapped, lines))])


def overview_page(papers: Sequence[PaperClaims], headlines: str = "") -> str:
    """The claims of all papers and their verdicts, for the documentation.

    Args:
      papers: with their claims.
      headlines: the table of the headline questions.
    """
    blocks = ["# The papers, claim by claim", *[headlines] * bool(headlines), ABOUT]
    blocks += ["Rows by their verdicts:", _counts([c for each in papers for c in each.claims])]
    for each in papers:
        paper, page = each.paper, f"claims/{each.paper.name}.md"
        blocks.append(f"## {paper.title}")
        blocks.append(f"[Numbers, and results without a claim]({page})")
        lines = ["| item | claim | seen on | verdict |", "| --- | --- | --- | --- |"]
        for judged in each.claims:
            claim = judged.claim
            link = f"[{judged.verdict}]({page}#{claim.path.stem})"
            cells = (claim.item, claim.claim, seen_on(judged))
            lines.append(f"| {' | '.join(map(formats.markdown_text, cells))} | {link} |")
        blocks.append("\n".join(lines))
    return _page(blocks)


def seen_on(judged: JudgedClaim) -> str:
    """Names the stand-ins for the paper's data, model and setting, in the rows that were run."""
    run = [each.row for each in judged.rows if each.checks]
    rows = [row for row in run if row.trains]
    if not rows:
        return "nothing is trained" if run else "-"
    named = list(dict.fromkeys(name for row in rows for name in row.stand_ins or ()))
    named = [*named[:FEW_NAMES], *["more"] * (len(named) > FEW_NAMES)]
    own, whole = (
        [row for row in rows if not row.stand_ins and row.own == is_own] for is_own in (True, False)
    )
    named += ["a setting of our own"] * bool(own)
    chosen = ", ".join(dict.fromkeys(name for row in whole for name in row.chosen))
    papers = f"the paper's data and model; chosen here: {chosen}" if chosen else WHOLE
    return "; ".join([*[papers] * bool(whole), *named])


def paper_page(claims: PaperClaims) -> str:
    """The claims of a paper with their numbers, for the documentation.

    Args:
      claims: of the paper.
    """
    blocks = [f"# {claims.paper.title}", claims.paper.source, "[All papers](../claims.md)", CELLS]
    for judged in claims.claims:
        blocks += _section(judged)
    for heading, items in (
        ("Results without a claim", claims.paper.without_claim),
        ("Without results to check", claims.paper.without_results),
    ):
        lines = "\n".join(f"- {item}: {why}." for item, why in items.items())
        blocks += [f"## {heading}", lines] * bool(items)
    return _page(blocks)


def _page(blocks: Sequence[str]) -> str:
    lines = "\n\n".join(blocks).split("\n")
    return "\n".join(map(printable, lines)) + "\n"


def _section(judged: JudgedClaim, full: bool = False) -> list[str]:
    """A claim: the table of its rows, and what is said of each; `full` with its settings."""
    claim = judged.claim
    file = f"[{claim.path.name}]({EXPERIMENTS}/{claim.name}.toml)"
    blocks = [
        f"## {claim.path.stem}",
        f"**{claim.item}: {judged.verdict}.** {claim.claim} ({file})",
    ]
    if len(judged.rows) == 1:
        return blocks + _row(judged.rows[0], judged.rows, "###", full)
    lines = ["| row | verdict |", "| --- | --- |"]
    for each in judged.rows:
        said = formats.markdown_text(each.row.claim)
        lines.append(f"| {said} | [{each.verdict}](#{each.row.name}) |")
    blocks.append("\n".join(lines))
    run = [_parts(each, full).items() for each in judged.rows if each.checks]
    shared = [part for part in run[0] if all(part in own for own in run)] if len(run) > 1 else []
    blocks += [f"{name}: {text}." for name, text in shared]
    shown: set[Path] = set()
    for each in judged.rows:
        verdict = each.verdict[0].upper() + each.verdict[1:]
        blocks += [f"### {each.row.name}", f"**{verdict}.** {each.row.claim}"]
        csv = each.row.csv
        alike = [other for other in judged.rows if other.row.csv == csv and csv not in shown]
        blocks += _row(each, alike, "####", full, [name for name, _ in shared])
        shown.add(csv)
    return blocks


def _parts(judged: Judged, full: bool) -> dict[str, str]:
    """Texts about a row beside its numbers, by name; `full` with its settings."""
    row = judged.row
    parts = {"It needs": row.needs}
    if judged.checks:
        parts["Chosen here"] = "; ".join(row.chosen)
        parts["Stand-ins"] = "; ".join(row.stand_ins or ())
        parts["Changed after a miss"] = row.changed
    if full:
        parts |= {"Printed": row.printed, "Differences": "; ".join(row.differences)}
    return {name: text.removesuffix(".") for name, text in parts.items() if text}


def _row(
    judged: Judged, alike: Sequence[Judged], level: str, full: bool, known: Sequence[str] = ()
) -> list[str]:
    """Describes a row, with the values of all rows in `alike`, which have the same runs."""
    row = judged.row
    blocks = [f"{n}: {text}." for n, text in _parts(judged, full).items() if n not in known]
    if full and not row.needs:
        blocks.append(f"python experiments/papers/claims.py run {row.path.parent.name}/{row.name}")
    tables = value_tables([each for each in alike if each.checks])
    blocks += [formats.markdown(tables).rstrip()] * bool(tables)
    blocks += [text for text in (_checks(judged), row.seen, row.reason) if text]
    blocks += [f"Why it is open: {row.open}"] * bool(row.open)
    for experiment in judged.shown_by:
        own = experiment.row
        file = f"[{own.path.name}]({EXPERIMENTS}/{own.path.parent.name}/{own.path.name})"
        blocks += [f"{level} {own.name}", f"**Experiment.** {own.claim} ({file})"]
        blocks += _row(experiment, [experiment], level, full)
    return blocks


def value_tables(rows: Sequence[Judged]) -> list[ResultTable]:
    """Tables of the values of rows with the same runs, beside the paper's values.

    With one case, or one method, there is one table with a column for each measure. Else there is a
    table for each measure, with its cases beside the methods, the more numerous of them as lines.

    Args:
      rows: of the same file of values.

    Raises:
      ValueError: if two rows print different values for one cell.
    """
    printed: dict[Quantity, float] = {}
    for row in (each.row for each in rows):
        for quantity, value in ((Quantity(*q), v) for q, v in row.printed_values.items()):
            if printed.setdefault(quantity, value) != value:
                raise ValueError(
                    f"{row.path}, {row.name}: the paper's value of {quantity} is {value:g}, and "
                    f"{printed[quantity]:g} in a row with the same runs; give the row its own paper"
                )
    seen = {q: values.text() for each in rows for q, values in each.measured.items()}
    cells = {q: seen.get(q, MISSING) for q in (*seen, *printed)}
    cells |= {q: f"{cells[q]} | {value:.6g}" for q, value in printed.items()}
    if not cells:
        return []
    measures, cases, methods = (list(dict.fromkeys(parts)) for parts in zip(*cells, strict=True))
    if len(cases) == 1 or len(methods) == 1:
        by_method = len(cases) == 1
        flat = {((q.method if by_method else q.case), q.measure): c for q, c in cells.items()}
        return [_table("method" if by_method else "case", flat, measures)]
    tables = []
    for measure in measures:
        own = {q: cell for q, cell in cells.items() if q.measure == measure}
        if len(methods) >= len(cases):
            flat = {(q.method, q.case): cell for q, cell in own.items()}
            tables.append(_table("method", flat, cases, measure))
        else:
            flat = {(q.case, q.method): cell for q, cell in own.items()}
            tables.append(_table("case", flat, methods, measure))
    return tables


def _table(heading: str, cells: Mapping[tuple[str, str], str], columns, title="") -> ResultTable:
    """A table of cells by line and column, without empty columns."""
    lines = list(dict.fromkeys(line for line, _ in cells))
    made = [Column(heading, lines)]
    for name in columns:
        if any(column == name for _, column in cells):
            made.append(Column(name, [cells.get((line, name), MISSING) for line in lines]))
    return ResultTable(made, [], title)


def _checks(judged: Judged) -> str:
    """The checks that do not hold, or all if they are few."""
    if len(judged.checks) <= FEW:
        return "\n".join(f"- {_mark(check)} {_said(check)}" for check in judged.checks)
    failed = [check for check in judged.checks if not check.holds]
    lines = [f"{len(judged.checks) - len(failed)} of {len(judged.checks)} checks hold."]
    lines += [""] * bool(failed) + [f"- {_mark(check)} {_said(check)}" for check in failed]
    return "\n".join(lines)


def counted(claims: Sequence[JudgedClaim], trains: bool) -> dict[str, int]:
    """Counts the rows by verdict.

    Args:
      claims: with their rows.
      trains: whether rows that train are counted, or those that train nothing.
    """
    found = Counter(r.verdict for c in claims for r in c.rows if r.row.trains == trains)
    return {verdict: found[verdict] for verdict in KNOWN if found[verdict]}


def _counts(claims: Sequence[JudgedClaim]) -> str:
    trained, nothing = counted(claims, trains=True), counted(claims, trains=False)
    verdicts = [verdict for verdict in KNOWN if verdict in trained | nothing]
    columns = [Column("verdict", verdicts)]
    for name, found in (("trained", trained), ("nothing is trained", nothing)):
        columns.append(Column(name, [str(found.get(verdict, 0)) for verdict in verdicts]))
    return formats.markdown([ResultTable(columns, [])]).rstrip()


def _mark(check: Check) -> str:
    return "holds:" if check.holds else "DOES NOT HOLD:"


def _said(check: Check) -> str:
    return f"{printable(check.text)} ({check.seen})"


def _wrapped(line: str) -> str:
    return line if line.startswith("|") else textwrap.fill(line, WIDTH, subsequent_indent="  ")
