"""A bar of the progress of one run: in a terminal, in a notebook, or as lines of a log."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedjax_algos.core import Row
from fedjax_algos.core.checks import check_kind

_SHOWN = ("test_accuracy", "test_loss", "train_loss")  # the first of them that was measured


@contextlib.contextmanager
def show_progress(shown: bool, total: float, unit: str) -> Iterator[Callable[[float, Row], None]]:
    """Yields a function to call with what is done, in the unit, and the row of each evaluation.

    `total` is what is to be done. In a notebook the bar is shown without widgets, and where
    standard error is neither a terminal nor a notebook, as in the log of a cluster, each evaluation
    is a line.
    """
    check_kind("progress", shown, bool, "give True or False")
    if not shown:
        yield lambda done, row: None
        return
    console = Console(stderr=True)
    progress = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit}, {{task.fields[measured]}}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=console,
    )
    task, handle = progress.add_task("", total=total, measured=""), None
    if console.is_jupyter:
        from IPython.display import display

        handle = display(progress, display_id=True)

    def show(done: float, row: Row) -> None:
        name = next((name for name in _SHOWN if name in row), None)
        measured = f"{name.replace('_', ' ')} {row[name]:.4g}" if name else ""
        progress.update(task, completed=done, measured=measured)
        if handle is not None:
            handle.update(progress)
        elif not console.is_terminal:
            line = f"{done:g} of {total:g} {unit}, {measured}".removesuffix(", ")
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    with progress if console.is_terminal else contextlib.nullcontext():
        yield show
