"""Lazy imports: a package imports a listed name on first use."""

import ast
import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import Any


def listed(package: str) -> tuple[list[str], Callable[[], list[str]], Callable[[str], Any]]:
    """Returns `__all__`, `__dir__` and `__getattr__` of a package that imports lazily.

    The names are those that the package imports for type checkers. Its other modules are also
    imported on first use.
    """
    module = sys.modules[package]
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    pairs = ((alias.asname, node.module) for node in imports for alias in node.names)
    places = {name: place for name, place in pairs if name and place}

    def find(name: str) -> Any:
        if places.get(name, package) != package:
            setattr(module, name, getattr(importlib.import_module(places[name]), name))
        elif importlib.util.find_spec(f"{package}.{name}"):
            importlib.import_module(f"{package}.{name}")  # which sets the attribute
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(module, name)

    return list(places), lambda: sorted({*places, *vars(module)}), find
