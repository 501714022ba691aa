"""The bars of the commands say which method is being compiled."""

import pytest
from rich.progress import Progress, Task

from fedjax_algos.cli import main
from fedjax_algos.cli.progress import StatusColumn
from fedjax_algos.engine.compilation import Compilation

SMALL = (
    "--model", "linear", "--clients", "4", "--cohort", "2", "--rounds", "2", "--eval-every", "1",
    "--local-steps", "1",
)  # fmt: skip
GRID = ["--grid", "client_learning_rate=0.1,0.2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "bars"),
    [
        (["compare", "fedavg", "fedprox"], {"fedavg": False, "fedprox": True}),
        (["sweep", "fedavg", *GRID], {"2 runs": True}),
        (["tune", "fedavg", "fedprox", *GRID], {"fedavg": False, "fedprox": True}),
    ],
)
def test_the_bar_of_the_method_that_runs_says_so(arguments, bars, capsys, monkeypatch):
    """The last lines on a terminal, as if a program were compiled all the time, without an end."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(Compilation, "is_compiling", property(lambda _: True, lambda *_: None))
    monkeypatch.setattr(Task, "finished", property(lambda _: False))
    main([*arguments, *SMALL, "--seeds", "7,"])
    shown = capsys.readouterr().err
    for name, expected in bars.items():
        line = next(line for line in reversed(shown.splitlines()) if name in line and "0:0" in line)
        assert ("compiling" in line) is expected


def test_the_status_is_shown_otherwise():
    compiled = Compilation()
    column = StatusColumn(compiled)
    with Progress(disable=True) as progress:
        first, second = (progress.add_task("", total=2, status="seed 7") for _ in range(2))
        column.current = first

        def shown():
            return [str(column.render(task)) for task in progress.tasks]

        assert shown() == ["seed 7", "seed 7"]
        compiled.is_compiling = True
        assert shown() == ["compiling", "seed 7"]
        column.current = second
        assert shown() == ["seed 7", "compiling"]
        progress.update(second, completed=2)
        assert shown() == ["seed 7", "seed 7"]
