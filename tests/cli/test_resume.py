"""Runs that are interrupted and go on, locks, full disks, and readers of unfinished folders."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from same_runs import folder_content
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedjax_algos.cli import main
from fedjax_algos.core.files import write_sums
from fedjax_algos.runs import comparison, results
from fedjax_algos.runs.experiment import prepare
from fedjax_algos.runs.method import methods_of
from fedjax_algos.runs.saving.opening import open_folder
from fedjax_algos.runs.saving.results_folder import ResultsFolder, read_rows
from fedjax_algos.runs.saving.trackers import trackers
from fedjax_algos.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("compiled_once", "quick_pictures")
PAGE = Path(__file__).parents[2] / "docs" / "command_line.md"
SMALL = "--model linear --clients 8 --batch-size 4 --local-steps 2 --seeds 2"
ROUNDS = f"--rounds 6 --eval-every 2 --cohort 2 {SMALL}"
COMMANDS = {
    "rounds": f"compare scaffold fedavg {ROUNDS}",
    "rows on disk": f"run scaffold --client-state disk {ROUNDS}",
    "virtual clock": f"run fedcompass --seconds 60 --evaluations 4 {SMALL}",
    "sweep": f"sweep fedavg --grid client_learning_rate=0.1,0.2 --devices 2 {ROUNDS}",
}
EXTENDED = ("rounds", "sweep")  # to more rounds


def raise_at(patch, number, which):
    """Sends a signal to this process when a row of a given number is written."""
    count, add_row = [0], ResultsFolder.add_row

    def counted(folder, row):
        add_row(folder, row)
        count[0] += 1
        if count[0] == number:
            signal.raise_signal(which)

    patch.setattr(ResultsFolder, "add_row", counted)


def interrupt(arguments, number, which=signal.SIGTERM):
    """Runs a command that is interrupted at a row; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        raise_at(patch, number, which)
        with pytest.raises(SystemExit) as stop:
            main(arguments)
    return stop.value.code


@pytest.fixture
def json_lines(here):
    """The tracker of docs/command_line.md, in a file."""
    *_, program, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (here / "mine.py").write_text(program)
    yield "mine.py:json_lines:name=rows.json"
    trackers.pop("mine.py:json_lines", None)


def check_tracked(folder):
    """Each tracker has the rows of its run, each of them once; returns the number of runs."""
    files = [*folder.glob("json/*/*/rows.json")]
    assert len(files) == len([*folder.glob("tensorboard/*/*/*")])
    for file in files:
        run = file.parent.relative_to(folder / "json")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert rows == read_rows(folder / "runs" / run / "metrics.csv")
        reader = EventAccumulator(str(folder / "tensorboard" / run)).Reload()
        events = [(event.step, event.value) for event in reader.Scalars("test_loss")]
        assert events == [(row["round"], np.float32(row["test_loss"])) for row in rows]
        assert ("simulated_seconds" in rows[0]) == ("simulated_seconds" in reader.Tags()["scalars"])
    return len(files)


@pytest.mark.all
@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupted_command_goes_on(name, here, json_lines, capsys):
    arguments = COMMANDS[name].split()
    main([*arguments, "--out", "whole"])
    arguments += ["--track", json_lines, "--track", "tensorboard"]
    for number, which, code in ((3, signal.SIGINT, 130), (7, signal.SIGTERM, 143)):
        capsys.readouterr()
        assert interrupt([*arguments, "--out", "parts", "--resume"], number, which) == code
        line = capsys.readouterr().err.strip().splitlines()[-1]
        command = f"fedjax-algos {' '.join(arguments)} --out parts --resume"
        assert line == f"interrupted ({which.name}); go on with: {command}"
        assert not json.loads((here / "parts" / "config.json").read_text())["complete"]
        assert check_tracked(here / "parts") > 0  # the trackers were closed
        rows_on_disk = [*(here / "parts" / "client_state").glob("*.rows")]
        assert len(rows_on_disk) == (name == "rows on disk")  # those of the run that goes on
    with pytest.raises(SystemExit):
        main(["plot", "parts"])
    assert "parts' is not complete: " in capsys.readouterr().err
    main([*arguments, "--out", "parts", "--resume"])
    assert check_tracked(here / "parts") == len([*here.glob("parts/runs/*/*/model.npz")])
    for folder in ("json", "tensorboard"):
        shutil.rmtree(here / "parts" / folder)
    assert folder_content(here / "parts") == folder_content(here / "whole")
    names = [
        sorted(str(path.relative_to(here / folder)) for path in (here / folder).rglob("*"))
        for folder in ("whole", "parts")
    ]
    if name in EXTENDED:  # a run that was saved keeps its last checkpoints, to go on from there
        names = [[each for each in some if "checkpoints" not in each] for some in names]
    assert names[0] == names[1]  # no checkpoint, lock or temporary file is left
    capsys.readouterr()
    main([*arguments, "--out", "parts", "--resume"])
    assert capsys.readouterr().out == "parts is complete; nothing is left to do\n"
    for path in [*here.glob("parts/runs/*/seed-*/metrics.csv")][:1]:  # `tune` has none
        path.write_text("round\n0\n")
        with pytest.raises(SystemExit):
            main([*arguments, "--out", "parts", "--resume"])
        assert "metrics.csv' is not as it was written" in capsys.readouterr().err


RUN = COMMANDS["rounds"].split()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder of a run that was interrupted."""
    folder = tmp_path_factory.mktemp("stopped") / "parts"
    assert interrupt([*RUN, "--out", str(folder)], 2, signal.SIGINT) == 130
    return folder


@pytest.fixture
def interrupted(here, stopped):
    """A copy of it in the working folder."""
    return shutil.copytree(stopped, here / "parts")


OTHERS = {
    ("--rounds 6", "--rounds 4"): ["rounds: 6 in the folder, 4 here"],
    ("--seeds 2", "--seeds 3"): [
        "seeds: [0, 1] in the folder, [0, 1, 2] here",
        "the clients' examples: others in the folder",
    ],
    ("--rounds 6", "--rounds 8 --partition iid"): [
        "partition: dirichlet:alpha=0.1 in the folder, iid here",
        "rounds: 6 in the folder, 8 here",
        "the clients' examples: others in the folder",
    ],
    ("fedavg", "fedprox:mu=0.1"): [
        "methods, fedavg: in the folder only",
        "methods, fedprox: not in the folder",
    ],
}


@pytest.mark.all
def test_other_runs_are_refused(interrupted, refused, capsys):
    for change, differences in OTHERS.items():
        other = COMMANDS["rounds"].replace(*change)
        with pytest.raises(SystemExit):
            main([*other.split(), "--out", "parts", "--resume"])
        first, *lines, last = capsys.readouterr().err.splitlines()
        assert first == "error: 'parts' holds other runs:"
        assert lines == [f"  {difference}" for difference in differences]
        assert last == "  Give the command that made it, or another folder"
    error = refused(*RUN, "--out", "parts")
    assert "is not empty; name another folder or remove it or, if it holds a run that" in error


@pytest.mark.parametrize("change", [("scaffold,", "other,"), ("scaffold,0,", "scaffold,7,")])
def test_rows_of_another_run_are_refused(interrupted, change, capsys):
    """Those of a run that has ended, which are read instead of computed."""
    own = interrupted / "runs" / "01-scaffold" / "seed-0"
    (own / "model.npz").touch()
    (own / "metrics.csv").write_text((own / "metrics.csv").read_text().replace(*change))
    write_sums(own, ["metrics.csv", "model.npz"])
    with pytest.raises(SystemExit, match="2"):
        main([*RUN, "--out", "parts", "--resume"])
    error = capsys.readouterr().err.splitlines()[-1]
    name, seed, _ = (change[1] + "0,").split(",", 2)
    told = f"metrics.csv has a row of {name}, seed {seed}, among those of scaffold, seed 0; remove "
    assert told in error
    assert error.endswith("parts/runs/01-scaffold/seed-0, and this run is made again")


def test_what_is_missing_or_unreadable_is_told(interrupted, refused):
    told = "'parts' is not complete: 0 of 4 runs have ended; go on with"
    assert told in refused("table", "parts")
    whole = (interrupted / "config.json").read_text()
    for content in ("", whole[: len(whole) // 2], "[]", "{}"):
        (interrupted / "config.json").write_text(content)
        error = refused(*RUN, "--out", "parts", "--resume")
        assert "config.json' is not what compare, run or sweep wrote" in error


def test_resume_needs_a_folder(refused, here):
    assert "resume needs the folder in which a run stopped; give --out" in refused(*RUN, "--resume")
    (here / "mine").mkdir()
    (here / "mine" / "thesis.txt").write_text("mine")
    assert "'mine' is not empty; name another folder" in refused(*RUN, "--out", "mine", "--resume")


def test_a_folder_in_use_is_refused_before_data_are_loaded(refused, here, monkeypatch):
    monkeypatch.setattr(Settings, "load", None)
    with open_folder("busy", "run"):
        assert "'busy' is in use by another run; wait" in refused(*RUN, "--out", "busy")
    assert not (here / "busy").exists()


def test_a_folder_that_vanishes_ends_the_run(here):
    settings = Settings(model="linear", clients=8, local_steps=2, rounds=4, eval_every=2, cohort=2)
    prepared = prepare(settings, methods_of(("fedavg",), settings))
    with open_folder("gone", "run") as folder:
        folder.begin(results.configuration(prepared))
        with pytest.raises(ValueError, match=r"gone.*cannot be written \(No such file"):
            comparison.run(prepared, lambda row: shutil.rmtree("gone"), folder=folder)
    assert not (here / "gone").exists()


@pytest.fixture
def small_disk(tmp_path):
    """Makes a file system of so many kilobytes."""
    mounted = []

    def mount(kilobytes):
        path = tmp_path / f"disk{kilobytes}"
        path.mkdir()
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(path)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if made.returncode:
            pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.all
@pytest.mark.parametrize("kilobytes", [8, 40, 100])
def test_a_full_disk_is_one_line_and_keeps_what_was_written(kilobytes, small_disk, capsys):
    disk = small_disk(kilobytes)
    with pytest.raises(SystemExit) as stop:
        main([*RUN, "--checkpoint-every", "0", "--out", str(disk / "out")])
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert "cannot be written (No space left on device); what was written before is kept" in error
    for path in disk.rglob("*.csv"):
        assert results.read_rows(path)
    for path in disk.rglob("*.npz"):
        np.load(path).close()
    if (disk / "out" / "config.json").exists():
        assert not json.loads((disk / "out" / "config.json").read_text())["complete"]
    assert not list(disk.rglob(f".{os.getpid()}-*"))


@pytest.mark.all
@pytest.mark.parametrize("name", EXTENDED)
def test_a_complete_folder_goes_on_to_more_rounds(name, here, capsys):
    """Also after an interruption on the way; short runs that were not saved begin again."""
    longer = COMMANDS[name].split()
    shorter = COMMANDS[name].replace("--rounds 6", "--rounds 4").split()
    main([*longer, "--out", "whole"])
    for folder, every in {"saved": ["--checkpoint-every", "0"], "not-saved": []}.items():
        main([*shorter, *every, "--out", folder])
        capsys.readouterr()
        assert interrupt([*longer, "--out", folder, "--resume"], 4) == 143
        line = capsys.readouterr().err.splitlines()
        anew = "; 4 of its runs have no checkpoint and begin again at round 0"
        has_none = name == "rounds" and not every  # a sweep is saved at its end
        assert f"{folder} goes on from 4 to 6 rounds{anew * has_none}" in line
        main([*longer, "--out", folder, "--resume"])
        assert folder_content(here / folder) == folder_content(here / "whole")
        assert not list((here / folder).rglob(".*"))
    with pytest.raises(SystemExit):
        main([*shorter, "--out", folder, "--resume"])
    assert "  rounds: 6 in the folder, 4 here\n" in capsys.readouterr().err


@pytest.mark.all
def test_runs_that_cannot_go_on_to_more_rounds_are_refused(here, capsys):
    off = f"run fedavg --rounds 3 --eval-every 2 --cohort 2 {SMALL} --out off"
    clock = COMMANDS["virtual clock"] + " --out clock"
    tuned = f"tune fedavg --grid client_learning_rate=0.1 {ROUNDS} --out tuned"
    for command, change, line in (
        (off, ("--rounds 3", "--rounds 4"), "rounds: 3 in the folder, 4 here; the run ended with"),
        (clock, ("--seconds 60", "--seconds 90"), "seconds: 60.0 in the folder, 90.0 here\n"),
        (tuned, ("--rounds 6", "--rounds 8"), "rounds: 6 in the folder, 8 here\n"),
    ):
        main(command.split())
        before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main([*command.replace(*change).split(), "--resume"])
        assert f"  {line}" in capsys.readouterr().err
        assert before == {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
