"""The time of encoding and decoding one update, against the local training that made it.

COMMAND   python benchmarks/codecs.py [--turns 7]
EXPECTED  a line for each codec: bits of an entry, milliseconds, and the ratio to local training
TIME      two minutes on one CPU core; pin it with `taskset -c 0`

The update is of a network for MNIST with 1,199,882 parameters, as in the published comparison of
robust rules by Karimireddy et al. (https://arxiv.org/abs/2006.09365), without dropout: conv3 32,
conv3 64, pool, dense 128. Local training is a round of one client, of ten steps with batches of 20.
In each turn it and all codecs are run once; the milliseconds are the least, and the ratios medians.
Codecs are those of the wrappers with the options given, on the whole vector.
"""

import argparse
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import fedjax_algos as fa
from fedjax_algos.models import classifier
from fedjax_algos.participation import Cohorts
from fedjax_algos.wrappers.compression.cast import cast_codec
from fedjax_algos.wrappers.compression.quantised import (
    klevel_codec,
    natural_codec,
    qsgd_codec,
    terngrad_codec,
)
from fedjax_algos.wrappers.compression.rotated import eden_codec, in_blocks
from fedjax_algos.wrappers.compression.signs import scaled_sign_codec, sparse_ternary_codec
from fedjax_algos.wrappers.compression.sparse import randk_codec, topk_codec

STEPS, BATCH = 10, 20
CODECS = {
    "cast": cast_codec("bfloat16", False),
    "topk": topk_codec(0.01),
    "randk": randk_codec(0.01),
    "qsgd": qsgd_codec(127),
    "qsgd:bucket=512,norm=max": qsgd_codec(127, 512, "max"),
    "klevel": klevel_codec(16),
    "klevel:rotate=true": klevel_codec(16, True),
    "terngrad": terngrad_codec(2.5),
    "natural": natural_codec(),
    "scaled_sign": scaled_sign_codec(),
    "sparse_ternary": sparse_ternary_codec(0.01),
    "drive": eden_codec(1),
    "drive:blocks=true": in_blocks(eden_codec(1)),
    "eden:bits=0.5": eden_codec(0.5),
    "eden:bits=2": eden_codec(2),
    "eden:bits=2,blocks=true": in_blocks(eden_codec(2)),
    "eden:bits=3": eden_codec(3),
    "eden:bits=8": eden_codec(8),
}


class Network(nn.Module):
    """The network."""

    @nn.compact
    def __call__(self, x, training=False):
        for features in (32, 64):
            x = nn.relu(fa.models.Conv(features, (3, 3), padding="VALID")(x))
        x = fa.models.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
        return nn.Dense(10)(nn.relu(nn.Dense(128)(x)))


def local_training(steps=STEPS):
    """A round of one client as a function without arguments, and the entries of its update."""
    rng, total = np.random.default_rng(0), steps * BATCH
    x = rng.normal(size=(total, 28, 28, 1)).astype(np.float32)
    examples = {"x": x, "y": rng.integers(0, 10, total).astype(np.int32)}
    data = fa.federate(examples, fa.Partition.of([np.arange(total)]))
    local = fa.Local(batch_size=BATCH, learning_rate=0.01, steps=steps)
    problem = classifier(Network(), (28, 28, 1))
    engine = fa.make_engine(fa.algorithms.fedavg(problem, local), "sequential")
    cohorts = Cohorts(data.counts(), local, cohort_size=1, seed=0)
    dispatches = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
    state = engine.init(0, fa.Population(1, 1, total))
    d = sum(leaf.size for leaf in jax.tree.leaves(state.server.params))

    def run():
        nonlocal state
        state, _ = engine.round(state, data, dispatches)
        return state.server.params

    return run, d


def both_ends(codec, v):
    """Encoding and decoding as a function without arguments, and the bits of an entry."""
    key = jax.random.key(0)
    message = jax.eval_shape(codec.encode, key, v)
    sent = [leaf for leaf in jax.tree.leaves(message) if not is_key(leaf)]
    bits = sum(8 * leaf.dtype.itemsize * leaf.size for leaf in sent)
    run = jax.jit(lambda key, v: codec.decode(codec.encode(key, v), v.size))
    return lambda: run(key, v), bits / v.size


def is_key(leaf):
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def seconds(function):
    start = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    train, d = local_training()
    v = jnp.asarray(np.random.default_rng(0).normal(size=d), jnp.float32)
    made = {name: both_ends(codec, v) for name, codec in CODECS.items()}
    runs = {"local training": train} | {name: run for name, (run, _) in made.items()}
    for run in runs.values():
        seconds(run)
    times = np.array([[seconds(run) for run in runs.values()] for _ in range(turns)])
    least, ratios = times.min(0), np.median(times / times[:, :1], axis=0)
    print(f"local training, {d:,} parameters: {1e3 * least[0]:.0f} ms")
    for (name, (_, bits)), took, ratio in zip(made.items(), least[1:], ratios[1:], strict=True):
        print(f"{name}: {bits:.2f} bits an entry, {1e3 * took:.1f} ms, {ratio:.2f} of training")


if __name__ == "__main__":
    main()
