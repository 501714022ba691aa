"""Computing a model in 16 bits, with params, sums and server state in 32."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp

from fedjax_algos.core import Model, Problem
from fedjax_algos.core.options import check_choice

ComputeDtype = Literal["bfloat16"]


def compute_in(problem: Problem, dtype: ComputeDtype = "bfloat16") -> Problem:
    """The same problem, whose model is applied in bfloat16.

    `apply` casts the params and the floating-point examples to bfloat16, and its outputs back to
    the dtype of the params. So the params, their gradients, local steps, sums, client state and
    server state stay in float32, and params move under small learning rates, which bfloat16 params
    do not. The loss and the metrics are computed in float32, and the statistics are stored in it.

    Integer examples, such as pixels, keep their dtype: `classifier` and `nnx_classifier` cast what
    their `inputs` make of them.

    Args:
      problem: what is learned, with float32 params.
      dtype: "bfloat16". float16 is not supported: its gradients need a scaled loss.

    Raises:
      ValueError: for another dtype.
    """
    check_choice("dtype", dtype, get_args(ComputeDtype))

    def apply(model, batch, key, training):
        narrow = Model(_cast(model.params, dtype), model.statistics, _cast(model.frozen, dtype))
        outputs, statistics = problem.apply(narrow, _cast(batch, dtype), key, training)
        wide = jnp.result_type(*_float_dtypes(model.params))
        statistics = jax.tree.map(
            lambda new, old: new.astype(old.dtype), statistics, model.statistics
        )
        return _cast(outputs, wide), statistics

    return problem._replace(apply=apply)


def _float_dtypes(tree):
    dtypes = (leaf.dtype for leaf in jax.tree.leaves(tree))
    return [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]


def _cast(tree, dtype):
    """The tree with all floating-point leaves in a dtype."""
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )
