"""The table that a run ends with."""

import math

from rich.table import Table

from fedjax_algos.comparison import Reached
from fedjax_algos.settings import Settings


def summary_table(summary: list[Reached], settings: Settings) -> Table:
    """One line a method."""
    seeds = len(settings.seeds)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("method", no_wrap=True)
    for heading in ("final", "best", "rounds", "upload", "reached", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in summary:
        table.add_row(
            line.label,
            _percent(line.final, line.final_interval),
            _percent(line.best, line.best_interval),
            "-" if line.rounds is None else f"{line.rounds:g}",
            "-" if line.upload_bytes is None else f"{line.upload_bytes / 1e6:.1f} MB",
            f"{line.seeds_reaching}/{seeds}",
            f"{line.seconds:.2f}",
        )
    return table


def legend(summary: list[Reached], settings: Settings) -> str:
    """What the columns of the table mean."""
    seeds = len(settings.seeds)
    mean = f": mean of {seeds} seeds ± half the 95% confidence interval" if seeds > 1 else ""
    return (
        f"final, best: test accuracy in %{mean}.\n"
        f"rounds, upload (of all clients), reached: to {summary[0].label}'s best accuracy on the\n"
        "same seed, the median over seeds, and how many reach it. seconds: one seed's.\n"
    )


def _percent(mean: float, half: float) -> str:
    return f"{100 * mean:.1f}" + (f" ± {100 * half:.1f}" if math.isfinite(half) else "")
