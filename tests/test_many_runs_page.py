"""docs/many_runs.md: its scripts start shares that make one folder, in small and on one machine."""

import os
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest
from helpers import ROOT

from fedjax_algos.cli import cli
from fedjax_algos.runs.saving.results_folder import read_configuration

TEXT = (ROOT / "docs" / "many_runs.md").read_text()
SSH, SLURM, SUBMITIT, RAY = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)
SMALL = "--seeds 2 --model linear --rounds 2 --eval-every 1 --clients 6 --cohort 2 --devices 1"


@pytest.fixture
def shell(here):
    """Runs a script of the page in small; `ssh HOST COMMAND` is a process of this machine."""
    programs = here / "programs"
    programs.mkdir()
    (programs / "fedjax-algos").write_text(f'#!/bin/sh\nexec {sys.executable} -m fedjax_algos "$@"')
    (programs / "ssh").write_text('#!/bin/sh\nshift\nexec sh -c "$*"')
    for path in programs.iterdir():
        path.chmod(0o755)

    def run(script, **variables):
        assert "--seeds 10" in script
        script = script.replace("--seeds 10", SMALL).replace(".venv/bin/", "")
        path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "-c", script], env=os.environ | path | variables,
            check=True, capture_output=True, text=True,
        )  # fmt: skip

    return run


@pytest.mark.all
def test_the_loop_over_hosts(shell):
    shell(SSH)
    assert read_configuration(Path("results/study"))["complete"]
    assert len(list(Path().glob("part-?.log"))) == 4


@pytest.mark.all
def test_a_job_array(shell):
    """With two rates in five tasks, of which one is started again, as after a time limit."""
    script = SLURM.replace("0.01 0.02 0.03 0.05 0.1 0.2 0.3 0.5 1 2", "0.1 0.3")
    script = script.replace("_ID/50", "_ID/5")
    assert "for rate in 0.1 0.3;" in script
    for task in "414":
        shell(script, SLURM_ARRAY_TASK_ID=task)
    content = read_configuration(Path("results/study"))
    assert len(content["methods"]) == 10
    assert content["shares"][0][-1] == "fedavg client_learning_rate=0.3, seed 1"
    assert not content["complete"]
    assert len(list(Path("results/study").glob("runs/*/seed-?/SHA256SUMS"))) == 8


@pytest.mark.parametrize("program", [SUBMITIT, RAY])
def test_engines_in_python_start_all_parts(program, monkeypatch):
    """With engines that run each task where it is started."""
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda words, check: commands.append(words))

    class Executor:
        def __init__(self, folder):
            pass

        def update_parameters(self, **parameters):
            pass

        def map_array(self, function, values):
            return [types.SimpleNamespace(result=lambda v=value: function(v)) for value in values]

    def remote(**options):
        return lambda function: types.SimpleNamespace(remote=function)

    ray = types.SimpleNamespace(remote=remote, init=lambda address: None, get=list)
    monkeypatch.setitem(sys.modules, "submitit", types.SimpleNamespace(AutoExecutor=Executor))
    monkeypatch.setitem(sys.modules, "ray", ray)
    exec(program, {"__name__": "__main__"})
    assert [words[-2:] for words in commands] == [["--share", f"{n}/16"] for n in range(1, 17)]
    for program_name, *arguments in commands:
        assert program_name == "fedjax-algos"
        cli.commands["compare"].make_context("compare", arguments[1:])
    assert len({shlex.join(words[:-2]) for words in commands}) == 1
