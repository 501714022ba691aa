"""A local step of each network, against the same network in PyTorch, with one core for each client.

COMMAND   taskset -c 0 python benchmarks/networks.py --torch .venv-peers/torch/bin/python
          (with `taskset -c 0,1` two clients on two cores, against two processes of PyTorch)
EXPECTED  a line for each network
TIME      ten minutes on one CPU core

Ours is a round of FedAvg with one client on each core, divided by its steps: with the order of the
examples, the mask of short batches and the average of the statistics. PyTorch's is a loop of
forward pass, backward pass and SGD, a process with one thread for each core, in the faster of both
orders of axes, with the networks of torchvision, timm and `unet`, which must be installed there.
Both sides take turns, and the median of the ratios of seconds is printed. Layers are those of
oneDNN if the package in `native/` is installed; FEDJAX_ALGOS_NATIVE=0 leaves it out.
"""

import argparse
import json
import os
import subprocess
import time
from pathlib import Path

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
CORES = len(os.sched_getaffinity(0))

import jax  # noqa: E402

jax.config.update("jax_num_cpu_devices", CORES)

import numpy as np  # noqa: E402

import fedjax_algos as fa  # noqa: E402
from fedjax_algos.algorithms import algorithms  # noqa: E402
from fedjax_algos.models import models  # noqa: E402
from fedjax_algos.models.layers import native  # noqa: E402
from fedjax_algos.participation import Cohorts  # noqa: E402

PEER = Path(__file__).parent / "peers" / "run_torch_step.py"
REPEATS, TURNS = 5, 5
# name: (shape of an example, classes, batch)
NETWORKS = {
    "cnn_fedgbo": ((28, 28, 1), 62, 20),
    "lenet": ((32, 32, 3), 10, 20),
    "cnn_fedcompass": ((28, 28, 1), 10, 20),
    "resnet20": ((32, 32, 3), 10, 20),
    "resnet18": ((32, 32, 3), 10, 20),
    "resnet18_imagenet": ((96, 96, 3), 100, 8),
    "mobilenet_v2": ((96, 96, 3), 100, 8),
    "efficientnet_b0": ((96, 96, 3), 8, 8),
    "vit_small": ((96, 96, 3), 100, 8),
    "unet_3d": ((48, 60, 48), 2, 1),
    "gru": ((80,), 79, 32),
    "lstm": ((80,), 80, 32),
}


def prepare(name, steps, shape, classes, batch):
    """A function that runs some local steps on each core, and the seconds of its compilation."""
    rng = np.random.default_rng(0)
    rows = CORES * steps * batch
    is_text = name in ("gru", "lstm")
    labels = (rows, *shape) if name == "unet_3d" else (rows,)
    x = rng.integers(0, classes, (rows, *shape)) if is_text else rng.normal(size=(rows, *shape))
    examples = {
        "x": x.astype(np.int32 if is_text else np.float32),
        "y": rng.integers(0, classes, labels).astype(np.int32),
    }
    data = fa.federate(examples, fa.Partition.of(np.split(np.arange(rows), CORES)))
    local = fa.Local(batch_size=batch, learning_rate=1e-3, epochs=1)
    algorithm = algorithms["fedavg"](models.make(name, shape, classes), local)
    engine = fa.make_engine(algorithm, "sequential", devices=CORES)
    dispatches = Cohorts(data.counts(), local, cohort_size=CORES, seed=0).dispatches(1)
    data, state = engine.put_data(data), engine.init(0, fa.Population(CORES, CORES, rows))

    def step():
        nonlocal state
        state, _ = jax.block_until_ready(engine.rounds(state, data, dispatches))

    start = time.perf_counter()
    step()
    return step, time.perf_counter() - start


def milliseconds(function, steps):
    """Median milliseconds of a local step."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - start) / steps)
    return float(np.median(times))


class Peer:
    """A process of PyTorch on each core, which waits while we compute."""

    def __init__(self, python, name, steps):
        shape, classes, batch = NETWORKS[name]
        facts = {"name": name, "shape": shape, "classes": classes, "batch": batch}
        given = json.dumps(facts | {"steps": steps, "repeats": REPEATS})
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        commands = [
            ["taskset", "-c", str(core), python, str(PEER), given]
            for core in sorted(os.sched_getaffinity(0))
        ]
        self.processes = [subprocess.Popen(command, **pipes) for command in commands]
        self.answers()

    def answers(self):
        """The median milliseconds of the processes' next line."""
        return float(np.median([float(each.stdout.readline()) for each in self.processes]))

    def milliseconds(self):
        for each in self.processes:
            print(file=each.stdin, flush=True)
        return self.answers()

    def end(self):
        for each in self.processes:
            each.kill()
            each.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--torch", metavar="PYTHON", help="of an environment with the networks")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--steps", type=int, default=4, help="local steps of a round of ours")
    given = parser.parse_args()
    layers = "oneDNN's layers" if native.INSTALLED else "no native layers"
    print(f"{CORES} clients at once, {layers}, jax {jax.__version__}")
    print("network              step ms  of torch's  (lowest to highest)  first call s")
    for name in given.networks:
        step, compilation = prepare(name, given.steps, *NETWORKS[name])
        peer = Peer(given.torch, name, given.steps) if given.torch else None
        ours, ratios = [], []
        for _ in range(TURNS):
            ours.append(milliseconds(step, given.steps))
            if peer is not None:
                ratios.append(ours[-1] / peer.milliseconds())
        told = "none"
        if peer is not None:
            peer.end()
            told = f"{np.median(ratios):.2f}  ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{name:<19}{np.median(ours):9.1f}  {told:<33}{compilation:9.1f}", flush=True)


if __name__ == "__main__":
    main()
