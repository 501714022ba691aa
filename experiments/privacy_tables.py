"""Computes the tables of docs/privacy.md: epsilon by sampler, and by the slots of Poisson cohorts.

COMMAND   python experiments/privacy_tables.py
EXPECTED  the two tables of docs/privacy.md
TIME      one minute
"""

from dp_accounting import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    TruncatedSubsampledGaussianDpEvent,
    pld,
)

from fedjax_algos.participation import samplers
from fedjax_algos.wrappers import Release, Sampling
from fedjax_algos.wrappers.privacy.accounting import accountant
from fedjax_algos.wrappers.privacy.bounds import gaussian_epsilon

CLIENTS, MEAN, ROUNDS, NOISE, DELTA = 1000, 50, 200, 1.0, 1e-4
SLOTS = (50, 55, 60, 65, 70, 80, 100)


def epsilon(sampler: str, slots: int) -> float:
    """Returns the epsilon of all rounds."""
    sampling = Sampling(samplers.make(sampler), CLIENTS, slots)
    return accountant(Release("gaussian", NOISE, DELTA), sampling).epsilon(ROUNDS)


def by_sampling() -> float:
    """Returns the bound of fixed cohorts by sampling."""
    event = TruncatedSubsampledGaussianDpEvent(CLIENTS, 1.0, MEAN, NOISE)
    return pld.PLDAccountant().compose(event, ROUNDS).get_epsilon(DELTA)


def lower_limit() -> float:
    """Returns what fixed cohorts cost at least if a client is added; the others all send -C."""
    event = PoissonSampledDpEvent(MEAN / CLIENTS, GaussianDpEvent(NOISE / 2))
    return pld.PLDAccountant().compose(event, ROUNDS).get_epsilon(DELTA)


def main() -> None:
    """Prints the tables."""
    rows = {
        "poisson, a slot for each client": epsilon(f"poisson:mean={MEAN}", CLIENTS),
        "uniform": epsilon("uniform", MEAN),
        "uniform, by sampling": by_sampling(),
        "uniform, a client added, at least": lower_limit(),
        "cyclic:num_groups=20": epsilon("cyclic:num_groups=20", MEAN),
        "the same, one release": gaussian_epsilon(NOISE, DELTA),
        "all clients": epsilon("uniform", CLIENTS),
        **{f"poisson, {slots} slots": epsilon(f"poisson:mean={MEAN}", slots) for slots in SLOTS},
    }
    for name, value in rows.items():
        print(f"{name:<34}{value:8.4f}")


if __name__ == "__main__":
    main()
