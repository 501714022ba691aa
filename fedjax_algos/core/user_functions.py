"""A problem's functions are the user's own: mistakes in them get errors that name the fix."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_algos.core.checks import check_kind
from fedjax_algos.core.reprs import describe_tree
from fedjax_algos.core.types import Batch, Key, Mean, Model, Outputs, Params, Problem, Statistics


def check_problem(problem: Any) -> None:
    """Checks that an object is a problem, and not a factory of one, a name or a module of Flax.

    Args:
      problem: what was given.

    Raises:
      TypeError: if it is none.
    """
    fix = "give Problem(init, apply, loss), or what models.mlp or models.classifier returns"
    check_kind("problem", problem, Problem, fix)


def check_initial(model: Any) -> None:
    """Checks what `Problem.init` returned, or a model that replaces it: its type, and its params'.

    Args:
      model: arrays, or their shapes and types.

    Raises:
      TypeError: for an object of another type.
      ValueError: for params that cannot be trained: whole numbers, complex numbers, or float16,
        whose sums over clients overflow.

    Warns:
      UserWarning: for params of bfloat16.
    """
    fix = "return fedjax_algos.Model(params, statistics)"
    check_kind("Problem.init(key)", model, Model, fix)
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.params):
        dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
        name = f"params{jax.tree_util.keystr(path)} of type {dtype}"
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(
                f"the model has {name}, of which no gradient can be taken; give it a float type, "
                "or keep it in Model.statistics if it is not trained"
            )
        if dtype == jnp.float16:
            raise ValueError(
                f"the model has {name}, in which sums over clients overflow and small updates are "
                "0; keep float32 params and cast them to float16 in Problem.apply"
            )
        if dtype == jnp.bfloat16:
            warnings.warn(
                f"the model has {name}, which holds 8 bits of a number: steps that are smaller "
                "than a 256th of a weight leave it unchanged; keep float32 params and compute in "
                "bfloat16 with models.compute_in(problem)",
                stacklevel=2,
            )
            return  # one warning is enough


def with_mask(batch: Batch, mask: jax.Array) -> Batch:
    """The batch that training gives `problem.apply`: with its mask, if it is a dict.

    Args:
      batch: leaves [batch, ...].
      mask: bool[batch], the real rows.

    Raises:
      ValueError: for a batch that has a "mask" of its own.
    """
    if not isinstance(batch, dict):
        return batch
    if "mask" in batch:
        raise ValueError(
            "the examples have an array of the name 'mask', under which training tells the model "
            "the real rows of a batch; give federate another name for it"
        )
    return batch | {"mask": mask}


def apply_model(
    problem: Problem, model: Model, batch: Batch, key: Key, training: bool
) -> tuple[Outputs, Statistics]:
    """`problem.apply`, checked.

    Args:
      problem: what is learned.
      model: the model.
      batch: leaves [batch, ...].
      key: for dropout and noise.
      training: whether the model is being trained.

    Raises:
      TypeError: for a function that does not return outputs and statistics.
      ValueError: for a name that the batch does not have.
    """
    with explained("Problem.apply", batch, params=model.params):
        result = problem.apply(model, batch, key, training)
    named = hasattr(result, "_fields")  # such as outputs without statistics
    if not isinstance(result, tuple | list) or named or len(result) != 2:
        raise TypeError(
            f"Problem.apply returned {_described(result)}; return (outputs, statistics), with () "
            "for statistics if the model has none"
        )
    outputs, statistics = result
    return outputs, statistics


def losses_of(problem: Problem, outputs: Outputs, batch: Batch) -> jax.Array:
    """`problem.loss`, float[batch], with errors that name the fix.

    Args:
      problem: what is learned.
      outputs: of the model.
      batch: leaves [batch, ...].

    Raises:
      TypeError: for outputs, or real labels, that the loss cannot take.
      ValueError: for a name that the batch does not have.
    """
    with explained("Problem.loss", batch, outputs):
        return problem.loss(outputs, batch)


def metrics_of(problem: Problem, outputs: Outputs, batch: Batch) -> dict[str, jax.Array | Mean]:
    """`problem.metrics`, float[batch] or a `Mean` each, with errors that name the fix.

    Args:
      problem: what is learned.
      outputs: of the model.
      batch: leaves [batch, ...].

    Raises:
      TypeError: for outputs, or real labels, that a metric cannot take, and no dictionary.
      ValueError: for a name that the batch does not have, and a metric that is called "loss".
    """
    with explained("Problem.metrics", batch, outputs):
        metrics = problem.metrics(outputs, batch)
    if not isinstance(metrics, dict):
        raise TypeError(
            f"Problem.metrics returned {_described(metrics)}; return a dictionary, such as "
            "{'error': values}"
        )
    if "loss" in metrics:
        raise ValueError(
            "Problem.metrics returned a metric of the name 'loss', which is that of Problem.loss; "
            "give it another name"
        )
    return metrics


@contextlib.contextmanager
def explained(
    name: str, batch: Batch, outputs: Outputs = None, params: Params = None
) -> Iterator[None]:
    """Replaces errors of a user's function by those that name the fix; others get a note.

    Args:
      name: of the function.
      batch: that it is given.
      outputs: that it is given, or None.
      params: that it is given, or None.

    Raises:
      TypeError: for a batch, outputs or labels that are used as what they are not.
      ValueError: for a name that the batch does not have.
    """
    try:
        yield
    except Exception as error:
        explanation = _explanation(name, error, batch, outputs, params)
        if explanation is not None:
            raise explanation from error
        error.add_note(f"{name} was given a batch of {describe_tree(batch)}.")
        raise


def _explanation(name, error, batch, outputs, params):
    """The error to raise instead, or None."""
    text = str(error).partition("\n")[0]
    held = f"its batch holds {describe_tree(batch)}"
    if isinstance(error, KeyError) and isinstance(batch, dict) and error.args[0] not in batch:
        of_params = "" if params is None else f", and its model's params {describe_tree(params)}"
        return ValueError(
            f"{name} reads the name {text}, but {held}{of_params}; read one of these names, or "
            "give federate examples with that name"
        )
    if not isinstance(error, TypeError | AttributeError):
        return None
    indexed = text.startswith(("tuple indices", "list indices"))
    if indexed and text.endswith("not str") and isinstance(batch, tuple | list):
        return TypeError(
            f"{name} reads its batch by a name, but {held}, as the examples do; read batch[0], or "
            "give federate a dictionary such as {'x': ..., 'y': ...}"
        )
    fields = getattr(outputs, "_fields", ())
    if fields and (indexed or type(outputs).__name__ in text):
        return TypeError(
            f"{name} uses the model's outputs as an array, but they are {_described(outputs)} "
            f"({text}); use outputs.{fields[0]}"
        )
    is_real = any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(batch))
    if "integer" in text and not indexed and is_real:
        return TypeError(
            f"{name} needs whole numbers, but {held} ({text}); give federate labels of an integer "
            "type, such as y.astype('int32')"
        )
    return None


def _described(value: Any) -> str:
    fields = getattr(value, "_fields", ())
    kind = type(value).__name__ + (f" with the fields {', '.join(fields)}" if fields else "")
    is_array = hasattr(value, "dtype")
    return f"an array {describe_tree(value)}" if is_array else f"an object of type {kind}"
