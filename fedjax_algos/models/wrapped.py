"""Wrappers of problems: frozen params, LoRA, and computing or storing in 16 bits."""

import math
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import describe_tree
from fedjax_algos.core import Model, Params, Problem
from fedjax_algos.core.checks import as_model, check_whole
from fedjax_algos.core.options import check_choice
from fedjax_algos.core.trees import Parts, Pattern, check_match, split_params

ComputeDtype = Literal["bfloat16"]


def freeze(problem: Problem, trainable: Pattern) -> Problem:
    """Returns the problem with only some params trained; the others are `Model.frozen`.

    Clients have the frozen params from the start, so these are not in messages, updates, clients'
    rows, or the versions of asynchronous training. `params` of the new problem is a dictionary of
    the trainable leaves by path; `freeze_model` makes such a model from pretrained weights.

    Args:
      problem: the problem that is learned.
      trainable: the params that are trained: a pattern of their paths, such as "Dense_1/*" for the
        last layer of `mlp`, or a function from a path to a bool.

    Raises:
      ValueError: if the pattern matches none of the params, or the model has frozen arrays already.
    """
    parts = _matching("freeze: trainable", problem, trainable)

    def init(key):
        return _divided(parts, problem.init(key))

    def apply(model, batch, key, training):
        both = model.params | model.frozen
        params = parts.structure.unflatten(both[path] for path in parts.paths)
        return problem.apply(Model(params, model.statistics), batch, key, training)

    return problem._replace(init=init, apply=apply)


def freeze_model(problem: Problem, trainable: Pattern, model: Model | Params) -> Model:
    """Divides a model as `freeze(problem, trainable)` does; give the result to a run as `params`.

    Args:
      problem, trainable: as for `freeze`.
      model: the whole model; if it has no statistics, the params suffice.

    Raises:
      ValueError: if the pattern matches none of the params, for params or statistics of another
        structure or other shapes than the problem's, and for arrays whose buffers were
        donated to a round.
    """
    parts = _matching("freeze_model: trainable", problem, trainable)
    whole = model if isinstance(model, Model) else Model(model)
    as_model(problem, whole)  # raises if it is not the problem's
    return _divided(parts, whole)


def _matching(name: str, problem: Problem, pattern: Pattern) -> Parts:
    """Divides the params of a problem without frozen arrays by a pattern."""
    found = f"{name}: the model has frozen arrays already; give one pattern for all"
    require(not jax.tree.leaves(problem.shapes().frozen), found)
    parts = split_params(problem, pattern)
    check_match(name, parts, pattern)
    return parts


def _divided(parts: Parts, model: Model) -> Model:
    leaves = list(zip(parts.paths, jax.tree.leaves(model.params), parts.own, strict=True))
    frozen = {path: leaf for path, leaf, own in leaves if not own}
    return Model({path: leaf for path, leaf, own in leaves if own}, model.statistics, frozen)


def lora(
    problem: Problem,
    pattern: Pattern,
    *,
    rank: int,
    alpha: float | None = None,
    trained: Pattern | None = None,
) -> Problem:
    """Returns the problem with chosen params `W + (alpha / r) A B`, training only A and B.

    W is frozen. A has r columns and is normal with variance 1 / (rows of W); B has r rows and is 0,
    so the initial model is the problem's. A param of more than two axes becomes a matrix: its axes
    are split where both sides are most alike in size. Each client computes with the whole W + A B,
    so LoRA reduces communication and stored state, but not the memory of a step.

    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022,
    https://arxiv.org/abs/2106.09685.

    Args:
      problem: the problem that is learned, such as the result of `pretrained`.
      pattern: the params that get A and B: a pattern of their paths, such as "*/query/kernel", or a
        function from a path to a bool.
      rank: r, at least 1 and at most the smaller side of each matrix.
      alpha: alpha, above 0; None is r.
      trained: params that are trained as a whole, such as "head/*"; None for none.

    Raises:
      ValueError: if a pattern matches none of the params, for a param that both match or that is
        too small for this rank, or if the model has frozen arrays already.
    """
    check_whole("lora: rank", rank)
    scale = 1.0 if alpha is None else alpha / rank
    require(scale > 0, f"lora: alpha={alpha} is out of range; give a number above 0, or None")
    parts = _matching("lora: pattern", problem, pattern)
    whole = dict.fromkeys(parts.paths, False)
    if trained is not None:
        whole_parts = _matching("lora: trained", problem, trained)
        whole = dict(zip(whole_parts.paths, whole_parts.own, strict=True))
    leaves = zip(parts.paths, jax.tree.leaves(problem.shapes().params), parts.own, strict=True)
    chosen = {path: leaf for path, leaf, is_chosen in leaves if is_chosen}
    sides = {path: matrix_sides(leaf.shape) for path, leaf in chosen.items()}
    for path, (rows, columns) in sides.items():
        found = f"lora: {path} is {describe_tree(chosen[path])}"
        fix = f"match matrices with sides of at least rank={rank} that `trained` does not match"
        require(rank <= min(rows, columns) and not whole[path], f"{found}; {fix}")

    def init(key):
        model = problem.init(key)
        initial = dict(zip(parts.paths, jax.tree.leaves(model.params), strict=True))
        params = {path: leaf for path, leaf in initial.items() if whole[path]}
        for number, (path, (rows, columns)) in enumerate(sides.items()):
            dtype, draw = initial[path].dtype, jax.random.fold_in(key, number)
            normal = jax.random.normal(draw, (rows, rank), dtype)
            params[f"{path}/A"] = normal / jnp.sqrt(rows).astype(dtype)
            params[f"{path}/B"] = jnp.zeros((rank, columns), dtype)
        frozen = {path: leaf for path, leaf in initial.items() if not whole[path]}
        return Model(params, model.statistics, frozen)

    def apply(model, batch, key, training):
        both = model.params | model.frozen
        for path in sides:
            change = scale * (both[f"{path}/A"] @ both[f"{path}/B"])
            both[path] = both[path] + change.reshape(both[path].shape)
        params = parts.structure.unflatten(both[path] for path in parts.paths)
        return problem.apply(Model(params, model.statistics), batch, key, training)

    return problem._replace(init=init, apply=apply)


def matrix_sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns rows and columns of a param as a matrix; (0, 0) for fewer than two axes."""
    cuts = [(math.prod(shape[:end]), math.prod(shape[end:])) for end in range(1, len(shape))]
    return min(cuts, key=lambda sides: abs(sides[0] - sides[1]), default=(0, 0))


def compute_in(problem: Problem, dtype: ComputeDtype = "bfloat16") -> Problem:
    """Returns the problem with its model applied in bfloat16.

    `apply` casts the params and the floating-point examples to bfloat16, and its outputs back to
    the dtype of the params; integer examples, such as pixels, are cast when they are scaled. So the
    params, their gradients, local steps, sums, client state and server state stay in float32. So
    small updates still change the params; in bfloat16 they would be rounded away. The loss and the
    metrics are computed, and the statistics stored, in float32.

    Args:
      problem: the problem that is learned, with float32 params.
      dtype: "bfloat16". float16 is not supported: its gradients need a scaled loss.

    Raises:
      ValueError: for another dtype.
    """
    check_choice("dtype", dtype, get_args(ComputeDtype))

    def apply(model, batch, key, training):
        narrow = Model(_cast(model.params, dtype), model.statistics, _cast(model.frozen, dtype))
        outputs, statistics = problem.apply(narrow, _cast(batch, dtype), key, training)
        statistics = jax.tree.map(lambda x, old: x.astype(old.dtype), statistics, model.statistics)
        return _cast(outputs, _float_type(model.params)), statistics

    return problem._replace(apply=apply)


def store_frozen_in(problem: Problem, dtype: ComputeDtype = "bfloat16") -> Problem:
    """Returns the problem with its frozen arrays stored in bfloat16.

    `apply` casts them to the dtype of the trained params, each array by itself; the compiler
    chooses when. They take half the memory, and the loss is computed with the rounded arrays. A
    model that is given to a run in place of `init`'s keeps its own dtypes.

    Args:
      problem: a problem with frozen arrays, such as the result of `freeze` or `nnx_classifier`.
      dtype: "bfloat16".

    Raises:
      ValueError: for another dtype, or for a problem without frozen arrays.
    """
    check_choice("dtype", dtype, get_args(ComputeDtype))
    fix = "give the result of freeze(problem, trainable), or of nnx_classifier with trainable"
    found = f"store_frozen_in: the problem has no frozen arrays; {fix}"
    require(jax.tree.leaves(problem.shapes().frozen), found)

    def init(key):
        model = problem.init(key)
        return model._replace(frozen=_cast(model.frozen, dtype))

    def apply(model, batch, key, training):
        model = model._replace(frozen=_cast(model.frozen, _float_type(model.params)))
        return problem.apply(model, batch, key, training)

    return problem._replace(init=init, apply=apply)


def _float_type(params):
    dtypes = (leaf.dtype for leaf in jax.tree.leaves(params))
    return jnp.result_type(*(each for each in dtypes if jnp.issubdtype(each, jnp.floating)))


def _cast(tree, dtype):
    """Casts all floating-point leaves of a tree."""
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )
