"""Packages that import what they list when it is first used."""

import importlib
from pathlib import Path

import pytest

import fedjax_algos as fa

LAZY = [fa, fa.core, fa.analysis, fa.analysis.pictures, fa.runs]


@pytest.mark.parametrize("package", LAZY, ids=lambda package: package.__name__)
def test_what_a_package_lists_is_found(package):
    modules = {path.stem for path in Path(package.__file__).parent.iterdir()}
    for name in package.__all__:
        found = getattr(package, name)
        assert name in dir(package)
        # a module of the name of a function would hide it
        assert name not in modules or found is importlib.import_module(f"{package.__name__}.{name}")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing
