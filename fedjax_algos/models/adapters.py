"""Adapters that make classification problems of Flax modules, Linen or NNX."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.traverse_util import flatten_dict

from fedjax_algos.core import Batch, MetricValues, Model, Params, Problem
from fedjax_algos.core.options import Range
from fedjax_algos.core.representation import describe, describe_tree
from fedjax_algos.models.masked_rows import check_statistics, mask_layers, masking, takes_mask
from fedjax_algos.models.registry import losses, metrics

Inputs = Callable[[jax.Array], jax.Array]  # from stored examples to inputs of the module


class Outputs(NamedTuple):
    """A classifier's outputs for a batch."""

    logits: jax.Array  # float[batch, ..., classes]: of each label of an example
    features: Any = ()  # float[batch, width]: inputs of the last layer, if the module sows them

    def __repr__(self) -> str:
        return describe(self, **{name: describe_tree(x) for name, x in self._asdict().items()})


def scale_pixels(x: jax.Array) -> jax.Array:
    """Divides integer pixels by 255; returns floats unchanged.

    Args:
      x: [batch, ...].
    """
    return x / 255 if jnp.issubdtype(x.dtype, jnp.integer) else x


def identity(x: jax.Array) -> jax.Array:
    """Returns the inputs unchanged, such as the codes of a text.

    Args:
      x: [batch, ...].
    """
    return x


def _in_precision(x: jax.Array, params: Params) -> jax.Array:
    """Float inputs in 16 bits if the params are; else they would be computed with in 32."""
    dtype = jnp.result_type(*jax.tree.leaves(params))
    narrow = dtype.itemsize == 2 and jnp.issubdtype(x.dtype, jnp.floating)
    return x.astype(dtype) if narrow else x


def mean_over_labels(values: jax.Array) -> jax.Array:
    """The mean over the labels of each example, float[batch].

    Args:
      values: float[batch, ...]; returned unchanged if an example has one label.
    """
    return values.mean(range(1, values.ndim)) if values.ndim > 1 else values


@losses.register
def cross_entropy(
    outputs: Outputs,
    batch: Batch,
    *,
    label_smoothing: Annotated[float, Range(0, 1, high_open=True)] = 0.0,
) -> jax.Array:
    """Softmax cross-entropy with the labels, float[batch].

    If an example has several labels, such as the voxels of a mask, it is their mean.

    Args:
      outputs: of the model.
      batch: with "y", int32[batch, ...], the labels.
      label_smoothing: a share, from 0 to below 1, of the label that is divided over all classes.
    """
    of_label = optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])
    if not label_smoothing:
        return mean_over_labels(of_label)
    of_all = -jax.nn.log_softmax(outputs.logits).mean(-1)
    return mean_over_labels((1 - label_smoothing) * of_label + label_smoothing * of_all)


@metrics.register
def accuracy(outputs: Outputs, batch: Batch) -> MetricValues:
    """Accuracy: 1 if the largest logit is that of the label, and else 0.

    The first of equal logits counts as the largest. If an example has several labels, it is the
    share of them that is right.

    Args:
      outputs: of the model.
      batch: with "y", int32[batch, ...], the labels.

    Returns:
      "accuracy", float[batch].
    """
    correct = outputs.logits.argmax(-1) == batch["y"]
    return {"accuracy": mean_over_labels(jnp.asarray(correct, float))}


def _check_call(module_type: type, known: dict[str, Any]) -> None:
    """Raises ValueError for a module whose call has arguments that the adapter does not give."""
    parameters = list(inspect.signature(module_type.__call__).parameters.values())[2:]
    needed = [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    missing = next((name for name in needed if name not in known), None)
    if missing is not None:
        given = ", ".join(["the inputs", *known])
        raise ValueError(
            f"{module_type.__name__}.__call__ needs {missing!r}, but is given only {given}; give "
            f"{missing!r} a default value"
        )


def classifier(
    module: nn.Module,
    example_shape: tuple[int, ...],
    *,
    inputs: Inputs = scale_pixels,
    dtype: Any = jnp.float32,
) -> Problem:
    """Makes a problem with cross-entropy and accuracy of a Linen module from inputs to logits.

    Batches are dicts of "x" [batch, *example_shape] and "y" int32[batch]. Collections other than
    "params" become the model's statistics and are updated in training. If the module has an
    argument `training`, `train` or `deterministic`, it says whether the call is for training. The
    dropout key depends on client, dispatch and step. What the module sows as "features" becomes
    `Outputs.features`.

    In training, `nn.BatchNorm` leaves the masked rows of short batches out, unless it is called
    with a mask of its own. An argument `mask` of the module is given bool[batch], True for real
    rows, for other layers that mix examples; it is None in evaluation.

    Args:
      module: called with inputs of shape [batch, *example_shape]; returns float[batch, classes].
      example_shape: of one example.
      inputs: applied to "x" before the module. For augmentation see `preprocessed`, whose float
        images `scale_pixels` returns unchanged.
      dtype: of the example that initialises the module; an integer type for codes.

    Raises:
      ValueError: for a module that needs other arguments; in training, for a BatchNorm whose
        inputs' first axis is not the batch, and for other changes of "batch_stats" in a module
        without an argument `mask`.
    """
    _check_call(type(module), dict.fromkeys(("training", "train", "deterministic", "mask")))
    parameters = inspect.signature(type(module).__call__).parameters

    def options(training, mask=None):
        flags = {"training": training, "train": training, "deterministic": not training}
        chosen = {name: flag for name, flag in flags.items() if name in parameters}
        return chosen | ({"mask": mask} if "mask" in parameters else {})

    def init(key):
        blank = inputs(jnp.zeros((1, *example_shape), dtype))
        variables = module.init({"params": key, "dropout": key}, blank, **options(False))
        statistics = {k: v for k, v in variables.items() if k not in ("params", "intermediates")}
        return Model(variables["params"], statistics or ())

    def apply(model, batch, key, training):
        statistics, mask = model.statistics or {}, batch.get("mask")
        in_training = mask if training and statistics else None
        with masking(in_training) as layers:
            logits, changed = module.apply(
                {"params": model.params, **statistics},
                _in_precision(inputs(batch["x"]), model.params),
                **options(training, mask),
                rngs={"dropout": key},
                mutable=[*(statistics if training else ()), "intermediates"],
            )
        if in_training is not None and "mask" not in parameters:
            name = "batch_stats"
            check_statistics(module, statistics.get(name), changed.get(name), layers)
        sown = flatten_dict(changed.pop("intermediates", {}))
        features = [values[0] for path, values in sown.items() if path[-1] == "features"]
        return Outputs(logits, *features), (dict(changed) if training else statistics) or ()

    return Problem(init, apply, cross_entropy, accuracy)


def _check_constructor(constructor: Any) -> None:
    """Raises ValueError for what does not make an NNX module of its random streams."""
    is_class = isinstance(constructor, type)
    name = getattr(constructor, "__name__", type(constructor).__name__)
    if isinstance(constructor, nnx.Module):
        given = f"a module, {name}(...)"
    else:
        try:
            arguments = (None, None) if is_class else (None,)
            inspect.signature(constructor.__init__ if is_class else constructor).bind(*arguments)
            return
        except TypeError:
            given = f"{name}, which cannot be called with nnx.Rngs alone"
    raise ValueError(
        f"constructor is {given}; give a function of the random streams that makes the module, "
        "such as lambda rngs: Net(rngs=rngs), or a class whose only argument is rngs"
    )


def nnx_classifier(
    constructor: Callable[[nnx.Rngs], nnx.Module],
    *,
    inputs: Inputs = scale_pixels,
    trainable: type[nnx.Param] = nnx.Param,
) -> Problem:
    """Makes a problem with cross-entropy and accuracy of an NNX module from inputs to logits.

    Each application constructs the module, with the key of the step for its random streams, and
    then sets its params and statistics; the compiler removes the unused initialisation. Therefore
    no NNX object is carried through a loop.

    Masked rows of short batches are left out as in `classifier`: by `nnx.BatchNorm`, and by what
    the module does with an argument `mask` of its call.

    Args:
      constructor: makes the module from its random streams, such as `lambda rngs: Net(rngs=rngs)`.
      inputs: as for `classifier`.
      trainable: the type of the params that are trained, such as `nnx.LoRAParam`; the others are
        frozen, see `Model`.

    Raises:
      ValueError: for a module, or a function that cannot be called with `nnx.Rngs` alone; when a
        model is made, for a module that needs more than its inputs and a mask, or has no params of
        the type `trainable`. Whether the call is for training, it knows from `module.train()` and
        `module.eval()`, as Dropout does. In training, for a BatchNorm whose inputs' first axis is
        not the batch, and for other changes of `nnx.BatchStat` in a module without an argument
        `mask`.
    """
    _check_constructor(constructor)
    frozen = nnx.All(nnx.Param, nnx.Not(trainable))

    def values_of(module, kind):
        return nnx.to_pure_dict(nnx.state(module, kind)) or ()

    def init(key):
        module = constructor(nnx.Rngs(key))
        _check_call(type(module), {"mask": None})
        model = Model(*(values_of(module, kind) for kind in (trainable, nnx.BatchStat, frozen)))
        if not jax.tree.leaves(model.params):
            raise ValueError(
                f"trainable={trainable.__name__} matches none of the params "
                f"{describe_tree(model.frozen)}; give a type that the module has, such as nnx.Param"
            )
        return model

    def apply(model, batch, key, training):
        module = constructor(nnx.Rngs(key))
        for kind, values in zip((trainable, nnx.BatchStat, frozen), model, strict=True):
            state = nnx.state(module, kind)
            nnx.replace_by_pure_dict(state, values or {})
            nnx.update(module, state)
        module.train() if training else module.eval()
        mask, is_given = batch.get("mask"), takes_mask(type(module).__call__)
        in_training = mask if training and model.statistics else None
        layers = mask_layers(module, in_training)
        x = _in_precision(inputs(batch["x"]), model.params)
        logits = module(x, mask=mask) if is_given else module(x)
        statistics = values_of(module, nnx.BatchStat)
        if in_training is not None and not is_given:
            check_statistics(module, model.statistics, statistics, layers)
        return Outputs(logits), statistics

    return Problem(init, apply, cross_entropy, accuracy)
