"""Weights by a formula of name and shape, the same with PyTorch and without it."""

import math
import zlib

import numpy as np


def numbers(name, shape):
    """float64 in [0, 1), by a hash of the name and of the index."""
    k = np.arange(math.prod(shape), dtype=np.uint64) + (np.uint64(zlib.crc32(name.encode())) << 32)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        k = (k ^ (k >> np.uint64(33))) * np.uint64(factor)
    return ((k >> np.uint64(40)) / 2**24).reshape(shape)


def tensor(name, shape):
    """float32: kernels U(-b, b) with b^2 = 6 / fan in; the rest is neither 0 nor 1."""
    uniform = numbers(name, shape)
    if len(shape) > 1:
        value = (2 * uniform - 1) * (6 / math.prod(shape[1:])) ** 0.5
    elif name.endswith(("weight", "running_var")):
        value = 0.5 + uniform
    else:
        value = uniform - 0.5
    return value.astype(np.float32)
