"""Codecs: their time beside local training, in whole rounds, and beside that of other libraries.

COMMAND   taskset -c 0 python benchmarks/codecs.py [--turns 7] [--fedjax ENVIRONMENT/bin/python]
              [--torch ENVIRONMENT/bin/python --eden FOLDER]
EXPECTED  a line for each codec: bits of an entry, milliseconds, and the ratio to local training;
          a line for each codec in a whole round: at most 1.1 of the round without it;
          a line for each rival: at most 1.2 of its time
TIME      four minutes on one CPU core

The update is of a network for MNIST with 1,199,882 parameters, as in the published comparison of
robust rules by Karimireddy et al. (https://arxiv.org/abs/2006.09365), without dropout: conv3 32,
conv3 64, pool, dense 128. Local training is a round of one client, of ten steps with batches of 20.
Codecs are on the whole vector. Whole rounds are of this network with one client, and of the CNN of
`cnn_round.py` with five clients, one after another.

Rivals are the aggregators of fedjax 0.0.17 with one client, and in PyTorch with one thread
`torch.topk` and the code of EDEN's authors (amitport/EDEN-Distributed-Mean-Estimation, whose folder
`torch` is FOLDER). They round, but do not pack bits; ours does both. Times are those of the
processor, so that other work on the machine counts less. Everything takes turns; milliseconds are
the least, and ratios medians.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import fedjax_algos as fa
from fedjax_algos.core.trees import sent_bytes
from fedjax_algos.models import classifier
from fedjax_algos.participation import Cohorts
from fedjax_algos.wrappers import codecs
from fedjax_algos.wrappers.compression.rotated import rotate, rotate_back

STEPS, BATCH = 10, 20
CODECS = [
    "cast",
    "cast:stochastic=true",
    "topk",
    "randk",
    "qsgd",
    "qsgd:bucket=512,norm=max",
    "klevel",
    "klevel:rotate=true",
    "terngrad",
    "natural",
    "scaled_sign",
    "sparse_ternary",
    "drive",
    "drive:blocks=true",
    "eden:bits=0.5",
    "eden:bits=2",
    "eden:bits=2,blocks=true",
    "eden:bits=3",
    "eden:bits=8",
]
IN_ROUNDS = ["cast", "cast:dtype=float16", "cast:stochastic=true", "scaled_sign", "randk"]
ROTATION = "rotation there and back"
PEERS = Path(__file__).parent / "peers"


class Network(nn.Module):
    """The network."""

    @nn.compact
    def __call__(self, x, training=False):
        for features in (32, 64):
            x = nn.relu(fa.models.Conv(features, (3, 3), padding="VALID")(x))
        x = fa.models.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
        return nn.Dense(10)(nn.relu(nn.Dense(128)(x)))


def network():
    return classifier(Network(), (28, 28, 1))


def a_round(problem, clients=1, spec="", shape=(28, 28, 1)):
    """A round as a function without arguments, and the entries of an update."""
    rng, total = np.random.default_rng(0), clients * STEPS * BATCH
    x = rng.normal(size=(total, *shape)).astype(np.float32)
    examples = {"x": x, "y": rng.integers(0, 10, total).astype(np.int32)}
    split = fa.Partition.of(np.array_split(np.arange(total), clients))
    data, local = fa.federate(examples, split), fa.Local(BATCH, 0.01, steps=STEPS)
    algorithm = fa.wrappers.wrap(fa.algorithms.fedavg(problem, local), spec)
    engine = fa.make_engine(algorithm, "sequential")
    cohorts = Cohorts(data.counts(), local, cohort_size=clients, seed=0)
    dispatches = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
    state = engine.init(0, fa.Population(clients, clients, total))
    d = sum(leaf.size for leaf in jax.tree.leaves(state.server.params))

    def run():
        nonlocal state
        state, _ = engine.round(state, data, dispatches)
        return state.server.params

    return run, d


def both_ends(codec, v):
    """Encoding and decoding as a function without arguments, and the bits of an entry."""
    key = jax.random.key(0)
    bits = 8 * sent_bytes(jax.eval_shape(codec.encode, key, v))
    run = jax.jit(lambda key, v: codec.decode(codec.encode(key, v), v.size))
    return lambda: run(key, v), bits / v.size


def milliseconds(function):
    """The processor's."""
    start = time.process_time()
    jax.block_until_ready(function())
    return 1e3 * (time.process_time() - start)


def measure(runs, turns):
    """Milliseconds of functions by name, float[turns, functions], after a first call of each."""
    for run in runs.values():
        milliseconds(run)
    return np.array([[milliseconds(run) for run in runs.values()] for _ in range(turns)])


def of_codecs(v, train, turns):
    """Prints a line for each codec; returns their functions by name."""
    made = {spec: both_ends(codecs.make(spec), v) for spec in CODECS}
    times = measure({"": train} | {spec: run for spec, (run, _) in made.items()}, turns)
    least, ratios = times.min(0), np.median(times / times[:, :1], axis=0)
    print(f"local training, {v.size:,} parameters: {least[0]:.0f} ms")
    for (spec, (_, bits)), took, ratio in zip(made.items(), least[1:], ratios[1:], strict=True):
        print(f"{spec}: {bits:.2f} bits an entry, {took:.1f} ms, {ratio:.2f} of training")
    return {spec: run for spec, (run, _) in made.items()}


def of_rounds(name, problem, clients, shape, turns):
    """Prints a line for each codec in a whole round."""
    runs = {spec: a_round(problem, clients, spec, shape)[0] for spec in ["", *IN_ROUNDS]}
    times = measure(runs, turns)
    each = zip(IN_ROUNDS, np.median(times / times[:, :1], axis=0)[1:], strict=True)
    ratios = ", ".join(f"{spec} {ratio:.3f}" for spec, ratio in each)
    print(f"a round of {name}, {times[:, 0].min():.0f} ms; with {ratios}")


def of_rivals(command, v, runs, turns):
    """Prints a line for each of a rival's times, which its process and ours measure in turns."""
    pairs = []
    for _ in range(turns):
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rival = json.loads(printed.splitlines()[-1])
        own = measure({spec: runs[spec] for spec in rival}, 15)
        pairs.append((np.median(own, axis=0), np.array(list(rival.values()))))
    own, other = np.array(pairs).transpose(1, 0, 2)
    ratios = own / other
    for index, spec in enumerate(rival):
        ratio, low, high = (f(ratios[:, index]) for f in (np.median, np.min, np.max))
        took = f"{own[:, index].min():.1f} ms against {other[:, index].min():.1f}"
        print(f"{Path(command[1]).stem}, {spec}: {took}, {ratio:.2f} ({low:.2f} to {high:.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--fedjax", help="the Python of an environment with fedjax")
    parser.add_argument("--torch", help="the Python of an environment with PyTorch")
    parser.add_argument("--eden", default="", help="the folder of EDEN's code in PyTorch")
    parser.add_argument("--only", nargs="+", choices=["codecs", "rounds", "rivals"], default=[])
    given = parser.parse_args()
    parts = given.only or ["codecs", "rounds", "rivals"]
    train, d = a_round(network())
    v = jnp.asarray(np.random.default_rng(0).normal(size=d), jnp.float32)
    if "codecs" in parts:
        of_codecs(v, train, given.turns)
    if "rounds" in parts:
        of_rounds("this network", network(), 1, (28, 28, 1), given.turns)
        cnn = fa.models.cnn_fedgbo((28, 28), 62)
        of_rounds("the CNN, five clients", cnn, 5, (28, 28), given.turns)
    if "rivals" in parts:
        specs = ["topk", "klevel", "klevel:rotate=true", "terngrad", "drive", "eden:bits=2"]
        runs = {spec: both_ends(codecs.make(spec), v)[0] for spec in specs}
        key = jax.random.key(0)
        turn = jax.jit(lambda v: rotate_back(key, rotate(key, v), v.size))
        runs[ROTATION] = lambda: turn(v)
        if given.fedjax:
            of_rivals([given.fedjax, PEERS / "run_fedjax_codecs.py", str(d)], v, runs, 3)
        if given.torch:
            command = [given.torch, PEERS / "run_torch_codecs.py", str(d), given.eden]
            of_rivals(command, v, runs, 3)


if __name__ == "__main__":
    main()
