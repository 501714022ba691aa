"""Convolutions and dense layers of oneDNN for XLA on a CPU, for `fedjax_algos`.

Importing this module registers the custom call `TARGET`. `layers.cc` says what it computes.
"""

import ctypes
from importlib.metadata import files
from pathlib import Path

import jax

TARGET = "fedjax_algos_layer"
__version__ = "0.1.0"


def _onednn() -> Path:
    """The library that the package onednn-cpu-gomp has installed."""
    found = [each for each in files("onednn-cpu-gomp") or () if each.name == "libdnnl.so.3"]
    return Path(found[0].locate()).resolve()


ctypes.CDLL(str(_onednn()), mode=ctypes.RTLD_GLOBAL)
_library = ctypes.CDLL(str(next(Path(__file__).parent.glob("_layers*.so"))))
jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_library.FedjaxAlgosLayer), platform="cpu")
