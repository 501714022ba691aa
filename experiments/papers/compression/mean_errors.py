"""The errors of DRIVE, EDEN and rotated k-level quantisation, of one client and of a mean of ten.

COMMAND   python experiments/papers/claims.py run compression/eden_errors
EXPECTED  .5708, .1331 and .0358 with 1, 2 and 3 bits, and a tenth of these for the mean of ten
TIME      a minute

A value is the mean over 100 draws of the vectors. Each of ten clients has a vector of 8192 normal
entries, and a rotation of its own. The error of one client is relative to the square of its own
vector's norm, and that of the mean of ten to the mean square of their norms.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.wrappers import codecs
from fedjax_algos.wrappers.compression.rotated import eden_codec

ENTRIES, CLIENTS, DRAWS = 8192, 10, 100
EDEN = {
    "DRIVE, 1 bit": eden_codec(1),
    "EDEN, 2 bits": eden_codec(2),
    "EDEN, 3 bits": eden_codec(3),
}
ONE_BIT = {"DRIVE": eden_codec(1), "rotated k-level": codecs.make("klevel:levels=2,rotate=true")}


def errors(codec, seed):
    """The relative error of one client and that of the mean of all, in the mean over the draws."""

    def decoded(key, v):
        return codec.decode(codec.encode(key, v), ENTRIES)

    @jax.jit
    def of_draw(key):
        entries, coding = jax.random.split(key)
        v = jax.random.normal(entries, (CLIENTS, ENTRIES))
        error = jax.vmap(decoded)(jax.random.split(coding, CLIENTS), v) - v
        squares = (v**2).sum(1)
        of_mean = (error.mean(0) ** 2).sum() / squares.mean()
        return ((error**2).sum(1) / squares).mean(), of_mean

    each = [of_draw(key) for key in jax.random.split(jax.random.key(seed), DRAWS)]
    return np.mean(jnp.array(each), axis=0, dtype=float)


def rows_of(codecs, seeds):
    """(case, method, measure, seed, value) of codecs by name."""
    for name, codec in codecs.items():
        for seed in seeds:
            found = errors(codec, seed)
            for case, value in zip(("one client", "mean of ten clients"), found, strict=True):
                yield case, name, "relative error", seed, f"{value:.6g}"


def rows(run):
    return rows_of(EDEN, run.seeds)
