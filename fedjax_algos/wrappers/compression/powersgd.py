"""PowerSGD: replaces each matrix of an update by two thin factors."""

import math
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_algos.core.options import Count, Range
from fedjax_algos.wrappers.compression.coding import Codec
from fedjax_algos.wrappers.compression.compress import register

_product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


@register(scope="leaf")
def powersgd(
    *, rank: Count = 2, min_rate: Annotated[float, Range(1)] = 2.0, iterations: Count = 2
) -> Codec:
    """PowerSGD: each matrix M, m x n, of the update becomes `P Q^T` of rank r.

    `P = orthonormalise(M Q)` with random Q, and then `Q = M^T P` (Vogels et al., NeurIPS 2019,
    https://arxiv.org/abs/1905.13727). A leaf is a matrix with its last axis, the outputs of a layer
    in Flax, against all others. For dense and convolutional layers this is the matrix of the
    authors' code, whose first axis has the outputs. A matrix takes 32 r (m + n) bits. It is biased,
    with `E|v~ - v|^2 <= (1 - r/n) |v|^2`, and exact if M has at most rank r; use it with
    `feedback="ef"`, as the paper does.

    Each client has its own P and draws Q anew; the authors average P over the workers and start
    from the last Q. More iterations replace that start and cost no bytes.

    Args:
      rank: r, at least 1; the paper uses 1 to 4.
      min_rate: at least 1. A leaf is sent unchanged, 32 bits an entry, unless the factors are at
        least this many times smaller; vectors always are sent unchanged.
      iterations: iterations of the power method, both products each; the paper makes one a step.
    """

    def rank_of(shape):
        """Returns r, or 0 for a leaf that is sent unchanged."""
        m, n = shape[-1] if shape else 1, math.prod(shape[:-1])
        r = min(rank, m, n)
        return r if m * n >= min_rate * r * (m + n) else 0

    def encode(key, leaf):
        if not (r := rank_of(leaf.shape)):
            return leaf
        matrix = leaf.reshape(-1, leaf.shape[-1]).T
        q = jax.random.normal(key, (matrix.shape[1], r), jnp.float32)
        for _ in range(iterations):
            p, _ = jnp.linalg.qr(_product(matrix, q))
            q = _product(matrix.T, p)
        return p, q

    def decode(message, shape):
        if not rank_of(shape):
            return message
        p, q = message
        return _product(q, p.T).reshape(shape)

    return Codec(encode, decode, of_leaves=True)
