"""The README's shape, its two programs, and CONTRIBUTING's algorithm, as they stand."""

import inspect
import re

import numpy as np
import pytest
from helpers import LAYOUTS, ROOT, programs, quadratics, run
from page_helpers import blocks, executed

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms

README = (ROOT / "README.md").read_text()


def test_it_begins_with_ten_lines():
    """What it is, the installation, a command, its figure, and six lines of Python."""
    program = programs("README.md")[0]
    beginning = README[: README.index(program) + len(program)]
    lines = [line for line in beginning.splitlines()[1:] if line and not line.startswith("```")]
    install, command, figure, *python = lines[4:]  # after the first paragraph
    assert len(python) == 6
    assert install.endswith("pip install -q .")
    assert re.match(r"\S*fedjax-algos compare fedavg ghbm", command)
    assert (ROOT / re.search(r"\((\S+\.png)\)", figure)[1]).exists()
    assert python == [line for line in program.splitlines() if line]


def test_it_is_short_and_the_tests_are_one_line():
    """.ci/run takes it from here."""
    assert README.count("\n") <= 135
    _, test = blocks("README.md", "sh")
    assert test.count("\n") == 1
    assert "'.[test]'" in test
    assert README.count("'.[test]'") == 1
    assert test.strip().endswith("pytest")


def test_its_table_names_the_papers_algorithms_and_their_folders():
    (table,) = re.findall(r"\| algorithm \|.*?\n((?:\|.*\n)+)", README)
    named = set()
    for row in table.splitlines()[1:]:
        names, _, folder = row.strip("| ").split("|")
        for name in re.findall(r"`([a-z0-9]+)`", names):
            module = inspect.unwrap(algorithms[name]).__module__
            assert f"`{module.split('.')[2]}/`" in folder, name
            named.add(name)
    assert named == set(algorithms)


@pytest.mark.all
def test_the_programs_run_and_learn(capsys):
    executed("README.md", 0)
    assert 0.8 < float(capsys.readouterr().out) <= 1
    history = executed("README.md", 1)["history"]
    assert history[0]["test_loss"] > max(100, 100 * history[-1]["test_loss"])
    assert capsys.readouterr().out


@pytest.mark.all
def test_the_contributed_algorithm_is_one_file_and_nothing_else(here, x64):
    """CONTRIBUTING's file, loaded by its path, against a loop in NumPy."""
    (text,) = programs("CONTRIBUTING.md")
    assert 30 <= text.count("\n") <= 80
    (here / "my_file.py").write_text(text)
    toy = quadratics([[1.0], [2.0], [0.5]], [[1.0], [-1.0], [3.0]])
    local = fa.Local(batch_size=1, learning_rate=0.1, steps=3)
    algorithm = algorithms.make("my_file.py:fedinit:beta=0.3", toy.problem, local)
    with pytest.raises(ValueError, match="beta=-1 is out of range"):
        algorithms.make("my_file.py:fedinit:beta=-1", toy.problem, local)
    x, last, expected, sets = 0.5, np.full(3, 0.5), [], [(0, 1), (2, 0), (1, 2), (0, 1)]
    a, b = np.array([[1, 2, 0.5], [1, -1, 3]])
    for cohort in map(list, sets):
        start = x + 0.3 * (x - last[cohort])
        last[cohort] = b[cohort] + (start - b[cohort]) * (1 - 0.1 * a[cohort]) ** 3
        x = last[cohort].mean()
        expected.append(x)
    for layout in LAYOUTS:
        found = [float(p["x"]) for p in run(algorithm, toy.data, sets, layout=layout)]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
