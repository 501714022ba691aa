"""The table of headline questions: what the papers print, and what is seen here."""

import math
import tomllib
from pathlib import Path
from typing import Any

from claim_files.checks import compare, paper_effect
from claim_files.measured import Quantity, read_measured
from claim_files.reading import PAPERS, read_row
from fedjax_algos.analysis.tables import markdown_text

COLUMNS = "question", "paper", "here (95%)", "seeds", "data and model", "tuned alike", "answer"
ABOUT = (
    "These are the questions that readers of the four papers ask first. Differences are in points "
    "of accuracy. A ratio is the other method's cost divided by the first one's: above 1, the "
    "first one is better. The numbers are computed from the files of the claims, with 95% "
    "intervals over seeds."
)


def headline_table(file: Path = PAPERS / "headlines.toml") -> str:
    """The table, as Markdown, with a line for each comparison of a question.

    Args:
      file: of the questions, which name rows of claims, measures and methods.

    Raises:
      ValueError: for a row, or a value, that does not exist.
    """
    lines = [ABOUT, "", f"| {' | '.join(COLUMNS)} |", "| --- " * len(COLUMNS) + "|"]
    for question in tomllib.loads(file.read_text())["questions"]:
        for number, part in enumerate(question["comparisons"]):
            asked = question["question"] if number == 0 else ""
            cells = map(markdown_text, (asked, *_line(file.parent, part)))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _line(folder: Path, part: dict[str, Any]) -> list[str]:
    """A comparison of two methods."""
    paper, name = part["row"].split("/")
    row = read_row(folder / paper, name)
    lower = "lower" in part
    first, other = part["lower" if lower else "higher"], part["than"]
    keys = [Quantity(part["measure"], part.get("case", ""), method) for method in (first, other)]
    printed = paper_effect(lower, *(row.printed_values.get(key) for key in keys))
    shown = "-" if printed is None else f"{math.exp(printed):.3g}" if lower else f"{printed:+.3g}"
    if part.get("run", True):
        seen = read_measured(row.csv)
        if missing := [key for key in keys if key not in seen]:
            raise ValueError(f"{part['row']} has no values of {missing}; name others")
        one, two = (seen[key] for key in keys)
        clear, _, here = compare(lower, one, two)
        answer = "yes" if clear else "no" if compare(lower, two, one)[0] else "not clear"
        here = here.removeprefix(", ") or f"{first}: {one.text()}; {other}: {two.text()}"
        here = f"at least: {here}" if two.censored.any() and not one.censored.any() else here
        seeds = str(len(one.seeds))
    else:
        here, seeds, answer = "not run yet", "-", "not known"
    note = f", {part['note']}" if "note" in part else ""
    return [f"{other}: {shown}", here, seeds, part["on"], part["tuned"], answer + note]
