"""The README's Python runs as it stands, and its promises about names hold."""

import re
from pathlib import Path

import pytest

from fedjax_algos.algorithms import algorithms

README = (Path(__file__).parent.parent / "README.md").read_text()


def fenced(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_python_runs_and_learns(capsys):
    (program,) = fenced("python")
    assert 15 <= len([line for line in program.splitlines() if line.strip()]) <= 20
    names = {}
    exec(program, names)
    start, end = names["history"][0]["test_loss"], names["history"][-1]["test_loss"]
    assert start > 100
    assert end < 0.01 * start
    assert len(capsys.readouterr().out) > 0


def test_the_commands_are_two_lines():
    run, test = fenced("sh")
    assert run.count("\n") == test.count("\n") == 1
    assert run.strip().endswith("fedjax-algos compare")
    assert test.strip().endswith("pytest")


@pytest.mark.parametrize("name", algorithms)
def test_every_algorithm_is_named(name):
    assert name in README.lower()
