"""The registries of models and losses, in a module that all files of models can import."""

import jax

from fedjax_algos.core import Problem
from fedjax_algos.core.registry import Registry

models = Registry[Problem]("model", Problem)
losses = Registry[jax.Array]("loss", jax.Array)  # (outputs, batch, *, ...) -> float[batch]
