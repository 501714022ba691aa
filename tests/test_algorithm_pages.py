"""docs/algorithms: each algorithm has a page with all parts; what is read of the code is whole."""

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import page_at

from fedjax_algos.algorithms import algorithms
from fedjax_algos.core.options import options

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS / "extensions"))

import algorithm_figures  # noqa: E402
from algorithm_tables import REQUIRED, costs, costs_table, options_table, source_of  # noqa: E402

NAMES = sorted(algorithms)
SECTIONS = ["The rule", "Options", "Costs", "What differs from the paper and from released code"]
SECTIONS += ["When it helps", "Citation"]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_its_parts(name):
    page = (DOCS / "algorithms" / f"{name}.md").read_text()
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == SECTIONS
    directives = re.findall(r"\{algorithm-(\w+)\} (\w+)", page)
    assert directives == [(part, name) for part in ("source", "options", "costs", "figure")]
    assert f"## When it helps\n\n```{{algorithm-figure}} {name}\n```\n\n" in page
    assert re.search(r"^\| [^|]+ \| here \|$", page, re.MULTILINE)
    assert page.count("```bibtex\n@") >= 1
    links = [link for link in re.findall(r"\]\(([^)#:]+)[)#]", page)]
    paths = [(DOCS / "algorithms" / link).resolve() for link in links]
    assert [path for path in paths if not page_at(path).exists()] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_its_meaning_and_the_source_is_whole(name):
    rows = options_table(name).splitlines()[2:]
    known = list(options(algorithms[name]))
    assert [row.split("`")[1] for row in rows] == known
    for row in rows:
        *_, meaning, end = re.split(r"(?<!\\)\|", row)
        assert not end
        assert len(meaning.strip()) > 5
        assert " at 0x" not in row  # the address of a function
    tree = ast.parse(source_of(name))
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    assert name in [node.name for node in found]
    assert not any(ast.get_docstring(node) for node in found)


def test_the_costs_are_counted():
    model = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    plain, own = costs("fedavg"), costs("fedgbo")
    assert (plain.download, plain.upload, plain.kept) == (model, model, 0)
    assert (own.download, own.upload, own.kept) == (2 * model, model, 0)
    assert costs("scaffold").kept == model
    assert "| download, bytes | 38,480 | 19,240 | 2.00 |" in costs_table("fedgbo")
    assert all("`" + key in costs_table(name) for name, given in REQUIRED.items() for key in given)


def test_the_table_of_the_figures_is_whole():
    rows, settings = algorithm_figures.tables()
    assert {row["method"] for row in settings} == set(NAMES)
    for own in settings:
        of_method = [r for r in rows if (r["task"], r["method"]) == (own["task"], own["method"])]
        x = algorithm_figures.TASKS[own["task"]].x
        positions = [(row["seed"], row[x]) for row in of_method]
        assert len(set(positions)) == len(positions) == 5 * 21
        assert {seed for seed, at in positions if at == "100"} == set("01234")
        assert all(0 <= float(row["accuracy"]) <= 1 for row in of_method)
    assert len(rows) == len(settings) * 5 * 21
    references = {row["task"] for row in settings if row["method"] == "fedavg"}
    assert references == set(algorithm_figures.TASKS) == {row["task"] for row in settings}


def test_the_rates_of_the_figures_are_the_best_ones_and_ends_of_the_grid_are_named():
    for row in algorithm_figures.tables()[1]:
        scores = {k.removeprefix("score_"): float(v) for k, v in row.items() if "score_" in k}
        chosen = row["client_learning_rate"]
        assert scores[chosen] == max(scores.values())
        ends = {min(scores, key=float): "lowest", max(scores, key=float): "highest"}
        assert row["end_of_the_grid"] == ends.get(chosen, "")


@pytest.mark.all
@pytest.mark.parametrize("name", NAMES)
def test_the_figure_is_drawn_and_read(name, tmp_path):
    algorithm_figures.draw(name, tmp_path / "figure.svg")
    picture = (tmp_path / "figure.svg").read_text()
    assert all(label in picture for label in algorithm_figures.labels_of(name).values())
    assert "client learning rate was tuned" in algorithm_figures.caption_of(name)
    assert algorithm_figures.reading_of(name).endswith(".")


def test_the_reading_of_a_figure_is_a_paired_difference():
    names = ["adabest", "fedavg"]
    rows = algorithm_figures.rows_of("rounds", names)
    rows = [row for row in rows if row["round"] in (85, 90, 95, 100)]
    values = [[row["accuracy"] for row in rows if row["method"] == name] for name in names]
    adabest, fedavg = np.reshape(values, (2, 5, 4)).mean(axis=2)
    differences = 100 * (adabest - fedavg)
    error = differences.std(ddof=1) / np.sqrt(5)
    found = algorithm_figures.difference("adabest", "rounds", "fedavg", last=True).estimate
    assert found.mean == pytest.approx(differences.mean())
    assert found.interval == pytest.approx(2.776445 * error, rel=1e-5)  # Student's t, 4 degrees
