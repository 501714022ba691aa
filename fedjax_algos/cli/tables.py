"""The tables that commands print."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from fedjax_algos.analysis.evaluation import ClientSummary
from fedjax_algos.analysis.labels import display_names
from fedjax_algos.analysis.method_columns import quality_by_method
from fedjax_algos.analysis.statistics import diverged
from fedjax_algos.cli.columns import MISSING
from fedjax_algos.core import Row
from fedjax_algos.core.texts import printable
from fedjax_algos.runs.recorder import WHAT_HELPS, describe_divergence
from fedjax_algos.runs.settings import Settings

_MAX_CHARACTERS = 80  # of a cell


def plain_table(
    headings: list[str],
    rows: list[list[str]],
    justify: Literal["left", "right"] = "right",
    caption: str | None = None,
) -> Table:
    """A table without lines, in which no text is markup.

    Args:
      headings: of the columns.
      rows: the cells of each row.
      justify: the side of all columns but the first, which is on the left.
      caption: below the table.
    """
    below = caption and Text(printable(caption))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), caption=below)
    for index, heading in enumerate(headings):
        name = Text(printable(heading))
        table.add_column(name, justify=justify if index else "left", no_wrap=True)
    for cells in rows:
        table.add_row(*(Text(printable(cell, longest=_MAX_CHARACTERS)) for cell in cells))
    return table


def tuning_line(tuning: Mapping[str, Any], settings: Settings) -> str:
    """How the methods of a comparison were tuned, in a line.

    Args:
      tuning: what `tune` wrote; its `seeds` are whole numbers.
      settings: of the comparison.
    """
    seeds, both = tuning["seeds"], sorted({*tuning["seeds"]} & {*settings.seeds})
    shown = printable(", ".join(map(str, seeds)), longest=_MAX_CHARACTERS)
    line = f"The methods were tuned without test data, with seeds {shown}"
    if both:
        line += (
            f", of which {', '.join(map(str, both))} are compared here too; this favours methods "
            "that were tuned more: give other --seeds"
        )
    return line + ".\n"


def clients_table(summaries: dict[str, ClientSummary]) -> Table:
    """A table of the accuracy over clients, with one row for each method.

    Args:
      summaries: of `summarise_client_rows`.
    """
    names = display_names(summaries)
    rows = [[names[label], *map(percent, summary)] for label, summary in summaries.items()]
    return plain_table(["method", "mean", "spread", "worst tenth", "pooled"], rows)


def clients_legend(settings: Settings) -> str:
    """The meaning of the columns of `clients_table`.

    Args:
      settings: of the comparison.
    """
    steps = f", after {settings.personal_steps} more local steps" if settings.personal_steps else ""
    where = settings.evaluate_clients.replace("_", "-")
    mean = ", mean of the seeds" if len(settings.seeds) > 1 else ""
    return (
        f"accuracy in % on each client's {where} examples{mean}: of its own model or, if the "
        f"method makes none, of the global one{steps}.\n"
        "mean, spread (the standard deviation) and worst tenth are over clients, pooled over "
        "examples.\n"
    )


def non_finite_lines(rows: list[Row]) -> list[str]:
    """What to tell of numbers that are not finite, one line for each method that has some.

    Args:
      rows: of all methods and seeds.
    """
    seeds = dict.fromkeys(row["seed"] for row in rows)
    runs: dict[str, dict[float, list[Row]]] = {}
    for row in rows:
        runs.setdefault(row["method"], {seed: [] for seed in seeds})[row["seed"]].append(row)
    quality, lines = quality_by_method(rows), []
    for label, by_seed in runs.items():
        excluded = sum(own[-1].get("excluded_updates", 0) for own in by_seed.values())
        if excluded:
            lines.append(
                f"{label}: {excluded:g} updates of clients were not finite and were left out "
                "(excluded_updates in metrics.csv)"
            )
        told = [
            f"seed {seed:g} {describe_divergence(own)}"
            for (seed, own), lost in zip(by_seed.items(), diverged(quality[label]), strict=True)
            if lost
        ]
        if told:
            lines.append(f"{label}: {'; '.join(told)}. What usually helps is {WHAT_HELPS}")
    return lines


def percent(share: float) -> str:
    """A share in percent without the sign, such as `91.2`.

    Args:
      share: from 0 to 1; `-` stands for one that is not finite.
    """
    return f"{100 * share:.1f}" if math.isfinite(share) else MISSING
