"""Tables of results: columns of values, written as text, Markdown, LaTeX, CSV or JSON."""

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedjax_algos.analysis.labels import check_names, label_text
from fedjax_algos.analysis.statistics import Mark
from fedjax_algos.base.reprs import printable, si_prefix

if TYPE_CHECKING:
    from rich.table import Table

MISSING = "-"
# forms of marked cells, and of the other cells in a column with marks
_OF_TEXT = {"best": "{} *", "not told": "{} ~", "": "{}  "}
_OF_MARKDOWN = {"best": "**{}**", "not told": "*{}*", "": "{}"}
_OF_LATEX = {"best": r"\textbf{{{}}}", "not told": r"\textit{{{}}}", "": "{}"}
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
# letters of Latin-1 that LaTeX can set without further packages
_ACCENTED = {chr(code) for code in range(0xC0, 0x100)} - {*"ÐÞðþ"}


class Column(NamedTuple):
    """A column with one value for each line of a table."""

    heading: str
    values: Sequence[Any]  # texts, numbers, None, or what has a `text`, such as an `Estimate`
    form: str = "g"  # of a number
    scale: float = 1  # numbers are divided by it
    unit: str = ""
    marks: Sequence[Mark] = ()  # of the best value, and of values that cannot be told from it

    def cells(self, with_unit: bool = False) -> list[str]:
        """Formats the values; percentages and percentage points have no unit."""
        unit = f" {self.unit}" if with_unit and self.unit not in ("", "%", "points") else ""
        return [_cell(x, lambda v: f"{v / self.scale:{self.form}}{unit}") for x in self.values]

    def title(self) -> str:
        """Returns the heading, with the unit if there is one."""
        return f"{self.heading} ({self.unit})" if self.unit else self.heading

    def is_text(self) -> bool:
        """Returns whether the values are names and not numbers."""
        return all(isinstance(value, str) for value in self.values)


class ResultTable(NamedTuple):
    """Columns of the same length, with notes; the first column names the lines."""

    columns: list[Column]
    notes: list[str]  # sentences
    title: str = ""
    marked: str = ""  # explains marks, with {best} and {other} for their names

    def legend(self, best: str = "*", other: str = "~") -> list[str]:
        """Returns the notes, and the meaning of the marks if there are any."""
        marked = any(mark for column in self.columns for mark in column.marks)
        return [*self.notes, *([self.marked.format(best=best, other=other)] if marked else [])]

    def text_lines(self) -> list[list[str]]:
        """Returns the cells of each line with units, and `*` or `~` after marked cells."""
        return _lines(self, _OF_TEXT)

    def choose(self, names: Sequence[str]) -> "ResultTable":
        """Returns the table with its first column, the named columns, and their notes."""
        by_name = {column.heading: column for column in self.columns[1:]}
        chosen = [self.columns[0], *(by_name[name] for name in names if name in by_name)]
        notes = [note for note in self.notes if _explains(note, chosen, self.columns)]
        return self._replace(columns=chosen, notes=notes)


def choose_columns(tables: Sequence[ResultTable], names: Sequence[str]) -> list[ResultTable]:
    """Chooses columns of tables, with `_` for a space; leaves out tables without any of them."""
    known = dict.fromkeys(c.heading for table in tables for c in table.columns[1:])
    chosen = check_names("columns", [name.replace("_", " ") for name in names], known)
    reduced = (table.choose(chosen) for table in tables)
    return [table for table in reduced if len(table.columns) > 1]


def _explains(note: str, chosen: Sequence[Column], columns: Sequence[Column]) -> bool:
    """Returns whether a note is about a chosen column, or about the whole table."""
    names = re.sub(r" \(.*?\)", "", note.partition(": ")[0]).split(", ")
    about = set()
    for column in columns[1:]:
        cells = column.cells(with_unit=True)
        if column.heading in names or any(name in cell for name in names for cell in cells):
            about.add(column.heading)
    return not about or any(column.heading in about for column in chosen)


class SeedCount(NamedTuple):
    """A number of seeds out of all, such as `9/10`."""

    part: int
    whole: int

    def text(self, show: Callable[[float], str]) -> str:
        """Formats the two counts."""
        return f"{self.part}/{self.whole}"


def amounts(heading: str, values: Sequence[Any], unit: str) -> Column:
    """Makes a column of bytes or operations, with the largest prefix that leaves values >= 1."""
    seen: list[float] = []

    def collect(number: float) -> str:
        seen.append(number)
        return ""

    for value in values:
        _cell(value, collect)
    smallest = min((each for each in seen if each >= 1 and math.isfinite(each)), default=1)
    factor, prefix = si_prefix(smallest)
    return Column(heading, values, ".1f", factor, prefix + unit)


def percentages(
    heading: str, values: Sequence[Any], signed: bool = False, marks: Sequence[Mark] = ()
) -> Column:
    """Makes a column of shares in percent, or of signed differences in percentage points."""
    form, unit = ("+z.1f", "points") if signed else ("z.1f", "%")
    return Column(heading, values, form, 0.01, unit, marks)


def _cell(value: Any, show: Callable[[float], str]) -> str:
    if value is None or isinstance(value, str):
        return MISSING if value is None else value
    if hasattr(value, "text"):
        return value.text(show)
    return show(value) if math.isfinite(value) else MISSING


def plain_table(
    headings: Sequence[str],
    lines: Sequence[Sequence[str]],
    justify: Literal["left", "right"] = "right",
) -> "Table":
    """Makes a table without rules for a terminal; texts are not markup, names are on the left."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, heading in enumerate(headings):
        name = Text(printable(heading))
        table.add_column(name, justify=justify if index else "left", no_wrap=True)
    for cells in lines:
        table.add_row(*(Text(label_text(cell)) for cell in cells))
    return table


def text(tables: Sequence[ResultTable]) -> str:
    """Writes tables for a terminal, with units in the cells, each followed by its notes."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(width=1000, file=file)
    for table in tables:
        headings = [column.heading for column in table.columns]
        if table.title:
            file.write(printable(table.title, longest=100) + "\n\n")
        console.print(plain_table(headings, table.text_lines()), "")
        file.write("".join(f"{printable(line)}\n" for line in [*table.legend(), ""]))
    return "\n".join(line.rstrip() for line in file.getvalue().split("\n")).strip() + "\n"


def markdown(tables: Sequence[ResultTable]) -> str:
    """Writes tables in GitHub's Markdown, each followed by its notes."""
    blocks = []
    for table in tables:
        rule = ["---" if column.is_text() else "---:" for column in table.columns]
        lines = [[markdown_text(column.title()) for column in table.columns], rule]
        lines += _lines(table, _OF_MARKDOWN, lambda cell, column: markdown_text(cell))
        blocks += [[f"**{markdown_text(table.title)}**"]] * bool(table.title)
        blocks.append([f"| {' | '.join(line)} |" for line in lines])
        blocks.append([*map(markdown_text, table.legend("bold", "italic"))])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def markdown_text(cell: str) -> str:
    """Escapes a text for Markdown, also for its tables."""
    cell = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", printable(cell))
    return cell.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def latex(tables: Sequence[ResultTable]) -> str:
    """Writes tables for LaTeX with the package booktabs; notes are comments, for the caption."""
    return "\n".join(map(_tabular, tables))


def records(lines: Sequence[Any]) -> list[dict[str, Any]]:
    """Converts named tuples of one type to records that all have the same columns."""
    found: list[dict[str, Any]] = []
    for line in lines:
        record: dict[str, Any] = {}
        for name, value in line._asdict().items():
            plain = " ".join(map(str, value)) if isinstance(value, tuple) else value
            record |= value.record(name) if hasattr(value, "record") else {name: plain}
        found.append(record)
    columns = dict.fromkeys(itertools.chain(*sorted(found, key=len, reverse=True)))
    return [{name: record.get(name) for name in columns} for record in found]


def as_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Writes records with all digits and no units; missing or non-finite values are empty."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_plain, records))
    return file.getvalue()


def as_json(records: Sequence[Mapping[str, Any]]) -> str:
    """Writes an array of records; missing or non-finite values are null."""
    return json.dumps([_plain(record) for record in records], allow_nan=False) + "\n"


FORMATS = {"text": text, "markdown": markdown, "latex": latex}  # of tables
RECORD_FORMATS = {"csv": as_csv, "json": as_json}  # of records, such as the results of `statistics`


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces non-finite numbers of a record by None, and escapes control characters in texts."""
    plain: dict[str, Any] = {}
    for name, value in record.items():
        lost = isinstance(value, float) and not math.isfinite(value)
        plain[name] = printable(value) if isinstance(value, str) else None if lost else value
    return plain


def _lines(
    table: ResultTable, marks: Mapping[str, str], show: Callable[[str, Column], str] | None = None
) -> list[list[str]]:
    """Returns each line's cells with their marks; `show` replaces the format with units."""
    columns = []
    for column in table.columns:
        cells = column.cells(with_unit=show is None)
        cells = cells if show is None else [show(cell, column) for cell in cells]
        forms = [marks[mark] for mark in column.marks if any(column.marks)] or ["{}"] * len(cells)
        columns.append([form.format(cell) for form, cell in zip(forms, cells, strict=True)])
    return [list(line) for line in zip(*columns, strict=True)]


def _tabular(table: ResultTable) -> str:
    columns = "".join("l" if column.is_text() else "r" for column in table.columns)
    notes = [note for note in [table.title, *table.legend("bold", "italic")] if note]
    headings = [_escape(column.title()) for column in table.columns]
    cells = [headings, *_lines(table, _OF_LATEX, _latex)]
    heading, *lines = (" & ".join(line) + r" \\" for line in cells)
    before = [r"% needs \usepackage{booktabs}", *(f"% {printable(note)}" for note in notes)]
    before += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", heading, r"\midrule"]
    return "\n".join([*before, *lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex(cell: str, column: Column) -> str:
    if column.is_text():
        return _escape(cell)
    if cell == MISSING:
        return "--"
    cell = cell.replace("..", " to ")
    cell = re.sub(r"(?<![\w.])([+-])(?=\d)", r"$\1$", cell)  # signs of numbers, not of exponents
    return cell.replace("±", r"$\pm$").replace("> ", "$>$ ").replace("≥ ", r"$\geq$ ")


def _escape(text: str) -> str:
    """Escapes a text for LaTeX; characters that LaTeX may lack are escaped as in `printable`."""
    known = "".join(
        c if c.isascii() or c in _ACCENTED else c.encode("unicode_escape").decode()
        for c in printable(text)
    )
    escaped = "".join(_LATEX.get(character, character) for character in known)
    return re.sub("-(?=-)", "-{}", escaped)  # two hyphens would be a dash
