"""docs/algorithms and docs/compression: all parts of their pages, and what is read of the code."""

import ast
import math
import re
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ROOT, page_at

from fedjax_algos.algorithms import algorithms
from fedjax_algos.core.options import options
from fedjax_algos.wrappers import codecs
from fedjax_algos.wrappers.compression.coded_size import subset_size

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "extensions"))

import algorithm_figures  # noqa: E402
from algorithm_tables import REQUIRED, costs, costs_table, options_table, source_of  # noqa: E402
from codec_tables import ENTRIES, codec_options, error_table, errors, vectors  # noqa: E402

FACTORIES = {**algorithms, **codecs}
ROW = r"^\| [^|]+ \| here \|$"
OF_ALGORITHM = "The rule, Options, Costs, Differences from the paper and from released code, "
OF_CODEC = "The rule, Options, Bits and error, Differences from the paper, "
ENDS = "When it helps, Citation"


def page_of(folder, name):
    """The page, whose links and citations were checked."""
    page = (DOCS / folder / f"{name}.md").read_text()
    shown = page + codec_options(name) * (folder == "compression")
    paths = [(DOCS / folder / link).resolve() for link in re.findall(r"\]\(([^)#:]+)[)#]", shown)]
    assert [path for path in paths if not page_at(path).exists()] == []
    assert page.count("```bibtex\n@") >= 1
    assert re.search(ROW, page, re.MULTILINE)
    return page, ", ".join(re.findall(r"^## (.*)$", page, re.MULTILINE))


@pytest.mark.parametrize("name", algorithms)
def test_the_page_of_an_algorithm_has_its_parts(name):
    page, sections = page_of("algorithms", name)
    assert sections == OF_ALGORITHM + ENDS
    directives = re.findall(r"\{algorithm-(\w+)\} (\w+)", page)
    assert directives == [(part, name) for part in ("source", "options", "costs", "figure")]
    assert f"## When it helps\n\n```{{algorithm-figure}} {name}\n```\n\n" in page


@pytest.mark.parametrize("name", codecs)
def test_the_page_of_a_codec_has_its_parts(name):
    page, sections = page_of("compression", name)
    assert sections == OF_CODEC + ENDS
    source, table, *measured = re.findall(r"\{codec-(\w+)\} (\S+)", page)
    assert [source, table] == [("source", name), ("options", name)]
    assert all(part == "error" and spec.split(":")[0] == name for part, spec in measured)
    assert all(codecs.make(spec) for _, spec in measured)
    index = (DOCS / "compression" / "index.md").read_text()
    assert f"]({name}.md)" in index
    assert f"\n{name}\n" in index


@pytest.mark.parametrize("name", FACTORIES)
def test_every_option_has_its_meaning_and_the_source_is_whole(name):
    rows = options_table(name).splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(options(FACTORIES[name]))
    for row in rows:
        *_, meaning, end = re.split(r"(?<!\\)\|", row)
        assert not end
        assert len(meaning.strip()) > 5
        assert " at 0x" not in row  # the address of a function
    nodes = ast.walk(ast.parse(source_of(name)))
    found = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert name in (names := {node.name for node in found})
    assert names & codecs.keys() <= {name}  # codecs share files
    assert not any(ast.get_docstring(node) for node in found)


def test_a_source_has_the_definitions_that_a_codec_uses():
    names = re.findall(r"^(?:def|class) (\w+)", source_of("terngrad"), re.MULTILINE)
    assert " ".join(names) == "round_at_random round_by divide terngrad"


@pytest.mark.all
def test_the_costs_are_counted():
    model = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    plain, own = costs("fedavg"), costs("fedgbo")
    assert (plain.download, plain.upload, plain.kept) == (model, model, 0)
    assert (own.download, own.upload, own.kept) == (2 * model, model, 0)
    assert costs("scaffold").kept == model
    assert "| download, bytes | 38,480 | 19,240 | 2.00 |" in costs_table("fedgbo")
    assert all("`" + key in costs_table(name) for name, given in REQUIRED.items() for key in given)


@pytest.mark.all
def test_bits_and_errors_are_those_of_the_formulas():
    v = vectors()["normal"]
    k = math.ceil(0.01 * ENTRIES)
    top, signs, random = errors("topk", v), errors("scaled_sign", v), errors("randk", v)
    kept = np.sort(np.square(np.asarray(v)))[-k:].sum() / np.square(v).sum()
    assert top.counted * ENTRIES == 32 * (k + math.ceil(k * 13 / 32))
    assert top.coded * ENTRIES == pytest.approx(32 * k + subset_size(k, ENTRIES))
    assert (top.alone, top.mean) == pytest.approx((1 - kept, 1 - kept), rel=1e-5)
    expected = float(1 - jnp.abs(v).sum() ** 2 / ENTRIES / jnp.square(v).sum())
    assert signs.alone == pytest.approx(expected, rel=1e-5)
    assert signs.coded == signs.counted
    assert random.alone == pytest.approx(ENTRIES / k - 1, rel=0.2)
    assert random.mean == pytest.approx(random.alone / 10, rel=0.2)
    assert "| normal | 1 | 1 | 0.36 | 0.36 |" in error_table("scaled_sign")


def test_the_tables_of_the_figures_are_whole_and_name_the_best_rates():
    rows, settings = algorithm_figures.tables()
    assert {row["method"] for row in settings} == set(algorithms)
    for own in settings:
        of_method = [r for r in rows if (r["task"], r["method"]) == (own["task"], own["method"])]
        x = algorithm_figures.TASKS[own["task"]].x
        positions = [(row["seed"], row[x]) for row in of_method]
        assert len(set(positions)) == len(positions) == 5 * 21
        assert {seed for seed, at in positions if at == "100"} == set("01234")
        assert all(0 <= float(row["accuracy"]) <= 1 for row in of_method)
        scores = {k.removeprefix("score_"): float(v) for k, v in own.items() if "score_" in k and v}
        chosen = own["client_learning_rate"]
        assert scores[chosen] == max(scores.values())
        ends = {min(scores, key=float): "lowest", max(scores, key=float): "highest"}
        assert own["end_of_the_grid"] == ends.get(chosen, "")
    assert len(rows) == len(settings) * 5 * 21
    references = {row["task"] for row in settings if row["method"] == "fedavg"}
    assert references == set(algorithm_figures.TASKS) == {row["task"] for row in settings}


@pytest.mark.nightly
@pytest.mark.parametrize("name", algorithms)
def test_the_figure_is_drawn_and_read(name, tmp_path):
    algorithm_figures.draw(name, tmp_path / "figure.svg")
    picture = (tmp_path / "figure.svg").read_text()
    assert all(label in picture for label in algorithm_figures.labels_of(name).values())
    assert "client learning rate was tuned" in algorithm_figures.caption_of(name)
    assert algorithm_figures.reading_of(name).endswith(".")
