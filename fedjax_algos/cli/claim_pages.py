"""A claim as a page of text, and all claims as a page of Markdown."""

import textwrap
from collections.abc import Sequence

from fedjax_algos.analysis.claims import VERDICTS, Check, Judged, PaperClaims, Quantity
from fedjax_algos.cli import formats
from fedjax_algos.cli.columns import MISSING, Column, ResultTable
from fedjax_algos.core.texts import printable

_WIDTH = 100
_ABOUT = (
    "Every table and figure with results of the four papers, and what the simulator shows of it. "
    "A verdict follows from the numbers: orders are checked on the same seeds, and hold if the 95% "
    "confidence interval of the paired difference excludes 0. Each claim has a file, from which "
    "`fedjax-algos claims --markdown` makes this page."
)
_CELLS = "Cells: mean over seeds ± half the 95% interval here, then the paper's value."


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


def markdown_page(papers: Sequence[PaperClaims]) -> str:
    """All claims with their numbers, for the documentation.

    Args:
      papers: with their claims.
    """
    verdicts = [f"- **{verdict}**: {meaning}." for verdict, meaning in VERDICTS.items()]
    blocks = ["# The papers, claim by claim", _ABOUT, "\n".join(verdicts), _counts(papers)]
    for each in papers:
        paper = each.paper
        blocks += [f"## {paper.title}", f"{paper.authors}, {paper.year}. <{paper.link}>"]
        rows = [[j.claim.item, j.claim.claim, j.verdict] for j in each.claims]
        blocks.append(_table(["item", "claim", "verdict"], rows))
        for judged in each.claims:
            blocks += _section(judged, paper.name)
        without = [f"{item} ({why})" for item, why in paper.without_results.items()]
        blocks += [f"Without results to check: {', '.join(without)}."] * bool(without)
    return "\n\n".join(blocks) + "\n"


def value_tables(judged: Judged) -> list[ResultTable]:
    """What was seen beside the paper's values: methods by cases, or by measures for one case.

    Args:
      judged: the claim.
    """
    keys = dict.fromkeys([*judged.measured, *(Quantity(*key) for key in judged.claim.paper)])
    measures = list(dict.fromkeys(key.measure for key in keys))
    if len({key.case for key in keys}) > 1:
        return [_values(judged, [key for key in keys if key.measure == m], m) for m in measures]
    return [_values(judged, list(keys), "")] if keys else []


def _values(judged: Judged, keys: list[Quantity], measure: str) -> ResultTable:
    methods = list(dict.fromkeys(key.method for key in keys))
    names = list(dict.fromkeys((key.measure, key.case) for key in keys))
    columns = [Column("method", methods)]
    for name in names:
        cells = [_cell(judged, Quantity(*name, method)) for method in methods]
        columns.append(Column(name[1] if measure else name[0], cells))
    return ResultTable(columns, [], measure)


def _cell(judged: Judged, key: Quantity) -> str:
    seen, printed = judged.measured.get(key), judged.claim.paper.get(key)
    here = seen.text() if seen else MISSING
    return here if printed is None else f"{here} | {printed:.6g}"


def _section(judged: Judged, paper: str) -> list[str]:
    claim = judged.claim
    path = f"experiments/papers/{paper}/{claim.path.name}"
    title = f"Experiment {claim.path.stem}" if claim.of else f"{claim.item}: {judged.verdict}"
    blocks = [f"### {title}", claim.claim]
    facts = [f"- Printed: {claim.printed}"] * bool(claim.printed)
    if claim.needs:
        return [*blocks, "\n".join([*facts, f"- Needs: {claim.needs}"])]
    facts += [f"- Here: {'; '.join(claim.differences)}"] * bool(claim.differences)
    facts += [f"- Command: `{claim.command}` ({claim.minutes:g} minutes on one CPU core)"]
    facts += [f"- File: [{path}](../{path})"]
    blocks += ["\n".join(facts), formats.markdown(value_tables(judged)).rstrip(), _CELLS]
    blocks.append("\n".join(f"- {_mark(check)} {_said(check)}" for check in judged.checks))
    blocks += [text for text in (claim.seen, claim.reason) if text]
    for experiment in judged.shown_by:
        blocks += _section(experiment, paper)
    return blocks


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
        said += f"; effect {check.effect:.3g}, paper {check.paper_effect:.3g}"
    return said


def _wrapped(text: str) -> str:
    return textwrap.fill(printable(text), _WIDTH, subsequent_indent="  ")
