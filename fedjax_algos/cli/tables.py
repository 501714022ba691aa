"""The table that a run ends with."""

import math

from rich.table import Table

from fedjax_algos.analysis.summary import Reached
from fedjax_algos.runs.settings import Settings


def summary_table(summary: list[Reached], settings: Settings) -> Table:
    """One line a method; a column of FLOPs only where they were measured."""
    seeds = len(settings.seeds)
    lines = [_cells(line, seeds) for line in summary]
    unmeasured = [] if _has_flops(summary) else ["flops"]
    unmeasured += ["virtual s"] if settings.seconds is None else []
    headings = [heading for heading in lines[0] if heading not in unmeasured]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for cells in lines:
        table.add_row(*(cells[heading] for heading in headings))
    return table


def legend(summary: list[Reached], settings: Settings) -> str:
    """What the columns of the table mean."""
    seeds = len(settings.seeds)
    mean = f": mean of {seeds} seeds ± half the 95% confidence interval" if seeds > 1 else ""
    goal = f"{summary[0].label}'s best accuracy on the same seed"
    if settings.target is not None:
        goal = f"a test accuracy of {100 * settings.target:g}%"
    costs = "rounds, upload and flops" if _has_flops(summary) else "rounds, upload"
    whose = "one seed's"
    if settings.seconds is not None:
        whose += ", in lockstep those of all"
        costs = costs.replace("rounds", "rounds (server steps), virtual seconds")
    return (
        f"final, best: test accuracy in %{mean}.\n"
        f"{costs} (of all clients), reached: to {goal},\n"
        f"the median over seeds, and how many reach it. seconds: {whose}.\n"
    )


def _has_flops(summary):
    return any(line.flops is not None for line in summary)


def _cells(line: Reached, seeds: int) -> dict[str, str]:
    final = _percent(line.final, line.final_interval)
    if line.seeds_diverged:
        some = f"{line.seeds_diverged}/{seeds} diverged"
        final = "diverged" if line.seeds_diverged == seeds else some
    return {
        "method": line.label,
        "final": final,
        "best": _percent(line.best, line.best_interval),
        "rounds": "-" if line.rounds is None else f"{line.rounds:g}",
        "virtual s": "-" if line.simulated_seconds is None else f"{line.simulated_seconds:g}",
        "upload": "-" if line.upload_bytes is None else f"{line.upload_bytes / 1e6:.1f} MB",
        "flops": "-" if line.flops is None else _flops(line.flops),
        "reached": f"{line.seeds_reaching}/{seeds}",
        "seconds": f"{line.seconds:.2f}",
    }


def _flops(count: float) -> str:
    prefixes = ["", "k", "M", "G", "T", "P"]
    power = min(int(math.log10(max(count, 1))) // 3, len(prefixes) - 1)
    return f"{count / 1000**power:.1f} {prefixes[power]}FLOP"


def _percent(mean: float, half: float) -> str:
    if not math.isfinite(mean):
        return "-"
    return f"{100 * mean:.1f}" + (f" ± {100 * half:.1f}" if math.isfinite(half) else "")
