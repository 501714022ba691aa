"""Results folders: the settings, methods, environment and metrics of a comparison or a sweep."""

import csv
import dataclasses
import json
import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from fedjax_algos.analysis.summary import MethodSummary
from fedjax_algos.analysis.timeline import idle_share, plot_staleness, plot_timeline, summarise_plan
from fedjax_algos.core import Row
from fedjax_algos.data import describe_partition, partition_table, plot_partition
from fedjax_algos.engine.compilation import Compilation
from fedjax_algos.runs.comparison import Experiment

_MAX_CLIENTS_IN_A_TIMELINE = 50  # that a picture has room for
_PACKAGES = ("fedjax_algos", "jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")


def new_folder(out: str | None, default: str) -> Path:
    """Makes a results folder.

    Args:
      out: its path, or None for the first of `results/DEFAULT`, `results/DEFAULT-2`, ... that does
        not exist.
      default: the name used there.

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
    """The versions of Python and of packages, and the devices."""
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
    summary: list[MethodSummary],
    compiled: Compilation,
    config: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Writes the configuration, the metrics, their summary, and the partitions.

    `config.json` holds the command, all settings with their final values, each method with its
    defaults, versions and devices, the hash of each seed's partition, the layout and its timings,
    the largest number of models and updates in flight (on the virtual clock), and the compilation.
    `metrics.csv` holds the rows and `summary.csv` their summary. `partitions.npz` has arrays
    `indices_SEED` and `offsets_SEED`; `partition.txt` describes the partition of each seed, and
    `partition.png` shows that of the first. On the virtual clock there are also pictures of each
    method's timeline and staleness on the first seed, `timelines.csv` with their summaries, and
    `idle.csv` with the idle share of each client.

    Args:
      folder: of `new_folder`.
      experiment: after its run.
      rows: of all methods and seeds.
      summary: of these rows.
      compiled: what was compiled, and how long that took.
      config: the path of the file of settings, if there was one.
      extra: further entries of `config.json`.
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
        **(extra or {}),
    }
    (folder / "config.json").write_text(json.dumps(configuration, indent=2) + "\n")
    write_table(folder / "metrics.csv", rows)
    write_table(folder / "summary.csv", [line._asdict() for line in summary])
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
    """The plans of the first seed on the virtual clock: pictures, summaries, and idle shares."""
    clients, summaries, idle = experiment.settings.clients, [], []
    for label, plan in experiment.plans.items():
        summaries.append({"method": label, **summarise_plan(plan, clients)._asdict()})
        shares = idle_share(plan, clients, experiment.settings.seconds)
        idle += [{"method": label, "client": i, "idle_share": s} for i, s in enumerate(shares)]
        name = re.sub(r"[^\w.=+-]+", "-", label)
        plot_staleness(plan, folder / f"staleness-{name}.png")
        longest = float((plan.ended - plan.started)[np.isfinite(plan.ended)].max())
        end = min(10 * longest, experiment.settings.seconds or 0)
        if clients <= _MAX_CLIENTS_IN_A_TIMELINE:
            plot_timeline(plan, folder / f"timeline-{name}.png", end=end)
    if summaries:
        write_table(folder / "timelines.csv", summaries)
        write_table(folder / "idle.csv", idle)


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows to a CSV file; a column that a row does not have is empty.

    Args:
      path: the file.
      rows: by column.
    """
    columns = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)


def read_metrics(folder: str | Path) -> list[Row]:
    """Reads the rows of a results folder; empty cells become NaN.

    Args:
      folder: that `write` has filled.

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
