"""The adapter of NNX modules to problems.

It has a file of its own because `flax.nnx` is slow to import. A subclass of a BatchNorm layer's
class adds the batch's mask to the layer's calls.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
from flax import nnx

from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import describe_tree
from fedjax_algos.core import Model, Problem
from fedjax_algos.core.checks import check_callable
from fedjax_algos.models.adapters import (
    Inputs,
    Path,
    check_statistics,
    in_precision,
    scale_pixels,
    takes_mask,
    with_mask,
)
from fedjax_algos.models.outputs import Outputs, accuracy, cross_entropy


def nnx_classifier(
    constructor: Callable[[nnx.Rngs], nnx.Module],
    *,
    inputs: Inputs = scale_pixels,
    trainable: type[nnx.Param] = nnx.Param,
) -> Problem:
    """Makes a problem, with cross-entropy and accuracy, of an NNX module that returns logits.

    Each application constructs the module with the step's key for its random streams, then sets its
    params and statistics; the compiler removes the unused initialisation. `train()` and `eval()`
    tell the module, and its Dropout, whether the call is for training. Masked rows of short batches
    are left out as in `classifier`.

    Args:
      constructor: makes the module from its random streams, such as `lambda rngs: Net(rngs=rngs)`.
      inputs: as for `classifier`.
      trainable: the type of the trained params, such as `nnx.LoRAParam`; the others are frozen.

    Raises:
      ValueError: for a module in place of a constructor; when a model is made, if the module has no
        params of the type `trainable`; in training, for a BatchNorm whose inputs' first axis is not
        the batch, and for other changes of `nnx.BatchStat` in a module without an argument `mask`.
    """
    fix = "give lambda rngs: Net(rngs=rngs)"
    check_callable("constructor", constructor, fix, "rngs")
    require(not isinstance(constructor, nnx.Module), f"constructor is a module; {fix}")
    frozen = nnx.All(nnx.Param, nnx.Not(trainable))

    def construct(key):
        with nnx.use_eager_sharding(False):  # the engine divides params
            return constructor(nnx.Rngs(key))

    def values_of(module, kind):
        return nnx.to_pure_dict(nnx.state(module, kind)) or ()

    def init(key):
        module = construct(key)
        model = Model(*(values_of(module, kind) for kind in (trainable, nnx.BatchStat, frozen)))
        none = f"trainable={trainable.__name__} matches none of the params"
        fix = f"{describe_tree(model.frozen)}; give a type that the module has, such as nnx.Param"
        require(jax.tree.leaves(model.params), f"{none} {fix}")
        return model

    def apply(model, batch, key, training):
        module = construct(key)
        for kind, values in zip((trainable, nnx.BatchStat, frozen), model, strict=True):
            state = nnx.state(module, kind)
            nnx.replace_by_pure_dict(state, values or {})
            nnx.update(module, state)
        module.train() if training else module.eval()
        mask, is_given = batch.get("mask"), takes_mask(type(module).__call__)
        in_training = mask if training and model.statistics else None
        layers = mask_layers(module, in_training)
        x = in_precision(inputs(batch["x"]), model.params)
        logits = module(x, mask=mask) if is_given else module(x)
        statistics = values_of(module, nnx.BatchStat)
        if in_training is not None and not is_given:
            check_statistics(module, model.statistics, statistics, layers)
        return Outputs(logits), statistics

    return Problem(init, apply, cross_entropy, accuracy)


def mask_layers(module: nnx.Module, mask: jax.Array | None) -> set[Path]:
    """Does what `masking` does for an NNX module made for one call; returns the layers' paths."""
    layers = set()
    for path, layer in [] if mask is None else list(nnx.iter_modules(module)):
        if isinstance(layer, nnx.BatchNorm) and takes_mask(type(layer).__call__):
            # `layer.__setattr__` would make it an attribute of NNX's
            object.__setattr__(layer, "__class__", _masked(type(layer)))
            add_mask = functools.partial(with_mask, "/".join(map(str, path)), mask)
            # compared by identity, so that no compiled call of another batch is reused
            cast(Any, layer).add_mask = nnx.static(add_mask)
            layers.add(path)
        elif isinstance(layer, nnx.SpectralNorm):
            layers.add(path)
    return layers


@functools.cache
def _masked(kind):
    """Makes a BatchNorm class whose calls take the mask of the batch's rows."""

    class Masked(kind):
        def __call__(self, *args, **keywords):
            return super().__call__(*args, **self.add_mask(self, args, keywords))

    Masked.__name__ = Masked.__qualname__ = kind.__name__
    return Masked
