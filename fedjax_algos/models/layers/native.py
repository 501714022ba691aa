"""oneDNN's convolutions and dense layers on a CPU, if `fedjax_algos_native` is installed.

The package is in the folder `native/` of the repository; `pip install ./native` compiles it. A
layer is one bilinear operation of JAX in three forms. Each form is a gradient of the others:

    outputs = forward(images, kernel)
    images = to_images(outputs, kernel)
    kernel = to_kernel(images, outputs)

It can be differentiated any number of times, forward and in reverse. Mapped over clients it stays
one call, with a loop over the clients inside.
"""

import importlib.util
import math
import os
import platform
import sys
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

FORWARD, TO_IMAGES, TO_KERNEL = range(3)
_ROLES = {  # of both operands and the result of each form
    FORWARD: ("images", "kernel", "outputs"),
    TO_IMAGES: ("outputs", "kernel", "images"),
    TO_KERNEL: ("images", "outputs", "kernel"),
}
_FORMS = {roles[-1]: form for form, roles in _ROLES.items()}  # by their results


def installed() -> bool:
    """Returns whether the package is installed and not switched off by FEDJAX_ALGOS_NATIVE=0."""
    switched_off = os.environ.get("FEDJAX_ALGOS_NATIVE") == "0"
    return not switched_off and importlib.util.find_spec("fedjax_algos_native") is not None


INSTALLED = installed()


def advice(params: Any) -> list[str]:
    """Returns a line for a model with convolutions if its machine can have the package but has not.

    Args:
      params: the params, or their shapes.
    """
    fits = (sys.platform, platform.machine(), jax.default_backend()) == ("linux", "x86_64", "cpu")
    missing = fits and importlib.util.find_spec("fedjax_algos_native") is None
    if not missing or all(len(leaf.shape) < 4 for leaf in jax.tree.leaves(params)):
        return []
    return ["in a checkout, pip install ./native can make local steps here up to 2.6 times as fast"]


def applies(*arrays: jax.Array) -> bool:
    """Returns whether native layers are installed and accept these arrays, which means float32."""
    return INSTALLED and all(each.dtype == jnp.float32 for each in arrays)


def convolve(
    images: jax.Array,
    kernel: jax.Array,
    strides: tuple[int, ...],
    sides: tuple[tuple[int, int], ...],
    whole: tuple[int, ...],
) -> jax.Array:
    """Convolves with padding by `sides`; `whole` are the outputs to compute along each axis.

    Images are [batch, space..., channels], and kernels [window..., channels / groups, features].
    """
    size, window, before = images.shape[1:-1], kernel.shape[:-2], [side[0] for side in sides]
    needed = [(n - 1) * s + extent for n, s, extent in zip(whole, strides, window, strict=True)]
    after = [reach - n - first for reach, n, first in zip(needed, size, before, strict=True)]
    for axis, rest in enumerate(after, 1):
        images = jax.lax.slice_in_dim(images, 0, images.shape[axis] + min(rest, 0), axis=axis)
    ends = tuple((first, max(last, 0)) for first, last in zip(before, after, strict=True))
    shape = (images.shape[0], *whole, kernel.shape[-1])
    return _bind(FORWARD, shape, tuple(strides), ends, images, kernel)


def by_lax(
    inputs: jax.Array,
    kernel: jax.Array,
    strides: tuple[int, ...],
    sides: tuple[tuple[int, int], ...],
    whole: tuple[int, ...] | None = None,
) -> jax.Array:
    """Computes `convolve` by `lax`, on any platform; without `whole`, all outputs."""
    letters = "DHW"[3 - len(strides) :]
    axes = f"N{letters}C", f"{letters}IO", f"N{letters}C"
    groups = inputs.shape[-1] // kernel.shape[-2]
    options: Any = {"dimension_numbers": axes, "feature_group_count": groups}
    outputs = jax.lax.conv_general_dilated(inputs, kernel, strides, sides, **options)
    return outputs if whole is None else outputs[(slice(None), *map(slice, whole))]


def dot_general(
    left: jax.Array, right: jax.Array, dimension_numbers: Any, *options: Any, **more: Any
) -> jax.Array:
    """Computes `lax.dot_general` for Flax's layers, natively for rows and a matrix."""
    over_last = ((left.ndim - 1,), (0,)), ((), ())
    contracted, batched = (tuple(map(tuple, pair)) for pair in dimension_numbers)
    if not applies(left, right) or (contracted, batched) != over_last or right.ndim != 2:
        return jax.lax.dot_general(left, right, dimension_numbers, *options, **more)
    return multiply(left.reshape(-1, left.shape[-1]), right).reshape(*left.shape[:-1], -1)


def multiply(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """Multiplies float32[n, k] and float32[k, m]."""
    return _bind(FORWARD, (len(rows), weights.shape[1]), (), (), rows, weights)


def flops(shapes: list[tuple[int, ...]], form: int, **params: Any) -> int:
    """Counts the operations of a layer from the shapes of both operands and the result."""
    of_role = dict(zip(_ROLES[form], shapes, strict=True))
    window = of_role["kernel"][-len(params["strides"]) - 2 : -1]
    return 2 * math.prod(of_role["outputs"]) * math.prod(window)


def _bind(form, shape, strides, sides, left, right):
    """Binds one form; `shape` is the result's without leading axes."""
    return layer_p.bind(left, right, form=form, shape=shape, strides=strides, sides=sides)


layer_p = Primitive("fedjax_algos_layer")
layer_p.def_impl(lambda *operands, **params: jax.jit(partial(layer_p.bind, **params))(*operands))


def _leading(operand, params):
    """Returns the leading axes of an operand, such as clients."""
    return operand.shape[: operand.ndim - len(params["strides"]) - 2]


@layer_p.def_abstract_eval
def _result(left, right, **params):
    return jax.core.ShapedArray((*_leading(left, params), *params["shape"]), left.dtype)


def _gradient(operand, change, left, right, *, form, **params):
    """Computes the gradient for operand 0 or 1, which is the result of another form."""
    roles = _ROLES[form]
    known = dict(zip(roles, (left, right, change), strict=True))
    params["form"] = _FORMS[roles[operand]]
    params["shape"] = (left, right)[operand].aval.shape[-len(params["strides"]) - 2 :]
    first, second, _ = _ROLES[params["form"]]
    return layer_p.bind(known[first], known[second], **params)


ad.defbilinear(layer_p, partial(_gradient, 0), partial(_gradient, 1))


def _batched(operands, axes, **params):
    pairs: Any = list(zip(operands, axes, strict=True))
    size = next(x.shape[a] for x, a in pairs if a is not None)
    left, right = (x if a is None else jnp.moveaxis(x, a, 0) for x, a in pairs)
    rank = len(params["strides"]) + 2
    if axes[1] is None and params["form"] != TO_KERNEL and right.ndim == rank:
        # all share the kernel, so their images are one batch
        batch, *shape = params["shape"]
        one = left.reshape(-1, *left.shape[2:])
        outputs = layer_p.bind(one, right, **params | {"shape": (size * batch, *shape)})
        return outputs.reshape(size, batch, *shape), 0
    pairs = zip((left, right), axes, strict=True)
    left, right = (jnp.broadcast_to(x, (size, *x.shape)) if a is None else x for x, a in pairs)
    return layer_p.bind(left, right, **params), 0


batching.primitive_batchers[layer_p] = _batched


def _on_cpu(left, right, *, form, strides, sides, **params):
    from fedjax_algos_native import TARGET

    shape = (*_leading(left, {"strides": strides}), *params["shape"])
    before, after = zip(*sides, strict=True) if sides else ((), ())
    of_role = dict(zip(_ROLES[form], (left.shape, right.shape, shape), strict=True))
    numbers = {"form": form, "groups": of_role["images"][-1] // of_role["kernel"][-2]}
    numbers["threads"] = max(1, len(os.sched_getaffinity(0)) // jax.local_device_count("cpu"))
    lists = {"strides": strides, "before": before, "after": after}
    attributes = {name: np.int64(value) for name, value in numbers.items()}
    attributes |= {name: np.asarray(value, np.int64) for name, value in lists.items()}
    result = jax.ShapeDtypeStruct(shape, left.dtype)
    return jax.ffi.ffi_call(TARGET, result)(left, right, **attributes)


def _elsewhere(left, right, **params):
    """Computes the same forms by `lax`, for a GPU or TPU."""
    if _leading(left, params):
        return jax.vmap(partial(_elsewhere, **params))(left, right)
    form = params["form"]
    forward = partial(by_lax, strides=params["strides"], sides=params["sides"])
    if form == FORWARD:
        return forward(left, right)
    result = jax.ShapeDtypeStruct(params["shape"], left.dtype)
    if form == TO_IMAGES:
        return jax.linear_transpose(lambda images: forward(images, right), result)(left)[0]
    return jax.linear_transpose(lambda kernel: forward(left, kernel), result)(right)[0]


mlir.register_lowering(layer_p, mlir.lower_fun(_on_cpu, multiple_results=False), platform="cpu")
mlir.register_lowering(layer_p, mlir.lower_fun(_elsewhere, multiple_results=False))

Dense = partial(nn.Dense, dot_general=dot_general)  # `flax.linen.Dense` on these layers
