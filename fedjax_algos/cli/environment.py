"""What surrounds the training of a command: jax's devices, the folder, trackers, and signals."""

import contextlib
import os
import shlex
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import jax

from fedjax_algos.cli.options import check_path, values_of
from fedjax_algos.core.options import options
from fedjax_algos.core.reprs import printable
from fedjax_algos.engine.compilation import keep_compiled
from fedjax_algos.engine.placed.devices import usable_cores
from fedjax_algos.runs.recorder import DivergenceWarning
from fedjax_algos.runs.saving.interruption import finish_calls
from fedjax_algos.runs.saving.results_folder import ResultsFolder, open_folder, read_configuration
from fedjax_algos.runs.saving.trackers import Tracker, trackers

_folders: list[Path] = []  # that of the command, once it is open


def start_jax(devices: int | None, compilation_cache: str | None) -> None:
    """Makes several devices of a CPU, unless jax has started or has its own setting."""
    if compilation_cache is not None:
        keep_compiled(compilation_cache)
    by_flag = "device_count" in os.environ.get("XLA_FLAGS", "")
    # jax's type for its configuration does not know the attribute
    if getattr(jax.config, "jax_num_cpu_devices", -1) == -1 and not by_flag:
        with contextlib.suppress(RuntimeError):  # jax has started
            jax.config.update("jax_num_cpu_devices", devices or usable_cores())


def make_trackers(specs: Sequence[str]) -> list[Tracker]:
    """The trackers that --track names."""
    names = [trackers.parse(spec)[0] for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"track names {name!r} twice; give it once")
    return [trackers.make(spec) for spec in specs]


@contextlib.contextmanager
def results_folder(values: dict[str, Any], name: str) -> Iterator[ResultsFolder]:
    """The results folder of a command, as the options of `shared_options` say."""
    check_path("out", values["out"])
    check_path("compilation_cache", values["compilation_cache"])
    texts = {"every": values["checkpoint_every"], "keep": values["keep_checkpoints"]}
    given = values_of(options(open_folder), texts)
    with open_folder(values["out"], name, resume=values["resume"], **given) as folder:
        _folders[:] = [folder.path]
        yield folder


@contextlib.contextmanager
def training() -> Iterator[None]:
    """Ends the command at the next evaluation after Ctrl-C or SIGTERM.

    The warning of a run that diverged is not shown here; the command lists these runs at its end.
    Other warnings are one line each.
    """
    with finish_calls(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        warnings.showwarning = _show_warning
        yield


def _show_warning(message: Warning | str, *place: Any, **where: Any) -> None:
    """Python's hook: one line, without the place in the code."""
    click.echo(f"warning: {printable(message)}", err=True)


def forget_folder() -> None:
    """Begins a command, whose results folder is not open yet."""
    _folders.clear()


def way_on(arguments: Sequence[str]) -> str:
    """What to do after a command was interrupted, as its results folder is now."""
    path = _folders[-1] if _folders else None
    content = None
    with contextlib.suppress(ValueError):
        content = path and read_configuration(path)
    if not content:
        what = "" if path is None else "nothing was saved: "
        return f"{what}give the same command again"
    if content["complete"]:
        return f"all results are in {printable(path)}"
    again = list(arguments)
    if not any(each.split("=")[0] == "--out" for each in again):
        again += ["--out", str(path)]
    again += ["--resume"] * ("--resume" not in again)
    return f"go on with: fedjax-algos {shlex.join(again)}"
