"""The API reference in docs/api has every public name, once; the site needs no network."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedjax_algos as fa

PAGES = {path: path.read_text() for path in (Path(__file__).parents[1] / "docs/api").glob("*.md")}
NAMED = [
    (kind, name)
    for text in PAGES.values()
    for kind, name in re.findall(r"\.\. (auto\w+|py:data):: (fedjax_algos\S*)", text)
]
MODULES = [name for kind, name in NAMED if kind == "automodule"]
REGISTRIES = [name for text in PAGES.values() for name in re.findall(r"\{registered\} (\S+)", text)]
PACKAGES = [
    module
    for _, module in [("", fa), *inspect.getmembers(fa, inspect.ismodule)]
    if module.__name__ not in MODULES  # these are documented as a whole
]


def resolve(path):
    """The object of a dotted path, which is a module's or a module's attribute."""
    try:
        return importlib.import_module(path)
    except ImportError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


def test_each_path_exists_and_is_there_once():
    names = [name for _, name in NAMED]
    for path in names + REGISTRIES:
        resolve(path)
    assert len(names) == len(set(names)) > 200


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_has_a_place(package):
    documented = {name.rpartition(".")[2] for _, name in NAMED}
    public = {name for name in getattr(package, "__all__", []) if not name.startswith("__")}
    missing = public - documented
    assert not [name for name in missing if not inspect.ismodule(getattr(package, name))]


@pytest.mark.parametrize("path", [n for k, n in NAMED if k in ("autofunction", "autoclass")])
def test_what_is_generated_has_a_docstring(path):
    assert inspect.getdoc(resolve(path))


CONFIGURATION = Path(__file__).parents[1] / "docs"
OUTSIDE = """# A page

```{raw} html
<script src="https://cdn.example/a.js"></script>
<LINK rel="stylesheet" href="//cdn.example/b.css"><img alt="" src='http://cdn.example/c.png'>
<style>@font-face { font-family: d; src: url(https://cdn.example/d.woff2) }</style>
<a href="https://example.org/followed">a link</a>
```
"""


def build(tmp_path, text):
    """A site of one page with the configuration of docs/, and the messages of the build."""
    for name in ("sphinx", "math_core"):
        pytest.importorskip(name, reason="the extra docs is not installed; .ci/run installs it")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/index.md").write_text(text)
    folders = [tmp_path / "pages", tmp_path / "site"]
    command = [sys.executable, "-m", "sphinx", "--no-color", "-c", CONFIGURATION, *folders]
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
    _, messages = build(tmp_path, OUTSIDE + "\nThe letter $\\nosuchcommand$.\n")
    expected = ["a.js", "b.css", "c.png", "d.woff2"]
    assert re.findall(r"index.html fetches \S*//cdn.example/(\S+)", messages) == expected
    assert "followed" not in messages
    assert r"formula '\\nosuchcommand'" in messages
