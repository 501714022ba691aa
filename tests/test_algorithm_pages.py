"""docs/algorithms: each algorithm has a page with all parts; what is read of the code is whole."""

import ast
import re
import sys
from pathlib import Path

import pytest

from fedjax_algos.algorithms import algorithms
from fedjax_algos.core.options import options

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS / "extensions"))

from algorithm_tables import REQUIRED, costs, costs_table, options_table, source_of  # noqa: E402

NAMES = sorted(algorithms)
SECTIONS = [
    "The rule",
    "Options",
    "Costs",
    "What differs from the paper and from released code",
    "When it helps",
    "Citation",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_its_parts(name):
    page = (DOCS / "algorithms" / f"{name}.md").read_text()
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == SECTIONS
    directives = re.findall(r"\{algorithm-(\w+)\} (\w+)", page)
    assert directives == [(part, name) for part in ("source", "options", "costs")]
    assert re.search(r"^\| [^|]+ \| here \|$", page, re.MULTILINE)
    assert page.count("```bibtex\n@") >= 1
    links = [link for link in re.findall(r"\]\(([^)#:]+)[)#]", page)]
    assert [link for link in links if not (DOCS / "algorithms" / link).exists()] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_its_meaning(name):
    rows = options_table(name).splitlines()[2:]
    known = list(options(algorithms[name]))
    assert [row.split("`")[1] for row in rows] == known
    for row in rows:
        *_, meaning, end = re.split(r"(?<!\\)\|", row)
        assert not end
        assert len(meaning.strip()) > 5


@pytest.mark.parametrize("name", NAMES)
def test_the_source_is_whole_without_docstrings(name):
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
