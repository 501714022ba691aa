"""Ctrl-C and SIGTERM at every moment of a command: one line, the exit code, and the same digits."""

import json
import os
import signal
import subprocess
import sys

import jax
import pytest
from same_runs import folder_content

from fedjax_algos.analysis import pictures
from fedjax_algos.cli import main
from fedjax_algos.runs import results
from fedjax_algos.runs.saving.interruption import Interrupted, finish_calls
from fedjax_algos.runs.saving.results_folder import ResultsFolder
from fedjax_algos.runs.settings import Settings
from fedjax_algos.runs.tuning.tuning import Scores

pytestmark = pytest.mark.usefixtures("quick_pictures")
OPTIONS = "--model linear --clients 8 --batch-size 4 --local-steps 1 --seeds 2"
SMALL = f"--cohort 2 --rounds 4 --eval-every 2 {OPTIONS}"
GRID = "--grid client_learning_rate=0.1,0.2"
COMMANDS = {
    "compare": f"compare scaffold fedavg {SMALL}",
    "run": f"run scaffold {SMALL}",
    "clock": f"run fedbuff {OPTIONS} --seconds 9 --evaluations 3",
    "sweep": f"sweep fedavg {GRID} {SMALL}",
    "tune": f"tune fedavg fedprox {GRID} {SMALL}",
}
# in the order in which a command comes to them; the signal arrives before or after the call
MOMENTS = {
    "data are loaded": (Settings, "load", "before"),
    "the folder has begun": (ResultsFolder, "begin", "after"),
    "a program is compiled": (jax.monitoring, None, ""),
    "a row is written": (ResultsFolder, "add_row", "after"),
    "a run has ended": (ResultsFolder, "end", "after"),
    "scores are written": (Scores, "add", "after"),
    "results are written": (results, "write", "before"),
    "the figure is drawn": (pictures, "plot_metric", "before"),
    "the folder is marked": (ResultsFolder, "complete", "before"),
    "all is written": (ResultsFolder, "complete", "after"),
}
_OF_TUNE = {"a row is written", "a run has ended", "results are written", "the figure is drawn"}


def send_at(moment, number, patch):
    """Sends a signal to this process at a moment, once."""
    owner, name, when = MOMENTS[moment]
    sent = []

    def send():
        if not sent:
            sent.append(number)
            signal.raise_signal(number)

    if name is None:

        def listen(event, seconds, **details):
            if event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
                send()

        jax.monitoring.register_event_duration_secs_listener(listen)
        return sent, lambda: jax.monitoring.unregister_event_duration_listener(listen)
    original = getattr(owner, name)

    def call(*arguments, **keywords):
        if when == "before":
            send()
        result = original(*arguments, **keywords)
        if when == "after":
            send()
        return result

    patch.setattr(owner, name, call)
    return sent, lambda: None


@pytest.mark.all
@pytest.mark.parametrize("command", COMMANDS)
def test_every_moment_ends_with_one_line(command, here, capsys, monkeypatch, compiled_once):
    """The two signals take turns, and begin with the other one in the next command."""
    numbers, first = [signal.SIGTERM, signal.SIGINT], list(COMMANDS).index(command)
    arguments = COMMANDS[command].split()
    main([*arguments, "--out", "whole"])
    arguments += ["--out", "parts", "--resume", "--checkpoint-every", "0"]
    others = _OF_TUNE if command == "tune" else {"scores are written"}
    for position, moment in enumerate(each for each in MOMENTS if each not in others):
        number = numbers[(position + first) % 2]
        if moment == "a program is compiled":
            compiled_once.clear()
        capsys.readouterr()
        with monkeypatch.context() as patch:
            sent, undo = send_at(moment, number, patch)
            with pytest.raises(SystemExit) as stop:
                main(arguments)
            undo()
        assert sent, moment
        assert stop.value.code == 128 + number, moment
        lines = [line for line in capsys.readouterr().err.splitlines() if "interrupted" in line]
        way = {
            "data are loaded": "nothing was saved: give the same command again",
            "all is written": "all results are in parts",
        }.get(moment, f"go on with: fedjax-algos {' '.join(arguments)}")
        assert lines == [f"interrupted ({number.name}); {way}"], moment
        if moment != "data are loaded":
            told = json.loads((here / "parts" / "config.json").read_text())["complete"]
            assert told == (moment == "all is written"), moment
    assert not list((here / "parts").rglob(".*"))  # no lock, nothing half-written
    if command == "tune":
        texts = [(here / name / "trials.csv").read_text() for name in ("whole", "parts")]
        assert texts[0] == texts[1]
    else:
        assert folder_content(here / "parts") == folder_content(here / "whole")


def test_the_end_of_the_block_remembers_a_signal(monkeypatch):
    """One that arrives after the last evaluation, at which nobody looks for it any more."""
    before = signal.getsignal(signal.SIGTERM)

    def send():
        with finish_calls():
            signal.raise_signal(signal.SIGTERM)

    for _ in range(2):  # the first one is forgotten then
        with pytest.raises(Interrupted, match="SIGTERM"):
            send()
    assert signal.getsignal(signal.SIGTERM) is before
    with finish_calls():
        pass


def test_the_second_signal_ends_the_process(monkeypatch):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)

    def send_both():
        with finish_calls():
            signal.raise_signal(signal.SIGINT)
            assert not codes
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match="SIGINT"):
        send_both()
    assert codes == [143]


def test_a_signal_that_a_library_catches_ends_the_command(here, capsys, monkeypatch):
    def swallow(*_):
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException:
            raise ValueError("a library's own") from None

    monkeypatch.setattr(Settings, "load", swallow)
    with pytest.raises(SystemExit) as stop:
        main(COMMANDS["run"].split())
    assert stop.value.code == 143
    line = "interrupted (SIGTERM); nothing was saved: give the same command again\n"
    assert capsys.readouterr().err == line
    assert not list(here.iterdir())


def test_a_command_without_a_results_folder(capsys, monkeypatch):
    monkeypatch.setattr(json, "dumps", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit) as stop:
        main(["list", "models", "--json"])
    assert stop.value.code == 130
    assert capsys.readouterr().err == "interrupted (SIGINT); give the same command again\n"


@pytest.mark.all
def test_a_signal_while_the_command_is_imported():
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-v", "-m", "fedjax_algos", "list", "models"]
    outputs = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    for number in (signal.SIGINT, signal.SIGTERM):
        with subprocess.Popen(command, env=variables, **outputs) as started:
            next(line for line in started.stderr if "import 'fedjax_algos.core" in line)
            started.send_signal(number)
            last = started.stderr.read().splitlines()[-1]
        name = signal.Signals(number).name
        message = f"interrupted ({name}) before the command began; give the same command again"
        assert last.endswith(message)  # Python's -v writes a line and its end in two steps
        assert started.returncode == 128 + number


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGINT)
# The processes are forked from one that has imported everything, and started nothing.
PROGRAM = f"""
import json, os, signal, time
import matplotlib.pyplot, sklearn.datasets
import fedjax_algos.runs.simulation
from fedjax_algos.cli import main

COMMAND = (
    "run scaffold --devices 2 --model linear --clients 8 --batch-size 4 --local-steps 2 --cohort 4 "
    "--rounds 4000 --eval-every 20 --out out"
)

def end(number, which):
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.dup2(writing, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.close(reading), os.close(writing)
        main((COMMAND + str(number)).split())
        raise SystemExit
    os.close(writing)
    with os.fdopen(reading) as errors:
        first = errors.readline()
        time.sleep(0.4 * number)
        os.kill(process, which)
        last = errors.read().strip().splitlines()[-1]
    return first, last, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

print(json.dumps([end(*each) for each in enumerate({[*map(int, SIGNALS)]})]))
"""


@pytest.mark.all
def test_a_signal_never_ends_in_a_crash(here):
    """In processes of their own, from the compilation of the rounds on."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, stdout=subprocess.PIPE, env=variables
    ).stdout
    ends = json.loads(output)
    for number, ((first, last, code), which) in enumerate(zip(ends, SIGNALS, strict=True)):
        assert first.startswith("digits, linear")
        way = "go on with: fedjax-algos run scaffold "
        assert last.startswith(f"interrupted ({which.name}); {way}")
        assert code == 128 + which
        assert not json.loads((here / f"out{number}" / "config.json").read_text())["complete"]
