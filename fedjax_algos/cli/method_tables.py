"""Makes the tables and lines that commands print: of methods, settings, clients and divergence."""

import itertools
import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from fedjax_algos.analysis import statistics
from fedjax_algos.analysis.labels import display_names, label_text
from fedjax_algos.analysis.rows import quality_by_method, rows_by_run, within_budget
from fedjax_algos.analysis.statistics import METRIC, describe_estimates, metric_column
from fedjax_algos.analysis.summary import (
    MethodSummary,
    PairedSummary,
    compared_values,
    summarise,
    summarise_pairs,
)
from fedjax_algos.analysis.tables import Column, ResultTable, SeedCount, amounts, percentages
from fedjax_algos.core import Row
from fedjax_algos.core.options import check_choice
from fedjax_algos.runs.loops.recorder import WHAT_HELPS, describe_divergence, describe_excluded
from fedjax_algos.runs.results import (
    new_client_accuracies,
    participation_ginis,
    summarise_client_rows,
)
from fedjax_algos.runs.studies.settings import Settings

_WITHOUT = (
    "without: seeds where one of the two has diverged; of three or four others it is "
    "lowest..highest, of one or two their values."
)
_CHOSEN_BY_TEST_DATA = (
    "The settings are in the order of their final {}: to choose one from this table is "
    "to choose it by test data. `fedjax-algos tune` chooses on held-out examples instead."
)
_MARKED = (  # {best} and {other} stand for the marks
    "{best}: the highest mean over seeds of the column. {other}: cannot be told from it by a "
    f"two-sided paired t test on the same {{seeds}} seeds, at {100 * statistics.LEVEL:g}% over all "
    "pairs of methods (Holm's correction). Methods that have diverged on a seed are not compared."
)
_NOT_MARKED = (
    f"The best is not marked: a test needs at least {statistics.MIN_SEEDS_OF_AN_INTERVAL} seeds, "
    "and a method that has not diverged on any."
)
_LATE = " That is often late on a noisy curve; --target sets a fixed one."


class Goal(NamedTuple):
    """The target that methods are compared on."""

    target: float | None = None  # the quality to reach; None: the reference's best on the same seed
    reference: str | None = None  # the label of a method; None: the first
    metric: str = METRIC  # column of the quality
    budget: str | None = None  # the cost for the comparison of methods


_DEFAULT_GOAL = Goal()


def goal_of(settings: Settings, labels: Collection[str] | None = None) -> Goal:
    """Returns the goal of the settings; checks that the reference is one of the methods."""
    if labels is not None and settings.reference is not None:
        check_choice("reference", settings.reference, labels)
    metric = metric_column(settings.target_metric)
    return Goal(settings.target, settings.reference, metric, settings.budget)


def best_first(rows: list[Row], metric: str = METRIC) -> list[Row]:
    """Sorts rows by their methods' final quality; diverged methods come last."""
    finals = {line.label: line.final.mean for line in summarise(rows, metric=metric)}
    order = sorted(finals, key=lambda label: (math.isnan(finals[label]), -finals[label]))
    return sorted(rows, key=lambda row: order.index(row["method"]))


def quality_name(metric: str) -> str:
    """Returns the name of a metric in texts, such as "test accuracy"."""
    return label_text(metric.replace("_", " "))


def method_tables(
    rows: list[Row],
    goal: Goal = _DEFAULT_GOAL,
    *,
    is_sweep: bool = False,
    labels: Mapping[str, str] | None = None,
) -> list[ResultTable]:
    """Makes a table of the methods, and a table of their differences from the reference.

    Columns that were not measured are left out. A sweep has the second table only with a reference,
    and costs only with a reference or a target: its first setting is the best on test data, so we
    compare nothing with it. One method alone has costs only with a target.
    """
    rows, notes = within_budget(rows, goal.budget)
    summary = summarise(rows, goal.target, goal.reference, metric=goal.metric)
    names = display_names([line.label for line in summary], labels)
    name = label_text(names[goal.reference or summary[0].label])
    quality = quality_name(goal.metric)
    of_sweep = is_sweep and goal.target is None and goal.reference is None
    aim = None
    if goal.target is not None:
        aim = f"a {quality} of {100 * goal.target:g}%"
    elif len(summary) > 1 and not of_sweep:
        aim = f"{name}'s best {quality.removeprefix('test ')} on the same seed"
    if aim is not None:
        each = statistics.describe_costs(summary[0].seeds_with_target)
        aim += (f", {each}." if each else ".") + _LATE * (goal.target is None)
    table = _of_methods(summary, aim, quality, names, of_sweep)
    notes = notes + table.notes
    if is_sweep and len(summary) > 1:
        notes.append(_CHOSEN_BY_TEST_DATA.format(quality))
    tables = [table._replace(notes=notes)]
    if aim is None or len(summary) == 1 or (is_sweep and goal.reference is None):
        return tables
    pairs = summarise_pairs(rows, goal.target, goal.reference, metric=goal.metric)
    return [*tables, _of_pairs(pairs, name, names)]


def _of_methods(
    summary: list[MethodSummary],
    aim: str | None,
    quality: str,
    names: Mapping[str, str],
    of_sweep: bool,
) -> ResultTable:
    """Makes the table of the methods, with their costs to the aim if there is one."""
    on_clock = any(line.simulated_seconds is not None for line in summary)
    finals, bests = [line.final for line in summary], [line.best for line in summary]
    final_marks, best_marks = (
        [*statistics.mark_best(compared_values(summary, name)).values()] * (len(summary) > 1)
        for name in ("final", "best")
    )
    columns = [
        Column("setting" if of_sweep else "method", [names[line.label] for line in summary]),
        percentages("final", finals, marks=final_marks),
        percentages("best", bests, marks=best_marks),
    ]
    private = _measured(Column("epsilon", [line.epsilon for line in summary], ".3g"))
    notes = [
        f"final, best: {quality} in %, {describe_estimates(summary[0].seeds)}.",
        f"best: the highest {quality} over the evaluations, chosen on test data.",
        *["epsilon: of the whole run; config.json describes its unit and its delta."]
        * len(private),
    ]
    columns += private
    if aim is None:
        diverged = [SeedCount(line.seeds_diverged, line.seeds) for line in summary]
        columns.append(Column("diverged", diverged))
    else:
        costs = _measured(
            Column("rounds", [line.rounds for line in summary], ".10g"),
            Column("simulated time", [line.simulated_seconds for line in summary], unit="s"),
            amounts("upload", [line.upload_bytes for line in summary], "B"),
            amounts("flops", [line.flops for line in summary], "FLOP"),
        )
        measured = ", ".join(column.heading for column in costs)
        if on_clock:
            measured = measured.replace("rounds", "rounds (server steps)")
        of_all = " (of all clients)" if len(costs) > 1 else ""
        notes += [f"{measured}{of_all}: to {aim}"]
        notes += _censored(costs)
        if without := summary[0].seeds_without_target:
            seeds = f"seed{'s' * (len(without) > 1)} {', '.join(map(str, without))}"
            notes.append(f"without {seeds}, on which the reference has diverged: no target.")
        notes.append("reached: seeds that reach it.")
        reached = [SeedCount(line.seeds_reaching, line.seeds_with_target) for line in summary]
        columns += [*costs, Column("reached", reached)]
    if not of_sweep:
        columns.append(Column("wall time", [line.seconds for line in summary], ".2f", unit="s"))
        merged = ", or of all seeds whose plans are merged" * on_clock
        notes.append(f"wall time: of one seed{merged}.")
        if aim is None:
            notes.append(f"Costs to a {quality} are shown with --target.")
    if len(summary) > 1 and not any(final_marks):
        notes.append(_NOT_MARKED)
    return ResultTable(columns, notes, marked=_MARKED.replace("{seeds}", str(summary[0].seeds)))


def _censored(costs: list[Column]) -> list[str]:
    """Explains unknown costs such as `> 100`, with the first example of each form."""
    cells = [cell for column in costs for cell in column.cells(with_unit=True)]
    parts = [part for cell in cells for part in cell.split(", ")]
    first = [next((part for part in parts if form in part), "") for form in ("> ", "≥ ", "..")]
    examples = ", ".join(filter(None, first))
    reason = "all that is known, because seeds had not reached the target when their runs ended."
    return [f"{examples}: {reason}"] if examples else []


def _of_pairs(pairs: list[PairedSummary], reference: str, names: Mapping[str, str]) -> ResultTable:
    costs = _measured(
        Column("rounds ratio", [line.rounds_ratio for line in pairs], ".2f"),
        Column("simulated time ratio", [line.simulated_seconds_ratio for line in pairs], ".2f"),
        Column("upload ratio", [line.upload_bytes_ratio for line in pairs], ".2f"),
        Column("flops ratio", [line.flops_ratio for line in pairs], ".2f"),
    )
    notes = [
        f"final, best: minus {reference}'s on the same seed, in percentage points, "
        f"{describe_estimates(pairs[0].seeds)}.",
        "common seeds: the seeds where both reach the target."
        + " ratios: mean cost to it, divided by the reference's, over these seeds." * bool(costs),
    ]
    if any(line.final.without or line.best.without for line in pairs):
        notes.insert(1, _WITHOUT)
    columns = [
        Column("method", [names[line.label] for line in pairs]),
        percentages("final", [line.final for line in pairs], signed=True),
        percentages("best", [line.best for line in pairs], signed=True),
        *costs,
        Column("common seeds", [SeedCount(line.seeds_common, line.seeds) for line in pairs]),
    ]
    return ResultTable(columns, notes, f"compared with {reference}")


def _measured(*columns: Column) -> list[Column]:
    return [column for column in columns if any(value is not None for value in column.values)]


def clients_table(rows_of_clients: list[Row], settings: Settings) -> ResultTable:
    """Makes a table of the accuracy over clients, with one line for each method."""
    summaries = summarise_client_rows(rows_of_clients)
    names = display_names(summaries)
    # headings of the fields of a summary
    headings = ("mean", "spread", "worst tenth", "pooled", "best tenth", "Jain index")
    *shares, jain = zip(headings, zip(*summaries.values(), strict=True), strict=True)
    columns = [*(percentages(*each) for each in shares), Column(*jain, ".3f")]
    if settings.sampler.startswith("seen:"):
        columns.insert(1, percentages("new", new_client_accuracies(rows_of_clients)))
    ginis = participation_ginis(rows_of_clients)
    columns += [Column("Gini", ginis, ".3f")] if ginis else []
    steps = f", after {settings.personal_steps} more local steps" if settings.personal_steps else ""
    where = settings.evaluate_clients.replace("_", "-")
    mean = ", mean of the seeds" if len(settings.seeds) > 1 else ""
    notes = [
        f"accuracy in % on each client's {where} examples{mean}: of its own model or, if the "
        f"method makes none, of the global one{steps}.",
        "mean, spread (the standard deviation), worst and best tenth are over clients, pooled over "
        "examples. Jain index: 1 if all clients have the same accuracy.",
        *["new: mean over the clients that never trained."] * (columns[1].heading == "new"),
        *["Gini: of the clients' numbers of dispatches; 0 if all are equal."] * bool(ginis),
    ]
    return ResultTable([Column("method", [names[label] for label in summaries]), *columns], notes)


def tuning_line(tuning: Mapping[str, Any], settings: Settings) -> str:
    """Describes how the compared methods were tuned; `tuning` is the record of `tune`."""
    line = "The methods were tuned without test data, with seeds "
    line += label_text(", ".join(map(str, tuning["seeds"])))
    if common := {*tuning["seeds"]} & {*settings.seeds}:
        fix = "which favours methods that were tuned more: give other --seeds"
        line += f"; this comparison also uses {', '.join(map(str, sorted(common)))}, {fix}"
    return f"{line}.\n"


def non_finite_lines(rows: list[Row]) -> list[str]:
    """Reports numbers that are not finite, in one line for each method that has some."""
    seeds = dict.fromkeys(row["seed"] for row in rows)
    quality, lines = quality_by_method(rows), []
    for label, by_seed in rows_by_run(rows).items():
        if number := sum(run[-1].get("excluded_updates", 0) for run in by_seed.values()):
            lines.append(f"{label}: {describe_excluded(number)} (excluded_updates in metrics.csv)")
        diverged = itertools.compress(seeds, statistics.diverged(quality[label]))
        runs = [f"seed {seed:g} {describe_divergence(by_seed[seed])}" for seed in diverged]
        if runs:
            lines.append(f"{label}: {'; '.join(runs)}. What usually helps is {WHAT_HELPS}")
    return lines
