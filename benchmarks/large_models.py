"""A local step of each large model, against the same network in PyTorch on one core.

COMMAND   XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 1 \
              python benchmarks/large_models.py --torch .venv-peers/torch/bin/python
EXPECTED  the table of benchmarks/README.md
TIME      ten minutes on one CPU core, most of which compile

Ours is a round of FedAvg with one client, divided by its steps: with the order of the examples, the
mask of short batches and the average of the statistics. PyTorch's is a loop of forward pass,
backward pass and SGD with one thread, in the faster of both orders of axes, with the networks of
torchvision, timm and `unet`, which must be installed there. Times are those of the processor. The
two processes take turns, and the median of the ratios is printed.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

import jax
import numpy as np

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.models import models
from fedjax_algos.participation import Cohorts

PEER = Path(__file__).parent / "peers" / "run_torch_step.py"
STEPS, REPEATS, TURNS = 2, 3, 3
# name: (shape of an example, classes, batch)
MODELS = {
    "mobilenet_v2": ((96, 96, 3), 100, 8),
    "efficientnet_b0": ((96, 96, 3), 8, 8),
    "resnet18_imagenet": ((96, 96, 3), 100, 8),
    "vit_small": ((96, 96, 3), 100, 8),
    "unet_3d": ((48, 60, 48), 2, 1),
}


def prepare(name, shape, classes, batch):
    """A function that runs STEPS local steps, and the seconds of its compilation."""
    rng = np.random.default_rng(0)
    rows = STEPS * batch
    labels = (rows, *shape) if name == "unet_3d" else (rows,)
    examples = {
        "x": rng.normal(size=(rows, *shape)).astype(np.float32),
        "y": rng.integers(0, classes, labels).astype(np.int32),
    }
    data = fa.federate(examples, fa.Partition.of([np.arange(rows)]))
    local = fa.Local(batch_size=batch, learning_rate=1e-3, epochs=1)
    algorithm = algorithms["fedavg"](models.make(name, shape, classes), local)
    engine = fa.make_engine(algorithm, "sequential")
    dispatches = Cohorts(data.counts(), local, cohort_size=1, seed=0).dispatches(1)
    state = engine.init(0, fa.Population(1, 1, rows))

    def step():
        nonlocal state
        state, _ = jax.block_until_ready(engine.rounds(state, data, dispatches))

    start = time.perf_counter()
    step()
    return step, time.perf_counter() - start


def milliseconds(function):
    """Median milliseconds of the processor for one of the STEPS."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        function()
        times.append(1e3 * (time.process_time() - start) / STEPS)
    return float(np.median(times))


def of_torch(python, name):
    shape, classes, batch = MODELS[name]
    facts = {"name": name, "shape": shape, "classes": classes, "batch": batch}
    given = json.dumps(facts | {"steps": STEPS, "repeats": REPEATS})
    done = subprocess.run([python, PEER, given], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--torch", metavar="PYTHON", help="of an environment with the networks")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    given = parser.parse_args()
    print("model              step ms  of torch's  (lowest to highest)  first call s")
    for name in given.models:
        step, compilation = prepare(name, *MODELS[name])
        ours, ratios = [], []
        for _ in range(TURNS):
            ours.append(milliseconds(step))
            if given.torch:
                ratios.append(ours[-1] / of_torch(given.torch, name))
        told = "none"
        if ratios:
            told = f"{np.median(ratios):.2f}  ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{name:<18}{np.median(ours):8.0f}  {told:<33}{compilation:9.0f}", flush=True)


if __name__ == "__main__":
    main()
