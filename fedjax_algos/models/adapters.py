"""Adapters of Linen modules to problems, and the registry of models.

BatchNorm layers leave out the masked rows of a short batch: an interceptor gives the batch's mask
to a layer that is called without a mask.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, ParamSpec, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from fedjax_algos.base.errors import require
from fedjax_algos.core import Model, Params, Problem
from fedjax_algos.core.checks import check_kind
from fedjax_algos.core.options import is_number, one_of
from fedjax_algos.core.registry import Registry
from fedjax_algos.models.outputs import Outputs, accuracy, cross_entropy

P = ParamSpec("P")
Path: TypeAlias = tuple[Any, ...]
Inputs = Callable[[jax.Array], jax.Array]  # from stored examples to inputs of the module

models = Registry[Problem]("model", Problem)


class ExampleKind(NamedTuple):
    """A kind of examples that models accept, with a description for messages."""

    description: str
    axes: tuple[int, ...] = ()  # the numbers of axes that one example may have; () for any
    codes: bool = False  # whether they are integer codes of symbols

    def fits(self, shape: tuple[int, ...], dtype: Any = None) -> bool:
        """Returns whether examples of this shape, and of this type if known, are of this kind."""
        has_type = dtype is None or not self.codes or jnp.issubdtype(dtype, jnp.integer)
        return has_type and (not self.axes or len(shape) in self.axes)


TEXTS = ExampleKind("texts [length] of integer codes", (1,), codes=True)
IMAGES = ExampleKind("images [height, width] or [height, width, channels]", (2, 3))
VOLUMES = ExampleKind("volumes [depth, height, width] or [depth, height, width, channels]", (3, 4))
NUMBERS = ExampleKind("numbers of any shape")

_MASK_FIX = "give the module's __call__ an argument mask, bool[batch] or in evaluation None"
_taken: dict[str, ExampleKind] = {}  # by model


def model_of(kind: ExampleKind) -> Callable[[Callable[P, Problem]], Callable[P, Problem]]:
    """Decorates a factory of models: registers it and makes it refuse other examples."""

    def decorate(factory: Callable[P, Problem]) -> Callable[P, Problem]:
        name = factory.__name__
        _taken[name] = kind

        @functools.wraps(factory)
        def checked(*args: P.args, **keywords: P.kwargs) -> Problem:
            shape: Any = args[0] if args else keywords.get("example_shape")
            check_examples(name, shape)
            problem = factory(*args, **keywords)

            def apply(model, batch, key, training):  # only here the type is known
                check_examples(name, batch["x"].shape[1:], batch["x"].dtype)
                return problem.apply(model, batch, key, training)

            return problem._replace(apply=apply) if kind.codes else problem

        return models.register(checked)

    return decorate


def check_examples(model: str, shape: tuple[int, ...], dtype: Any = None) -> None:
    """Raises ValueError if a model of this package does not accept examples; others accept all."""
    kind = _taken.get(model)
    if kind is None:
        return
    _check_shape(model, shape)
    has_channels = kind in (IMAGES, VOLUMES) and len(shape) == max(kind.axes)
    channels_first = has_channels and shape[0] <= 4 < shape[-1]
    if kind.fits(shape, dtype) and not channels_first:
        return
    fitting = [name for name, each in _taken.items() if each.fits(shape, dtype or np.float32)]
    fix = f"give another model, such as {one_of(fitting[-3:])}, or other data"
    fix = "give np.moveaxis(x, 1, -1)" if channels_first else fix
    example = f"{np.dtype(dtype) if dtype else ''}{[int(length) for length in shape]}"
    raise ValueError(f"{model} takes {kind.description}, but an example is {example}; {fix}")


def _check_shape(owner, shape):
    is_shape = isinstance(shape, tuple | list) and all(is_number(n, int) and n > 0 for n in shape)
    fix = "give the shape of one example, such as (28, 28)"
    require(is_shape, f"{owner}: example_shape={shape!r} is not a shape; {fix}")


def scale_pixels(x: jax.Array) -> jax.Array:
    """Divides images [batch, ...] of uint8 by 255; returns floats, counts and codes unchanged.

    Raises ValueError for images of other integers and vectors of uint8: their range is not known.
    """
    is_byte, is_image = x.dtype == jnp.uint8, x.ndim > 2
    if is_byte and is_image:
        return x / 255
    known = not (is_byte or (is_image and jnp.issubdtype(x.dtype, jnp.integer)))
    meaning = "images of any range" if is_image else "pixels or numbers"
    found = f"examples are {x.dtype}{list(x.shape[1:])}, which may be {meaning}"
    fix = "divide them by their largest value and give float32, or give counts as float32"
    require(known, f"{found}; {fix}")
    return x


def in_precision(x: jax.Array, params: Params) -> jax.Array:
    """Casts float inputs to 16 bits if the params have 16; else the model would compute in 32."""
    dtype = jnp.result_type(*jax.tree.leaves(params))
    return x.astype(dtype) if dtype.itemsize == 2 and jnp.issubdtype(x.dtype, jnp.floating) else x


def classifier(
    module: nn.Module,
    example_shape: tuple[int, ...],
    *,
    inputs: Inputs = scale_pixels,
    dtype: Any = jnp.float32,
) -> Problem:
    """Makes a problem, with cross-entropy and accuracy, of a Linen module that returns logits.

    Batches are dicts of "x" [batch, *example_shape] and "y" int32[batch]. Collections other than
    "params" become the model's statistics and are updated in training. If the module takes an
    argument `training`, `is_training`, `train` or `deterministic`, it says whether the call is for
    training. Values sown as "features" become `Outputs.features`.

    In training, `nn.BatchNorm` leaves out the masked rows of short batches, unless it is called
    with its own mask. For other layers that mix examples, let the module take an argument `mask`:
    it receives bool[batch], True for real rows, or None in evaluation.

    Args:
      module: called with inputs of shape [batch, *example_shape]; returns float[batch, classes].
      example_shape: shape of one example.
      inputs: applied to "x" before the module; for augmentation see `preprocessed`.
      dtype: type of the example that initialises the module; an integer type for codes.

    Raises:
      ValueError: in training, for a BatchNorm whose inputs' first axis is not the batch, and for
        other changes of "batch_stats" in a module without an argument `mask`.
    """
    check_kind("module", module, nn.Module, "give an object of the class, such as CNN(classes=10)")
    _check_shape("classifier", example_shape)
    parameters = inspect.signature(type(module).__call__).parameters

    def options(training, mask=None):
        known = dict.fromkeys(("training", "is_training", "train"), training)
        known |= {"deterministic": not training, "mask": mask}
        return {name: value for name, value in known.items() if name in parameters}

    def init(key):
        blank = inputs(jnp.zeros((1, *example_shape), dtype))
        boxed = module.init({"params": key, "dropout": key}, blank, **options(False))
        variables = nn.unbox(boxed)  # of layers with `nn.with_partitioning`
        statistics = {k: v for k, v in variables.items() if k not in ("params", "intermediates")}
        return Model(variables["params"], statistics or ())

    def apply(model, batch, key, training):
        statistics, mask = model.statistics or {}, batch.get("mask")
        in_training = mask if training and statistics else None
        with masking(in_training) as layers:
            logits, changed = module.apply(
                {"params": model.params, **statistics},
                in_precision(inputs(batch["x"]), model.params),
                **options(training, mask),
                rngs={"dropout": key},
                mutable=[*(statistics if training else ()), "intermediates"],
            )
        if in_training is not None and "mask" not in parameters:
            name = "batch_stats"
            check_statistics(module, statistics.get(name), changed.get(name), layers)
        sown = flatten_dict(changed.pop("intermediates", {}))
        features = [values[0] for path, values in sown.items() if path[-1] == "features"]
        statistics = dict(changed) if training else statistics
        return Outputs(logits, *features), statistics or ()

    return Problem(init, apply, cross_entropy, accuracy)


@contextlib.contextmanager
def masking(mask: jax.Array | None) -> Iterator[set[Path]]:
    """Makes Linen's BatchNorm layers leave out rows outside the mask; yields the layers' paths."""
    layers: set[Path] = set()

    def intercept(call, args, keywords, context):
        module = context.module
        if isinstance(module, nn.BatchNorm | nn.SpectralNorm):
            layers.add(tuple(module.scope.path))
        if isinstance(module, nn.BatchNorm) and takes_mask(context.orig_method):
            keywords = with_mask("/".join(map(str, module.path)), mask, module, args, keywords)
        return call(*args, **keywords)

    with nn.intercept_methods(intercept) if mask is not None else contextlib.nullcontext():
        yield layers


def check_statistics(module: Any, before: Any, after: Any, layers: set[Path]) -> None:
    """Raises ValueError for statistics that a call changed outside of `masking`'s layers."""
    old = flatten_dict(before or {})
    for path, new in flatten_dict(after or {}).items():
        known = any(path[:end] in layers for end in range(len(path))) or new is old.get(path)
        changed = f"{type(module).__name__} updates its statistic {'/'.join(map(str, path))} in"
        counted = "training, which would count the masked rows of a short batch"
        require(known, f"{changed} {counted}; {_MASK_FIX}")


def takes_mask(call: Callable) -> bool:
    """Returns whether a call has an argument `mask`."""
    return "mask" in inspect.signature(call).parameters


def with_mask(name, mask, layer, args, keywords):
    """Adds the rows' mask, in the shape of the layer's inputs, to the keywords of its call."""
    arguments = dict(zip(("x", "use_running_average"), args, strict=False)) | keywords
    x, use_average = arguments["x"], arguments.get("use_running_average")
    if layer.use_running_average if use_average is None else use_average:
        return keywords
    mask = mask if keywords.get("mask") is None else keywords["mask"]
    if mask.ndim != 1:  # the caller's own mask, which broadcasts to the inputs
        return keywords
    axes = layer.axis if isinstance(layer.axis, tuple | list) else (layer.axis,)
    is_batch = len(mask) == x.shape[0] and all(axis % x.ndim for axis in axes)
    found = f"the BatchNorm layer {name!r} has inputs of shape {list(x.shape)}, whose first axis is"
    found += f" not the {len(mask)} rows of the batch, so masked rows cannot be left out"
    fix = f"{_MASK_FIX}, and call the layer with mask=..., which broadcasts to its inputs"
    require(is_batch, f"{found}; {fix}")
    return keywords | {"mask": mask.reshape(-1, *(1,) * (x.ndim - 1))}
