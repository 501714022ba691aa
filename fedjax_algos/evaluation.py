"""Exact evaluation on a fixed set of examples."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_algos.core import Batch, Mean, Metrics, Model, Problem


def make_evaluate(problem: Problem, batch_size: int = 1024) -> Callable[[Model, Batch], Metrics]:
    """A compiled `(model, examples) -> metrics`: "loss" and the problem's own, as `Mean`s.

    Means are over examples, exact also where the last batch is short.
    """

    @jax.jit
    def evaluate(model: Model, examples: Batch) -> Metrics:
        total = jax.tree.leaves(examples)[0].shape[0]
        size = min(batch_size, total)

        def measure(step):
            rows = step * size + jnp.arange(size)
            real = rows < total
            batch = jax.tree.map(lambda leaf: leaf[jnp.minimum(rows, total - 1)], examples)
            outputs, _ = problem.apply(model, batch, jax.random.key(0), False)
            values = {"loss": problem.loss(outputs, batch), **problem.metrics(outputs, batch)}
            return {
                name: Mean(jnp.where(real, value, 0).sum(), real.sum().astype(value.dtype))
                for name, value in values.items()
            }

        parts = jax.lax.map(measure, jnp.arange(-(-total // size)))
        return jax.tree.map(lambda leaf: leaf.sum(0), parts)

    return evaluate
