"""The tables of a comparison: each method by itself, and against the reference."""

from fedjax_algos.analysis.statistics import describe_estimates
from fedjax_algos.analysis.summary import (
    MethodSummary,
    PairedSummary,
    summarise,
    summarise_pairs,
)
from fedjax_algos.cli.columns import Column, ResultTable, Share, amounts, percentages
from fedjax_algos.core import Row
from fedjax_algos.core.texts import printable

_MAX_CHARACTERS = 80  # of a label in a note
_WITHOUT = (
    "without: seeds on which one of the two has diverged; of three or four others it is "
    "lowest..highest, of one or two their values."
)
CENSORED = (
    ">: more than half of the seeds do not reach it at the cost of their whole runs, as shown."
)
CHOSEN_BY_TEST_DATA = (
    "The settings are in the order of their final test accuracy: to choose one from this table is "
    "to choose it by test data. `fedjax-algos tune` chooses on held-out examples instead."
)
CHOSEN_ON_TEST_DATA = "best: the highest test accuracy over the evaluations, chosen on test data."


def method_tables(
    rows: list[Row], target: float | None = None, reference: str | None = None
) -> list[ResultTable]:
    """A table with one line for each method, and one of the others against the reference.

    Columns that were not measured are left out.

    Args:
      rows: of all methods on the same seeds.
      target: the test accuracy to reach; None: the reference's best on the same seed.
      reference: the label of a method; None: the first.
    """
    summary = summarise(rows, target, reference)
    pairs = summarise_pairs(rows, target, reference)
    name = printable(summary[0].label if reference is None else reference, _MAX_CHARACTERS)
    goal = f"{name}'s best accuracy on the same seed"
    if target is not None:
        goal = f"a test accuracy of {100 * target:g}%"
    tables = [_of_methods(summary, goal)]
    return [*tables, _of_pairs(pairs, name)] if pairs else tables


def _of_methods(summary: list[MethodSummary], goal: str) -> ResultTable:
    costs = _costs(summary)
    on_clock = any(column.heading == "simulated time" for column in costs)
    of_all = " (of all clients)" if len(costs) > 1 else ""
    names = ", ".join(column.heading for column in costs)
    if on_clock:
        names = names.replace("rounds", "rounds (server steps)")
    seeds = summary[0].seeds
    notes = [
        f"final, best: test accuracy in %, {describe_estimates(seeds)}.",
        CHOSEN_ON_TEST_DATA,
        f"{names}{of_all}: to {goal}{', the median over seeds' * (seeds > 1)}.",
        "reached: seeds that reach it. wall time: of one seed"
        + ", or of all seeds whose plans are merged" * on_clock
        + ".",
    ]
    if any(" > " in f" {cell}" for column in costs for cell in column.cells()):
        notes.insert(3, CENSORED)
    columns = [
        Column("method", [line.label for line in summary]),
        percentages("final", [line.final for line in summary]),
        percentages("best", [line.best for line in summary]),
        *costs,
        Column("reached", [Share(line.seeds_reaching, line.seeds) for line in summary]),
        Column("wall time", [line.seconds for line in summary], ".2f", unit="s"),
    ]
    return ResultTable(columns, notes)


def _of_pairs(pairs: list[PairedSummary], reference: str) -> ResultTable:
    costs = [
        Column(f"{heading} ratio", values, ".2f")
        for heading, values in (
            ("rounds", [line.rounds_ratio for line in pairs]),
            ("simulated time", [line.simulated_seconds_ratio for line in pairs]),
            ("upload", [line.upload_bytes_ratio for line in pairs]),
            ("flops", [line.flops_ratio for line in pairs]),
        )
        if any(value is not None for value in values)
    ]
    notes = [
        f"final, best: minus {reference}'s on the same seed, in percentage points, "
        f"{describe_estimates(pairs[0].seeds)}.",
        "common seeds: those on which both reach the target."
        + " ratios: mean cost to it, divided by the reference's, over these seeds." * bool(costs),
    ]
    if any(line.final.without or line.best.without for line in pairs):
        notes.insert(1, _WITHOUT)
    columns = [
        Column("method", [line.label for line in pairs]),
        percentages("final", [line.final for line in pairs], signed=True),
        percentages("best", [line.best for line in pairs], signed=True),
        *costs,
        Column("common seeds", [Share(line.seeds_common, line.seeds) for line in pairs]),
    ]
    return ResultTable(columns, notes, f"compared with {reference}")


def _costs(summary: list[MethodSummary]) -> list[Column]:
    """Those that were measured."""
    columns = [
        Column("rounds", [line.rounds for line in summary], ".10g"),
        Column("simulated time", [line.simulated_seconds for line in summary], unit="s"),
        amounts("upload", [line.upload_bytes for line in summary], "B"),
        amounts("flops", [line.flops for line in summary], "FLOP"),
    ]
    return [column for column in columns if any(value is not None for value in column.values)]
