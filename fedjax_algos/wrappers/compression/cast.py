"""Sends each entry in a float type of fewer bits."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_algos.wrappers.compression.bits import words_of
from fedjax_algos.wrappers.compression.codec import Codec
from fedjax_algos.wrappers.compression.compress import register
from fedjax_algos.wrappers.compression.quantised import round_by

DType = Literal["float32", "float16", "bfloat16", "float8_e4m3fn"]
_BIAS = 127  # the bias of a float32's exponent
_SMALLEST = -126  # exponent of the smallest float32 that no processor flushes to 0


def rounded_stochastically(key, v: jax.Array, dtype: DType) -> jax.Array:
    """Rounds v, float32[d], to one of the two nearest numbers of a dtype, with mean v."""
    info = jnp.finfo(dtype)
    lowest = _BIAS + max(int(info.minexp), _SMALLEST + info.nmant)
    exponent = jax.lax.bitcast_convert_type(v, jnp.uint32) >> 23 & 255
    gap = jnp.maximum(exponent, lowest) - info.nmant
    words = jax.random.bits(key, (words_of(len(v), 16),), jnp.uint32)
    halves = jnp.concatenate([words >> 16, words & 0xFFFF])[: len(v)]
    uniform = (halves + jnp.float32(0.5)) / 2**16
    return round_by(uniform, v * _power(2 * _BIAS - gap)) * _power(gap)


def _power(exponent):
    """Returns 2^(exponent - 127) from the bits of a float32, which is faster than `ldexp`."""
    return jax.lax.bitcast_convert_type(exponent.astype(jnp.uint32) << 23, jnp.float32)


@register
def cast(*, dtype: DType = "bfloat16", stochastic: bool = False) -> Codec:
    """Clients send each entry in a float type of fewer bits.

    A message has 16 d bits, or 8 d with "float8_e4m3fn". "float32" takes 32 d and is exact if the
    params are float32. An entry larger than the largest number of the type is clipped to it: 65504
    in float16, 448 in float8_e4m3fn. An entry smaller than the smallest becomes 0: 6e-8 in float16,
    0.002 in float8_e4m3fn.

    Args:
      dtype: the type of the entries in a message.
      stochastic: whether an entry is rounded up or down at random, so that its mean is right unless
        it is clipped. Otherwise it becomes the nearest number.
    """
    largest = float(jnp.finfo(dtype).max)

    def encode(key, v):
        if stochastic:
            v = rounded_stochastically(key, v, dtype)
        return jnp.clip(v, -largest, largest).astype(dtype)

    return Codec(encode, lambda message, d: message.astype(jnp.float32))
