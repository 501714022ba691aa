"""Options, bits and errors of codecs, for the pages of docs/compression."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from algorithm_tables import options_table

from fedjax_algos.core.trees import sent_bytes
from fedjax_algos.wrappers import codecs

ENTRIES, CLIENTS = 2**13, 10
SHARED = """Every codec also has the options
[`feedback`](../compression.md#feedback-the-memory-of-a-client),
[`scope`](../compression.md#vectors-parts-or-leaves) and
[`measure_size`](../compression.md#the-size-with-an-entropy-code)."""
PAGE = "../compression.md#choosing-a-codec"


class Errors(NamedTuple):
    """Bits of an entry, and errors relative to the square norm."""

    counted: float
    coded: float
    alone: float  # the mean over clients
    mean: float  # of the clients' mean


def codec_options(name: str) -> str:
    """Returns the options as a table in Markdown, with the options that all codecs have."""
    return f"{options_table(name)}\n\n{SHARED}"


def vectors() -> dict[str, jax.Array]:
    """Returns a vector of similar entries and a vector of very different entries."""
    rng = np.random.default_rng(0)
    uneven = rng.lognormal(size=ENTRIES) * rng.choice([-1, 1], ENTRIES)
    drawn = {"normal": rng.normal(size=ENTRIES), "lognormal": uneven}
    return {name: jnp.asarray(v, jnp.float32) for name, v in drawn.items()}


def errors(spec: str, v: jax.Array) -> Errors:
    """Measures a codec, such as `qsgd:levels=7`, on clients that all have the vector v."""
    codec = codecs.make(spec)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def run(key, v):
        message = codec.encode(key, v)
        coded = jnp.inf if codec.coded_bits is None else codec.coded_bits(message, v.size)
        return codec.decode(message, v.size), coded

    keys = jax.random.split(jax.random.key(0), CLIENTS)
    counted = 8 * sent_bytes(jax.eval_shape(codec.encode, keys[0], v))
    decoded, coded = run(keys, v)
    square = jnp.square(v).sum()
    alone = jnp.square(decoded - v[None]).sum(1).mean() / square
    mean = jnp.square(decoded.mean(0) - v).sum() / square
    coded = min(float(coded.mean()), counted)
    return Errors(counted / v.size, coded / v.size, float(alone), float(mean))


def error_table(spec: str) -> str:
    """Bits and errors as a table in Markdown."""
    lines = [
        f"`{spec}`, counted and measured from the code with {ENTRIES:,} entries; errors are"
        f" relative to the square norm. The formulas are in [this table]({PAGE}).",
        "",
        "| entries | bits of an entry | with an entropy code | error "
        f"| error of the mean of {CLIENTS} clients |",
        "|---|---|---|---|---|",
    ]
    for kind, v in vectors().items():
        own = errors(spec, v)
        cells = f"{own.counted:.3g} | {own.coded:.3g} | {own.alone:.2g} | {own.mean:.2g}"
        lines.append(f"| {kind} | {cells} |")
    return "\n".join(lines)
