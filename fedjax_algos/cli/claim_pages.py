"""A claim as a page of text, and pages of Markdown: of all papers, and of one."""

import textwrap
from collections.abc import Mapping, Sequence

from fedjax_algos.analysis.claims import VERDICTS, Check, Judged, PaperClaims, Quantity
from fedjax_algos.cli import formats
from fedjax_algos.cli.columns import MISSING, Column, ResultTable
from fedjax_algos.core.texts import printable

_WIDTH = 100
_FEW = 6  # checks that are all on the page
_ABOUT = (
    "Every table and figure with results of the four papers, and what the simulator shows of it. A "
    "verdict follows from the numbers: an order holds if it is there with 95% confidence on paired "
    "seeds. Each claim has a file, as [the README of the claims](../experiments/papers/README.md) "
    "says. `fedjax-algos claims --markdown` makes this page from these files, and with `--paper` "
    "the pages of the papers, which have the numbers."
)
_CELLS = (
    "Cells of the tables: the mean over seeds ± half its 95% interval here, and after a bar the "
    "paper's value. Settings, differences from the paper's, and commands are in the files."
)
_EXPERIMENTS = "../../experiments/papers"  # from the page of a paper


def claim_page(judged: Judged) -> str:
    """A claim with its setting, numbers and checks, for a terminal.

    Args:
      judged: the claim.
    """
    claim = judged.claim
    blocks = [f"{claim.path.stem} ({claim.item}): {judged.verdict}", claim.claim]
    parts = {
        "Printed": claim.printed,
        "Differences": "; ".join(claim.differences),
        "Command": claim.command,
        "Needs": claim.needs,
    }
    blocks += [f"{name}: {text}" for name, text in parts.items() if text]
    pages = ["\n".join(map(_wrapped, blocks))]
    tables = value_tables(judged)
    pages += [formats.text(tables).rstrip()] * bool(tables)
    pages += ["\n".join(f"{_mark(check)} {_said(check)}" for check in judged.checks)]
    pages += [_wrapped(text) for text in (claim.seen, claim.reason)]
    pages += [claim_page(experiment).rstrip() for experiment in judged.shown_by]
    return "\n\n".join(page for page in pages if page) + "\n"


def overview_page(papers: Sequence[PaperClaims]) -> str:
    """The claims of all papers and their verdicts, for the documentation.

    Args:
      papers: with their claims.
    """
    verdicts = [f"- **{verdict}**: {meaning}." for verdict, meaning in VERDICTS.items()]
    blocks = ["# The papers, claim by claim", _ABOUT, "\n".join(verdicts), _counts(papers)]
    for each in papers:
        paper, page = each.paper, f"claims/{each.paper.name}.md"
        blocks.append(f"## {paper.title}")
        blocks.append(f"{paper.authors}, {paper.year}. <{paper.link}> ([numbers]({page}))")
        lines = ["| item | claim | verdict |", "| --- | --- | --- |"]
        for judged in each.claims:
            link = f"[{judged.verdict}]({page}#{judged.claim.path.stem})"
            item, claim = (formats.markdown_text(t) for t in judged.claim[1:3])
            lines.append(f"| {item} | {claim} | {link} |")
        blocks.append("\n".join(lines))
        without = [f"{item} ({why})" for item, why in paper.without_results.items()]
        blocks += [f"Without results to check: {', '.join(without)}."] * bool(without)
    return _page(blocks)


def paper_page(claims: PaperClaims) -> str:
    """The claims of a paper with their numbers, for the documentation.

    Args:
      claims: of the paper.
    """
    blocks = [f"# {claims.paper.title}", "[All papers](../claims.md)", _CELLS]
    for judged in claims.claims:
        blocks += _section(judged, claims.paper.name)
    return _page(blocks)


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
    known = dict.fromkeys([*judged.measured, *(Quantity(*q) for q in judged.claim.paper)])
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
    seen, printed = judged.measured.get(key), judged.claim.paper.get(key)
    here = seen.text() if seen else MISSING
    return here if printed is None else f"{here} | {printed:.6g}"


def _section(judged: Judged, paper: str) -> list[str]:
    claim = judged.claim
    level = "###" if claim.of else "##"
    blocks = [f"{level} {claim.path.stem}"]
    said = "Experiment" if claim.of else f"{claim.item}, {judged.verdict}"
    file = f"[{claim.path.name}]({_EXPERIMENTS}/{paper}/{claim.path.name})"
    blocks.append(f"**{said}.** {claim.claim} ({file})")
    if claim.needs:
        return [*blocks, f"It needs: {claim.needs}"]
    blocks += [formats.markdown(value_tables(judged)).rstrip(), _checks(judged), claim.seen]
    blocks += [claim.reason] * bool(claim.reason)
    for experiment in judged.shown_by:
        blocks += _section(experiment, paper)
    return blocks


def _checks(judged: Judged) -> str:
    """The checks that do not hold, or all if they are few."""
    if len(judged.checks) <= _FEW:
        return "\n".join(f"- {_mark(check)} {_said(check)}" for check in judged.checks)
    failed = [check for check in judged.checks if not check.holds]
    lines = [f"{len(judged.checks) - len(failed)} of {len(judged.checks)} checks hold."]
    lines += [""] * bool(failed) + [f"- {_mark(check)} {_said(check)}" for check in failed]
    return "\n".join(lines)


def _counts(papers: Sequence[PaperClaims]) -> str:
    names = [each.paper.name for each in papers]
    rows = [
        [verdict, *(str(sum(j.verdict == verdict for j in each.claims)) for each in papers)]
        for verdict in VERDICTS
    ]
    return _table(["verdict", *names], rows)


def _table(headings: list[str], rows: list[list[str]]) -> str:
    columns = [Column(h, [row[i] for row in rows]) for i, h in enumerate(headings)]
    return formats.markdown([ResultTable(columns, [])]).rstrip()


def _mark(check: Check) -> str:
    return "holds:" if check.holds else "DOES NOT HOLD:"


def _said(check: Check) -> str:
    said = f"{printable(check.text)} ({check.seen})"
    if check.effect is not None and check.paper_effect is not None:
        said += f"; the paper's {check.paper_effect:.3g}"
    return said


def _wrapped(text: str) -> str:
    return textwrap.fill(printable(text), _WIDTH, subsequent_indent="  ")
