"""Draws the figure on a page of docs/algorithms from a table, with a caption and a reading."""

import csv
import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_algos.analysis.pictures import plot_metric
from fedjax_algos.analysis.statistics import Difference, paired_difference
from fedjax_algos.core import Row

DOCS = Path(__file__).parents[1]
RESULTS = DOCS.parent / "experiments" / "results"
TABLES = [RESULTS / f"{name}.csv" for name in ("algorithm_pages", "algorithm_pages_settings")]
SIZE = (4.5, 2.8)  # inches
SHARE = 0.2  # of a run, at its start and at its end


class Task(NamedTuple):
    """The axes and texts of the figures of a task in experiments/algorithm_pages.py."""

    x: str
    y_label: str
    text: str
    reference: str  # the label of FedAvg's curve


OF_CLIENTS = (
    "scikit-learn's digits on 20 clients (Dirichlet .1), 5 of them in a round, a perceptron{more}: "
    "the accuracy of clients' models on their own held-out examples, as the mean over "
    "clients. FedAvg's curve shows its global model."
)
TASKS = {
    "rounds": Task(
        "round",
        "test accuracy",
        "scikit-learn's digits on 20 clients (Dirichlet .1), 5 of them in a round, a perceptron: "
        "the test accuracy of the global model.",
        "FedAvg",
    ),
    "clock": Task(
        "simulated_seconds",
        "test accuracy",
        "scikit-learn's digits on 20 clients (Dirichlet .1) of exponential speeds, a perceptron: "
        "the test accuracy of the global model against simulated time. FedAvg waits for all "
        "clients in each round (the planner `barrier`).",
        "FedAvg, waiting",
    ),
    "clients": Task(
        "round", "accuracy of clients", OF_CLIENTS.format(more=""), "FedAvg, global model"
    ),
    "clients_norm": Task(
        "round",
        "accuracy of clients",
        OF_CLIENTS.format(more=" with BatchNorm"),
        "FedAvg, global model",
    ),
}


@functools.cache
def tables() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The rows of both tables."""
    found = []
    for path in TABLES:
        with path.open(newline="") as file:
            found.append(list(csv.DictReader(file)))
    return found[0], found[1]


def task_of(name: str) -> str:
    """Returns the task that ran an algorithm; for FedAvg, the task "rounds"."""
    return next(row["task"] for row in tables()[1] if row["method"] == name)


def shown(name: str) -> list[str]:
    """Returns the algorithms in the figure of an algorithm."""
    return [name, "centralised" if name == "fedavg" else "fedavg"]


def rows_of(task: str, names: list[str]) -> list[Row]:
    """Returns the rows of some algorithms, as `fa.analysis.pictures` expects them."""
    x = TASKS[task].x
    return [
        {
            "method": row["method"],
            "seed": int(row["seed"]),
            x: float(row[x]),
            "accuracy": float(row["accuracy"]),
        }
        for row in tables()[0]
        if row["task"] == task and row["method"] in names
    ]


def title_of(name: str) -> str:
    """Returns the name in the heading of an algorithm's page."""
    page = DOCS / "algorithms" / f"{name}.md"
    return page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def labels_of(name: str) -> dict[str, str]:
    """The names in the legend."""
    labels = {each: title_of(each) for each in shown(name)}
    return labels if name == "fedavg" else labels | {"fedavg": TASKS[task_of(name)].reference}


def draw(name: str, path: Path) -> None:
    """Writes the figure of an algorithm."""
    task = TASKS[task_of(name)]
    plot_metric(
        rows_of(task_of(name), shown(name)),
        path,
        metric="accuracy",
        x=task.x,
        methods=shown(name),
        labels=labels_of(name),
        title="",
        y_limits=(None, 1.0),  # a band may be above it
        y_label=task.y_label,
        size=SIZE,
    )


def settings_of(name: str, task: str) -> dict[str, str]:
    """The row of the second table."""
    return next(r for r in tables()[1] if r["method"] == name and r["task"] == task)


def rate_of(name: str, task: str) -> str:
    """Returns the chosen rate of an algorithm, and says if it is at an end of the grid."""
    row = settings_of(name, task)
    end = row["end_of_the_grid"]
    return f"{row['client_learning_rate']} for {title_of(name)}" + (
        f" (the {end} of the grid)" if end else ""
    )


def grid_of(name: str, task: str) -> str:
    """Returns the rates that an algorithm was tuned over."""
    scores = settings_of(name, task).items()
    rates = [
        float(key.removeprefix("score_")) for key, score in scores if "score_" in key and score
    ]
    return ", ".join(f"{rate:g}" for rate in sorted(rates))


def caption_of(name: str) -> str:
    """Returns the caption of the figure, in Markdown."""
    task = task_of(name)
    grid, others = (grid_of(each, task) for each in (name, "fedavg"))
    grid += f" (FedAvg's grid is {others})" * (grid != others)
    chosen = " and ".join(rate_of(each, task) for each in shown(name))
    text = TASKS[task].text
    given = settings_of(name, task)["spec"].removeprefix(name)
    given = f", besides `{given[1:]}`" if given else ""
    return (
        f"{text[0].upper()}{text[1:]} Means of five seeds, with the 95% confidence interval. Only "
        f"the client learning rate was tuned, among {grid}: it "
        f"is {chosen}. All other options are the defaults{given}. [The task](index.md#the-figures) "
        "is small, and does not rank algorithms."
    )


def difference(name: str, task: str, other: str, *, last: bool) -> Difference:
    """Compares the mean accuracies of two algorithms in the first or the last fifth of the run."""
    x, values = TASKS[task].x, {}
    rows = rows_of(task, [name, other])
    end = max(row[x] for row in rows)
    for row in rows:
        inside = row[x] > (1 - SHARE) * end if last else 0 < row[x] <= SHARE * end
        if inside:
            values.setdefault((row["method"], row["seed"]), []).append(row["accuracy"])
    seeds = sorted({row["seed"] for row in rows})
    mine, base = (np.array([np.mean(values[each, s]) for s in seeds]) for each in (name, other))
    return paired_difference(100 * mine, 100 * base, seeds)


def is_clear(found: Difference) -> bool:
    """Returns True if the interval of a difference does not contain 0."""
    return abs(found.estimate.mean) > found.estimate.interval


def reading_of(name: str) -> str:
    """Compares the curves in a sentence of Markdown."""
    first, second = shown(name)
    task = task_of(name)
    found = [difference(first, task, second, last=last) for last in (False, True)]
    if all(abs(value) < 1e-9 for each in found for value in each.estimate.values):
        return f"The two curves are the same: {title_of(name)} computes what FedAvg does here."
    unclear = [not is_clear(each) for each in found]
    places = [
        f"first fifth of the {'simulated time' if task == 'clock' else 'rounds'}",
        "last fifth",
    ]
    parts = [
        f"{each.text('{:+.1f}'.format)} points in the {place}"
        + " (no clear difference)" * (no_difference and not all(unclear))
        for each, place, no_difference in zip(found, places, unclear, strict=True)
    ]
    rival = title_of(second) + "'s global model" * task.startswith("clients")
    if all(unclear):
        return f"No clear difference from {rival} on the same seeds: {' and '.join(parts)}."
    return f"Its accuracy minus the accuracy of {rival} on the same seeds: {' and '.join(parts)}."
