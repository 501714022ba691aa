"""Initial parameters with the default distributions of Flax or of PyTorch."""

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

Initialisation = Literal["flax", "torch"]


def symmetric_uniform(bound: float) -> nn.initializers.Initializer:
    """Returns the initialiser U(-bound, bound)."""

    def draw(key, shape, dtype=jnp.float32, out_sharding=None):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return draw


def initialisers(initialisation: Initialisation, fan_in: int) -> dict[str, Any]:
    """LeCun normal and 0 ("flax"), or both U(-1 / sqrt(fan_in), 1 / sqrt(fan_in)) ("torch")."""
    if initialisation == "flax":
        return {"kernel_init": nn.initializers.lecun_normal(), "bias_init": nn.initializers.zeros}
    uniform = symmetric_uniform(fan_in**-0.5)
    return {"kernel_init": uniform, "bias_init": uniform}


kaiming_normal = nn.initializers.variance_scaling(2.0, "fan_in", "normal")
kaiming_normal_out = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
