"""Commands that are interrupted at every moment and go on; folders of other runs."""

import contextlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from helpers import programs
from same_runs import folder_content as content_of
from summary_helpers import rows

from fedjax_algos.analysis import pictures
from fedjax_algos.base.files import checked_json, write_json, write_sums
from fedjax_algos.cli import main, processes
from fedjax_algos.runs import comparison, results
from fedjax_algos.runs.loops.interruption import Interrupted, finish_calls
from fedjax_algos.runs.studies import folder_content
from fedjax_algos.runs.studies.folder_content import read_rows
from fedjax_algos.runs.studies.results_folder import ResultsFolder, open_folder
from fedjax_algos.runs.studies.settings import Settings

pytestmark = pytest.mark.usefixtures("compiled_once", "quick_pictures")
nightly = pytest.mark.nightly
SMALL = "--model linear --clients 8 --batch-size 4 --local-steps 2 --seeds 2"
ROUNDS = f"--rounds 6 --eval-every 2 --cohort 2 {SMALL}"
GRID = "--grid client_learning_rate=0.1,0.2"
COMMANDS = {
    "rounds": f"compare scaffold fedavg {ROUNDS}",
    "virtual clock": f"run fedcompass --seconds 60 --evaluations 4 {SMALL}",
    "rows on disk": f"run scaffold --client-state disk {ROUNDS}",
    "sweep": f"sweep fedavg {GRID} --devices 2 {ROUNDS}",
}
RUN, PARTS = COMMANDS["rounds"].split(), ["--out", "parts"]
OF_CI = ("rounds", "virtual clock")
# in the order in which a command comes to them; the signal arrives before or after the call
MOMENTS = {
    "data are loaded": (Settings, "load", "before"),
    "the folder has begun": (ResultsFolder, "begin", "after"),
    "a program is compiled": (jax.monitoring, None, ""),
    "a row is written": (ResultsFolder, "add_row", "after"),
    "a run has ended": (ResultsFolder, "end", "after"),
    "results are written": (results, "write", "before"),
    "the figure is drawn": (pictures, "plot_metric", "before"),
    "the folder is marked": (ResultsFolder, "complete", "before"),
    "all is written": (ResultsFolder, "complete", "after"),
}


@contextlib.contextmanager
def sent_at(moment, number, count):
    """Sends a signal to this process when it comes to a moment for a number of times."""
    owner, name, when = MOMENTS[moment]
    left = [count]

    def send(*_, **__):
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(number)

    def call(*arguments, **keywords):
        if when == "before":
            send()
        result = original(*arguments, **keywords)
        if when == "after":
            send()
        return result

    with pytest.MonkeyPatch.context() as patch:
        if name is None:
            jax.monitoring.register_event_duration_secs_listener(send)
            yield
            jax.monitoring.unregister_event_duration_listener(send)
        else:
            original = getattr(owner, name)
            patch.setattr(owner, name, call)
            yield
    assert left[0] <= 0, moment


def check_tracked(folder):
    """The tracker has the rows of each run, each of them once; returns the number of runs."""
    files = [*folder.glob("json/*/*/rows.json")]
    for file in files:
        tracked = [json.loads(line) for line in file.read_text().splitlines()]
        run = file.parent.relative_to(folder / "json")
        assert tracked == read_rows(folder / "runs" / run / "metrics.csv")
    return len(files)


@pytest.mark.all
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OF_CI else nightly) for name in COMMANDS]
)
def test_a_command_goes_on_from_every_moment(name, here, capsys, compiled_once):
    """The two signals take turns; the tracker is the one of docs/command_line.md."""
    arguments, whole, parts = COMMANDS[name].split(), here / "whole", here / "parts"
    main([*arguments, "--out", "whole"])
    (here / "mine.py").write_text(programs("docs/command_line.md")[-2])
    arguments += ["--track", "mine.py:json_lines:name=rows.json"]
    arguments += [*PARTS, "--resume", "--checkpoint-every", "0"]
    signals = [signal.SIGTERM, signal.SIGINT] * len(MOMENTS)
    for moment, number in zip(MOMENTS, signals[list(COMMANDS).index(name) :], strict=False):
        if moment == "a program is compiled":
            compiled_once.clear()
        capsys.readouterr()
        count = 1 + (moment == "a row is written")
        with sent_at(moment, number, count), pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 128 + number, moment
        (told,) = re.findall("^interrupted.*", capsys.readouterr().err, re.M)
        way = {
            "data are loaded": "nothing was saved: give the same command again",
            "all is written": "all results are in parts",
        }.get(moment, f"go on with: fedjax-algos {' '.join(arguments)}")
        assert told == f"interrupted ({number.name}); {way}", moment
        if moment != "data are loaded":
            complete = json.loads((parts / "config.json").read_text())["complete"]
            assert complete == (moment == "all is written"), moment
        if moment == "a row is written":
            assert check_tracked(parts) > 0  # the tracker was closed
            on_disk = [*(parts / "client_state").glob("*.rows")]
            assert len(on_disk) == (name == "rows on disk")  # those of the run that goes on
    main(arguments)
    assert capsys.readouterr().out == "parts is complete; nothing is left to do\n"
    assert check_tracked(parts) == len([*parts.glob("runs/*/*/model.npz")])
    shutil.rmtree(parts / "json")
    assert content_of(parts) == content_of(whole)
    names = [{str(path.relative_to(each)) for path in each.rglob("*")} for each in (parts, whole)]
    assert all("checkpoints" in name for name in names[0] ^ names[1])  # nothing half-written
    next(parts.glob("runs/*/seed-*/metrics.csv")).write_text("round\n0\n")
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "metrics.csv' is not as it was written" in capsys.readouterr().err


@pytest.mark.all
def test_a_complete_folder_goes_on_to_more_rounds(here, capsys):
    """Also after an interruption on the way; short runs that were not saved begin again."""
    shorter = COMMANDS["rounds"].replace("--rounds 6", "--rounds 4").split()
    main([*RUN, "--out", "whole"])
    anew = "; 4 of its runs have no checkpoint and begin again at round 0"
    for folder, every in {"saved": ["--checkpoint-every", "0"], "not-saved": []}.items():
        main([*shorter, *every, "--out", folder])
        capsys.readouterr()
        moment = "a row is written", signal.SIGTERM, 4
        with sent_at(*moment), pytest.raises(SystemExit, match="143"):
            main([*RUN, "--out", folder, "--resume"])
        lines = capsys.readouterr().err.splitlines()
        assert f"{folder} goes on from 4 to 6 rounds{anew * (not every)}" in lines
        main([*RUN, "--out", folder, "--resume"])
        assert content_of(here / folder) == content_of(here / "whole")
        assert not list((here / folder).rglob(".*"))


@pytest.fixture
def begin(here, monkeypatch, capsys):
    """Makes the folder of a command that is interrupted before its first round."""

    def stop(*arguments, **options):
        raise Interrupted(signal.SIGINT)

    def run(line, **changes):
        with monkeypatch.context() as patch:
            patch.setattr(comparison, "run", stop)
            patch.setattr(importlib.import_module("fedjax_algos.cli.tune"), "run_tuning", stop)
            with pytest.raises(SystemExit, match="130"):
                main([*line.split(), *PARTS])
        capsys.readouterr()
        config = here / "parts" / "config.json"
        write_json(config, checked_json(json.loads(config.read_text())) | changes)
        return here / "parts"

    return run


ONE = f"run fedavg --rounds 3 --eval-every 2 --cohort 2 {SMALL}"
LINES = COMMANDS | {"one": ONE, "tune": f"tune fedavg {GRID} {ROUNDS}"}
OTHERS = """
rounds | --rounds 6 | --rounds 4 | rounds: 6 in the folder, 4 here
rounds | --rounds 6 | --rounds 8 --partition iid | partition: dirichlet | rounds: 6 | the clients'
rounds | fedavg | fedprox:mu=0.1 | methods, fedavg: {'algorithm': | methods, fedprox: none in
one | --rounds 3 | --rounds 4 | rounds: 3 in the folder, 4 here; the run ended with
tune | --rounds 6 | --rounds 8 | rounds: 6 in the folder, 8 here
virtual clock | 60 | 90 | seconds: 60.0 in the folder, 90.0 here
"""


@pytest.mark.parametrize("case", OTHERS.strip().splitlines())
def test_other_runs_are_refused(begin, refused, case):
    """Also a complete folder of runs that cannot go on to more rounds."""
    name, before, after, *differences = case.split(" | ")
    begin(LINES[name], complete=name != "rounds")
    line = LINES[name].replace(before, after).split()
    error = refused(*line, *PARTS, "--resume", lines=len(differences) + 2)
    first, *told, last = error.splitlines()
    assert first == "error: 'parts' holds other runs:"
    assert all(map(str.startswith, told, (f"  {each}" for each in differences)))
    assert last == "  Give the command that made it, or another folder"


@pytest.mark.parametrize(("name", "seed"), [("other", 0), ("scaffold", 7)])
def test_rows_of_another_run_are_refused(begin, capsys, name, seed):
    """Those of a run that has ended, which are read instead of computed."""
    own = begin(COMMANDS["rounds"]) / "runs" / "01-scaffold" / "seed-0"
    own.mkdir()
    (own / "model.npz").touch()
    measured = [row | {"seed": seed} for row in rows(name, [[0.1, 0.2]])]
    folder_content.write_table(own / "metrics.csv", measured)
    write_sums(own, ["metrics.csv", "model.npz"])
    with pytest.raises(SystemExit, match="2"):
        main([*RUN, *PARTS, "--resume"])
    told = capsys.readouterr().err.splitlines()[-1]
    assert f"01-scaffold/seed-0/metrics.csv has a row of {name}, seed {seed}; remove" in told
    assert told.endswith("parts/runs/01-scaffold/seed-0, and the run is computed again")


def test_a_folder_of_something_else_or_in_use_is_refused(begin, refused, here, monkeypatch):
    config = begin(COMMANDS["rounds"]) / "config.json"
    assert "is not empty; name another folder" in refused(*RUN, *PARTS)
    for command in ("table", "report"):
        assert "0 of 4 runs have ended; go on with" in refused(command, "parts")
    changed = config.read_text().replace('"rounds": 6', '"rounds": 7')
    told = "config.json: not as it was written", "config.json' is not what compare, run"
    for content, message in zip((changed, "{}"), told, strict=True):
        config.write_text(content)
        assert message in refused(*RUN, *PARTS, "--resume")
    (here / "mine").mkdir()
    (here / "mine" / "thesis.txt").write_text("mine")
    assert "'mine' is not empty; name another folder" in refused(*RUN, "--out", "mine", "--resume")
    monkeypatch.setattr(Settings, "load", None)  # before data are loaded
    with open_folder("busy", "run"):
        assert "'busy' is in use by another run; wait" in refused(*RUN, "--out", "busy")
    assert not (here / "busy").exists()


@nightly
@pytest.mark.parametrize("kilobytes", [8, 40, 100])
def test_a_full_disk_is_one_line_and_keeps_what_was_written(kilobytes, here, capsys):
    (disk := here / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(disk)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        with pytest.raises(SystemExit, match="2"):
            main([*RUN, "--checkpoint-every", "0", "--out", str(disk / "out")])
        told = capsys.readouterr().err.strip().splitlines()[-1]
        assert told.startswith("error: ")
        assert "(No space left on device); what was written before is kept" in told
        assert all(folder_content.read_rows(path) for path in disk.rglob("*.csv"))
        for path in disk.rglob("*.npz"):
            np.load(path).close()
        for path in disk.rglob("config.json"):
            assert not json.loads(path.read_text())["complete"]
        assert not list(disk.rglob(f".{os.getpid()}-*"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_end_of_the_block_remembers_a_signal():
    """One that arrives after the last evaluation, at which nobody looks for it any more."""
    before = signal.getsignal(signal.SIGTERM)
    for _ in range(2):  # the first one is forgotten then
        with pytest.raises(Interrupted, match="SIGTERM"), finish_calls():
            signal.raise_signal(signal.SIGTERM)
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
    with pytest.raises(SystemExit, match="143"):
        main(RUN)
    line = "interrupted (SIGTERM); nothing was saved: give the same command again\n"
    assert capsys.readouterr().err == line
    assert not list(here.iterdir())
    codes = []  # of a process of several, in which jax would wait for others, and say more
    monkeypatch.setattr(processes, "name", lambda: "process 0 of 2: ")
    monkeypatch.setattr(os, "_exit", codes.append)
    with pytest.raises(SystemExit):
        main(RUN)
    assert codes == [143]


def test_a_command_without_a_results_folder(capsys, monkeypatch):
    monkeypatch.setattr(json, "dumps", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit, match="130"):
        main(["list", "models", "--json"])
    assert capsys.readouterr().err == "interrupted (SIGINT); give the same command again\n"


def started(*arguments, options=()):
    """A command in a process of its own."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, *options, "-m", "fedjax_algos", *arguments]
    outputs = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    return subprocess.Popen(line, env=variables, **outputs)


@nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_command_imports_jax(number):
    with started("list", "models", options=["-v"]) as process:
        next(line for line in process.stderr if "import 'jax." in line)
        process.send_signal(number)
        last = next(line for line in process.stderr if "interrupted" in line)
    # Python's -v writes a line and its end in two steps
    assert last.endswith(f"interrupted ({number.name}); give the same command again\n")
    assert process.returncode == 128 + number


@nightly
@pytest.mark.parametrize(("seconds", "number"), [(0, 2), (0.4, 15), (0.8, 2)])
def test_a_signal_never_ends_in_a_crash(here, seconds, number):
    """From the compilation of the rounds on."""
    line = "run scaffold --devices 2 --model linear --clients 8 --batch-size 4 --local-steps 2"
    line += " --cohort 4 --rounds 4000 --eval-every 20 --out out"
    with started(*line.split()) as process:
        assert process.stderr.readline().startswith("digits, linear")
        time.sleep(seconds)
        process.send_signal(number)
        last = process.stderr.read().strip().splitlines()[-1]
    told = f"interrupted ({signal.Signals(number).name}); go on with: fedjax-algos run scaffold "
    assert last.startswith(told)
    assert process.returncode == 128 + number
    assert not json.loads((here / "out" / "config.json").read_text())["complete"]
