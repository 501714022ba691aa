"""Fewer bits for each float."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_algos.wrappers.compression.codec import Codec
from fedjax_algos.wrappers.compression.compress import register
from fedjax_algos.wrappers.compression.quantised import round_at_random

DType = Literal["float32", "float16", "bfloat16", "float8_e4m3fn"]
_SMALLEST = -126  # exponent of the smallest float32 that no processor takes for 0


def rounded_stochastically(key, v: jax.Array, dtype: DType) -> jax.Array:
    """v, float32, at one of the two nearest numbers of a dtype, whose mean is v."""
    info = jnp.finfo(dtype)
    _, exponent = jnp.frexp(v)  # of 2^(exponent - 1) <= |v|
    lowest = max(int(info.minexp), _SMALLEST + info.nmant)
    gap = jnp.ldexp(jnp.float32(1), jnp.maximum(exponent - 1, lowest) - info.nmant)
    return round_at_random(key, v / gap) * gap


def cast_codec(dtype: DType, stochastic: bool) -> Codec:
    """The codec, which clips what is larger than the largest number of the dtype."""
    largest = float(jnp.finfo(dtype).max)

    def encode(key, v):
        if stochastic:
            v = rounded_stochastically(key, v, dtype)
        return jnp.clip(v, -largest, largest).astype(dtype)

    return Codec(encode, lambda message, d: message.astype(jnp.float32))


@register
def cast(*, dtype: DType = "bfloat16", stochastic: bool = False) -> Codec:
    """Clients send each entry in a float type of fewer bits.

    A message has 16 d bits, of "float8_e4m3fn" 8 d, and of "float32" 32 d, which is exact if the
    params are float32. What is larger than the largest number of the type is clipped to it: 65504
    in float16, 448 in float8_e4m3fn. What is smaller than the smallest becomes 0: 6e-8 in float16,
    0.002 in float8_e4m3fn.

    Args:
      dtype: of what is sent.
      stochastic: whether an entry is rounded up or down at random, so that its mean is right unless
        it is clipped. Else it becomes the nearest number.
    """
    return cast_codec(dtype, stochastic)
