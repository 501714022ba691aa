"""`torch.topk`, and the code of EDEN's authors, for `benchmarks/codecs.py`.

Its arguments are the entries of the vector, and the folder of the authors' code or "". It prints
milliseconds of the processor by the names that our codecs have, with one thread.
"""

import json
import statistics
import sys
import time

import torch


def timed(function):
    """Median milliseconds of the processor; the first call is not counted."""
    function()
    times = []
    for _ in range(15):
        start = time.process_time()
        function()
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def main():
    torch.set_num_threads(1)
    d, folder = int(sys.argv[1]), sys.argv[2]
    v = torch.randn(d, generator=torch.Generator().manual_seed(0))

    def topk():
        _, positions = v.abs().topk(-(-d // 100))
        return torch.zeros(d).scatter_(0, positions, v[positions])

    times = {"topk": timed(topk)}
    if folder:
        sys.path.insert(0, folder)
        from eden import eden_builder
        from hadamard import RandomizedHadamard, padToPowerOf2

        for name, bits in {"drive": 1, "eden:bits=2": 2}.items():
            codec = eden_builder(bits)
            times[name] = timed(lambda codec=codec: codec.roundtrip(v))
        rotation = RandomizedHadamard()

        def turn():
            padded, size = padToPowerOf2.forward(v)
            back, _ = rotation.backward(*rotation.forward(padded))
            return padToPowerOf2.backward(back, size)

        times["rotation there and back"] = timed(turn)
    print(json.dumps(times))


if __name__ == "__main__":
    main()
