"""docs/compression: each codec has a page with all parts; what is read of the code is right."""

import ast
import math
import re
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import page_at

from fedjax_algos.core.options import options
from fedjax_algos.wrappers import codecs
from fedjax_algos.wrappers.compression.coded_size import subset_size

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS / "extensions"))

from algorithm_tables import options_table, source_of  # noqa: E402
from codec_tables import ENTRIES, codec_options, error_table, errors, vectors  # noqa: E402

NAMES = sorted(codecs)
SECTIONS = ["The rule", "Options", "Bits and error", "What differs from the paper"]
SECTIONS += ["When it helps", "Citation"]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_its_parts(name):
    page = (DOCS / "compression" / f"{name}.md").read_text()
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == SECTIONS
    source, table, *measured = re.findall(r"\{codec-(\w+)\} (\S+)", page)
    assert [source, table] == [("source", name), ("options", name)]
    assert all(part == "error" and spec.split(":")[0] == name for part, spec in measured)
    for _, spec in measured:
        assert codecs.make(spec)
    assert re.search(r"^\| the paper \| here \|$", page, re.MULTILINE)
    assert page.count("```bibtex\n@") >= 1
    links = [link for link in re.findall(r"\]\(([^)#:]+)[)#]", page + codec_options(name))]
    paths = [(DOCS / "compression" / link).resolve() for link in links]
    assert [path for path in paths if not page_at(path).exists()] == []
    index = (DOCS / "compression" / "index.md").read_text()
    assert f"]({name}.md)" in index
    assert f"\n{name}\n" in index


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_its_meaning_and_the_source_is_whole(name):
    rows = options_table(name).splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(options(codecs[name]))
    tree = ast.parse(source_of(name))
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    names = [node.name for node in found]
    assert len(found) == len(tree.body)
    assert name in names
    assert not any(ast.get_docstring(node) for node in ast.walk(tree) if node in found)
    assert set(names).isdisjoint(set(NAMES) - {name})  # those that share its file


def test_a_source_has_the_definitions_that_a_codec_uses():
    names = re.findall(r"^(?:def|class) (\w+)", source_of("terngrad"), re.MULTILINE)
    assert names == [
        "Scaled",
        "round_at_random",
        "round_by",
        "divide",
        "terngrad_codec",
        "terngrad",
    ]


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
