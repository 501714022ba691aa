"""The registries of models, losses and metrics, in a module that all files of models can import."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import MetricValues, Problem
from fedjax_algos.core.options import is_number, one_of
from fedjax_algos.core.registry import Registry

P = ParamSpec("P")

models = Registry[Problem]("model", Problem)
losses = Registry[jax.Array]("loss", jax.Array)  # (outputs, batch, *, ...) -> float[batch]
# (outputs, batch, *, ...) -> {name: float[batch] or Mean}, as `Problem.metrics`
metrics = Registry[MetricValues]("metric", dict)

_SUGGESTED = 3  # models that an error names at most


class ExampleKind(NamedTuple):
    """A kind of examples that models take: their number of axes, and their type.

    Attributes:
      description: what they are, for messages.
      axes: the numbers of axes that one example may have; () for any.
      codes: whether they are codes of symbols, which are integers.
    """

    description: str
    axes: tuple[int, ...] = ()
    codes: bool = False

    def fit(self, shape: tuple[int, ...], dtype: Any = None) -> bool:
        """Whether examples are of this kind.

        Args:
          shape: of one example.
          dtype: of the examples; None if it is not known.
        """
        has_type = dtype is None or not self.codes or jnp.issubdtype(dtype, jnp.integer)
        return has_type and (not self.axes or len(shape) in self.axes)


TEXTS = ExampleKind("texts [length] of integer codes", (1,), codes=True)
IMAGES = ExampleKind("images [height, width] or [height, width, channels]", (2, 3))
VOLUMES = ExampleKind("volumes [depth, height, width] or [depth, height, width, channels]", (3, 4))
NUMBERS = ExampleKind("numbers of any shape")

_taken: dict[str, ExampleKind] = {}  # by model


def takes(kind: ExampleKind) -> Callable[[Callable[P, Problem]], Callable[P, Problem]]:
    """Decorates a factory of models, which then refuses other examples.

    The shape is checked when the model is made. Codes are checked when the model is applied, and
    before, by `check_examples`, where the type is known.

    Args:
      kind: that the model takes.
    """

    def decorate(factory: Callable[P, Problem]) -> Callable[P, Problem]:
        name = factory.__name__
        _taken[name] = kind

        @functools.wraps(factory)
        def checked(*args: P.args, **keywords: P.kwargs) -> Problem:
            shape: Any = args[0] if args else keywords.get("example_shape")
            check_examples(name, shape)
            problem = factory(*args, **keywords)

            def apply(model, batch, key, training):
                check_examples(name, batch["x"].shape[1:], batch["x"].dtype)
                return problem.apply(model, batch, key, training)

            return problem._replace(apply=apply) if kind.codes else problem

        return checked

    return decorate


def check_examples(model: str, shape: tuple[int, ...], dtype: Any = None) -> None:
    """Checks that a model takes examples of a shape and a type.

    Args:
      model: its name; models that are not registered with `takes` take anything.
      shape: of one example.
      dtype: of the examples; None if it is not known.

    Raises:
      ValueError: for other examples than the model takes, and what is no shape.
    """
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
    fitting = [name for name in sorted(_taken, key=_is_general) if _taken[name].fit(shape, known)]
    raise ValueError(
        f"{model} takes {_taken[model].description}, but an example is {example}; give another "
        f"model, such as {one_of(fitting[:_SUGGESTED])}, or other data"
    )


def _is_general(model: str) -> bool:
    return _taken[model] is NUMBERS
