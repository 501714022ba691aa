"""The API reference in docs/api has every public name, once, under a path that exists."""

import importlib
import inspect
import re
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
    paths = [name for _, name in NAMED] + REGISTRIES
    for path in paths:
        resolve(path)
    names = [name for _, name in NAMED]
    assert len(names) == len(set(names)) > 200


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_has_a_place(package):
    documented = {name.rpartition(".")[2] for _, name in NAMED}
    public = getattr(package, "__all__", [])
    missing = [
        name
        for name in public
        if name not in documented
        and not inspect.ismodule(getattr(package, name))
        and not name.startswith("__")
    ]
    assert not missing


@pytest.mark.parametrize("path", [n for k, n in NAMED if k in ("autofunction", "autoclass")])
def test_what_is_generated_has_a_docstring(path):
    assert inspect.getdoc(resolve(path))
