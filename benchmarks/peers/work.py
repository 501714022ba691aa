"""What all scripts share: shapes, data, initial params, the clock and the line of results.

It needs only NumPy, because each rival has an environment of its own. Params are a list of (kernel,
bias), one for each layer: kernels [height, width, in, out] and [in, out], as in Flax and Haiku.

All clients hold `steps * BATCH` examples and train one epoch of them. With `--check` all examples
of a client are copies of one, so that every order of them gives the same batches, and params can be
compared with those of a rival that shuffles in its own way.
"""

import argparse
import json
import resource
import time
from typing import NamedTuple

import numpy as np

BATCH, CLASSES, RATE = 20, 62, 0.01


class Work(NamedTuple):
    image: tuple[int, ...]  # of one example
    channels: tuple[int, ...]  # valid 3x3 convolutions, each with a pool of 2 and a ReLU behind it
    widths: tuple[int, ...]  # dense layers with ReLUs between them
    steps: int


WORKS = {
    "cnn": Work((28, 28, 1), (32, 64), (512, CLASSES), 10),  # 870,334 parameters
    "mlp": Work((784,), (), (200, 200, CLASSES), 10),
    "linear": Work((784,), (), (CLASSES,), 1),
}


def arguments(**options):
    """The arguments of every script, and a rival's own: name=default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", choices=WORKS, default="cnn")
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="examples whose order does not matter")
    parser.add_argument("--params", help="a file for the last params, .npz")
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error("--rounds must be at least 1")
    return given


def kernel_shapes(work):
    """The kernels, layer by layer; a bias is as long as its kernel's last axis."""
    shapes, size = [], work.image
    for features in work.channels:
        shapes.append((3, 3, size[-1], features))
        size = ((size[0] - 2) // 2, (size[1] - 2) // 2, features)
    fan_in = int(np.prod(size))
    for width in work.widths:
        shapes.append((fan_in, width))
        fan_in = width
    return shapes


def first_params(work):
    """The initial layers, the same for all."""
    rng = np.random.default_rng(0)
    layers = []
    for shape in kernel_shapes(work):
        scale = 1 / np.sqrt(np.prod(shape[:-1]))
        kernel = rng.normal(scale=scale, size=shape).astype(np.float32)
        layers.append((kernel, np.zeros(shape[-1], np.float32)))
    return layers


def client_examples(given):
    """Images float32[clients, examples, ...] and labels int32[clients, examples]."""
    work = WORKS[given.work]
    rng = np.random.default_rng(1)
    number = work.steps * BATCH
    images = rng.random((given.cohort, number, *work.image), np.float32)
    labels = rng.integers(0, CLASSES, (given.cohort, number), np.int32)
    if given.check:
        images[:], labels[:] = images[:, :1], labels[:, :1]
    return images, labels


def useful_flops(work, cohort):
    """FLOPs of a round, forward and backward; a multiply-add counts as two.

    A layer has three products of the same size. The first layer has two, because the gradient of
    the images is not needed.
    """
    total, size = 0, work.image
    for index, shape in enumerate(kernel_shapes(work)):
        positions = 1
        if len(shape) == 4:
            positions = (size[0] - 2) * (size[1] - 2)
            size = ((size[0] - 2) // 2, (size[1] - 2) // 2, shape[-1])
        total += 2 * (3 if index else 2) * positions * int(np.prod(shape))
    return total * cohort * work.steps * BATCH


class Clock:
    """Starts when the data are in memory: the first lap includes compilation and construction."""

    def __init__(self):
        self.marks = [time.perf_counter()]

    def lap(self, rounds=1):
        """Ends a lap, or as many equal laps as there were rounds since the last one."""
        self.marks += np.linspace(self.marks[-1], time.perf_counter(), rounds + 1)[1:].tolist()


def report(given, clock, layers, **more):
    """Prints the line of results, and checks the number of laps and the shapes of the params.

    `check` is the root mean square of the distance that the params moved.
    """
    laps = np.diff(clock.marks)
    start = first_params(WORKS[given.work])
    assert len(laps) == given.rounds, f"{len(laps)} laps for {given.rounds} rounds"
    flat, origin = (
        np.concatenate([np.asarray(leaf, np.float64).ravel() for layer in tree for leaf in layer])
        for tree in (layers, start)
    )
    for (kernel, bias), (kernel_start, bias_start) in zip(layers, start, strict=True):
        assert kernel.shape == kernel_start.shape, (kernel.shape, kernel_start.shape)
        assert bias.shape == bias_start.shape, (bias.shape, bias_start.shape)
    if given.params:
        np.savez(given.params, moved=flat - origin)
    line = {
        "first_round_s": laps[0],
        "round_s": laps[1:].tolist(),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "check": float(np.sqrt(np.mean((flat - origin) ** 2))),
        "parameters": flat.size,
    }
    print(json.dumps(line | more), flush=True)
