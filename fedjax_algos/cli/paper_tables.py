"""The tables of the four papers, with their own columns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedjax_algos.analysis.labels import display_names
from fedjax_algos.analysis.papers import Final, FirstTime, Maximum, Target
from fedjax_algos.analysis.statistics import METRIC, describe_estimates
from fedjax_algos.analysis.tables import Column, Marked, ResultTable, Share, amounts, percentages
from fedjax_algos.cli.method_tables import quality_name

_BEST = "best: each seed's highest {quality}, chosen on test data"
_REACHED = "reached: seeds that reach the target."
_LEFT_OUT = (
    "*: without the seeds that do not reach the target, so that the mean over all is larger."
)


def paper_table(
    lines: Sequence[Any], metric: str = METRIC, labels: Mapping[str, str] | None = None
) -> ResultTable:
    """The table of a paper's summary, with one line for each method.

    Args:
      lines: of `papers.of_paper`.
      metric: column of the quality.
      labels: texts that replace labels of methods; the default ones are those of `display_names`.
    """
    names = display_names([line.label for line in lines], labels)
    columns, notes = _MAKE[type(lines[0])](lines)
    notes = [note.format(quality=quality_name(metric)) for note in notes]
    if any(line.seeds_diverged for line in lines):
        diverged = [Share(line.seeds_diverged, line.seeds) for line in lines]
        columns.append(Column("diverged", diverged))
    return ResultTable([Column("method", [*names.values()]), *columns], notes)


def _fedgbo(lines: Sequence[Maximum]) -> tuple[list[Column], list[str]]:
    columns = [
        percentages("best", [line.best for line in lines]),
        percentages("best of seeds", [line.best_of_seeds for line in lines]),
    ]
    for heading, costs in (
        ("", [line.cost for line in lines]),
        (" to the reference's", [line.reference_cost for line in lines]),
    ):
        columns += [
            Column(f"rounds{heading}", [cost and cost.rounds for cost in costs], ".10g"),
            amounts(f"upload{heading}", [cost and cost.upload_bytes for cost in costs], "B"),
            amounts(f"flops{heading}", [cost and cost.flops for cost in costs], "FLOP"),
        ]
    notes = [
        "best: the highest mean over seeds of the {quality} in % at one evaluation, chosen on "
        f"test data; {describe_estimates(lines[0].seeds)}.",
        "best of seeds: the mean of each seed's highest, chosen on test data.",
        "rounds, upload, flops (of all clients): to the first evaluation at the best mean, or at "
        "the reference's; means over seeds.",
    ]
    return _measured(columns), notes


def _fedlga(lines: Sequence[Target]) -> tuple[list[Column], list[str]]:
    censored = [line.seeds_reaching < line.seeds for line in lines]
    columns = [
        Column("rounds", _marked([line.rounds for line in lines], censored)),
        Column("time", _marked([line.seconds for line in lines], censored), ".2f", unit="s"),
        Column("time of a round", [line.seconds_per_round for line in lines], ".3f", unit="s"),
        percentages("best", [line.best for line in lines]),
        Column("reached", [Share(line.seeds_reaching, line.seeds) for line in lines]),
    ]
    notes = [
        "rounds, time: to the target, means over the seeds that reach it, if half of them do.",
        *_mark_note(columns, _LEFT_OUT),
        f"{_BEST}; in %, {describe_estimates(lines[0].seeds)}.",
        _REACHED,
    ]
    return _measured(columns), notes


def _ghbm(lines: Sequence[Final]) -> tuple[list[Column], list[str]]:
    censored = [line.seeds_reaching < line.seeds for line in lines]
    columns = [
        percentages("final", [line.final for line in lines]),
        Column("rounds", _marked([line.rounds for line in lines], censored)),
        Column("overhead", [line.overhead for line in lines]),
        amounts("traffic", _marked([line.total_bytes for line in lines], censored), "B"),
        percentages("traffic saved", [line.bytes_reduction for line in lines]),
        Column("time", _marked([line.seconds for line in lines], censored), ".2f", unit="s"),
        percentages("time saved", [line.seconds_reduction for line in lines]),
        Column("reached", [Share(line.seeds_reaching, line.seeds) for line in lines]),
    ]
    notes = [
        f"final: mean {{quality}} of the last rounds in %, {describe_estimates(lines[0].seeds)}.",
        "rounds, traffic (down and up, of all clients), time: to the reference's final value, "
        "means over seeds; the reference is charged for its whole run.",
        *_mark_note(columns, "*: seeds that do not reach it are charged for their whole runs."),
        "overhead: bytes of a round, divided by the reference's.",
        "traffic saved, time saved: share of the reference's, in %, on common seeds.",
        _REACHED,
    ]
    return _measured(columns), notes


def _fedcompass(lines: Sequence[FirstTime]) -> tuple[list[Column], list[str]]:
    censored = [line.seeds_reaching < line.seeds for line in lines]
    columns = [
        Column("simulated time", _marked([line.time for line in lines], censored), unit="s"),
        Column("relative", [line.relative for line in lines], ".2f"),
        Column("common seeds", [Share(line.seeds_common, line.seeds) for line in lines]),
        percentages("best", [line.best for line in lines]),
        percentages("deviation", [line.best_deviation for line in lines]),
        Column("reached", [Share(line.seeds_reaching, line.seeds) for line in lines]),
    ]
    notes = [
        "simulated time: to the target, mean over the seeds that reach it, if half of them do.",
        *_mark_note(columns, _LEFT_OUT),
        "relative: mean time divided by the reference's, over the common seeds, on which both "
        "reach the target.",
        f"{_BEST}; mean and standard deviation over seeds, in %.",
        _REACHED,
    ]
    return _measured(columns), notes


def _marked(values: Sequence[float | None], marks: Sequence[bool]) -> list[Marked | None]:
    return [
        None if value is None else Marked(value, mark)
        for value, mark in zip(values, marks, strict=True)
    ]


def _mark_note(columns: Sequence[Column], note: str) -> list[str]:
    marked = any(isinstance(v, Marked) and v.mark for column in columns for v in column.values)
    return [note] if marked else []


def _measured(columns: list[Column]) -> list[Column]:
    return [column for column in columns if any(value is not None for value in column.values)]


_MAKE: dict[type, Callable[[Sequence[Any]], tuple[list[Column], list[str]]]] = {
    Maximum: _fedgbo,
    Target: _fedlga,
    Final: _ghbm,
    FirstTime: _fedcompass,
}
