"""Formats of tables: text, Markdown, LaTeX, CSV and JSON."""

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from fedjax_algos.cli.columns import MISSING, Column, ResultTable
from fedjax_algos.cli.tables import plain_table
from fedjax_algos.core.texts import printable

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "'": r"\textquotesingle{}",
    '"': r"{\ttfamily\char34}",  # a command for it is not in LaTeX's default encoding
    "`": r"\textasciigrave{}",
    **{character: f"\\{character}" for character in "_%&#${}"},
    **{character: f"{{{character}}}" for character in "[]*"},  # not an argument of the \\ before
}
_OF_MARKDOWN = {"best": "**{}**", "not told": "*{}*"}  # marked cells
_OF_LATEX = {"best": r"\textbf{{{}}}", "not told": r"\textit{{{}}}"}
_ACCENTED = range(0xC0, 0x100)  # letters of Latin-1, which LaTeX can set without further packages
_NOT_SET = "ÐÞðþ"


def text(tables: Sequence[ResultTable]) -> str:
    """Tables for a terminal, with units in the cells, each followed by its notes.

    Args:
      tables: of a comparison.
    """
    console = Console(width=1000, file=io.StringIO())
    for table in tables:
        cells = [column.text_cells() for column in table.columns]
        headings = [column.heading for column in table.columns]
        if table.title:
            console.out(printable(table.title, longest=100), "", sep="\n", highlight=False)
        console.print(plain_table(headings, [list(line) for line in zip(*cells, strict=True)]), "")
        console.out(*map(printable, table.legend()), "", sep="\n", highlight=False)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().split("\n")).strip() + "\n"


def markdown(tables: Sequence[ResultTable]) -> str:
    """Tables as GitHub shows them, each followed by its notes.

    Args:
      tables: of a comparison.
    """
    blocks = []
    for table in tables:
        rule = ["---" if column.is_text() else "---:" for column in table.columns]
        lines = [[markdown_text(column.title()) for column in table.columns], rule]
        lines += _lines(table, lambda cell, column: markdown_text(cell), _OF_MARKDOWN)
        blocks += [[f"**{markdown_text(table.title)}**"]] * bool(table.title)
        blocks += [
            [f"| {' | '.join(line)} |" for line in lines],
            [*map(markdown_text, table.legend("bold", "italic"))],
        ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def latex(tables: Sequence[ResultTable]) -> str:
    """Tables for LaTeX with the package booktabs; the notes are comments, for the caption.

    Args:
      tables: of a comparison.
    """
    return "\n".join(map(_tabular, tables))


def as_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """The numbers without units; what was not measured or is not finite is empty.

    Args:
      records: one for each method, by column.
    """
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_plain, records))
    return file.getvalue()


def as_json(records: Sequence[Mapping[str, Any]]) -> str:
    """An array of objects; what was not measured or is not finite is null.

    Args:
      records: one for each method, by column.
    """
    return json.dumps([_plain(record) for record in records], allow_nan=False) + "\n"


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers as they are, without those that are not finite; texts without control characters."""
    plain: dict[str, Any] = {}
    for name, value in record.items():
        finite = not isinstance(value, float) or math.isfinite(value)
        plain[name] = printable(value) if isinstance(value, str) else value if finite else None
    return plain


def _lines(table: ResultTable, show, marks: Mapping[str, str]) -> list[list[str]]:
    cells = []
    for column in table.columns:
        shown = [show(cell, column) for cell in column.cells()]
        looks = [marks.get(mark, "{}") for mark in column.marks] or ["{}"] * len(shown)
        cells.append([look.format(cell) for look, cell in zip(looks, shown, strict=True)])
    return [list(line) for line in zip(*cells, strict=True)]


def markdown_text(cell: str) -> str:
    """A text as it is, also in a table of Markdown.

    Args:
      cell: the text.
    """
    cell = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", printable(cell))
    return cell.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _tabular(table: ResultTable) -> str:
    columns = "".join("l" if column.is_text() else "r" for column in table.columns)
    notes = [
        f"% {printable(note)}" for note in [table.title, *table.legend("bold", "italic")] if note
    ]
    lines = [
        r"% needs \usepackage{booktabs}",
        *notes,
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _line(_escape(column.title()) for column in table.columns),
        r"\midrule",
        *map(_line, _lines(table, _latex, _OF_LATEX)),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _line(cells) -> str:
    return " & ".join(cells) + r" \\"


def _latex(cell: str, column: Column) -> str:
    if column.is_text():
        return _escape(cell)
    if cell == MISSING:
        return "--"
    cell = cell.replace("..", " to ")
    cell = re.sub(r"(?<![\w.])([+-])(?=\d)", r"$\1$", cell)  # signs of numbers, not of exponents
    return cell.replace("±", r"$\pm$").replace("> ", "$>$ ").replace("≥ ", r"$\geq$ ")


def _escape(text: str) -> str:
    """A text for LaTeX. Characters that it may lack are escapes, as in `printable`."""
    known = [
        c
        if c.isascii() or (ord(c) in _ACCENTED and c not in _NOT_SET)
        else c.encode("unicode_escape").decode()
        for c in printable(text)
    ]
    escaped = "".join(_LATEX.get(character, character) for character in "".join(known))
    return re.sub("-(?=-)", "-{}", escaped)  # two hyphens would be a dash
