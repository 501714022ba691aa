"""The randomised Hadamard transform: a rotation of a vector in O(d log d), drawn from a key.

`y = H D v / sqrt(d')`, where v is padded with zeros to d', the next power of two, D has random
signs on its diagonal, and H is Hadamard's matrix (Ailon and Chazelle, "The Fast
Johnson-Lindenstrauss Transform", SIAM Journal on Computing 39, 2009). After it, all entries of y
have about the same size. H is symmetric with `H H = d' I`, so the inverse is `D H y / sqrt(d')`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Key
from fedjax_algos.wrappers.compression.bits import unpack, words_of

_BITS = 5  # a factor of H has at most 2^5 rows, which was the fastest of 2^3 to 2^7 on a CPU


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
    bits = len(v).bit_length() - 1
    turns = -(-bits // _BITS)
    for turn in range(turns):
        small = _matrix(bits // turns + (turn < bits % turns))
        rows = v.reshape(-1, len(small))
        v = jnp.matmul(small, rows.T, precision=jax.lax.Precision.HIGHEST)
    return v.reshape(-1)


def _matrix(bits):
    matrix = np.ones((1, 1), np.float32)
    for _ in range(bits):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def _flip(key, v):
    """Computes `D v`: each random bit flips the sign of an entry."""
    words = jax.random.bits(key, (words_of(len(v), 1),), jnp.uint32)
    signs = unpack(words, len(v), 1) << 31
    bits = jax.lax.bitcast_convert_type(v, jnp.uint32) ^ signs
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
