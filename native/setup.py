"""Compiles `layers.cc`. What it calls of oneDNN is found when the module is imported."""

from importlib.metadata import files
from pathlib import Path

import jax
from setuptools import Extension, setup

header = next(each for each in files("onednn-devel-cpu-gomp") if each.name == "dnnl.hpp")
folders = Path(header.locate()).resolve().parents
onednn = next(folder for folder in folders if folder.name == "include")
layers = Extension(
    "fedjax_algos_native._layers",
    ["layers.cc"],
    include_dirs=[jax.ffi.include_dir(), str(onednn)],
    extra_compile_args=["-std=c++17", "-O2", "-fopenmp", "-g0", "-Wno-return-type"],
    extra_link_args=["-fopenmp"],
)
setup(ext_modules=[layers])
