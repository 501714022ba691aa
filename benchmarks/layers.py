"""Layers of image models, forward and in a local step, against PyTorch on one core.

COMMAND   XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 1 python benchmarks/layers.py \
              --torch .venv-peers/torch/bin/python
EXPECTED  a line for each layer
TIME      two minutes on one CPU core

Each layer is measured alone: forward, and in a loop of steps that move the inputs and the weights
by their gradients, as local training does. Times are those of the processor, so that other work on
the machine counts less. PyTorch is measured with one thread and with both orders of axes, of which
the faster counts; its process and ours take turns, and medians of the ratios are printed.
"""

import argparse
import json
import subprocess
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.models import convolve, convolve_depthwise, max_pool

PEER = Path(__file__).parent / "peers" / "run_torch_layers.py"
REPEATS, STEPS, BATCH = 3, 5, 20
# name: (kind, side, channels, features, kernel, stride)
LAYERS = {
    "1x1": ("convolution", 16, 24, 144, 1, 1),
    "3x3": ("convolution", 16, 64, 64, 3, 1),
    "3x3, stride 2": ("convolution", 16, 64, 128, 3, 2),
    "7x7 stem, stride 2": ("convolution", 64, 3, 64, 7, 2),
    "3x3 max pool, stride 2": ("pool", 32, 64, 64, 3, 2),
    "depthwise 3x3": ("depthwise", 16, 144, 144, 3, 1),
    "depthwise 3x3, stride 2": ("depthwise", 16, 144, 144, 3, 2),
    "depthwise 5x5": ("depthwise", 16, 144, 144, 5, 1),
    "depthwise 5x5, stride 2": ("depthwise", 16, 144, 144, 5, 2),
}


def timed(function):
    """Median milliseconds of the processor; the first call is not counted."""
    function()
    times = []
    for _ in range(7):
        start = time.process_time()
        function()
        times.append(1e3 * (time.process_time() - start))
    return float(np.median(times))


def layer(kind, kernel, stride):
    options = {"strides": (stride, stride), "padding": kernel // 2}
    if kind == "pool":
        return lambda x, w: max_pool(x, (kernel, kernel), options["strides"], options["padding"])
    if kind == "depthwise":
        return partial(convolve_depthwise, **options)
    return partial(convolve, **options)


def measure(kind, side, channels, features, kernel, stride):
    """Milliseconds of a forward pass and of a step."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(BATCH, side, side, channels)), jnp.float32)
    shape = (kernel, kernel, 1 if kind == "depthwise" else channels, features)
    w = jnp.asarray(rng.normal(size=shape), jnp.float32)

    def steps(x, w, apply):
        def step(_, carry):
            gradients = jax.grad(lambda x, w: (apply(x, w) ** 2).sum() / 2, (0, 1))(*carry)
            return jax.tree.map(lambda leaf, g: leaf - 1e-9 * g, carry, gradients)

        return jax.lax.fori_loop(0, STEPS, step, (x, w))

    apply = layer(kind, kernel, stride)
    forward, loop = jax.jit(apply), jax.jit(partial(steps, apply=apply))
    return {
        "forward": timed(lambda: jax.block_until_ready(forward(x, w))),
        "step": timed(lambda: jax.block_until_ready(loop(x, w))) / STEPS,
    }


def of_torch(python, facts):
    given = json.dumps({"facts": facts, "batch": BATCH, "steps": STEPS})
    done = subprocess.run([python, PEER, given], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--torch", metavar="PYTHON", help="of an environment with torch")
    python = parser.parse_args().torch
    print("layer                     forward ms  of torch's  step ms  of torch's")
    for name, facts in LAYERS.items():
        ours, theirs = [], []
        for _ in range(REPEATS):
            ours.append(measure(*facts))
            theirs.append(of_torch(python, facts) if python else {})

        def median(key, ours=ours, theirs=theirs, of_peer=False):
            values = [
                own.get(key, np.nan) / (peer.get(key, np.nan) if of_peer else 1)
                for own, peer in zip(ours, theirs, strict=True)
            ]
            return f"{np.median(values):.2f}"

        row = [median("forward"), median("forward", of_peer=True)]
        row += [median("step"), median("step", of_peer=True)]
        print(f"{name:<26}{''.join(f'{value:>11}' for value in row)}", flush=True)


if __name__ == "__main__":
    main()
