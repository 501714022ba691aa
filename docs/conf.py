"""Configuration of the documentation: `sphinx-build --fail-on-warning docs build/docs`."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from fedjax_algos import __version__

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "fedjax_algos"
author = "The fedjax_algos authors"
copyright = author
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "algorithm_pages",
    "claim_pages",
    "offline",
    "page_map",
]

html_theme = "sphinx_book_theme"
html_title = "fedjax_algos"
html_static_path = ["_static"]
html_math_renderer = "mathml"  # of the extension offline
html_css_files = ["site.css"]
html_theme_options = {"navbar_persistent": []}  # the search field is in the sidebar


def repository_url():
    """Returns the public address of the repository, or "" if it has none."""
    address = os.environ.get("READTHEDOCS_GIT_CLONE_URL", "")
    if not address and shutil.which("git"):
        origin = ["git", "-C", Path(__file__).parent, "config", "remote.origin.url"]
        address = subprocess.run(origin, capture_output=True, text=True, check=False).stdout.strip()
    is_public = address.startswith("https://") and "@" not in address  # no name, no password
    return address.removesuffix(".git") if is_public else ""


if repository_url():
    html_theme_options |= {"repository_url": repository_url(), "use_repository_button": True}

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
nb_render_markdown_format = "myst"  # with tables
nb_execution_mode = "force"
nb_merge_streams = True  # one block for all output of a cell
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 300
default_role = "code"  # docstrings have single backticks around code
autodoc_typehints = "none"  # the docstrings say types, shapes and ranges
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # as they are written, not as they are represented
napoleon_attr_annotations = False
napoleon_use_rtype = False

LONG_NAME = 28  # characters
INCLUDED = {
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "experiments/papers/README.md": "claims_format",
    "benchmarks/README.md": "performance",
}


def escape(app, what, name, obj, options, lines):
    """Escapes text in a docstring, outside of code, that reStructuredText would read as markup."""
    whole = "\n".join(lines)
    # napoleon reads text before a colon in Returns as a type, and emphasises it
    whole = re.sub(r"^(:returns: |  +)\*([^*\n]+)\* -- ", r"\1\2: ", whole, flags=re.MULTILINE)
    parts = whole.split("`")
    for index in range(0, len(parts), 2):
        text = re.sub(r"(?<!\\)([|*])", r"\\\1", parts[index])
        parts[index] = rf"\ {text}" if index and text[:1].isalnum() else text  # a plural's s
    lines[:] = "`".join(parts).split("\n")


def signature(app, what, name, obj, options, given, returned):
    """Shortens defaults without a name; leaves out the signature of a protocol's `__init__`."""
    if given is None:
        return None
    if getattr(obj, "_is_protocol", False):
        return "", returned
    given = re.sub(r", parent=<[^>]*>, name=None", "", given)  # of Flax's modules
    given = re.sub(r"<class '[\w.]*?(\w+)'>", r"\1", given)
    return re.sub(r"<function [^>]*?(<locals>[^>]*)?>", "...", given), returned


def skip(app, what, name, obj, skipped, options):
    """Skips the fields of a NamedTuple, which its docstring describes."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def place(app, docname, source):
    """Points links to files outside of this folder to the pages that include them."""
    for file, page in INCLUDED.items():
        source[0] = source[0].replace(f"](../{file}", f"]({page}.md")


def mark_long(app, doctree, docname):
    """Marks names that may be wider than a phone's screen, which site.css breaks."""
    for literal in doctree.findall(nodes.literal):
        if max(map(len, literal.astext().split()), default=0) > LONG_NAME:
            literal["classes"].append("long")


class Registered(SphinxDirective):
    """Documents the members of a registry: `{registered} fedjax_algos.data.datasets`."""

    required_arguments = 1

    def run(self):
        module, _, name = self.arguments[0].rpartition(".")
        registry = getattr(importlib.import_module(module), name)
        lines = ["```{eval-rst}"]
        for factory in registry.values():
            lines += [f".. autofunction:: {factory.__module__}.{factory.__qualname__}", ""]
        container = nodes.container()
        self.state.nested_parse([*lines, "```"], self.content_offset, container)
        return container.children


def setup(app):
    """Connects the hooks, which run after napoleon's."""
    app.connect("autodoc-process-docstring", escape)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skip)
    app.connect("source-read", place)
    app.connect("doctree-resolved", mark_long)
    app.add_directive("registered", Registered)
