"""The bars of the commands, and the plain lines in their place where there is no terminal."""

import re
import threading

import pytest
from rich.progress import Progress, Task

from fedjax_algos.cli import main, progress
from fedjax_algos.cli.progress import PlainLines, StatusColumn, compilation_line
from fedjax_algos.engine.compilation import Compilation
from fedjax_algos.runs.settings import Settings

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


LINE = re.compile(
    r"preparing; time left unknown"
    r"|(?P<name>[^:]+(?:: |, )?[^:]*), seed (?P<seed>\d+): "
    r"(?:compiling|starting|(?:ended at |ended early, at )?(?:round|second) [\d.]+ of [\d.]+"
    r"(?:, accuracy \d\.\d{3})?)"
    r"; (?:time left unknown|about (?:\d+ s|\d+ min|\d+ h \d+ min) left)"
    r"|writing results"
)
CLOCK = ("--model", "linear", "--clients", "4", "--local-steps", "1", "--seconds", "9")
ENDED = {
    "compare": (["compare", "fedavg", "fedprox", *SMALL], ["fedavg", "fedprox"]),
    "run": (["run", "fedavg", *SMALL], ["fedavg"]),
    "clock": (["run", "fedasync", *CLOCK, "--evaluations", "2"], ["fedasync"]),
    "sweep": (
        ["sweep", "fedavg", *GRID, *SMALL],
        ["fedavg client_learning_rate=0.1", "fedavg client_learning_rate=0.2"],
    ),
    "tune": (
        ["tune", "fedavg", *GRID, *SMALL],
        ["fedavg client_learning_rate=0.1", "fedavg client_learning_rate=0.2"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", ENDED)
def test_lines_without_a_terminal(command, capsys, monkeypatch, here):
    """Each run has a line at its end, and others say what happens meanwhile; none is on stdout."""
    monkeypatch.setattr(progress, "INTERVAL", 0.001)
    arguments, labels = ENDED[command]
    main([*arguments, "--seeds", "7,9", "--out", "out"])
    captured = capsys.readouterr()
    assert not {"\r", "\x1b"} & {*captured.err}
    assert "ended at" not in captured.out
    lines = [line for line in captured.err.splitlines() if "; " in line or "left" in line]
    matches = [LINE.fullmatch(line) for line in lines]
    assert all(matches), [line for line, match in zip(lines, matches, strict=True) if not match]
    ended = [line.partition(": ended at ")[0] for line in lines if ": ended at " in line]
    assert sorted(ended) == sorted(f"{label}, seed {seed}" for label in labels for seed in (7, 9))
    assert any("preparing" in line for line in lines)
    assert any(": compiling; " in line for line in lines)
    assert re.search(r": (round|second) [\d.]+ of [\d.]+, accuracy .* left$", captured.err, re.M)
    assert "progress" not in [thread.name for thread in threading.enumerate()]


def lines_of(monkeypatch, **changes):
    """Lines with a clock of their own, which the test sets."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
    compiled = Compilation()
    lines = PlainLines(compiled, displayed=True)
    lines.begin(400, Settings(rounds=100, seeds=(0, 1), **changes))
    return lines, clock, compiled


def row(number, wall, method="fedavg", seed=0):
    return {
        "method": method, "seed": seed, "round": number, "wall_seconds": wall, "test_accuracy": 0.5
    }  # fmt: skip


def test_the_time_left_is_that_of_all_runs_without_compilation(monkeypatch, capsys):
    lines, clock, compiled = lines_of(monkeypatch)
    lines.start("fedavg", 0)
    assert lines.line() == "fedavg, seed 0: starting; time left unknown"
    compiled.is_compiling = True
    assert lines.line() == "fedavg, seed 0: compiling; time left unknown"
    compiled.is_compiling = False
    lines.row(row(0, 1.0))
    clock[0], compiled.backend_seconds = 150.0, 50.0
    lines.row(row(50, 150.0))  # 50 rounds in 100 s, and 350 are left
    assert lines.line() == "fedavg, seed 0: round 50 of 100, accuracy 0.500; about 12 min left"
    clock[0] = 250.0
    lines.row(row(100, 250.0))
    last = "fedavg, seed 0: ended at round 100 of 100, accuracy 0.500; about 10 min left\n"
    assert capsys.readouterr().err == last
    assert lines.line() == "fedavg, seed 1: starting; about 10 min left"
    lines.row(row(0, 1.0, seed=1))
    clock[0] = 350.0
    lines.row(row(50, 101.0, seed=1))
    lines.start("fedprox", 200)  # seed 1 has diverged
    assert capsys.readouterr().err.startswith("fedavg, seed 1: ended early, at round 50 of 100; ")
    assert lines.line() == "fedprox, seed 0: starting; about 8 min left"
    lines.finish()
    assert lines.line() == "writing results"


def test_rows_of_an_earlier_process_do_not_count_as_speed(monkeypatch):
    lines, clock, _ = lines_of(monkeypatch)
    lines.start("fedavg", 0)
    for number in (0, 40, 80):  # 20 s each, read at once
        lines.row(row(number, number / 2))
    assert lines.line().endswith("round 80 of 100, accuracy 0.500; time left unknown")
    clock[0] = 60.0
    lines.row(row(90, 100.0))  # 10 rounds in 60 s, and 310 are left
    assert lines.line().endswith("; about 31 min left")


@pytest.mark.parametrize(("seconds", "cache"), [(1.9, None), (2.1, None), (1.9, "folder")])
def test_the_last_line_names_the_cache_of_programs(seconds, cache, capsys):
    compilation_line(Compilation(backend_seconds=1.0), seconds, cache)
    assert ("--compilation-cache" in capsys.readouterr().out) == (seconds < 2 and cache is None)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "sweep", "tune"])
def test_each_command_ends_with_that_line(command, capsys, monkeypatch, here):
    monkeypatch.setattr(Compilation, "seconds", 1e9)
    for more, named in (["--out", "a"], True), (["--out", "b", "--compilation-cache", "c"], False):
        main([*ENDED[command][0], "--seeds", "7,", *more])
        last = capsys.readouterr().out.splitlines()[-1]
        assert ("--compilation-cache FOLDER" in last) is named
