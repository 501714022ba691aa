"""The README's Python runs as it stands, and its promises about names hold."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import LAYOUTS, quadratics, run

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


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


def test_its_table_names_the_papers_algorithms_and_no_others():
    (table,) = re.findall(r"\| algorithm \|.*?\n((?:\|.*\n)+)", README)
    named = set(re.findall(r"`([a-z]+)`", "".join(row.split("|")[1] for row in table.splitlines())))
    assert named <= set(algorithms)
    assert len(named) >= 26


EXAMPLE = re.findall(r"```python\n(.*?)```", CONTRIBUTING, re.DOTALL)


def test_the_contributed_algorithm_is_one_file_and_nothing_else(tmp_path, monkeypatch, x64):
    """CONTRIBUTING's file, found by its name, against a loop in NumPy."""
    (text,) = EXAMPLE
    assert 30 <= text.count("\n") <= 80
    (tmp_path / "fedexp.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        importlib.import_module("fedexp")
        toy = quadratics([[1.0], [2.0], [0.5]], [[1.0], [-1.0], [3.0]])
        local = fa.Local(batch_size=1, learning_rate=0.1, steps=3)
        algorithm = algorithms.make("fedexp:epsilon=0.1", toy.problem, local)
        sets = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]
        histories = [run(algorithm, toy.data, sets, layout=layout) for layout in LAYOUTS]
        with pytest.raises(ValueError, match="epsilon=0 is out of range"):
            algorithms.make("fedexp:epsilon=0", toy.problem, local)
    finally:
        algorithms.pop("fedexp", None)
        sys.modules.pop("fedexp", None)
    x, expected = 0.5, []
    for _ in sets:
        steps = np.array(
            [x - (b + (x - b) * (1 - 0.1 * a) ** 3) for a, b in ((1, 1), (2, -1), (0.5, 3))]
        )
        rate = max(1, (steps**2).mean() / (2 * (steps.mean() ** 2 + 0.1)))
        x = x - rate * steps.mean()
        expected.append(x)
    for history in histories:
        np.testing.assert_allclose([float(p["x"]) for p in history], expected, rtol=0, atol=1e-13)
