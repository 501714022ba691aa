"""Computes epsilon, from the noise of an algorithm and the design of the sampler.

The unit is a client: all that it contributes to a run. The package dp-accounting computes privacy
loss distributions (PLD), which it rounds up. Each bound holds for one way to draw cohorts, so a
sampler without a `Design` gets no epsilon.
"""

import functools
import math
from typing import Any, NamedTuple

from fedjax_algos.base.errors import needed, require
from fedjax_algos.core import Algorithm
from fedjax_algos.participation.sampling import Design, expected_size
from fedjax_algos.wrappers.stages import Release

_TOLERANCE = 1e-3  # of a calibrated noise multiplier, on the side of more noise


class Sampling(NamedTuple):
    """Describes how the cohorts of a run are drawn.

    Attributes:
      sampler: the sampler, or its `Design`.
      num_clients: N, the number of clients.
      cohort_size: the number of clients in a cohort, or the slots for them.
      rounds: T, the number of rounds; None if it is not known before the run.
    """

    sampler: Any
    num_clients: int
    cohort_size: int
    rounds: int | None = None


class Accountant(NamedTuple):
    """Computes the epsilon of a run; `accountant_of` makes it.

    Attributes:
      release: what a server step reveals.
      design: how cohorts are drawn.
      mean: M, the expected number of clients in a cohort.
      num_clients, cohort_size: as in `Sampling`.
    """

    release: Release
    design: Design
    mean: float
    num_clients: int
    cohort_size: int

    def epsilon(self, rounds: int) -> float:
        """Returns an upper bound of epsilon after a number of rounds; infinity without noise.

        Args:
          rounds: number of rounds, at least 0. For local noise it is the number of a client's
            messages, and for buffers the sum of `n^2` over server steps that add n of its updates.
        """
        if self.release.noise == 0 or rounds == 0:
            return math.inf if rounds else 0.0
        law, noise, delta, sensitivity = self.release
        kind, num_groups, mean = self.design.kind, self.design.num_groups, self.mean
        if self.in_known_rounds:
            number = -(-rounds // num_groups)
            if law == "gaussian":  # several releases are one with less noise
                size = sensitivity(rounds, num_groups) if sensitivity else math.sqrt(number)
                return gaussian_epsilon(noise / size, delta)
            one, rounds = _step(law, noise), number
        elif kind == "fixed":
            one = _step(law, noise, 1.0, self.num_clients, self.cohort_size)
        else:
            one = _step(law, noise, mean / self.num_clients, self.num_clients, self.cohort_size)
        return _composed(one, rounds, delta)

    @property
    def in_known_rounds(self) -> bool:
        """True if the rounds of a client are known."""
        known = self.design.kind not in ("fixed", "poisson")
        return known or self.mean == self.num_clients

    def after(self, rounds: int, dispatched: Any) -> float:
        """Returns epsilon after a number of rounds.

        Args:
          rounds: the number of rounds.
          dispatched: int[num_clients]: dispatches of each client so far.
        """
        return self.epsilon(int(dispatched.max()) if self.design.kind == "messages" else rounds)

    def describe(self, rounds: int) -> str:
        """Describes epsilon with everything that it depends on, in a line.

        Args:
          rounds: as in `epsilon`.
        """
        law, noise, delta, _ = self.release
        kind, num_groups, mean = self.design.kind, self.design.num_groups, self.mean
        cohorts = {
            "fixed": f"{mean:g} of {self.num_clients} clients in each round",
            "poisson": f"each client with probability {mean:g}/{self.num_clients}, at most "
            f"{self.cohort_size} in a round",
            "groups": f"each client at most in every round of {num_groups}",
            "messages": "the server sees each update",
            "buffers": f"{mean:g} updates in each server step",
        }[kind]
        sampled = dict.fromkeys(("fixed", "poisson"), "added or removed")
        adjacent = {"messages": "changed", **sampled}.get(kind, "zeroed out")
        end = "for each message" if kind == "messages" else f"after {rounds} rounds"
        bound = self.epsilon(1 if kind == "messages" else rounds)
        text = f"epsilon {bound:.4g} at delta {delta:g} {end}"
        return f"{text} (one client {adjacent}; {law} noise {noise:.4g}; {cohorts})"


def accountant_of(algorithm: Algorithm, sampling: Sampling) -> Accountant | None:
    """Returns the accountant of an algorithm's runs; None if no wrapper adds noise to its updates.

    Args:
      algorithm: the algorithm with its wrappers.
      sampling: how cohorts are drawn.

    Raises:
      ValueError: if the algorithm is private and no bound is known for its cohorts.
    """
    if (path := algorithm.transport) is None:
        return None
    private = [each for each in (*path.client, path.rule) if each is not None and each.private]
    if not private:
        return None
    name, release = private[-1].name, private[-1].private
    assert release
    require(len(private) == 1, f"{name}: {private[0].name} adds noise already; leave one out")
    chosen = algorithm.selection is None and not algorithm.traits.offers
    fix = f"leave {name} or the selection out"
    require(chosen, f"{name}: the choice of clients by their values is not private; {fix}")
    if private[-1] is not path.rule:
        sampling = sampling._replace(sampler=Design("messages"))
    return accountant(release, sampling, name)


def accountant(release: Release, sampling: Sampling, owner: str = "noise") -> Accountant:
    """Returns the accountant of a release; ValueError if no bound is known for the cohorts.

    Args:
      release: what a server step reveals.
      sampling: how cohorts are drawn.
      owner: the wrapper's name, for messages.
    """
    sampler, num_clients, slots, _ = sampling
    design: Any = sampler if isinstance(sampler, Design) else getattr(sampler, "design", None)
    fix = "give uniform, poisson:mean=... or cyclic:num_groups=..."
    require(design, f"{owner}: no bound on epsilon is known for cohorts of this sampler; {fix}")
    found = f"{owner}: delta={release.delta:g} is at least 1/N for N={num_clients} clients"
    require(release.delta * num_clients < 1, f"{found}; give less, such as {0.1 / num_clients:.1g}")
    mean = expected_size(sampler, slots)
    found = f"{owner}: the mean cohort of {mean:g} clients is not a whole number"
    require(mean == int(mean), f"{found}; give poisson:mean={round(mean) or 1}")
    made = Accountant(release, design, mean, num_clients, slots)
    known = design.kind == "groups" or (made.in_known_rounds and design.kind == "fixed")
    known |= release.sensitivity is None
    found = f"{owner}: no bound is known for correlated noise and {design.kind} cohorts"
    require(known, f"{found}; give cyclic:num_groups={num_clients // slots} or gaussian")
    whole = made.in_known_rounds and design.kind != "buffers"
    whole |= release.law == "gaussian"
    full = design.kind == "poisson" and slots == num_clients
    found = f"{owner}: no bound is known for {release.law} noise and {design.kind} cohorts"
    more = f", or poisson with a slot for each of the {num_clients} clients (cohort)"
    require(whole or full, f"{found} of {slots} slots; give gaussian{more}")
    needed("dp_accounting", owner)
    return made


def noise_for(
    sampling: Sampling, epsilon: float, delta: float = 1e-5, law: str = "gaussian", owner: str = ""
) -> float:
    """Returns the smallest noise multiplier z, up to .1%, that gives at most this epsilon.

    Args:
      sampling: how cohorts are drawn, with the number of rounds.
      epsilon: the bound after all rounds, above 0.
      delta: the delta of this epsilon.
      law: "gaussian" or "laplace".
      owner: the wrapper's name, for messages; by default the law.

    Raises:
      ValueError: for cohorts without a bound, or an unknown number of rounds.
    """
    number = sampling.rounds
    owner, fix = owner or law, "give noise=... in place of epsilon"
    require(number, f"{owner}: the number of rounds is not known; {fix}")
    assert number

    def excess(log_noise):
        release = Release(law, math.exp(log_noise), delta)
        return accountant(release, sampling, owner).epsilon(number) - epsilon

    low, high = -1.0, 1.0
    while excess(low) < 0:
        low -= 1
    while excess(high) > 0:
        high += 1
    from scipy import optimize

    root = optimize.brentq(excess, low, high, xtol=_TOLERANCE / 4)
    return math.exp(root + _TOLERANCE / 2)


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Returns the exact epsilon of one Gaussian release.

    It is the smallest at least 0 with `Phi(a - eps z) - exp(eps) Phi(-a - eps z) <= delta` for
    `a = 1 / (2 z)`: Balle and Wang, ICML 2018, https://arxiv.org/abs/1805.06530, Theorem 8.

    Args:
      noise: z, the standard deviation divided by the sensitivity, above 0.
      delta: delta.
    """
    from scipy import optimize

    def excess(epsilon):
        return _gaussian_delta(noise, epsilon) - delta

    if excess(0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0, high, xtol=1e-12, rtol=1e-12))


def gaussian_noise(epsilon: float, delta: float) -> float:
    """Returns the smallest z of one Gaussian release with this epsilon; see `gaussian_epsilon`.

    Args:
      epsilon: epsilon, above 0.
      delta: delta.
    """
    from scipy import optimize

    def excess(log_noise):
        return _gaussian_delta(math.exp(log_noise), epsilon) - delta

    return math.exp(optimize.brentq(excess, -20, 20, xtol=1e-13))


def _gaussian_delta(noise, epsilon):
    from scipy import special

    upper = special.ndtr(0.5 / noise - epsilon * noise)
    return upper - math.exp(epsilon + special.log_ndtr(-0.5 / noise - epsilon * noise))


@functools.lru_cache(maxsize=64)
def _step(law: str, noise: float, probability: float = 1.0, total: int = 0, slots: int = 0) -> Any:
    """Returns the PLD of a step; `total` clients come with this probability if `slots` are left."""
    needed("dp_accounting", law)
    from dp_accounting.pld import privacy_loss_distribution as pld

    if law == "laplace":
        return pld.from_laplace_mechanism(noise, sampling_prob=probability)
    if slots == total:
        return pld.from_gaussian_mechanism(noise, sampling_prob=probability)
    return pld.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=total,
        sampling_probability=probability,
        truncated_batch_size=slots,
        noise_multiplier=noise,
    )


@functools.lru_cache(maxsize=4096)
def _composed(one: Any, rounds: int, delta: float) -> float:
    return float(one.self_compose(rounds).get_epsilon_for_delta(delta))
