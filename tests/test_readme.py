"""The README's Python runs as it stands, and the names and links of all pages exist."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from helpers import FENCED, LAYOUTS, PAGES, page_at, programs, quadratics, run

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def fenced(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_it_begins_with_ten_lines():
    """What it is, the installation, a command, its figure, and six lines of Python."""
    program = fenced("python")[0]
    beginning = README[: README.index(program) + len(program)]
    lines = [line for line in beginning.splitlines()[1:] if line and not line.startswith("```")]
    assert len(lines) == 10
    _, install, command, figure, *python = lines
    assert install.endswith("pip install -q .")
    assert re.match(r"\S*fedjax-algos compare fedavg ghbm", command)
    assert (ROOT / re.search(r"\((\S+\.png)\)", figure)[1]).exists()
    assert python == [line for line in program.splitlines() if line]


@pytest.mark.all
def test_the_six_lines_run_and_learn(capsys):
    exec(fenced("python")[0], {})
    assert 0.8 < float(capsys.readouterr().out) <= 1


def test_the_python_runs_and_learns(capsys):
    _, program = fenced("python")
    assert 15 <= len([line for line in program.splitlines() if line.strip()]) <= 20
    exec(program, names := {})
    start, end = names["history"][0]["test_loss"], names["history"][-1]["test_loss"]
    assert start > 100
    assert end < 0.01 * start
    assert len(capsys.readouterr().out) > 0


def test_it_is_short_and_the_tests_are_one_line():
    """.ci/run takes it from here."""
    assert README.count("\n") <= 135
    _, test = fenced("sh")
    assert test.count("\n") == 1
    assert "'.[test]'" in test
    assert README.count("'.[test]'") == 1
    assert test.strip().endswith("pytest")


def test_its_table_names_the_papers_algorithms_and_their_folders():
    (table,) = re.findall(r"\| algorithm \|.*?\n((?:\|.*\n)+)", README)
    named = set()
    for row in table.splitlines()[1:]:
        names, _, folder = row.strip("| ").split("|")
        for name in re.findall(r"`([a-z]+)`", names):
            module = inspect.unwrap(algorithms[name]).__module__
            assert f"`{module.split('.')[2]}/`" in folder, name
            named.add(name)
    assert len(named) >= 26


def anchors(page):
    """Names of the headings of a page and of those in it, as GitHub and MyST make them."""
    included = r"^```\{include\} (\S+)\n```$"
    text = re.sub(
        included, lambda m: (page.parent / m[1]).read_text(), page.read_text(), flags=re.M
    )
    found = []
    for title in re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title.lower())  # of a link its text
        name = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        before = sum(re.fullmatch(rf"{name}(-\d+)?", other) is not None for other in found)
        found.append(f"{name}-{before}" if before else name)
    return {*found, *re.findall(r"^\((\S+)\)=$", text, re.MULTILINE)}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files_and_headings(name):
    page = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text())):
        target, _, anchor = link.partition("#")
        if "://" not in link:
            found = page_at((page.parent / target).resolve() if target else page)
            assert found.exists(), link
            assert not anchor or anchor in anchors(found), link


@pytest.mark.parametrize("name", [name for name in PAGES if name != "CHANGELOG.md"])
def test_files_that_a_page_names_exist(name):
    page = ROOT / name
    named = re.findall(r"`([a-z_]+/[a-z_/]*[a-z_]+\.(?:py|toml|md))`", page.read_text())
    bases = [ROOT, ROOT / "fedjax_algos", ROOT / "fedjax_algos/algorithms", page.parent]
    missing = [name for name in named if not any((base / name).exists() for base in bases)]
    assert missing == []


@pytest.mark.all
def test_the_contributed_algorithm_is_one_file_and_nothing_else(tmp_path, x64):
    """CONTRIBUTING's file, loaded by its path, against a loop in NumPy."""
    (text,) = programs("CONTRIBUTING.md")
    assert 30 <= text.count("\n") <= 80
    path = tmp_path / "my_file.py"
    path.write_text(text)
    name = f"{path}:fedexp"
    try:
        toy = quadratics([[1.0], [2.0], [0.5]], [[1.0], [-1.0], [3.0]])
        local = fa.Local(batch_size=1, learning_rate=0.1, steps=3)
        algorithm = algorithms.make(f"{name}:epsilon=0.1", toy.problem, local)
        sets = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]
        histories = [run(algorithm, toy.data, sets, layout=layout) for layout in LAYOUTS]
        with pytest.raises(ValueError, match="epsilon=0 is out of range"):
            algorithms.make(f"{name}:epsilon=0", toy.problem, local)
    finally:
        algorithms.pop(name, None)
    x, expected = 0.5, []
    for _ in sets:
        a, b = np.array([[1, 2, 0.5], [1, -1, 3]])
        deltas = x - (b + (x - b) * (1 - 0.1 * a) ** 3)
        rate = max(1, (deltas**2).mean() / (2 * (deltas.mean() ** 2 + 0.1)))
        x = x - rate * deltas.mean()
        expected.append(x)
    for history in histories:
        np.testing.assert_allclose([float(p["x"]) for p in history], expected, rtol=0, atol=1e-13)
