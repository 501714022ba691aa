"""Training a part of a model: the other params are frozen, and are never sent."""

import jax

from fedjax_algos.core import Model, Params, Problem
from fedjax_algos.core.checks import as_model
from fedjax_algos.core.parts import Parts, Pattern, check_match, split_params


def freeze(problem: Problem, trainable: Pattern) -> Problem:
    """The same problem, of which only some params are trained; the others are `Model.frozen`.

    Clients have the frozen params from the start: they are no part of what is sent, of updates, of
    clients' rows, or of the versions of asynchronous training. `params` of the new problem is a
    dictionary of the trainable leaves by path.

    Pretrained weights are given to a run as `params=freeze_model(problem, trainable, model)`.

    Args:
      problem: what is learned.
      trainable: the params that are trained: a pattern of their paths, such as "Dense_1/*" for the
        last layer of `mlp`, or a function from a path to a bool.

    Raises:
      ValueError: if the pattern matches none of the params, or the model has frozen arrays already.
    """
    if jax.tree.leaves(_shapes(problem).frozen):
        raise ValueError(
            "freeze: the model has frozen arrays already; give one pattern to the problem that has "
            "none"
        )
    parts = split_params(problem, trainable)
    check_match("freeze: trainable", parts, trainable)

    def init(key):
        return _divided(parts, problem.init(key))

    def apply(model, batch, key, training):
        both = model.params | model.frozen
        params = parts.structure.unflatten(both[path] for path in parts.paths)
        return problem.apply(Model(params, model.statistics), batch, key, training)

    return problem._replace(init=init, apply=apply)


def freeze_model(problem: Problem, trainable: Pattern, model: Model | Params) -> Model:
    """The model of `freeze(problem, trainable)` with given params, such as pretrained ones.

    Args:
      problem: the whole problem, which was given to `freeze`.
      trainable: as for `freeze`.
      model: the whole model, with its statistics; of a problem without statistics the params
        suffice.

    Raises:
      ValueError: if the pattern matches none of the params, for params or statistics of another
        structure or other shapes than the problem's, and for arrays that a round has consumed.
    """
    parts = split_params(problem, trainable)
    check_match("freeze_model: trainable", parts, trainable)
    whole = model if isinstance(model, Model) else Model(model)
    as_model(problem.init, whole)  # raises if it is not the problem's
    return _divided(parts, whole)


def _divided(parts: Parts, model: Model) -> Model:
    leaves = list(zip(parts.paths, jax.tree.leaves(model.params), parts.own, strict=True))
    trained = {path: leaf for path, leaf, own in leaves if own}
    frozen = {path: leaf for path, leaf, own in leaves if not own}
    return Model(trained, model.statistics, frozen)


def _shapes(problem):
    return jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0))
