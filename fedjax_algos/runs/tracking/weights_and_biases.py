"""Runs of Weights & Biases, online or in a folder from which they are uploaded later."""

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from fedjax_algos.core import Row
from fedjax_algos.core.files import write_text, writing
from fedjax_algos.runs.tracking.registry import TrackedRun, Tracker, import_package, trackers

_FIX = "run `wandb login`, or give --track wandb:mode=offline"


@trackers.register
def wandb(
    *,
    mode: Literal["online", "offline", "disabled"] | None = None,
    project: str | None = None,
    entity: str | None = None,
) -> Tracker:
    """Weights & Biases; its files are in the folder `wandb` of the results.

    Each run is a run there, in the group of its method, with the settings as its configuration. Its
    charts are over `round`. A run that goes on after an interruption has the same id. Offline its
    folder is replaced by one with all its rows; online the rows are sent again, each with its
    number as the step. No test uploads.

    Args:
      mode: "offline" writes what `wandb sync` uploads later, without any network. None: that of
        the variable WANDB_MODE, else "online".
      project: its name. None: that of the variable WANDB_PROJECT, else "fedjax_algos".
      entity: a user or team. None: the account's own.

    Raises:
      ValueError: if wandb is not installed, or for the mode "online" without a login.
    """
    package = import_package("wandb", "wandb")
    mode = mode or os.environ.get("WANDB_MODE")  # type: ignore[assignment]
    if mode in (None, "online"):
        with _explained(package):
            package.login()
    project = project or os.environ.get("WANDB_PROJECT") or "fedjax_algos"

    @contextlib.contextmanager
    def track(run: TrackedRun) -> Iterator[Callable[[Row], None]]:
        folder = run.folder / "wandb"
        identity = _identity(folder, run.name)
        os.environ.setdefault("WANDB_CACHE_DIR", str(folder / "cache"))  # of the log of the package
        if mode == "offline":
            for earlier in folder.glob(f"offline-run-*-{identity}"):
                shutil.rmtree(earlier, ignore_errors=True)
        with _explained(package):
            own = package.init(
                mode=mode,
                project=project,
                entity=entity,
                dir=run.folder,
                id=identity,
                resume=None if mode == "offline" else "allow",
                reinit="create_new",  # runs of a sweep are computed together
                name=f"{run.method}, seed {run.seed}",
                group=run.method,
                config={**run.settings, "method": run.method, "seed": run.seed},
                settings=package.Settings(silent=True, console="off", x_disable_stats=True),
            )
            own.define_metric("*", step_metric="round")
        count = 0  # on the virtual clock several rows may have the same round

        def add_row(row: Row) -> None:
            nonlocal count
            values = {name: v for name, v in row.items() if name not in ("method", "seed")}
            own.log(values, step=count)
            count += 1

        try:
            yield add_row
        except BaseException:
            own.finish(exit_code=1)
            raise
        own.finish()

    return track


def _identity(folder: Path, name: str) -> str:
    """The id of a run, which stays the same in this results folder."""
    file = folder / "id.txt"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            write_text(file, secrets.token_hex(8))
        own = file.read_text()
    return hashlib.sha256(f"{own}/{name}".encode()).hexdigest()[:16]


@contextlib.contextmanager
def _explained(package):
    """Turns errors of the package wandb, such as those of the network, into errors of one line."""
    try:
        yield
    except package.Error as error:
        raise ValueError(f"track='wandb' fails ({error}); {_FIX}") from error
