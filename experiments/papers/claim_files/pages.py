"""A claim as a page of text, and pages of Markdown: of all papers, and of one."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from claim_files.checks import Check
from claim_files.measured import Quantity
from claim_files.verdicts import VERDICTS, Judged, PaperClaims, read_claims
from fedjax_algos.analysis import tables as formats
from fedjax_algos.analysis.tables import MISSING, Column, ResultTable
from fedjax_algos.base.reprs import printable

WIDTH = 100
FEW = 6  # checks that are all on the page
ABOUT = (
    "Every table and figure with results of the four papers, claims about compression from several "
    "sources, a comparison of fair objectives, and what the simulator shows of them. A verdict "
    "follows from the numbers, by the rules of [the README of the "
    "claims](../experiments/papers/README.md): an order holds if it is there with 95% confidence "
    "on paired seeds, whose number was fixed before the run. What was trained on other data, with "
    "another model or in a smaller setting than the paper's names these stand-ins, and is not "
    "called reproduced. Claims that train nothing (counts, costs, plans) are counted apart."
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
    papers = read_claims()
    made = {"claims.md": overview_page(papers)}
    made |= {f"claims/{each.paper.name}.md": paper_page(each) for each in papers}
    for name, page in made.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != page:  # Sphinx reads what is newer
            path.write_text(page)


def claim_page(judged: Judged) -> str:
    """A claim with its setting, numbers and checks, for a terminal.

    Args:
      judged: the claim.
    """
    claim = judged.claim
    verdict = judged.verdict if not claim.of else "holds" if judged.holds else "does not hold"
    blocks = [f"{claim.path.stem} ({claim.item}): {verdict}", claim.claim]
    parts = {
        "Printed": claim.printed,
        "Stand-ins": "; ".join(claim.stand_ins or ()),
        "Differences": "; ".join(claim.differences),
        "Changed": claim.changed,
        "Command": command(judged),
        "Needs": claim.needs,
    }
    blocks += [f"{name}: {text}" for name, text in parts.items() if text]
    pages = ["\n".join(map(_wrapped, blocks))]
    tables = value_tables(judged)
    pages += [formats.text(tables).rstrip()] * bool(tables)
    pages += ["\n".join(f"{_mark(check)} {_said(check)}" for check in judged.checks)]
    pages += [_wrapped(text) for text in (claim.seen, claim.reason, claim.open)]
    pages += [claim_page(experiment).rstrip() for experiment in judged.shown_by]
    return "\n\n".join(page for page in pages if page) + "\n"


def command(judged: Judged) -> str:
    """The line that runs a claim; empty if it cannot be run here."""
    if judged.claim.needs:
        return ""
    return f"python experiments/papers/claims.py run {judged.claim.name}"


def overview_page(papers: Sequence[PaperClaims]) -> str:
    """The claims of all papers and their verdicts, for the documentation.

    Args:
      papers: with their claims.
    """
    verdicts = [f"- **{verdict}**: {meaning}." for verdict, meaning in VERDICTS.items()]
    blocks = ["# The papers, claim by claim", ABOUT, "\n".join(verdicts)]
    blocks += ["Claims that train:", _counts(papers, True)]
    blocks += ["Claims that train nothing:", _counts(papers, False)]
    for each in papers:
        paper, page = each.paper, f"claims/{each.paper.name}.md"
        blocks.append(f"## {paper.title}")
        blocks.append(f"{paper.source} ([numbers]({page}))")
        lines = ["| item | claim | seen on | verdict |", "| --- | --- | --- | --- |"]
        for judged in each.claims:
            claim = judged.claim
            link = f"[{judged.verdict}]({page}#{claim.path.stem})"
            cells = (claim.item, claim.claim, seen_on(judged))
            lines.append(f"| {' | '.join(map(formats.markdown_text, cells))} | {link} |")
        blocks.append("\n".join(lines))
        blocks += _listed("Results without a claim", paper.without_claim)
        blocks += _listed("Without results to check", paper.without_results)
    return _page(blocks)


def seen_on(judged: Judged) -> str:
    """What stands in for the paper's data, model and setting."""
    claim = judged.claim
    if claim.needs:
        return "-"
    if not claim.trains:
        return "nothing is trained"
    return "; ".join(claim.stand_ins or ()) or "the paper's data, model and setting"


def paper_page(claims: PaperClaims) -> str:
    """The claims of a paper with their numbers, for the documentation.

    Args:
      claims: of the paper.
    """
    blocks = [f"# {claims.paper.title}", "[All papers](../claims.md)", CELLS]
    for judged in claims.claims:
        blocks += _section(judged)
    blocks += _listed("Results without a claim", claims.paper.without_claim, "## ")
    return _page(blocks)


def _listed(heading: str, items: Mapping[str, str], level: str = "") -> list[str]:
    if not items:
        return []
    lines = "\n".join(f"- {item}: {why}." for item, why in items.items())
    return [f"{level}{heading}{'' if level else ':'}", lines]


def _page(blocks: Sequence[str]) -> str:
    lines = "\n\n".join(blocks).split("\n")
    return "\n".join(map(printable, lines)) + "\n"


def value_tables(judged: Judged) -> list[ResultTable]:
    """What was seen beside the paper's values.

    With one case, or one method, there is one table with a column for each measure. Else there is a
    table for each measure, with its cases beside the methods, the more numerous of them as lines.

    Args:
      judged: the claim.
    """
    known = dict.fromkeys([*judged.measured, *(Quantity(*q) for q in judged.claim.printed_values)])
    measures, cases, methods = (list(dict.fromkeys(parts)) for parts in zip(*known, strict=True))
    if len(cases) == 1 or len(methods) == 1:
        by_method = len(cases) == 1
        lines = methods if by_method else cases
        columns = {
            m: [
                Quantity(m, cases[0], line) if by_method else Quantity(m, line, methods[0])
                for line in lines
            ]
            for m in measures
        }
        return [_table_of(judged, "method" if by_method else "case", lines, columns)]
    tables = []
    for m in measures:
        if len(methods) >= len(cases):
            columns = {case: [Quantity(m, case, method) for method in methods] for case in cases}
            tables.append(_table_of(judged, "method", methods, columns, m))
        else:
            columns = {method: [Quantity(m, case, method) for case in cases] for method in methods}
            tables.append(_table_of(judged, "case", cases, columns, m))
    return tables


def _table_of(
    judged: Judged,
    heading: str,
    lines: list[str],
    columns: Mapping[str, list[Quantity]],
    title: str = "",
) -> ResultTable:
    """A table without the lines and columns in which nothing was measured or printed."""
    cells = {name: [_cell(judged, q) for q in quantities] for name, quantities in columns.items()}
    kept = [i for i in range(len(lines)) if any(column[i] != MISSING for column in cells.values())]
    shown = [Column(heading, [lines[i] for i in kept])]
    shown += [
        Column(name, [column[i] for i in kept])
        for name, column in cells.items()
        if any(cell != MISSING for cell in column)
    ]
    return ResultTable(shown, [], title)


def _cell(judged: Judged, key: Quantity) -> str:
    seen, printed = judged.measured.get(key), judged.claim.printed_values.get(key)
    here = seen.text() if seen else MISSING
    return here if printed is None else f"{here} | {printed:.6g}"


def _section(judged: Judged) -> list[str]:
    claim = judged.claim
    level = "###" if claim.of else "##"
    blocks = [f"{level} {claim.path.stem}"]
    said = "Experiment" if claim.of else f"{claim.item}, {judged.verdict}"
    file = f"[{claim.path.name}]({EXPERIMENTS}/{claim.name}.toml)"
    blocks.append(f"**{said}.** {claim.claim} ({file})")
    if claim.needs:
        return [*blocks, f"It needs: {claim.needs}"]
    blocks += [f"Stand-ins: {'; '.join(claim.stand_ins)}."] if claim.stand_ins else []
    blocks += [f"Changed after a miss: {claim.changed}"] * bool(claim.changed)
    blocks += [formats.markdown(value_tables(judged)).rstrip(), _checks(judged), claim.seen]
    blocks += [claim.reason] * bool(claim.reason)
    blocks += [f"Why it is open: {claim.open}"] * bool(claim.open)
    for experiment in judged.shown_by:
        blocks += _section(experiment)
    return blocks


def _checks(judged: Judged) -> str:
    """The checks that do not hold, or all if they are few."""
    if len(judged.checks) <= FEW:
        return "\n".join(f"- {_mark(check)} {_said(check)}" for check in judged.checks)
    failed = [check for check in judged.checks if not check.holds]
    lines = [f"{len(judged.checks) - len(failed)} of {len(judged.checks)} checks hold."]
    lines += [""] * bool(failed) + [f"- {_mark(check)} {_said(check)}" for check in failed]
    return "\n".join(lines)


def _counts(papers: Sequence[PaperClaims], trains: bool) -> str:
    names = [each.paper.name for each in papers]
    rows = [
        [
            verdict,
            *(
                str(sum(j.verdict == verdict and j.claim.trains == trains for j in each.claims))
                for each in papers
            ),
        ]
        for verdict in VERDICTS
    ]
    rows = [row for row in rows if set(row[1:]) != {"0"}]
    columns = [Column(h, [row[i] for row in rows]) for i, h in enumerate(["verdict", *names])]
    return formats.markdown([ResultTable(columns, [])]).rstrip()


def _mark(check: Check) -> str:
    return "holds:" if check.holds else "DOES NOT HOLD:"


def _said(check: Check) -> str:
    return f"{printable(check.text)} ({check.seen})"


def _wrapped(text: str) -> str:
    return textwrap.fill(printable(text), WIDTH, subsequent_indent="  ")
