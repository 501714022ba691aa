"""The algorithms, one short file each.

Every module of this folder is imported, and every factory in it that is decorated with
`@algorithms` is found under its name: there is no list to keep.
"""

import importlib
import pkgutil

from fedjax_algos.algorithms.base import algorithms

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

globals().update(algorithms)
__all__ = ["algorithms", *algorithms]  # noqa: PLE0604 (the names are known once modules are in)
