"""Results folders: the settings, methods, environment and metrics of a comparison or a sweep."""

import dataclasses
import itertools
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from fedjax_algos.analysis import pictures
from fedjax_algos.analysis.evaluation import ClientSummary, summarise_clients
from fedjax_algos.analysis.labels import SEPARATOR, file_name
from fedjax_algos.analysis.rows import rows_by_run
from fedjax_algos.analysis.statistics import records
from fedjax_algos.analysis.summary import MethodSummary
from fedjax_algos.core import Mean, Metrics, Row
from fedjax_algos.core.files import require, written
from fedjax_algos.data import describe_partition, partition_table
from fedjax_algos.engine.compilation import Compilation
from fedjax_algos.engine.placed.processes import only_first
from fedjax_algos.models.layers import native
from fedjax_algos.runs.experiment import Experiment
from fedjax_algos.runs.saving.results_folder import (
    ResultsFolder,
    check_complete,
    read_rows,
    write_table,
)  # fmt: skip

_MAX_CLIENTS_IN_A_TIMELINE = 50  # that a picture has room for
_PACKAGES = ("fedjax_algos", "jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")
_NATIVE = ("fedjax_algos_native", "onednn-cpu-gomp")


def environment() -> dict[str, Any]:
    """The versions of Python and of packages, and the devices."""
    device = jax.devices()[0]
    packages = _PACKAGES + (_NATIVE if native.INSTALLED else ())
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in packages},
        "backend": jax.default_backend(),
        "device": device.device_kind,
        "device_count": jax.device_count(),
        "x64": bool(jax.config.read("jax_enable_x64")),
    }


def configuration(
    experiment: Experiment, config: str | None = None, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What is known before the runs of an experiment, for `config.json`, with `extra` entries.

    `config` is the path of the command's file of settings. On the virtual clock `speed_ratio` is
    the slowest client's seconds per step, divided by the fastest one's, by seed.
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
        "environment": environment(),
        "layout": experiment.layout and experiment.layout._asdict(),
        **({"own_functions": own} if (own := experiment.own_functions) else {}),
        **(extra or {}),
    }


def write(
    folder: Path, experiment: Experiment, rows: list[Row], summary: list[MethodSummary]
) -> None:
    """Writes `metrics.csv`, the rows, `summary.csv`, and the partitions.

    `partitions.npz` has arrays `indices_SEED` and `offsets_SEED`, or of examples in files the
    clients, `clients_SEED`; `partition.txt` describes them, and `partition.png` shows the first. On
    the virtual clock there are also pictures of each method's timeline and staleness on the first
    seed, `timelines.csv` with their summaries, `idle.csv` with the idle share of each client, and
    `speeds.csv` with the seconds per step of each client and seed.
    """
    write_table(folder / "metrics.csv", rows)
    write_table(folder / "summary.csv", records(summary))
    _write_partitions(folder, experiment)
    _write_timelines(folder, experiment)
    speeds = [
        {"seed": seed, "client": client, "seconds_per_step": seconds}
        for seed, times in experiment.speeds.items()
        for client, seconds in enumerate(times.tolist())
    ]
    if speeds:
        write_table(folder / "speeds.csv", speeds)


def _write_partitions(folder, experiment):
    """Which client holds which examples, or which client of the files it is, and their labels."""
    arrays: dict[str, Any] = {}
    for seed, partition in experiment.partitions.items():
        if partition is None:
            arrays[f"clients_{seed}"] = experiment.data[seed].clients
        else:
            arrays[f"indices_{seed}"], arrays[f"offsets_{seed}"] = partition
    with written(folder / "partitions.npz") as beside:
        np.savez_compressed(beside, **arrays)
    labels, first = experiment.labels, next(iter(experiment.partitions.values()))
    with written(folder / "partition.txt") as beside, beside.open("w") as file:
        console = Console(file=file, width=100)
        for seed, partition in experiment.partitions.items():
            told = repr(experiment.data[seed])
            if labels is not None:
                told = partition_table(describe_partition(labels, partition))
            console.print(f"seed {seed}", told)
    if labels is not None:
        with written(folder / "partition.png") as beside:
            pictures.plot_partition(labels, first, beside)


def write_clients(folder: ResultsFolder, experiment: Experiment) -> list[Row]:
    """Writes `clients.csv`, a row for each client that was evaluated, and returns the rows."""
    if experiment.client_data is None:
        return []
    runs = itertools.product([m.label for m in experiment.methods], experiment.client_data)
    rows = [row for label, seed in runs for row in folder.rows_in(label, seed, "clients.csv")]
    only_first(write_table)(folder.path / "clients.csv", rows)
    return rows


def at_end(experiment: Experiment, compiled: Compilation) -> dict[str, Any]:
    """What is known after the runs, for `config.json`: memory in flight, and what was compiled."""
    return {
        "in_flight": {label: m._asdict() for label, m in experiment.in_flight.items()},
        "compilation": {"seconds": compiled.seconds, **dataclasses.asdict(compiled)},
    }


def _write_timelines(folder: Path, experiment: Experiment) -> None:
    """The plans of the first seed on the virtual clock: pictures, summaries, and idle shares."""
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
        write_table(folder / "timelines.csv", summaries)
        write_table(folder / "idle.csv", idle)


def read_metrics(folder: str | Path) -> list[Row]:
    """Reads the rows of a results folder whose runs have all ended; empty cells become NaN."""
    check_complete(Path(folder))
    rows = read_rows(Path(folder) / "metrics.csv")
    _check_lengths(Path(folder) / "metrics.csv", rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name, np.nan) for name in columns} for row in rows]


def folder_names(folders: Sequence[str | Path]) -> list[str]:
    """What results folders, each given once, are called: the name, or the path as it is given."""
    require(folders, "no results folder is given; name one or more, such as results/compare")
    paths = [Path(folder).resolve() for folder in folders]
    given = " ".join(map(str, folders))
    different = len(set(paths)) == len(paths)
    require(different, f"a results folder is given twice in {given}; give it once")
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(Path(folder)) for folder in folders]


def read_folders(folders: Sequence[str | Path], *, apart: bool = False) -> list[Row]:
    """Reads the rows of one or more results folders that compare, run or sweep wrote.

    Labels of several folders begin with the folder's name, or `apart` it is the column `results`.
    """
    measured = [read_metrics(folder) for folder in folders]
    for name, rows in zip(folder_names(folders), measured, strict=True):
        for row in rows:
            if apart:
                row["results"] = name
            elif len(folders) > 1:
                row["method"] = f"{name}{SEPARATOR}{row['method']}"
    return [row for rows in measured for row in rows]


def _check_lengths(path: Path, rows: list[Row]) -> None:
    """Raises ValueError for a run with fewer rows than others, unless its model was not finite."""
    runs = [own for by_seed in rows_by_run(rows).values() for own in by_seed.values()]
    longest = max(map(len, runs))
    for own in runs:
        # the train loss as well: params may be NaN although no test output is
        losses = [own[-1].get(name, 0) for name in ("test_loss", "train_loss")]
        if len(own) < longest and np.isfinite(losses).all():
            few = f"{own[0]['method']} has {len(own)} rows of seed {own[0]['seed']:g}"
            fix = "name a folder that compare, run or sweep wrote"
            raise ValueError(f"{path}: {few}, but there are {longest} of others; {fix}")


def client_rows(label: str, seed: int, round_number: int, metrics: Metrics) -> list[Row]:
    """One row for each client of a run, at its last round; NaN for one without examples."""
    values = {}
    for name, metric in metrics.items():
        mean = metric.over_classes()
        values[name] = np.where(np.asarray(mean.weight) > 0, np.asarray(mean.value()), np.nan)
    run = {"method": label, "seed": seed, "round": round_number}
    return [
        {**run, "client": i, "examples": int(count), **{n: float(v[i]) for n, v in values.items()}}
        for i, count in enumerate(np.asarray(metrics["loss"].weight))
    ]


def summarise_client_rows(rows: list[Row]) -> dict[str, ClientSummary]:
    """The distribution of the accuracy over clients, by method: the mean of that of each seed."""

    def summary(own):
        counts, values = np.array([[r["examples"], r["accuracy"]] for r in own], float).T
        return summarise_clients(Mean(np.where(counts > 0, counts * values, 0), counts), "lowest")

    return {
        label: ClientSummary(*np.mean([*map(summary, by_seed.values())], axis=0).tolist())
        for label, by_seed in rows_by_run(rows).items()
    }
