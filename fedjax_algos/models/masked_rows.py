"""BatchNorm layers of Flax modules that leave out the masked rows of a short batch.

A layer that is called without a mask is given that of the batch: in Linen by an interceptor, in
NNX, which has none, by a subclass of the layer's class.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast

import flax.linen as nn
import jax
from flax import nnx
from flax.traverse_util import flatten_dict

Path: TypeAlias = tuple[Any, ...]

_FIX = (
    "give the module's __call__ an argument mask, bool[batch], which is True for real rows and "
    "None in evaluation"
)


@contextlib.contextmanager
def masking(mask: jax.Array | None) -> Iterator[set[Path]]:
    """Inside, Linen's BatchNorm layers count the rows of the mask alone; yields their paths."""
    layers: set[Path] = set()

    def intercept(call, args, keywords, context):
        module = context.module
        if isinstance(module, nn.BatchNorm | nn.SpectralNorm):
            layers.add(tuple(module.scope.path))
        if isinstance(module, nn.BatchNorm) and takes_mask(context.orig_method):
            name = "/".join(map(str, module.path))
            keywords = _with_mask(module, name, mask, args, keywords)
        return call(*args, **keywords)

    with contextlib.nullcontext() if mask is None else nn.intercept_methods(intercept):
        yield layers


def mask_layers(module: nnx.Module, mask: jax.Array | None) -> set[Path]:
    """Changes an NNX module, made for one call, as `masking` does; returns the layers' paths."""
    layers = set()
    for path, layer in [] if mask is None else list(nnx.iter_modules(module)):
        if isinstance(layer, nnx.BatchNorm) and takes_mask(type(layer).__call__):
            changed, kind = cast(Any, layer), type(layer)
            # through `layer.__setattr__` it would become an attribute of NNX's
            object.__setattr__(changed, "__class__", _masked(kind))
            changed.rows_of_batch = nnx.static(_Rows("/".join(map(str, path)), mask))
            layers.add(path)
        elif isinstance(layer, nnx.SpectralNorm):
            layers.add(path)
    return layers


def check_statistics(module: Any, before: Any, after: Any, layers: set[Path]) -> None:
    """Raises ValueError for statistics that a call has changed outside of layers of `masking`."""
    old = flatten_dict(before or {})
    for path, new in flatten_dict(after or {}).items():
        known = any(path[:end] in layers for end in range(len(path)))
        if not known and new is not old.get(path):
            raise ValueError(
                f"{type(module).__name__} updates its statistic {'/'.join(map(str, path))} in "
                f"training, which would count the masked rows of a short batch; {_FIX}"
            )


def takes_mask(call: Callable) -> bool:
    """Whether a call has an argument of the name `mask`."""
    return "mask" in inspect.signature(call).parameters


class _Rows:
    """The mask of a batch; it is compared by identity, so that no compiled call is used again."""

    def __init__(self, name, mask):
        self.name, self.mask = name, mask


@functools.cache
def _masked(kind):
    """A class of BatchNorm layers whose calls without a mask take that of their `_Rows`."""

    class Masked(kind):
        def __call__(self, *args, **keywords):
            rows = self.rows_of_batch
            keywords = _with_mask(self, rows.name, rows.mask, args, keywords)
            return super().__call__(*args, **keywords)

    Masked.__name__ = Masked.__qualname__ = kind.__name__
    return Masked


def _with_mask(layer, name, mask, args, keywords):
    """The keywords of a layer's call, with the mask of the rows in the shape of its inputs."""
    named = dict(zip(("x", "use_running_average"), args, strict=False)) | keywords
    x, use_average = named["x"], named.get("use_running_average")
    if layer.use_running_average if use_average is None else use_average:
        return keywords
    given = keywords.get("mask")
    mask = mask if given is None else given
    if mask.ndim != 1:  # the caller's own, which broadcasts to the inputs
        return keywords
    axes = layer.axis if isinstance(layer.axis, tuple | list) else (layer.axis,)
    if len(mask) != x.shape[0] or any(axis % x.ndim == 0 for axis in axes):
        raise ValueError(
            f"the BatchNorm layer {name!r} has inputs of shape {list(x.shape)}, whose first axis "
            f"is not that of the {len(mask)} rows of the batch, so masked rows cannot be left out; "
            f"{_FIX}, and call the layer with mask=..., which broadcasts to its inputs"
        )
    return keywords | {"mask": mask.reshape(-1, *(1,) * (x.ndim - 1))}
