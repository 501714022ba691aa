"""Whether EF21 converges linearly on the problem of least_squares.py.

COMMAND   python experiments/papers/claims.py run compression/top1_ef21
EXPECTED  from 1e-4 to 1e-6 as many rounds as from 1e-2 to 1e-4, up to a quarter
TIME      a minute
"""

from least_squares import tuned_distances


def rows(run):
    own = tuned_distances(run.seeds)["top-1, EF21"]
    for seed, values in zip(run.seeds, own, strict=True):
        first = [int((values <= limit).argmax()) for limit in (1e-2, 1e-4, 1e-6)]
        reached = values.min() <= 1e-6
        ratio = f"{(first[2] - first[1]) / (first[1] - first[0]):.6g}" if reached else ""
        yield "", "top-1, EF21", "rounds of the second factor of 100 / first", seed, ratio
        yield "", "top-1, EF21", "rounds to 1e-6", seed, first[2] if reached else f">{len(values)}"
