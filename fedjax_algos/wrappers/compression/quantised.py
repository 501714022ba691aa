"""Rounds entries at random, with the right mean, to a few levels or to a shorter float type."""

import math
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from fedjax_algos.core.options import NonNegative, Range
from fedjax_algos.wrappers.compression import rotated
from fedjax_algos.wrappers.compression.bits import pack, unpack, words_of
from fedjax_algos.wrappers.compression.coded_size import coded_size, elias_size
from fedjax_algos.wrappers.compression.coding import Codec
from fedjax_algos.wrappers.compression.compress import register
from fedjax_algos.wrappers.compression.rotated import padded_size

Norm = Literal["l2", "max"]
DType = Literal["float32", "float16", "bfloat16", "float8_e4m3fn"]
_MAX_LEVELS = 2**16
_FINE = f"a level takes at most {_MAX_LEVELS.bit_length() - 1} bits"
Levels = Annotated[int, Range(1, _MAX_LEVELS - 1, reason=_FINE)]
LevelsWithEnds = Annotated[int, Range(2, _MAX_LEVELS, reason=_FINE)]
Bucket = Annotated[int, Range(0)]
_BIAS = 127  # the bias of a float32's exponent
_SMALLEST = -126  # exponent of the smallest float32 that no processor flushes to 0


def round_at_random(key: jax.Array, values: jax.Array) -> jax.Array:
    """Rounds each value at random to one of the two nearest whole numbers, with mean the value."""
    return round_by(jax.random.uniform(key, values.shape, jnp.float32), values)


def round_by(uniform: jax.Array, values: jax.Array) -> jax.Array:
    """Rounds a value up if `uniform`, from 0 to 1, is below its fraction, else down."""
    low = jnp.floor(values)
    return low + (uniform < values - low)


def divide(values: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns `values / scale`, and 0 where the scale is 0."""
    return values / jnp.where(scale == 0, jnp.inf, scale)


@register
def qsgd(*, levels: Levels = 127, bucket: Bucket = 0, norm: Norm = "l2") -> Codec:
    """QSGD: `v_j -> |v| sign(v_j) l_j / s`, with one of the two levels l_j around `s |v_j| / |v|`.

    It is drawn so that the mean is v_j (Alistarh et al., https://arxiv.org/abs/1610.02132).
    With the 2-norm the error is at most `min(d / s^2, sqrt(d) / s) |v|^2` in the mean, with d the
    entries of a bucket. An entry takes `1 + ceil(log2(s + 1))` bits, and each bucket 32.

    Args:
      levels: s, from 1 to 65535.
      bucket: number of entries that share a norm, at least 1; 0 is the whole vector. The paper's
        experiments have 128 to 8192.
      norm: the scale of a bucket: its 2-norm ("l2"), or its largest magnitude ("max"), as in the
        paper's experiments.
    """
    bits = 1 + levels.bit_length()  # of a sign and a level

    def in_buckets(v):
        size = min(bucket or len(v), len(v))
        return jnp.pad(v, (0, -len(v) % size)).reshape(-1, size)

    def encode(key, v):
        rows = in_buckets(v)
        norms = jnp.max(jnp.abs(rows), 1) if norm == "max" else jnp.linalg.norm(rows, axis=1)
        level = round_at_random(key, divide(levels * jnp.abs(rows), norms[:, None]))
        numbers = jnp.minimum(level, levels).astype(jnp.uint32)
        numbers |= (rows < 0).astype(jnp.uint32) << (bits - 1)
        return norms, pack(numbers.reshape(-1)[: len(v)], bits)

    def signed(message, d):
        numbers = unpack(message[1], d, bits)
        level = (numbers & (2 ** (bits - 1) - 1)).astype(jnp.float32)
        return jnp.where(numbers >> (bits - 1) == 1, -level, level)

    def decode(message, d):
        rows = in_buckets(signed(message, d))
        return (message[0][:, None] * rows / levels).reshape(-1)[:d]

    def coded_bits(message, d):
        symbols = signed(message, d).astype(jnp.int32)
        elias = jax.vmap(elias_size)(in_buckets(symbols)).sum()
        coded = coded_size(symbols + levels, 2 * levels + 1, len(message[0]))
        return jnp.minimum(elias, coded)

    def variance(d):
        size = min(bucket or d, d)
        return min(size / levels**2, math.sqrt(size) / levels)

    return Codec(encode, decode, variance, coded_bits=coded_bits)


@register
def klevel(*, levels: LevelsWithEnds = 16, rotate: bool = False) -> Codec:
    """Stochastic k-level quantisation: k levels at equal distances from min v to max v.

    Each entry is rounded at random to one of the two levels around it, so that the mean is the
    entry (Suresh et al., https://arxiv.org/abs/1611.00429). An entry takes `ceil(log2 k)` bits, and
    a vector 64 for its ends. `rotate` quantises a rotated vector, whose ends are nearer to each
    other; its number of entries is the next power of two.

    Args:
      levels: k, from 2 to 65536.
      rotate: whether vectors are rotated by the randomised Hadamard transform.
    """
    bits = (levels - 1).bit_length()
    size_of = padded_size if rotate else int

    def encode(key, v):
        rotation = ()
        if rotate:
            key, rotation = jax.random.split(key)
            v = rotated.rotate(rotation, v)
        low, high = v.min(), v.max()
        level = round_at_random(key, divide(v - low, high - low) * (levels - 1))
        numbers = jnp.minimum(level, levels - 1).astype(jnp.uint32)
        return low, high, pack(numbers, bits), rotation

    def decode(message, d):
        low, high, words, rotation = message
        level = unpack(words, size_of(d), bits).astype(jnp.float32)
        values = low + level * ((high - low) / (levels - 1))
        return rotated.rotate_back(rotation, values, d) if rotate else values

    def variance(d):
        size = size_of(d)
        most = 2 * math.log(size) + 2 if rotate else math.inf
        return min(size / 2, most) / (levels - 1) ** 2

    def coded_bits(message, d):
        return coded_size(unpack(message[2], size_of(d), bits), levels)

    return Codec(encode, decode, variance, coded_bits=coded_bits)


@register(scope="leaf")
def terngrad(*, clip: NonNegative = 2.5) -> Codec:
    """TernGrad: `v_j -> s sign(v_j)` with probability `|v_j| / s`, else 0, with `s = max |v|`.

    Entries are clipped to `clip` standard deviations before, so that s is small; the mean is the
    clipped vector (Wen et al., https://arxiv.org/abs/1705.07878). An entry takes 2 bits, and a
    vector 32 for s.

    Args:
      clip: the limit of entries, in standard deviations, at least 0; 0 does not clip.
    """

    def encode(key, v):
        limit = clip * jnp.std(v)
        v = jnp.where(limit > 0, jnp.clip(v, -limit, limit), v)
        scale = jnp.max(jnp.abs(v))
        kept = round_at_random(key, divide(jnp.abs(v), scale)).astype(jnp.uint32)
        return scale, pack(kept << (v < 0).astype(jnp.uint32), 2)

    def decode(message, d):
        scale, words = message
        symbols = unpack(words, d, 2)  # 0, 1, and 2 for -1
        return scale * jnp.where(symbols == 2, -1.0, symbols.astype(jnp.float32))

    def coded_bits(message, d):
        return coded_size(unpack(message[1], d, 2), 3, 1)

    reason = "clipping may make a vector many times longer; give clip=0, or feedback=none"
    if clip:
        return Codec(encode, decode, unbounded=reason, coded_bits=coded_bits)
    return Codec(encode, decode, lambda d: (math.sqrt(d) - 1) / 2, coded_bits=coded_bits)


@register
def natural() -> Codec:
    """Natural compression: each entry is one of the two powers of two around it.

    `2^a (1 + m)` is `2^(a + 1)` with probability m, else `2^a`, so that the mean is the entry
    (Horvath et al., https://arxiv.org/abs/1905.10988). An entry takes 9 bits, its sign and
    exponent. The error is at most an eighth of |v|^2 in the mean. Without a scale, the scope
    changes only the random numbers. Entries below 2^-126 are 0 or 2^-126.
    """

    def encode(key, v):
        bits = jax.lax.bitcast_convert_type(v, jnp.uint32)
        carry = jax.random.bits(key, v.shape, jnp.uint32) >> 9  # into the exponent
        return pack(jnp.where(jnp.isfinite(v), bits + carry, bits) >> 23, 9)

    def decode(message, d):
        return jax.lax.bitcast_convert_type(unpack(message, d, 9) << 23, jnp.float32)

    def coded_bits(message, d):
        return coded_size(unpack(message, d, 9), 2**9, 0)

    return Codec(encode, decode, lambda d: 1 / 8, coded_bits=coded_bits)


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
