"""Writes and reads results folders: settings, methods, environment and metrics of many runs."""

import dataclasses
import itertools
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_algos.analysis import pictures
from fedjax_algos.analysis.evaluation import ClientSummary, summarise_clients
from fedjax_algos.analysis.labels import SEPARATOR, file_name
from fedjax_algos.analysis.rows import Budget, gini, rows_by_run
from fedjax_algos.analysis.summary import MethodSummary
from fedjax_algos.analysis.tables import records
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import file_digest, written
from fedjax_algos.core import Mean, Metrics, Row
from fedjax_algos.data import describe_partition, partition_table
from fedjax_algos.engine.compilation import Compilation
from fedjax_algos.engine.placed.processes import from_first
from fedjax_algos.models.layers import native
from fedjax_algos.runs.studies import folder_content
from fedjax_algos.runs.studies.experiment import Experiment
from fedjax_algos.runs.studies.results_folder import METRICS_SUM, ResultsFolder

_MAX_CLIENTS_IN_A_TIMELINE = 50  # a picture has no room for more
_PACKAGES = ("fedjax_algos", "jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")
_NATIVE = ("fedjax_algos_native", "onednn-cpu-gomp")


def environment() -> dict[str, Any]:
    """Returns the versions of Python and of packages, and the devices."""
    packages = _PACKAGES + (_NATIVE if native.INSTALLED else ())
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in packages},
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
        "x64": bool(jax.config.read("jax_enable_x64")),
    }


def configuration(
    experiment: Experiment, config: str | None = None, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the content of `config.json` before the runs of an experiment, with `extra` entries.

    `config` is the path of the command's settings file. On the virtual clock `speed_ratio` is the
    slowest client's seconds per step, divided by the fastest client's, by seed.
    """
    settings = experiment.settings
    return {
        "command": sys.argv[1:],
        "config": config,
        "settings": {**vars(settings), "seeds": list(settings.seeds)},
        "cohort_size": settings.cohort_size if settings.seconds is None else settings.clients,
        "local_steps": settings.steps,
        "methods": {m.label: m.configuration() for m in experiment.methods},
        "dataset_notes": list(experiment.notes),
        "partition_sha256": {str(seed): experiment.digest(seed) for seed in experiment.data},
        "speed_ratio": {str(seed): ratio for seed, ratio in experiment.speed_ratios().items()},
        **({"privacy": privacy} if (privacy := experiment.privacy()) else {}),
        "environment": environment(),
        "layout": experiment.layout and experiment.layout._asdict(),
        **({"own_functions": own} if (own := experiment.own_functions) else {}),
        **(extra or {}),
    }


def write(
    folder: Path, experiment: Experiment, rows: list[Row], summary: list[MethodSummary]
) -> None:
    """Writes the rows as `metrics.csv`, `summary.csv`, and the partitions.

    `partitions.npz` has arrays `indices_SEED` and `offsets_SEED`, or `clients_SEED` for examples in
    files; `partition.txt` describes them, and `partition.png` shows the first. On the virtual clock
    there are also pictures of each method's timeline and staleness on the first seed,
    `timelines.csv` with their summaries, `idle.csv` with the idle share of each client, and
    `speeds.csv` with the seconds per step of each client and seed.
    """
    folder_content.write_table(folder / "metrics.csv", rows)
    folder_content.write_table(folder / "summary.csv", records(summary))
    _write_partitions(folder, experiment)
    _write_timelines(folder, experiment)
    if experiment.speeds:
        speeds = [
            {"seed": seed, "client": client, "seconds_per_step": seconds}
            for seed, times in experiment.speeds.items()
            for client, seconds in enumerate(times.tolist())
        ]
        folder_content.write_table(folder / "speeds.csv", speeds)


def _write_partitions(folder, experiment):
    """Writes each client's examples, or the client's number in the files, and their labels."""
    from rich.console import Console

    labels, first = experiment.labels, next(iter(experiment.partitions.values()))
    arrays: dict[str, Any] = {}
    with written(folder / "partition.txt") as beside, beside.open("w") as file:
        console = Console(file=file, width=100)
        for seed, partition in experiment.partitions.items():
            data = experiment.data[seed]
            if partition is None:
                arrays[f"clients_{seed}"] = data.clients
            else:
                arrays[f"indices_{seed}"], arrays[f"offsets_{seed}"] = partition
            about = None if labels is None else describe_partition(labels, partition)
            console.print(f"seed {seed}", repr(data) if about is None else partition_table(about))
    with written(folder / "partitions.npz") as beside:
        np.savez_compressed(beside, **arrays)
    if labels is not None:
        with written(folder / "partition.png") as beside:
            pictures.plot_partition(labels, first, beside)


@from_first
def write_clients(folder: ResultsFolder, experiment: Experiment) -> list[Row]:
    """Writes `clients.csv`, a row for each evaluated client, and its figure; returns the rows."""
    if experiment.client_data is None:
        return []
    runs = itertools.product([m.label for m in experiment.methods], experiment.client_data)
    rows = [row for label, seed in runs for row in folder.rows_in(label, seed, "clients.csv")]
    folder_content.write_table(folder.path / "clients.csv", rows)
    with written(folder.path / "clients.png") as beside:
        pictures.plot_clients(rows, beside)
    return rows


def at_end(experiment: Experiment, compiled: Compilation) -> dict[str, Any]:
    """Returns entries of `config.json` after the runs: memory in flight, and compilations."""
    return {
        "in_flight": {label: m._asdict() for label, m in experiment.in_flight.items()},
        "compilation": {"seconds": compiled.seconds, **dataclasses.asdict(compiled)},
    }


def _write_timelines(folder: Path, experiment: Experiment) -> None:
    """Writes pictures, summaries and idle shares of the first seed's plans on the virtual clock."""
    clients, summaries, idle = experiment.settings.clients, [], []
    for label, plan in experiment.plans.items():
        summaries.append({"method": label, **pictures.summarise_plan(plan, clients)._asdict()})
        shares = pictures.idle_share(plan, clients, experiment.settings.seconds)
        idle += [{"method": label, "client": i, "idle_share": s} for i, s in enumerate(shares)]
        name = file_name(label)
        with written(folder / f"staleness-{name}.png") as beside:
            pictures.plot_staleness(plan, beside)
        longest = float((plan.ended - plan.started)[np.isfinite(plan.ended)].max())
        end = min(10 * longest, experiment.settings.seconds or 0)
        if clients <= _MAX_CLIENTS_IN_A_TIMELINE:
            with written(folder / f"timeline-{name}.png") as beside:
                pictures.plot_timeline(plan, beside, end=end)
    if summaries:
        folder_content.write_table(folder / "timelines.csv", summaries)
        folder_content.write_table(folder / "idle.csv", idle)


def read_metrics(folder: str | Path, on_missing: Callable[[str], None] | None = None) -> list[Row]:
    """Reads the rows of a results folder; empty cells become NaN.

    If some runs have not ended, calls `on_missing` with a text that names them, and reads only the
    methods that have ended on all seeds. None raises ValueError instead.
    """
    path, table = Path(folder), Path(folder, "metrics.csv")
    content = folder_content.read_configuration(path)
    if content is None or content["complete"]:
        rows, checksum = folder_content.read_rows(table), (content or {}).get(METRICS_SUM)
        fix = f"restore it, or make it from the tables in {path / 'runs'}"
        unchanged = checksum in (None, file_digest(table))
        require(unchanged, f"{table} is not as it was written; {fix}")
    else:
        rows = _read_ended(path, content, on_missing)
    if content is not None and (budget := content["settings"].get("budget")) is not None:
        rows = Budget.of(str(budget)).repeat_last(rows)
    _check_lengths(table, rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name, np.nan) for name in columns} for row in rows]


def _read_ended(path, content, on_missing):
    """Reads the methods without missing runs from a folder that is not complete."""
    opened, missing = ResultsFolder(path, 0, 1), folder_content.missing_runs(path, content)
    opened.names = folder_content.folders_of_methods(content["methods"])
    text = folder_content.describe_incomplete(path, content, missing)
    ended = [label for label in opened.names if label not in dict(missing)]
    require(on_missing is not None and ended, text)
    number = f"{len(ended)} of {len(opened.names)} methods or settings"
    on_missing(f"{text}. {number} have ended on all seeds and are shown")
    runs = itertools.product(ended, content["settings"]["seeds"])
    return [row for run in runs for row in opened.rows_of_ended(*run)]


def folder_names(folders: Sequence[str | Path]) -> list[str]:
    """Returns the names of different results folders, or their given paths if names are equal."""
    for folder in folders:
        require("\0" not in str(folder), f"folder={str(folder)!r} is not a path; leave \\0 out")
    paths = list(dict.fromkeys(map(os.path.realpath, folders)))
    given = " ".join(map(str, folders)) or "no results folder"
    fix = "give one or more, such as results/compare, and each of them once"
    require(0 < len(paths) == len(folders), f"{given} is given; {fix}")
    names = [*map(os.path.basename, paths)]
    return names if len(set(names)) == len(names) else [str(Path(folder)) for folder in folders]


def comparison_names(folders: Sequence[str | Path]) -> list[str]:
    """Returns each folder's comparison: folders that differ only in their seeds share a name."""
    names = folder_names(folders)
    comparisons: list[tuple[Any, list[Any], list[int]]] = []  # facts, seeds, positions of folders
    for position, folder in enumerate(folders):
        content = folder_content.read_configuration(Path(folder))
        facts = content and folder_content.facts(content)
        seeds = content["settings"]["seeds"] if content else []
        for known, others, positions in comparisons:
            if facts == known is not None and not set(seeds) & set(others):
                others.extend(seeds)
                positions.append(position)
                break
        else:
            comparisons.append((facts, [*seeds], [position]))
    for _, _, positions in comparisons:
        shared = "+".join(names[position] for position in positions)
        names = [shared if i in positions else name for i, name in enumerate(names)]
    return names


def read_folders(
    folders: Sequence[str | Path],
    *,
    apart: bool = False,
    on_missing: Callable[[str], None] | None = None,
) -> list[Row]:
    """Reads the rows of one or more results folders that compare, run or sweep wrote.

    Folders that differ only in their seeds are one comparison. With several comparisons, labels
    begin with the folder's name. If `apart`, each folder's name is the column `results` instead.
    """
    names = folder_names(folders) if apart else comparison_names(folders)
    measured = [read_metrics(folder, on_missing) for folder in folders]
    for name, rows in zip(names, measured, strict=True):
        for row in rows:
            if apart:
                row["results"] = name
            elif len(set(names)) > 1:
                row["method"] = f"{name}{SEPARATOR}{row['method']}"
    return [row for rows in measured for row in rows]


def _check_lengths(path: Path, rows: list[Row]) -> None:
    """Raises ValueError for a run with fewer rows than others, unless its model was not finite."""
    runs = [run for by_seed in rows_by_run(rows).values() for run in by_seed.values()]
    longest = max(map(len, runs))
    for run in runs:
        # also the train loss: params may be NaN although no test output is
        losses = [run[-1].get(name, 0) for name in ("test_loss", "train_loss")]
        few = f"{run[0]['method']} has {len(run)} rows of seed {run[0]['seed']:g}"
        whole = len(run) == longest or not np.isfinite(losses).all()
        require(whole, f"{path}: {few}, but others have {longest}; {folder_content.FIX}")


def client_rows(
    label: str, seed: int, round_number: int, metrics: Metrics, participations: np.ndarray
) -> list[Row]:
    """Makes a row for each client of a run, at its last round; NaN for one without examples."""
    values = {name: np.asarray(metric.value()) for name, metric in metrics.items()}
    return [
        {
            "method": label,
            "seed": seed,
            "round": round_number,
            "client": i,
            "examples": int(count),
            "participations": participations[i].item(),
            **{name: float(of_clients[i]) for name, of_clients in values.items()},
        }
        for i, count in enumerate(np.asarray(metrics["loss"].weight))
    ]


def summarise_client_rows(rows: list[Row]) -> dict[str, ClientSummary]:
    """Summarises the accuracy over clients by method: each seed's distribution, then the mean."""

    def summary(own):
        counts, values = np.array([[r["examples"], r["accuracy"]] for r in own], float).T
        return summarise_clients(Mean(np.where(counts > 0, counts * values, 0), counts), "lowest")

    return {
        label: ClientSummary(*np.mean([*map(summary, by_seed.values())], axis=0).tolist())
        for label, by_seed in rows_by_run(rows).items()
    }


def new_client_accuracies(rows: list[Row]) -> list[float | None]:
    """Returns the mean accuracy of the clients that never took part, by method; None for none."""
    found: dict[str, list[float]] = {row["method"]: [] for row in rows}
    for row in rows:
        if row["participations"] == 0 and row["examples"]:
            found[row["method"]].append(row["accuracy"])
    return [float(np.mean(values)) if values else None for values in found.values()]


def participation_ginis(rows: list[Row]) -> list[float]:
    """Returns the Gini coefficients of the clients' participations by method, means over seeds."""
    if any("participations" not in row for row in rows):  # of an earlier version
        return []
    return [
        float(np.mean([gini([row["participations"] for row in own]) for own in by_seed.values()]))
        for by_seed in rows_by_run(rows).values()
    ]
