"""Flax modules, Linen or NNX, as problems, and the registry of models."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict

from fedjax_algos.core import Model, Params, Problem
from fedjax_algos.core.options import is_number, one_of
from fedjax_algos.core.registry import Registry
from fedjax_algos.core.reprs import describe_tree
from fedjax_algos.models.masked_rows import check_statistics, mask_layers, masking, takes_mask
from fedjax_algos.models.outputs import Outputs, accuracy, cross_entropy, with_args

P = ParamSpec("P")
Inputs = Callable[[jax.Array], jax.Array]  # from stored examples to inputs of the module

models = Registry[Problem]("model", Problem)


class ExampleKind(NamedTuple):
    """A kind of examples that models take: what they are, for messages, their axes and type."""

    description: str
    axes: tuple[int, ...] = ()  # the numbers of axes that one example may have; () for any
    codes: bool = False  # whether they are codes of symbols, which are integers

    def fit(self, shape: tuple[int, ...], dtype: Any = None) -> bool:
        """Whether examples of the shape, and of the type if it is known, are of this kind."""
        has_type = dtype is None or not self.codes or jnp.issubdtype(dtype, jnp.integer)
        return has_type and (not self.axes or len(shape) in self.axes)


TEXTS = ExampleKind("texts [length] of integer codes", (1,), codes=True)
IMAGES = ExampleKind("images [height, width] or [height, width, channels]", (2, 3))
VOLUMES = ExampleKind("volumes [depth, height, width] or [depth, height, width, channels]", (3, 4))
NUMBERS = ExampleKind("numbers of any shape")

_SUGGESTED = 3  # models that an error names at most
_taken: dict[str, ExampleKind] = {}  # by model
_OPTIONS = {  # what `help` says of the options that several models have
    "num_classes": "number of labels; of texts the number of symbols, which are inputs, too.",
    "initialisation": "distribution of the initial parameters, as in Flax or as in PyTorch.",
    "hidden": "width of the hidden layers, at least 1.",
    "layers": "number of hidden layers, at least 1.",
    "embedding": "width of the embedding, at least 1.",
    "biases": "biases of a layer, as in PyTorch or as in Flax; see `Recurrent`.",
    "norm": """GroupNorm or BatchNorm. Epsilon is 1e-5, and BatchNorm's momentum 0.9, which torch
        calls 0.1; in training its running variance is the mean of the batches' biased variances, as
        in Flax, where torch has unbiased ones.""",
    "groups": "number of groups of channels of GroupNorm; a divisor of all widths.",
    "convolutions": """implementation of the convolutions, see `convolve` and `convolve_3d`; with
        "lax" the depthwise ones are `lax.conv_general_dilated`, too.""",
    "dropout": "rate of dropout in training, from 0 to below 1.",
    "checkpoint": "whether less memory is used for a longer computation; see `vit`.",
    "augmentation": """"normalised" uses CIFAR-10's means and standard deviations; "cifar" crops
        and flips each training image before that; "cifar_by_batch" uses one offset and one decision
        for a whole batch, as the code of FedGBO and of GHBM. "imagenet_normalised" uses ImageNet's
        means and standard deviations, which pretrained weights expect; "imagenet_flipped" flips
        training images before that, and "imagenet_cropped" cuts random boxes out of them first,
        which are resized to the size of the image. "none" leaves images unchanged.""",
    "weights": """file of torchvision's or timm's weights, see `load_weights`; None draws the
        initial params. The weights of ImageNet expect `augmentation="imagenet_normalised"`.""",
    "head": '"loaded" has the last layer of `weights`; "new" draws it, for other classes.',
}


def model_of(kind: ExampleKind) -> Callable[[Callable[P, Problem]], Callable[P, Problem]]:
    """Decorates a factory: registers it, refuses other examples, and documents shared options."""
    shape_entry = {"example_shape": f"shape of one example; examples are {kind.description}."}

    def decorate(factory: Callable[P, Problem]) -> Callable[P, Problem]:
        name = factory.__name__
        _taken[name] = kind

        @functools.wraps(with_args(_OPTIONS | shape_entry)(factory))
        def checked(*args: P.args, **keywords: P.kwargs) -> Problem:
            shape: Any = args[0] if args else keywords.get("example_shape")
            check_examples(name, shape)
            problem = factory(*args, **keywords)

            def apply(model, batch, key, training):  # which knows the type
                check_examples(name, batch["x"].shape[1:], batch["x"].dtype)
                return problem.apply(model, batch, key, training)

            return problem._replace(apply=apply) if kind.codes else problem

        return models.register(checked)

    return decorate


def check_examples(model: str, shape: tuple[int, ...], dtype: Any = None) -> None:
    """Raises ValueError for what a model of this package refuses; others take anything."""
    if model not in _taken:
        return
    if not isinstance(shape, tuple | list) or not all(is_number(n, int) and n > 0 for n in shape):
        raise ValueError(
            f"{model}: example_shape={shape!r} is no shape; give that of one example, such as "
            "(28, 28)"
        )
    if _taken[model].fit(shape, dtype):
        return
    example = f"{'' if dtype is None else np.dtype(dtype)}{[int(length) for length in shape]}"
    known = np.float32 if dtype is None else dtype
    general_last = sorted(_taken, key=lambda name: _taken[name] is NUMBERS)
    fitting = [name for name in general_last if _taken[name].fit(shape, known)]
    raise ValueError(
        f"{model} takes {_taken[model].description}, but an example is {example}; give another "
        f"model, such as {one_of(fitting[:_SUGGESTED])}, or other data"
    )


def scale_pixels(x: jax.Array) -> jax.Array:
    """Divides integer pixels [batch, ...] by 255; returns floats unchanged."""
    return x / 255 if jnp.issubdtype(x.dtype, jnp.integer) else x


def identity(x: jax.Array) -> jax.Array:
    """Returns the inputs [batch, ...] unchanged, such as the codes of a text."""
    return x


def _in_precision(x: jax.Array, params: Params) -> jax.Array:
    """Float inputs in 16 bits if the params are; else they would be computed with in 32."""
    dtype = jnp.result_type(*jax.tree.leaves(params))
    narrow = dtype.itemsize == 2 and jnp.issubdtype(x.dtype, jnp.floating)
    return x.astype(dtype) if narrow else x


def _check_call(module_type: type, known: dict[str, Any]) -> None:
    """Raises ValueError for a module whose call has arguments that the adapter does not give."""
    for each in list(inspect.signature(module_type.__call__).parameters.values())[2:]:
        variadic = each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if each.default is each.empty and not variadic and each.name not in known:
            raise ValueError(
                f"{module_type.__name__}.__call__ needs {each.name!r}, but is given only "
                f"{', '.join(['the inputs', *known])}; give {each.name!r} a default value"
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
    "params" become the model's statistics and are updated in training. An argument `training`,
    `train` or `deterministic` of the module says whether the call is for training. What the module
    sows as "features" becomes `Outputs.features`.

    In training, `nn.BatchNorm` leaves the masked rows of short batches out, unless it is called
    with a mask of its own. An argument `mask` of the module is given bool[batch], True for real
    rows, for other layers that mix examples; it is None in evaluation.

    Args:
      module: called with inputs of shape [batch, *example_shape]; returns float[batch, classes].
      example_shape: shape of one example.
      inputs: applied to "x" before the module. For augmentation see `preprocessed`, whose float
        images `scale_pixels` returns unchanged.
      dtype: type of the example that initialises the module; an integer type for codes.

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
    call, arguments = (constructor.__init__, (0, 0)) if is_class else (constructor, (0,))
    try:
        inspect.signature(call).bind(*arguments)
        takes_rngs = not isinstance(constructor, nnx.Module)
    except TypeError:
        takes_rngs = False
    if not takes_rngs:
        name = getattr(constructor, "__name__", type(constructor).__name__)
        raise ValueError(
            f"constructor is {name}, not a function of nnx.Rngs alone; give one that makes the "
            "module, such as lambda rngs: Net(rngs=rngs), or a class whose only argument is rngs"
        )


def nnx_classifier(
    constructor: Callable[[nnx.Rngs], nnx.Module],
    *,
    inputs: Inputs = scale_pixels,
    trainable: type[nnx.Param] = nnx.Param,
) -> Problem:
    """Makes a problem with cross-entropy and accuracy of an NNX module from inputs to logits.

    Each application constructs the module, with the key of the step for its random streams, and
    then sets its params and statistics; the compiler removes the unused initialisation. The module
    knows from `train()` and `eval()` whether the call is for training, as Dropout does. Masked rows
    of short batches are left out as in `classifier`.

    Args:
      constructor: makes the module from its random streams, such as `lambda rngs: Net(rngs=rngs)`.
      inputs: as for `classifier`.
      trainable: the type of the params that are trained, such as `nnx.LoRAParam`; the others are
        frozen, see `Model`.

    Raises:
      ValueError: for a module, or a function that cannot be called with `nnx.Rngs` alone; when a
        model is made, for a module that needs more than its inputs and a mask, or has no params of
        the type `trainable`; in training, for a BatchNorm whose inputs' first axis is not the
        batch, and for other changes of `nnx.BatchStat` in a module without an argument `mask`.
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
