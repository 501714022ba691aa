"""The errors of one_bit_errors.py beside their exact expectations.

COMMAND   python experiments/papers/claims.py run compression/why_one_bit_errors
EXPECTED  1 for each, up to a hundredth
TIME      seconds

A rotated vector of normal entries has normal entries. Two levels at its least and its largest entry
have the expected square error -E min E max - 1 of an entry; the two are almost independent.
"""

import math

import numpy as np
from mean_errors import CLIENTS, ENTRIES
from scipy.integrate import quad
from scipy.stats import norm


def expected_largest(number):
    """Of so many standard normal numbers, by integration."""

    def density(x):
        return number * norm.pdf(x) * norm.cdf(x) ** (number - 1)

    return quad(lambda x: x * density(x), -2, 12, limit=500)[0]


def rows(run):
    drive = (math.pi / 2 - 1) / CLIENTS
    levels = (expected_largest(ENTRIES) ** 2 - 1) / CLIENTS
    exact = {"DRIVE": drive, "rotated k-level": levels, "rotated k-level / DRIVE": levels / drive}
    for quantity, seen in run.measured("one_bit_errors").items():
        found = np.array(seen.values) / exact[quantity.method]
        for seed, value in zip(seen.seeds, found, strict=True):
            yield quantity.case, quantity.method, "measured / exact", seed, f"{value:.6g}"
