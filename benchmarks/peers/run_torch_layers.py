"""One layer in PyTorch, for `benchmarks/layers.py`, which gives the argument.

It prints {"forward": ..., "step": ...}: milliseconds of the processor, with one thread, in the
faster of the two orders of axes.
"""

import json
import statistics
import sys
import time

import torch
from torch.nn import functional


def timed(function):
    """Median milliseconds of the processor; the first call is not counted."""
    function()
    times = []
    for _ in range(7):
        start = time.process_time()
        function()
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def measure(facts, batch, steps, memory_format):
    kind, side, channels, features, kernel, stride = facts
    options = {"stride": stride, "padding": kernel // 2}
    inputs = 1 if kind == "depthwise" else channels
    x = torch.randn(batch, channels, side, side).contiguous(memory_format=memory_format)
    w = torch.randn(features, inputs, kernel, kernel).contiguous(memory_format=memory_format)

    def apply(x, w):
        if kind == "pool":
            return functional.max_pool2d(x, kernel, **options)
        return functional.conv2d(x, w, groups=channels if kind == "depthwise" else 1, **options)

    def forward():
        with torch.no_grad():
            apply(x, w)

    def loop():
        moving = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        moving = moving[:1] if kind == "pool" else moving
        for _ in range(steps):
            outputs = apply(*moving, *([w] if kind == "pool" else []))
            gradients = torch.autograd.grad(outputs, moving, outputs.detach())
            with torch.no_grad():
                torch._foreach_add_(moving, gradients, alpha=-1e-9)

    return {"forward": timed(forward), "step": timed(loop) / steps}


def main():
    torch.set_num_threads(1)
    given = json.loads(sys.argv[1])
    formats = torch.contiguous_format, torch.channels_last
    each = [measure(**given, memory_format=memory_format) for memory_format in formats]
    print(json.dumps({key: min(one[key] for one in each) for key in each[0]}))


if __name__ == "__main__":
    main()
