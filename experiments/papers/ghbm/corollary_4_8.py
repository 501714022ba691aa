"""Corollary 4.8: how far the gradient of the clients of the last tau rounds is from that of all.

COMMAND   python experiments/papers/claims.py run ghbm/corollary_4_8
EXPECTED  below the bound for each tau, and 0 for tau = 1/C = 10, where uniform cohorts are above 0
TIME      a few seconds

The clients' gradients are those of multinomial regression on scikit-learn's digits at zero, for 100
clients with one class each. Nothing is trained: the corollary is about gradients at one point. A
value is the greatest of 30 rounds, after the first 1/C.
"""

import numpy as np
from sklearn.datasets import load_digits

from fedjax_algos.participation import samplers

CLIENTS, COHORT, ROUNDS = 100, 10, 40
PERIOD = CLIENTS // COHORT  # 1 / C
SAMPLERS = {"cyclic": samplers["cyclic"](num_groups=PERIOD), "uniform": samplers["uniform"]()}


def gradients() -> np.ndarray:
    """float[clients, 640], g_i."""
    x, y = load_digits(return_X_y=True)
    order = np.argsort(y, kind="stable")
    each = (0.1 - np.eye(10)[y])[:, :, None] * (x / 16)[:, None, :]
    return np.array([part.mean(0).ravel() for part in np.array_split(each[order], CLIENTS)])


def rows(run):
    g = gradients()
    mean = g.mean(0)
    dissimilarity = ((g - mean) ** 2).sum(1).mean()  # G^2
    for seed in run.seeds:
        for name, sampler in SAMPLERS.items():
            cohorts = sampler(seed, np.arange(ROUNDS), CLIENTS, COHORT)
            for tau in (1, 2, 5, PERIOD):
                last = (np.unique(cohorts[t - tau + 1 : t + 1]) for t in range(PERIOD, ROUNDS))
                seen = max(((g[chosen].mean(0) - mean) ** 2).sum() for chosen in last)
                yield f"tau = {tau}", name, "squared deviation", seed, f"{seen:.9f}"
        for tau in (1, 2, 5, PERIOD):
            bound = 8 * (1 - tau / PERIOD) ** 2 * (dissimilarity + (mean**2).sum())
            yield f"tau = {tau}", "bound", "squared deviation", seed, f"{bound:.9f}"
