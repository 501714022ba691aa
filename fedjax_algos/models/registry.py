"""The registry of models, in a module that all files of models can import."""

from fedjax_algos.core import Problem
from fedjax_algos.core.registry import Registry

models = Registry[Problem]("model", Problem)
