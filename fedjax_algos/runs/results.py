"""A results folder: what was run, on what, and what was measured."""

import csv
import dataclasses
import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from fedjax_algos.analysis.summary import Reached
from fedjax_algos.analysis.timeline import idle_share, plot_staleness, plot_timeline, summarise_plan
from fedjax_algos.data.description import describe_partition, partition_table, plot_partition
from fedjax_algos.engine.compilation import Compilation
from fedjax_algos.runs.comparison import Experiment
from fedjax_algos.runs.simulation import Row

_IN_A_TIMELINE = 50  # clients that a picture has room for
_PACKAGES = ("fedjax_algos", "jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")


def new_folder(out: str | None, default: str) -> Path:
    """An empty folder: `out`, or the first free of `results/default`, `results/default-2`, ...

    Raises:
      ValueError: if `out` exists and is not an empty folder.
    """
    if out is not None:
        folder = Path(out)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"out={out!r} is not empty; name another folder or remove it")
    else:
        folder, number = Path("results") / default, 1
        while folder.exists():
            number += 1
            folder = Path("results") / f"{default}-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def environment() -> dict[str, Any]:
    """Versions and device."""
    device = jax.devices()[0]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "backend": jax.default_backend(),
        "device": device.device_kind,
        "device_count": jax.device_count(),
        "x64": bool(jax.config.read("jax_enable_x64")),
    }


def write(
    folder: Path,
    experiment: Experiment,
    rows: list[Row],
    summary: list[Reached],
    compiled: Compilation,
    config: str | None = None,
) -> None:
    """Writes the configuration, the metrics, their summary, and the partitions.

    The configuration holds the command, the path `config` of the file of settings that it named,
    all settings as they were in the end, each method with its defaults, versions, device, the
    hash of each seed's partition, what was in flight at most (on the virtual clock), and what was
    compiled and how long that took.
    `partitions.npz` has arrays `indices_SEED` and `offsets_SEED`; `partition.txt` describes each
    seed's, `partition.png` shows the first seed's.
    On the virtual clock there are also pictures of each method's timeline and staleness on the
    first seed, `timelines.csv` with their sums, and `idle.csv` with each client's idle share.
    """
    settings = experiment.settings
    configuration = {
        "command": sys.argv[1:],
        "config": config,
        "settings": {**vars(settings), "seeds": list(settings.seeds)},
        "cohort_size": settings.cohort_size if settings.seconds is None else settings.clients,
        "local_steps": settings.steps,
        "methods": {m.label: m.configuration() for m in experiment.methods},
        "dataset_notes": list(experiment.notes),
        "partition_sha256": {str(s): p.digest() for s, p in experiment.partitions.items()},
        "environment": environment(),
        "layout": experiment.layout and experiment.layout.record(),
        "in_flight": {label: m._asdict() for label, m in experiment.in_flight.items()},
        "compilation": {"seconds": compiled.seconds, **dataclasses.asdict(compiled)},
    }
    (folder / "config.json").write_text(json.dumps(configuration, indent=2) + "\n")
    _write_table(folder / "metrics.csv", rows)
    _write_table(folder / "summary.csv", [line._asdict() for line in summary])
    arrays: dict[str, Any] = {}
    for seed, partition in experiment.partitions.items():
        arrays[f"indices_{seed}"], arrays[f"offsets_{seed}"] = partition
    np.savez_compressed(folder / "partitions.npz", **arrays)
    labels, first = experiment.labels, next(iter(experiment.partitions.values()))
    with (folder / "partition.txt").open("w") as file:
        console = Console(file=file, width=100)
        for seed, partition in experiment.partitions.items():
            console.print(f"seed {seed}", partition_table(describe_partition(labels, partition)))
    plot_partition(labels, first, folder / "partition.png")
    _write_timelines(folder, experiment)


def _write_timelines(folder: Path, experiment: Experiment) -> None:
    """The plans of the first seed on the virtual clock: pictures, sums, and each client's rest."""
    clients, sums, idle = experiment.settings.clients, [], []
    for label, (plan, trace) in experiment.plans.items():
        sums.append({"method": label, **summarise_plan(plan, clients)._asdict()})
        shares = idle_share(plan, clients, experiment.settings.seconds)
        idle += [{"method": label, "client": i, "idle_share": s} for i, s in enumerate(shares)]
        name = label.replace(" ", "-")
        plot_staleness(plan, folder / f"staleness-{name}.png")
        longest = float((plan.ended - plan.started)[np.isfinite(plan.ended)].max())
        end = min(10 * longest, experiment.settings.seconds or 0)
        if clients <= _IN_A_TIMELINE:
            plot_timeline(plan, folder / f"timeline-{name}.png", trace=trace, end=end)
    if sums:
        _write_table(folder / "timelines.csv", sums)
        _write_table(folder / "idle.csv", idle)


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    columns = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)


def read_metrics(folder: str | Path) -> list[Row]:
    """The rows of a results folder; empty cells become NaN.

    Raises:
      ValueError: if the folder holds no readable metrics.
    """
    path = Path(folder) / "metrics.csv"
    try:
        with path.open(newline="") as file:
            rows: list[Row] = list(csv.DictReader(file))
    except OSError:
        raise ValueError(
            f"{path} cannot be read; name a folder that compare or run wrote"
        ) from None
    if not rows or not {"method", "seed", "round"} <= set(rows[0]):
        raise ValueError(f"{path} holds no metrics; name a folder that compare or run wrote")
    return [
        {
            key: value if key == "method" else float(value) if value else float("nan")
            for key, value in row.items()
        }
        for row in rows
    ]
