"""fedjax's aggregators with one client, for `benchmarks/codecs.py`, which gives the entries.

It prints milliseconds of the processor by the names that our codecs have, with one client whose
params are one vector.
"""

import json
import statistics
import sys
import time

import jax

if not hasattr(jax, "tree_map"):  # fedjax 0.0.17 needs a name that newer releases lack
    jax.tree_map = jax.tree_util.tree_map

import numpy as np
from fedjax.aggregators import compression, walsh_hadamard


def timed(function):
    """Median milliseconds of the processor; the first call is not counted."""
    jax.block_until_ready(function())
    times = []
    for _ in range(15):
        start = time.process_time()
        jax.block_until_ready(function())
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def main():
    v = jax.numpy.asarray(np.random.default_rng(0).normal(size=int(sys.argv[1])), "float32")
    rng = jax.random.PRNGKey(0)
    made = {
        "klevel": compression.uniform_stochastic_quantizer(16, rng),
        "klevel:rotate=true": compression.rotated_uniform_stochastic_quantizer(16, rng),
        "terngrad": compression.terngrad_quantizer(rng),
        "drive": compression.structured_drive_quantizer(rng),
    }
    times = {}
    for name, aggregator in made.items():
        state = aggregator.init()
        times[name] = timed(lambda a=aggregator, s=state: a.apply([(b"0", v, 1.0)], s)[0])

    def turn():
        rotated, shape = walsh_hadamard.structured_rotation(v, rng)
        return walsh_hadamard.inverse_structured_rotation(rotated, rng, shape)

    times["rotation there and back"] = timed(turn)
    print(json.dumps(times))


if __name__ == "__main__":
    main()
