"""The registries of models, losses and metrics, in a module that all files of models can import."""

import jax

from fedjax_algos.core import MetricValues, Problem
from fedjax_algos.core.registry import Registry

models = Registry[Problem]("model", Problem)
losses = Registry[jax.Array]("loss", jax.Array)  # (outputs, batch, *, ...) -> float[batch]
# (outputs, batch, *, ...) -> {name: float[batch] or Mean}, as `Problem.metrics`
metrics = Registry[MetricValues]("metric", dict)
