"""The bars of the commands, and the plain lines in their place where there is no terminal."""

import io
import re
import threading

import pytest
from rich.console import Console

from fedjax_algos.cli import main, progress
from fedjax_algos.cli.progress import RunProgress
from fedjax_algos.engine.compilation import Compilation
from fedjax_algos.runs.studies.settings import Settings

OPTIONS = "--model linear --clients 4 --local-steps 1 --seeds 7,9 --out out"
SMALL = f"--cohort 2 --rounds 2 --eval-every 1 {OPTIONS}"
SWEPT = "fedavg --grid client_learning_rate=0.1,0.2"
LABELS = ["fedavg client_learning_rate=0.1", "fedavg client_learning_rate=0.2"]
nightly = pytest.mark.nightly


@pytest.mark.all
@pytest.mark.usefixtures("quick_pictures")
@pytest.mark.parametrize(
    ("line", "labels"),
    [
        (f"compare fedavg fedprox {SMALL}", ["fedavg", "fedprox"]),
        (f"run fedasync {OPTIONS} --seconds 9 --evaluations 2", ["fedasync"]),
        pytest.param(f"sweep {SWEPT} {SMALL} --compilation-cache cache", LABELS, marks=nightly),
        pytest.param(f"tune {SWEPT} {SMALL}", LABELS, marks=nightly),
    ],
)
def test_lines_without_a_terminal(line, labels, capsys, monkeypatch, here):
    """Each run has a line at its end, and others say what happens meanwhile; none is on stdout."""
    monkeypatch.setattr(progress, "INTERVAL", 0.001)
    monkeypatch.setattr(Compilation, "seconds", 1e9)
    planned = []
    monkeypatch.setattr(RunProgress, "plan", lambda self, *run: planned.append(run))
    main(line.split())
    assert planned == [("fedasync", 7), ("fedasync", 9)] * ("seconds" in line)
    captured = capsys.readouterr()
    assert not {"\r", "\x1b"} & {*captured.err}
    assert "ended at" not in captured.out
    ended = re.findall(r"^(.*): ended at (?:round|second) .* left$", captured.err, re.M)
    assert sorted(ended) == sorted(f"{label}, seed {seed}" for label in labels for seed in (7, 9))
    assert re.search(r"^preparing(: compiling)?; time left unknown$", captured.err, re.M)
    assert ": compiling; " in captured.err
    assert re.search(r": (round|second) [\d.]+ of [\d.]+, accuracy .* left$", captured.err, re.M)
    assert "progress" not in [thread.name for thread in threading.enumerate()]


def begun(monkeypatch, terminal=False):
    """The progress of two methods, with a clock of its own, which the test sets."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
    compiled, console = Compilation(), Console(file=io.StringIO(), force_terminal=terminal)
    own = RunProgress(compiled, console)
    own.begin({"fedavg": 200, "fedprox": 200}, Settings(rounds=100, seeds=(0, 1)))
    return own, clock, compiled


def row(number, wall, method="fedavg", seed=0):
    measured = {"round": number, "wall_seconds": wall, "test_accuracy": 0.5}
    return {"method": method, "seed": seed, **measured}


def test_bars_on_a_terminal(monkeypatch, capsys):
    """The part that runs says so while a program is compiled; else each has its last row."""
    own, _, compiled = begun(monkeypatch, terminal=True)
    own.plan("fedbuff", 3)
    assert own.line() == "preparing the plan of fedbuff, seed 3; time left unknown"
    own.start("fedavg")

    def shown():
        column = own.bars.columns[-1]
        return [(task.completed, str(column.render(task))) for task in own.bars.tasks]

    assert shown() == [(0, ""), (0, "")]
    own.row(row(50, 1.0))
    own.row(row(20, 1.0, seed=1))
    assert shown() == [(70, "seed 1: accuracy 0.500"), (0, "")]
    own.start("fedprox", label="fedprox mu=1")  # the two runs have diverged
    own.row(row(100, 1.0, "fedprox mu=1"))
    compiled.is_compiling = True
    assert shown() == [(200, "seed 1: accuracy 0.500"), (100, "compiling")]
    own.row(row(100, 1.0, "fedprox mu=1", seed=1))
    assert shown()[1] == (200, "")  # one that has ended does not compile
    own.finish()
    assert capsys.readouterr() == ("", "")


def test_the_time_left_is_that_of_all_runs_and_of_what_is_to_be_compiled(monkeypatch, capsys):
    lines, clock, compiled = begun(monkeypatch)
    lines.start("fedavg")
    assert lines.line() == "fedavg, seed 0: starting; time left unknown"
    compiled.is_compiling = True
    assert lines.line() == "fedavg, seed 0: compiling; time left unknown"
    lines.row(row(0, 1.0))  # so it runs; a program that is only lowered is not compiled
    clock[0], compiled.backend_seconds = 150.0, 50.0
    lines.row(row(50, 150.0))  # 50 rounds in 100 s, 350 are left, and the second method is compiled
    assert lines.line() == "fedavg, seed 0: round 50 of 100, accuracy 0.500; about 12 min left"
    clock[0] = 250.0
    lines.row(row(100, 250.0))
    last = "fedavg, seed 0: ended at round 100 of 100, accuracy 0.500; about 11 min left\n"
    assert capsys.readouterr().err == last
    assert lines.line() == "fedavg, seed 1: starting; about 11 min left"
    lines.row(row(0, 1.0, seed=1))
    clock[0] = 350.0
    lines.row(row(50, 101.0, seed=1))
    lines.start("fedprox")  # seed 1 has diverged
    assert capsys.readouterr().err.startswith("fedavg, seed 1: ended early, at round 50 of 100; ")
    assert lines.line() == "fedprox, seed 0: starting; about 9 min left"
    lines.finish()
    assert lines.line() == "writing results"


def test_rows_of_an_earlier_process_do_not_count_as_speed(monkeypatch):
    lines, clock, _ = begun(monkeypatch)
    lines.start("fedavg")
    for number in (0, 40, 80):  # 20 s each, read at once
        lines.row(row(number, number / 2))
    assert lines.line().endswith("round 80 of 100, accuracy 0.500; time left unknown")
    clock[0] = 60.0
    lines.row(row(90, 100.0))  # 10 rounds in 60 s, and 310 are left
    assert lines.line().endswith("; about 31 min left")


def test_a_note_is_no_markup():
    console = Console(file=io.StringIO())
    RunProgress(Compilation(), console).note("[/red]$x$\x1b[31m")
    assert console.file.getvalue() == "[/red]$x$\\x1b[31m\n"
