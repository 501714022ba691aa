"""The tables that commands print."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from rich.filesize import pick_unit_and_suffix
from rich.table import Table
from rich.text import Text

from fedjax_algos.analysis.evaluation import ClientSummary
from fedjax_algos.analysis.summary import MethodSummary
from fedjax_algos.core import Row
from fedjax_algos.core.texts import printable
from fedjax_algos.runs.divergence import WHAT_HELPS, describe_divergence
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


def summary_table(summary: list[MethodSummary], settings: Settings) -> Table:
    """A table with one row for each method.

    Args:
      summary: of `summarise`.
      settings: of the comparison. Simulated seconds have a column on the virtual clock only, FLOPs
        only if they were measured.
    """
    rows = [_cells(method, len(settings.seeds)) for method in summary]
    left_out = [] if _has_flops(summary) else ["flops"]
    left_out += ["simulated s"] if settings.seconds is None else []
    headings = [heading for heading in rows[0] if heading not in left_out]
    return plain_table(headings, [[cells[heading] for heading in headings] for cells in rows])


def legend(summary: list[MethodSummary], settings: Settings) -> str:
    """The meaning of the columns of `summary_table`.

    Args:
      summary: of `summarise`.
      settings: of the comparison.
    """
    seeds = len(settings.seeds)
    mean = f": mean of {seeds} seeds ± half the 95% confidence interval" if seeds > 1 else ""
    target = (
        f"{printable(summary[0].label, longest=_MAX_CHARACTERS)}'s best accuracy on the same seed"
    )
    if settings.target is not None:
        target = f"a test accuracy of {100 * settings.target:g}%"
    costs = "rounds, upload and flops" if _has_flops(summary) else "rounds, upload"
    seconds = "wall time of one seed"
    if settings.seconds is not None:
        seconds += ", or of all seeds whose plans are merged"
        costs = costs.replace("rounds", "rounds (server steps), simulated seconds")
    return (
        f"final, best: test accuracy in %{mean}.\n"
        f"{costs} (of all clients): to {target},\n"
        f"the median over seeds. reached: seeds that reach it. seconds: {seconds}.\n"
    )


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
            f"; {', '.join(map(str, both))} of them are compared here too, which favours methods "
            "that were tuned more: give other --seeds"
        )
    return line + ".\n"


def clients_table(summaries: dict[str, ClientSummary]) -> Table:
    """A table of the accuracy over clients, with one row for each method.

    Args:
      summaries: of `summarise_client_rows`.
    """
    rows = [
        [label, *(percent(value, math.nan) for value in summary)]
        for label, summary in summaries.items()
    ]
    return plain_table(["method", "mean", "spread", "worst tenth", "pooled"], rows)


def clients_legend(settings: Settings) -> str:
    """The meaning of the columns of `clients_table`.

    Args:
      settings: of the comparison.
    """
    steps = f" after {settings.personal_steps} more local steps" if settings.personal_steps else ""
    where = settings.evaluate_clients.replace("_", "-")
    mean = ", mean of the seeds" if len(settings.seeds) > 1 else ""
    return (
        f"accuracy in % of each client's own model{steps}, on its {where} examples{mean}.\n"
        "mean, spread (the standard deviation) and worst tenth are over clients, pooled over "
        "examples.\n"
    )


def non_finite_lines(rows: list[Row]) -> list[str]:
    """What to tell of numbers that are not finite, one line for each method that has some.

    Args:
      rows: of all methods and seeds.
    """
    runs: dict[str, dict[float, list[Row]]] = {}
    for row in rows:
        runs.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row)
    lines = []
    for label, by_seed in runs.items():
        excluded = sum(own[-1].get("excluded_updates", 0) for own in by_seed.values())
        if excluded:
            lines.append(
                f"{label}: {excluded:g} updates of clients were not finite and were left out "
                "(excluded_updates in metrics.csv)"
            )
        diverged = [
            f"seed {seed:g} {describe_divergence(own)}"
            for seed, own in by_seed.items()
            if not math.isfinite(own[-1].get("test_loss", 0))
        ]
        if diverged:
            lines.append(f"{label}: {'; '.join(diverged)}. What usually helps is {WHAT_HELPS}")
    return lines


def percent(mean: float, half_width: float) -> str:
    """A share and its confidence interval in percent, such as `91.2 ± 0.4`.

    Args:
      mean: from 0 to 1; `-` stands for a mean that is not finite.
      half_width: of the interval, likewise; left out if it is not finite.
    """
    if not math.isfinite(mean):
        return "-"
    return f"{100 * mean:.1f}" + (f" ± {100 * half_width:.1f}" if math.isfinite(half_width) else "")


def _has_flops(summary):
    return any(method.flops is not None for method in summary)


def _cells(method: MethodSummary, seeds: int) -> dict[str, str]:
    final = percent(method.final, method.final_interval)
    if method.seeds_diverged:
        some = f"{method.seeds_diverged}/{seeds} diverged"
        final = "diverged" if method.seeds_diverged == seeds else some
    return {
        "method": method.label,
        "final": final,
        "best": percent(method.best, method.best_interval),
        "rounds": "-" if method.rounds is None else f"{method.rounds:g}",
        "simulated s": "-" if method.simulated_seconds is None else f"{method.simulated_seconds:g}",
        "upload": "-" if method.upload_bytes is None else f"{method.upload_bytes / 1e6:.1f} MB",
        "flops": "-" if method.flops is None else _flops(method.flops),
        "reached": f"{method.seeds_reaching}/{seeds}",
        "seconds": f"{method.seconds:.2f}",
    }


def _flops(count: float) -> str:
    unit, prefix = pick_unit_and_suffix(int(count), ["", "k", "M", "G", "T", "P"], 1000)
    return f"{count / unit:.1f} {prefix}FLOP"
