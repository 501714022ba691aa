"""Initialises params, normalises batches, and divides layers over devices."""

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from fedjax_algos.core.types import MODEL_AXIS

Initialisation = Literal["flax", "torch"]
Norm = Literal["group", "batch"]


def symmetric_uniform(bound: float) -> nn.initializers.Initializer:
    """Returns the initialiser U(-bound, bound)."""

    def draw(key, shape, dtype=jnp.float32, out_sharding=None):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return draw


def initialisers(initialisation: Initialisation, fan_in: int) -> dict[str, Any]:
    """Returns LeCun normal and 0 ("flax"), or U(-b, b) for both with b = fan_in^-0.5 ("torch")."""
    if initialisation == "flax":
        return {"kernel_init": nn.initializers.lecun_normal(), "bias_init": nn.initializers.zeros}
    uniform = symmetric_uniform(fan_in**-0.5)
    return {"kernel_init": uniform, "bias_init": uniform}


kaiming_out = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


class BatchNorm(nn.BatchNorm):
    """`flax.linen.BatchNorm` for images, with the same fields, variables and results.

    Pixels are summed for each example, so only small arrays are masked; Flax writes the masked
    images, their squares and a mask of the images' size. The outputs are `x a + b` with numbers a
    and b for each channel, so the gradient does not need `x - mean`.
    """

    @nn.compact
    def __call__(self, x, use_running_average=None, *, mask=None):
        use_average = nn.merge_param(
            "use_running_average", self.use_running_average, use_running_average
        )
        shape = x.shape[-1:]
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape, jnp.float32)
        var = self.variable("batch_stats", "var", jnp.ones, shape, jnp.float32)
        if use_average:
            moments = mean.value, var.value
        else:
            moments = _moments(x, mask)
            if not self.is_initializing():
                for state, new in zip((mean, var), moments, strict=True):
                    state.value = self.momentum * state.value + (1 - self.momentum) * new
        scale = self.param("scale", self.scale_init, shape, self.param_dtype)
        bias = self.param("bias", self.bias_init, shape, self.param_dtype)
        a = scale * jax.lax.rsqrt(moments[1] + self.epsilon)
        of_channels = (1,) * (x.ndim - 1) + shape
        outputs = x * a.reshape(of_channels) + (bias - moments[0] * a).reshape(of_channels)
        return outputs.astype(jnp.result_type(x, scale, bias))


def _moments(x, mask):
    """Returns the mean and the variance of each channel over the examples of a mask."""
    axes, of_pixels = tuple(range(1, x.ndim - 1)), np.prod(x.shape[1:-1])
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    sums = wide.sum(axes), (wide * wide).sum(axes)
    count = len(x)
    if mask is not None:
        examples = mask.reshape(-1, 1)
        sums = [jnp.where(examples, each, 0) for each in sums]
        count = examples.sum()
    mean, square = (each.sum(0) / (count * of_pixels) for each in sums)
    return mean, jnp.maximum(0, square - mean * mean)


class Normalisation(nn.Module):
    """GroupNorm, or BatchNorm."""

    kind: Norm
    groups: int  # of channels, for GroupNorm
    training: bool

    @nn.compact
    def __call__(self, x):
        if self.kind == "group":
            return nn.GroupNorm(self.groups, epsilon=1e-5)(x)
        return BatchNorm(not self.training, momentum=0.9, epsilon=1e-5)(x)


def shard(x: jax.Array, *axes: str | None) -> jax.Array:
    """Divides an array over the devices that compute a client together.

    Call it where a model is applied. It is a constraint for the compiler, and changes no value.
    Where no devices share a client, as in evaluations, it does nothing.

    Args:
      x: an array of a model, such as the inputs or outputs of a layer.
      axes: for each axis of the array, "model" if it is divided, or None, which is the default.

    Raises:
      ValueError: for other names, and for more names than axes.
    """
    if MODEL_AXIS not in jax.sharding.get_abstract_mesh().axis_names:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))
