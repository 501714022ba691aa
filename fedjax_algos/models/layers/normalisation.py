"""Batch normalisation that is fast on a CPU, also with the mask of short batches."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np


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
                for kept, new in zip((mean, var), moments, strict=True):
                    kept.value = self.momentum * kept.value + (1 - self.momentum) * new
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
