"""The API reference in docs/api has every public name, once; the site needs no network."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import public_names

import fedjax_algos as fa

DOCS = Path(__file__).parents[1] / "docs"
TEXT = "\n".join(path.read_text() for path in DOCS.glob("api/*.md"))
NAMED = re.findall(r"\.\. (auto\w+|py:data):: (fedjax_algos\S*)", TEXT)


def resolve(path):
    """The object of a dotted path, which is a module's or a module's attribute."""
    try:
        return importlib.import_module(path)
    except ImportError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


def test_each_path_exists_once_and_has_a_docstring():
    names = [name for _, name in NAMED]
    assert len(names) == len(set(names)) > 200
    for kind, path in [*NAMED, *re.findall(r"\{(registered)\} (\S+)", TEXT)]:
        found = resolve(path)
        assert kind not in ("autofunction", "autoclass") or inspect.getdoc(found), path


def test_every_public_name_has_a_place():
    whole = {name for kind, name in NAMED if kind == "automodule"}
    documented = {name.rpartition(".")[2] for _, name in NAMED}
    for package in [fa, *(module for _, module in inspect.getmembers(fa, inspect.ismodule))]:
        if package.__name__ not in whole:
            public = {name for name in public_names(package) if name[:2] != "__"}
            missing = public - documented
            assert all(inspect.ismodule(getattr(package, name)) for name in missing), missing


OUTSIDE = """# A page

```{raw} html
<script src="https://cdn.example/a.js"></script>
<LINK rel="stylesheet" href="//cdn.example/b.css"><img alt="" src='http://cdn.example/c.png'>
<style>@font-face { font-family: d; src: url(https://cdn.example/d.woff2) }</style>
<a href="https://example.org/followed">a link</a>
```

The letter $\\nosuchcommand$.
"""


def build(tmp_path, text):
    """A site of one page with the configuration of docs/, and the messages of the build."""
    for name in ("sphinx", "math_core"):
        pytest.importorskip(name, reason="the extra docs is not installed; .ci/run installs it")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/index.md").write_text(text)
    folders = [tmp_path / "pages", tmp_path / "site"]
    command = [sys.executable, "-m", "sphinx", "--no-color", "-c", DOCS, *folders]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return (tmp_path / "site/index.html").read_text(), run.stderr


@pytest.mark.all
def test_formulas_and_pages_need_no_network(tmp_path):
    """The elements of MathML, and no script, style, image or font of another host."""
    formula = r"The rate $\eta_l$, and" + "\n\n$$\nx \\leftarrow \\frac{a}{b}\n$$\n"
    page, messages = build(tmp_path, f"# A page\n\n{formula}")
    assert messages == ""
    assert re.search(r"<math><semantics><msub><mi>η</mi><mi>l</mi></msub>", page)
    assert '<math display="block">' in page
    assert "<mfrac><mi>a</mi><mi>b</mi></mfrac>" in page
    assert "MathJax" not in page
    parts = re.findall(r"<(?:script|link|img)\b[^>]*", page)
    assert len(parts) > 5
    assert not [part for part in parts if "//" in part]
    styles = "".join(path.read_text() for path in tmp_path.rglob("*.css"))
    assert "url(" in styles
    assert not re.search(r"url\([\"']?(https?:)?//", styles)


@pytest.mark.all
def test_a_build_reports_other_hosts_and_formulas_that_it_cannot_read(tmp_path):
    _, messages = build(tmp_path, OUTSIDE)
    expected = ["a.js", "b.css", "c.png", "d.woff2"]
    assert re.findall(r"index.html fetches \S*//cdn.example/(\S+)", messages) == expected
    assert "followed" not in messages
    assert r"formula '\\nosuchcommand'" in messages
