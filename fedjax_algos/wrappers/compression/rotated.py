"""DRIVE and EDEN: round entries of a rotated vector to points for a normal distribution.

The rotation is the randomised Hadamard transform, in O(d log d), drawn from a key:
`y = H D v / sqrt(d')`, where v is padded with zeros to d', the next power of two, D has random
signs on its diagonal, and H is Hadamard's matrix (Ailon and Chazelle, "The Fast
Johnson-Lindenstrauss Transform", SIAM Journal on Computing 39, 2009). After it, all entries of y
have about the same size. H is symmetric with `H H = d' I`, so the inverse is `D H y / sqrt(d')`.
"""

import functools
import math
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Key
from fedjax_algos.core.options import Range
from fedjax_algos.wrappers.compression.bits import pack, unpack, words_of
from fedjax_algos.wrappers.compression.coded_size import coded_size
from fedjax_algos.wrappers.compression.coding import Codec
from fedjax_algos.wrappers.compression.compress import register

Scale = Literal["unbiased", "least_squares"]
Bits = Annotated[float, Range(0.5, 8)]
_FACTOR_BITS = 5  # a factor of H has at most 2^5 rows, which was the fastest of 2^3 to 2^7 on a CPU
_NEWTON_STEPS = 12  # the points of 2^8 have 14 digits after 9
_CELLS = 64  # per unit length; a cell is narrower than the least distance of two ends, .0169
_SMALLEST = 32  # a block of fewer entries would also take a whole word at one bit an entry


def padded_size(d: int) -> int:
    """Returns d', the size of the rotated vector: the next power of two."""
    return 1 << (d - 1).bit_length()


def rotate(key: Key, v: jax.Array) -> jax.Array:
    """Rotates v, float32[d], to `H D v / sqrt(d')`, float32[d']."""
    v = jnp.pad(v, (0, padded_size(len(v)) - len(v)))
    return hadamard(_flip(key, v)) / math.sqrt(len(v))


def rotate_back(key: Key, y: jax.Array, d: int) -> jax.Array:
    """Inverts `rotate` with the same key: float32[d]."""
    return _flip(key, hadamard(y) / math.sqrt(len(y)))[:d]


def hadamard(v: jax.Array) -> jax.Array:
    """Multiplies v, float32[d'] with d' a power of two, by the Kronecker factors of H.

    Each turn multiplies the last axis by one factor and puts it first.
    """
    from scipy.linalg import hadamard as matrix

    bits = len(v).bit_length() - 1
    turns = -(-bits // _FACTOR_BITS)
    for turn in range(turns):
        small = matrix(1 << (bits // turns + (turn < bits % turns)), np.float32)
        rows = v.reshape(-1, len(small))
        v = jnp.matmul(small, rows.T, precision=jax.lax.Precision.HIGHEST)
    return v.reshape(-1)


def _flip(key, v):
    """Computes `D v`: each random bit flips the sign of an entry."""
    words = jax.random.bits(key, (words_of(len(v), 1),), jnp.uint32)
    signs = unpack(words, len(v), 1) << 31
    bits = jax.lax.bitcast_convert_type(v, jnp.uint32) ^ signs
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


@functools.cache
def lloyd_max(bits: int) -> tuple[np.ndarray, float]:
    """Returns the positive ones of the `2^bits` points nearest to N(0, 1), and E (z - c)^2.

    A point is the mean of its cell, which Newton's method solves from the density N(0, 3).
    """
    from scipy.special import ndtr, ndtri

    n = 2 ** (bits - 1)
    points = math.sqrt(3) * ndtri(0.5 + (np.arange(n) + 0.5) / (2 * n))
    for _ in range(_NEWTON_STEPS + 1):
        ends = np.concatenate([[0], (points[1:] + points[:-1]) / 2, [np.inf]])
        density = np.exp(-(ends**2) / 2) / math.sqrt(2 * math.pi)
        mass = ndtr(-ends[:-1]) - ndtr(-ends[1:])
        means = -np.diff(density) / mass
        low = density[:-1] * (means - ends[:-1]) / mass / 2  # by half the end's move
        high = density[1:-1] * (ends[1:-1] - means[:-1]) / mass[:-1] / 2
        change = np.diag(low[1:], -1) + np.diag(high, 1)
        change += np.diag(np.append(0, low[1:]) + np.append(high, 0))
        points = points + np.linalg.solve(np.eye(n) - change, means - points)
    return points, 1 - 2 * float(mass @ means**2)


def nearest_point(z: jax.Array, bits: int) -> jax.Array:
    """Numbers the nearest point, uint32: its place among the positive points, and a sign."""
    points, _ = lloyd_max(bits)
    ends = ((points[1:] + points[:-1]) / 2).astype(np.float32)
    cells = np.arange(1 + math.ceil(_CELLS * ends[-1])) if len(ends) else np.arange(1)
    before = np.searchsorted(ends, cells / _CELLS, side="right")  # and at most one end within
    size = jnp.abs(z)
    cell = jnp.minimum(_CELLS * size, cells[-1]).astype(jnp.int32)
    place = jnp.asarray(before, jnp.uint32).at[cell].get(mode="clip")  # which NaN needs
    place += size >= jnp.asarray(np.append(ends, np.float32(np.inf))).at[place].get(mode="clip")
    return place | ((z < 0).astype(jnp.uint32) << (bits - 1))


def point(number: jax.Array, bits: int) -> jax.Array:
    """Returns the point of a number, float32."""
    points = jnp.asarray(lloyd_max(bits)[0], jnp.float32)
    place = number & (2 ** (bits - 1) - 1)
    size = points.at[place].get(mode="promise_in_bounds")
    return jnp.where(number >> (bits - 1) == 1, -size, size)


def eden_codec(bits: float = 1, scale: Scale = "unbiased", blocks: bool = False) -> Codec:
    """Makes EDEN's codec, or DRIVE's if `bits` is 1."""
    fewer = max(1, math.floor(bits))

    def sections(size):
        """Lists (number of entries, bits of each), from the first entry on."""
        total = math.ceil(bits * size - 1e-6)  # 1.1 * 10 is above 11
        if bits < 1:
            return [(total, 1)]
        more = total - fewer * size
        both = [(more, fewer + 1), (size - more, fewer)]
        return [(entries, width) for entries, width in both if entries]

    def split(y):
        ends = np.cumsum([entries for entries, _ in sections(len(y))])
        return jnp.split(y[: ends[-1]], ends[:-1])

    def points_of(words, size):
        each = zip(words, sections(size), strict=True)
        return jnp.concatenate([point(unpack(word, n, b), b) for word, (n, b) in each])

    def encode(key, v):
        y = rotate(key, v)
        parts, widths = split(y), [width for _, width in sections(len(y))]
        sent = jnp.concatenate(parts)
        square = jnp.vdot(sent, sent)
        unit = jnp.sqrt(len(sent) / jnp.where(square == 0, jnp.inf, square))
        words = [pack(nearest_point(unit * p, b), b) for p, b in zip(parts, widths, strict=True)]
        points = points_of(words, len(y))
        product = jnp.vdot(points, sent)
        if scale == "unbiased":
            nonzero = jnp.where(product == 0, jnp.inf, product)
            factor = len(y) / len(sent) * square / nonzero
        else:
            factor = product / jnp.vdot(points, points)
        return factor, words, key

    def decode(message, d):
        (factor, words, key), size = message, padded_size(d)
        points = points_of(words, size)
        return rotate_back(key, jnp.pad(factor * points, (0, size - len(points))), d)

    def variance(d):
        error = (1 - bits + fewer) * lloyd_max(fewer)[1]
        if bits > fewer:
            error += (bits - fewer) * lloyd_max(fewer + 1)[1]
        elif bits < 1:
            return 1 / (bits * (1 - lloyd_max(1)[1])) - 1
        return error / (1 - error)

    def coded_bits(message, d):
        each = zip(message[1], sections(padded_size(d)), strict=True)
        return 32 + sum(coded_size(unpack(word, n, b), 2**b, 0) for word, (n, b) in each)

    known = variance if scale == "unbiased" else None
    codec = Codec(encode, decode, known, nearly=known is not None, coded_bits=coded_bits)
    return in_blocks(codec) if blocks else codec


def blocks_of(d: int) -> list[int]:
    """Splits d into powers of two, from the largest on; the last block may need padding."""
    sizes = []
    while d >= _SMALLEST:
        sizes.append(1 << (d.bit_length() - 1))
        d -= sizes[-1]
    return sizes + [d] * (d > 0)


def in_blocks(codec: Codec) -> Codec:
    """Applies a codec to each block of a vector; block sizes are powers of two."""

    def encode(key, v):
        pieces = jnp.split(v, np.cumsum(blocks_of(len(v)))[:-1])
        keys = jax.random.split(key, len(pieces))
        return [codec.encode(key, piece) for key, piece in zip(keys, pieces, strict=True)]

    def decode(message, d):
        each = zip(message, blocks_of(d), strict=True)
        return jnp.concatenate([codec.decode(piece, size) for piece, size in each])

    def coded_bits(message, d):
        each = zip(message, blocks_of(d), strict=True)
        return sum(codec.coded_bits(piece, size) for piece, size in each)

    return codec._replace(encode=encode, decode=decode, coded_bits=coded_bits)


@register
def drive(*, scale: Scale = "unbiased", blocks: bool = False) -> Codec:
    """DRIVE: the signs of the rotated vector, one bit an entry: `v~ = S R^-1 sign(R v)`.

    R is the randomised Hadamard transform; both ends know its key (Vargaftik et al.,
    https://arxiv.org/abs/2105.08339). The number of rotated entries is the next power of two, and
    a vector takes 32 bits for S. This is `eden` with one bit.

    Args:
      scale: see `eden`.
      blocks: see `eden`.
    """
    return eden_codec(1, scale, blocks)


@register
def eden(*, bits: Bits = 1, scale: Scale = "unbiased", blocks: bool = False) -> Codec:
    """EDEN: each entry of the rotated vector becomes one of `2^b` points: `v~ = S R^-1 c`.

    R is the randomised Hadamard transform, both ends know its key, `y = R v`, and c_j is the
    point nearest to `sqrt(d') y_j / |y|`, of those that represent N(0, 1) with the least mean
    square error (Vargaftik et al., https://arxiv.org/abs/2108.08842). An entry takes b bits, the
    number of rotated entries is the next power of two, and a vector takes 32 bits for S.

    Errors of many clients average out, because each client has its own rotation. v~ is
    unbiased for a uniformly random rotation, and nearly so for this one, but not with few large
    entries: for v = (1, .9, 0, ...) and one bit |E v~ - v| is .9 |v|, so `feedback=diana` is
    refused. After `topk`, and with `scope=leaf` for biases, prefer `qsgd`.

    Args:
      bits: b, from .5 to 8. With a fraction, some entries get one bit more; below 1, this share of
        the entries is sent, and the estimate divided by it.
      scale: S. "unbiased" is `|y|^2 / <c, y>`; "least_squares" is `<c, y> / |c|^2`, which has the
        least error for one client, but is biased, so use it with error feedback.
      blocks: whether the vector is split into blocks whose sizes are powers of two, each with a
        scale, so that at most 15 entries of padding are sent.
    """
    return eden_codec(bits, scale, blocks)
