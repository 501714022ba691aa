"""Computes epsilon, from the noise of an algorithm and the design of the sampler.

The unit is a client: all that it contributes to a run. The package dp-accounting computes privacy
loss distributions (PLD), which it rounds up. Each bound holds for one way to draw cohorts, so a
sampler without a `Design` gets no epsilon.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from fedjax_algos.base.errors import needed, require
from fedjax_algos.core import Algorithm, stateless
from fedjax_algos.core.example_noise import poisson_slots
from fedjax_algos.participation.sampling import Design, expected_size
from fedjax_algos.wrappers.privacy.bounds import (
    composed_epsilon,
    conditional,
    gaussian_epsilon,
    one_step,
    with_overflow,
)
from fedjax_algos.wrappers.stages import Release

_TOLERANCE = 1e-3  # of a calibrated noise multiplier, on the side of more noise


class Sampling(NamedTuple):
    """Describes how the cohorts of a run are drawn.

    Attributes:
      sampler: the sampler, or its `Design`.
      num_clients: N, the number of clients.
      cohort_size: the number of clients in a cohort, or the slots for them.
      rounds: T, the number of rounds; None if it is not known before the run.
      examples: the smallest n_i, for noise on the gradients of examples.
      memory: whether what clients send depends on their own earlier rounds.
    """

    sampler: Any
    num_clients: int
    cohort_size: int
    rounds: int | None = None
    examples: int | None = None
    memory: bool = False


class Accountant(NamedTuple):
    """Computes the epsilon of a run; `accountant_of` makes it.

    Attributes:
      release: what a server step reveals.
      design: how cohorts are drawn.
      mean: M, the expected number of clients in a cohort, or of examples in a batch.
      num_clients, cohort_size: as in `Sampling`, or the smallest n_i and the rows of a batch.
      memory: as in `Sampling`.
    """

    release: Release
    design: Design
    mean: float
    num_clients: int
    cohort_size: int
    memory: bool = False

    def epsilon(self, rounds: int) -> float:
        """Returns an upper bound of epsilon after a number of rounds; infinity without noise.

        For sampled cohorts and Gaussian noise it is the smaller of two bounds. One conditions on
        the cohorts, so the number of a client's rounds is binomial. The other bound is by sampling.
        It needs clients that do not displace others, or clients without memory.

        Args:
          rounds: number of rounds, at least 0. For local noise it is the number of a client's
            messages, and for buffers the sum of `n^2` over server steps that add n of its updates.
            For noise on gradients it is the number of a client's local steps.
        """
        if self.release.noise == 0 or rounds == 0:
            return math.inf if rounds else 0.0
        law, noise, delta, sensitivity = self.release
        total, slots, num_groups = self.num_clients, self.cohort_size, self.design.num_groups
        if self.in_known_rounds:
            number = -(-rounds // num_groups)
            if law == "gaussian":  # several releases are one with less noise
                size = sensitivity(rounds, num_groups) if sensitivity else math.sqrt(number)
                return gaussian_epsilon(noise / size, delta) if size < math.inf else size
            return composed_epsilon(one_step(law, noise), number, delta)
        chance, fixed = self.mean / total, self.design.kind == "fixed"
        known = conditional(noise, rounds, chance, delta) if law == "gaussian" else math.inf
        if not self.memory or slots == total:
            one = one_step(law, noise, 1.0 if fixed else chance, total, slots)
            return min(known, composed_epsilon(one, rounds, delta))
        if fixed:
            return known
        one = one_step(law, noise, chance, total, total)
        return min(known, with_overflow(one, rounds, chance, total, slots, delta))

    @property
    def in_known_rounds(self) -> bool:
        """True if the rounds of a client are known."""
        known = self.design.kind not in ("fixed", "poisson", "examples")
        return known or self.mean >= self.num_clients

    def after(self, rounds: int, dispatched: Any, steps: Any) -> float:
        """Returns epsilon after a number of rounds.

        Args:
          rounds: the number of rounds.
          dispatched: int[num_clients]: dispatches of each client so far.
          steps: int[num_clients]: their local steps.
        """
        counted = {"messages": dispatched, "examples": steps}.get(self.design.kind)
        return self.epsilon(rounds if counted is None else int(counted.max()))

    def describe(self, rounds: int) -> str:
        """Describes epsilon with everything that it depends on, in a line.

        Args:
          rounds: as in `epsilon`.
        """
        law, noise, delta, _ = self.release
        kind, num_groups, mean = self.design.kind, self.design.num_groups, self.mean
        cohorts = {
            "fixed": f"{mean:g} of {self.num_clients} clients in each round",
            "poisson": f"{mean:g} of {self.num_clients} on average, {self.cohort_size} slots",
            "groups": f"each client at most in every round of {num_groups}",
            "messages": "the server sees each update",
            "buffers": f"{mean:g} updates in each server step",
            "examples": f"{mean:g} of at least {self.num_clients} in a batch",
        }[kind]
        adjacent, noise = ("changed", 2 * noise) if kind == "messages" else ("zeroed out", noise)
        one = "example of a client" if kind == "examples" else "client"
        each = {"messages": "message", "examples": "local step"}.get(kind, f"{rounds} rounds")
        text = f"epsilon {self.epsilon(rounds if 'rounds' in each else 1):.4g} at delta {delta:g}"
        return f"{text} for {each} (one {one} {adjacent}; {law} noise {noise:.4g}; {cohorts})"


def accountant_of(algorithm: Algorithm, sampling: Sampling) -> Accountant | None:
    """Returns the accountant of an algorithm's runs; None if no wrapper adds noise to its updates.

    Args:
      algorithm: the algorithm with its wrappers.
      sampling: how cohorts are drawn.

    Raises:
      ValueError: if the algorithm is private and no bound is known for its cohorts.
    """
    path, local = algorithm.transport, algorithm.local
    stages: list[Any] = [] if path is None else [*path.client, path.rule]
    private = [(each.name, each.private) for each in stages if each is not None and each.private]
    if (noise := local.example_noise) is not None:
        private.append(("example_noise", Release("gaussian", noise.noise, noise.delta)))
        number = sampling.examples or 1
        rows = min(poisson_slots(local.batch_size), number)
        sampling = Sampling(Design("examples", local.batch_size), number, rows)
    elif path is not None and not (path.rule and path.rule.private):
        sampling = sampling._replace(sampler=Design("messages"))
    else:
        sampling = sampling._replace(memory=remembers(algorithm))
    if not private:
        return None
    (name, release), (first, _) = private[-1], private[0]
    wrong = {
        f"{first} adds noise already; leave one out": len(private) > 1,
        f"clients read the examples of others; leave {name} out": algorithm.traits.pools_examples,
        "the choice of clients by their values is not private; leave the selection out": bool(
            algorithm.selection or algorithm.traits.offers
        ),
    }
    require(not any(wrong.values()), f"{name}: {max(wrong, key=lambda text: wrong[text])}")
    return accountant(release, sampling, name)


def remembers(algorithm: Algorithm) -> bool:
    """Returns whether what clients send depends on how often they have taken part.

    Args:
      algorithm: its client state and its `local` are read.
    """
    local = algorithm.local
    by_number = local.rate_by == "dispatch" and callable(local.learning_rate)
    return algorithm.client_init is not stateless or by_number or local.batches == "persistent"


def accountant(release: Release, sampling: Sampling, owner: str = "noise") -> Accountant:
    """Returns the accountant of a release; ValueError if no bound is known for the cohorts.

    Args:
      release: what a server step reveals.
      sampling: how cohorts are drawn.
      owner: the wrapper's name, for messages.
    """
    sampler, number, slots = sampling[:3]
    design: Any = sampler if isinstance(sampler, Design) else getattr(sampler, "design", None)
    mean = expected_size(sampler, slots)
    if release.noise == 0 and design is None:
        design = Design("fixed")  # its epsilon is infinite
    made = Accountant(release, design, mean, number, slots, sampling.memory)
    message = next(_unknown(made), "")
    require(not message, f"{owner}: {message}")
    if release.law != "gaussian" or not made.in_known_rounds:
        needed("dp_accounting", owner)
    return made


def _unknown(made: Accountant) -> Iterator[str]:
    """Yields the reasons why no epsilon is known."""
    (law, _, delta, correlated), design, mean, number, slots, _ = made
    if design is None:
        fix = "give uniform, poisson:mean=... or cyclic:num_groups=..."
        yield f"no bound on epsilon is known for cohorts of this sampler; {fix}"
        return
    if delta * number >= 1:
        found = f"delta={delta:g} is at least 1/N for N={number} of them"
        yield f"{found}; give less, such as {0.1 / number:.1g}"
    if mean != int(mean):
        found = f"the mean cohort of {mean:g} clients is not a whole number"
        yield f"{found}; give poisson:mean={round(mean) or 1}"
    in_rounds = design.kind == "groups" or (made.in_known_rounds and design.kind == "fixed")
    if correlated and not in_rounds:
        found = f"no bound is known for correlated noise and {design.kind} cohorts"
        yield f"{found}; give cyclic:num_groups={number // slots} or gaussian"
    known = made.in_known_rounds and design.kind != "buffers"
    if law != "gaussian" and not (known or (design.kind == "poisson" and slots == number)):
        found = f"no bound is known for {law} noise and {design.kind} cohorts of {slots} slots"
        fix = f"give gaussian, or poisson with a slot for each client (cohort={number})"
        yield f"{found}; {fix}"


def known_rounds(sampling: Sampling | None, owner: str) -> int:
    """Returns the number of rounds; ValueError if it is not known."""
    fix = "give sampling=Sampling(..., rounds=...), or noise"
    rounds = None if sampling is None else sampling.rounds
    require(rounds, f"{owner}: the cohorts or the number of rounds are not known; {fix}")
    return rounds or 0


def noise_for(
    sampling: Sampling, epsilon: float, delta: float = 1e-5, law: str = "gaussian"
) -> float:
    """Returns the smallest noise multiplier z, up to .1%, that gives at most this epsilon.

    Args:
      sampling: how cohorts are drawn, with the number of rounds.
      epsilon: the bound after all rounds, above 0.
      delta: the delta of this epsilon.
      law: "gaussian" or "laplace".

    Raises:
      ValueError: for cohorts without a bound, or an unknown number of rounds.
    """
    number = known_rounds(sampling, law)

    def excess(log_noise):
        release = Release(law, math.exp(log_noise), delta)
        return accountant(release, sampling, law).epsilon(number) - epsilon

    from scipy import optimize

    low = high = 1.0
    while excess(high) > 0:
        low, high = high, high + 1
    while low == high or excess(low) < 0:  # downwards, because little noise takes long
        low, high = low - 1, low
    root = optimize.brentq(excess, low, high, xtol=_TOLERANCE / 4)
    return math.exp(root + _TOLERANCE / 2)
