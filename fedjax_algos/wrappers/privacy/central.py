"""Central differential privacy: the server clips updates and adds noise to their sum."""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm
from fedjax_algos.core.options import Count, NonNegative, Positive, Proportion
from fedjax_algos.core.trees import scale
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.privacy.accounting import (
    Sampling,
    accountant,
    known_rounds,
    noise_for,
    remembers,
)
from fedjax_algos.wrappers.privacy.strategies import banded, fitted_buffers, tree
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.stages import Release, Rule, Vectors

ClipBy = Literal["update", "vector", "leaf"]
NEEDS = ("one exchange", "no models", "no choice", "no counts", "no statistics")


class Memory(NamedTuple):
    """The memory of the rule."""

    clip: jax.Array  # C
    clipped: jax.Array  # the share of the last step's updates that were longer
    signal_to_noise: jax.Array  # the norm of their clipped sum, divided by the noise's
    earlier: Any = ()  # noise of earlier rounds, for correlated noise


def clipped(
    vectors: Vectors, clip: Any, *, by: ClipBy = "update", ratio: float = 1.0, order: int = 2
) -> tuple[Vectors, jax.Array]:
    """Shortens an update to a norm of at most C, and to 0 if it is not finite.

    Args:
      vectors: the vectors of the update.
      clip: C; may be traced.
      by: what is shortened together: the whole "update", each "vector", or each "leaf". Each of n
        parts gets the norm C / sqrt(n), or C / n in the 1-norm.
      ratio: each vector after the first is divided by it before.
      order: 1 or 2, the norm.

    Returns:
      The vectors, the later ones divided by `ratio`, and whether any was shortened, bool[].
    """
    vectors = vectors[:1] + [scale(1 / ratio, tree) for tree in vectors[1:]]
    leaves, structure = jax.tree.flatten(vectors)
    parts: Any = {"update": [vectors], "vector": vectors, "leaf": leaves}[by]
    limit = clip / len(parts) ** (1 / order)
    lengths = jnp.stack([optax.tree.norm(part, ord=order) for part in parts])
    factors = jnp.minimum(1, limit / jnp.where(lengths > 0, lengths, limit))
    of_leaf = [part for part, tree in enumerate(parts) for _ in jax.tree.leaves(tree)]
    finite, pairs = jnp.isfinite(lengths).all(), zip(of_leaf, leaves, strict=True)
    shorter = [jnp.where(finite, factors[part].astype(v.dtype) * v, 0) for part, v in pairs]
    return jax.tree.unflatten(structure, shorter), (lengths > limit).any()


@wrappers.register
def gaussian(
    algorithm: Algorithm,
    *,
    clip: Positive,
    noise: NonNegative | None = None,
    epsilon: Positive | None = None,
    delta: Proportion = 1e-5,
    by: ClipBy = "update",
    ratio: Positive = 1.0,
    quantile: Proportion | None = None,
    clip_rate: Positive | None = None,
    bit_noise: Positive | None = None,
    sampling: Sampling | None = None,
) -> Algorithm:
    """DP-FedAvg's mechanism for any algorithm: clipped updates, and Gaussian noise on their sum.

    `U = (sum_i min(1, C / |u_i|) u_i + z C N(0, I)) / M` replaces the updates of a cohort before
    the algorithm's own rule, with a norm over all vectors of an update together. M is the expected
    number of clients, so a round without clients also adds noise. An update that is not finite
    counts as 0. Results have the column `epsilon`, for one client in all rounds; see
    `wrappers.accountant_of`. The metrics of training, the counts of clients and the columns
    `clipped` and `signal_to_noise` are not private.

    With a `quantile` the norm C follows this quantile of the updates' norms:
    `C <- C exp(-eta_C (b - gamma))`, where b is the noisy share of updates of at most C. Noise on b
    has the standard deviation sigma_b / M, and U gets a little more,
    `z_U = (z^-2 - (2 sigma_b)^-2)^(-1/2)`, so that both cost what z costs alone.

    McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018,
    https://arxiv.org/abs/1710.06963; the quantile is by Andrew et al., "Differentially Private
    Learning with Adaptive Clipping", NeurIPS 2021, https://arxiv.org/abs/1905.03871.

    Args:
      algorithm: the algorithm to wrap.
      clip: C, above 0, or C in the first round.
      noise: z, the noise multiplier. Give it or `epsilon`; 0 clips only, and epsilon is infinite.
      epsilon: what the run may cost after all of its rounds; z is then computed.
      delta: the delta of epsilon, below 1 / N.
      by: what is clipped together: the whole "update", each "vector" or each "leaf" to
        `C / sqrt(number)`.
      ratio: how much longer an update's later vectors are than its first, such as 1 / (K eta_l) for
        SCAFFOLD, which sends x - y_i and a difference of gradients. They are divided by it before
        they are clipped, and multiplied after the noise.
      quantile: gamma; None keeps C.
      clip_rate: eta_C; 0.2 by default.
      bit_noise: sigma_b; M / 20 by default.
      sampling: how cohorts are drawn, for `epsilon`. The command line gives it.

    Raises:
      ValueError: for an algorithm whose clients send models or counts, or twice in a round, or have
        different weights; for a model with statistics; for cohorts without a known bound.
    """
    adaptive = None if quantile is None else (quantile, clip_rate or 0.2, bit_noise)
    used = adaptive or (clip_rate is None and bit_noise is None)
    require(used, "gaussian: bit_noise and clip_rate are for a quantile; give quantile=0.5")
    release = _release(algorithm, "gaussian", noise, epsilon, delta, sampling)
    return _private(algorithm, release, clip, by, ratio, adaptive)


@wrappers.register
def laplace(
    algorithm: Algorithm,
    *,
    clip: Positive,
    noise: NonNegative | None = None,
    epsilon: Positive | None = None,
    delta: Proportion = 1e-5,
    sampling: Sampling | None = None,
) -> Algorithm:
    """Clips updates in the 1-norm and adds Laplace noise of scale z C to their sum.

    It is for models of few parameters, because the 1-norm of d entries grows like sqrt(d) times the
    2-norm. Epsilon is known for full cohorts, cyclic ones, and Poisson cohorts with a slot for each
    client.

    Args:
      algorithm, clip, noise, epsilon, delta, sampling: as in `gaussian`.

    Raises:
      ValueError: as in `gaussian`.
    """
    release = _release(algorithm, "laplace", noise, epsilon, delta, sampling)
    return _private(algorithm, release, clip, "update", 1.0)


@wrappers.register
def correlated_gaussian(
    algorithm: Algorithm,
    *,
    clip: Positive,
    noise: NonNegative | None = None,
    epsilon: Positive | None = None,
    delta: Proportion = 1e-5,
    matrix: Literal["banded", "blt", "tree"] = "banded",
    bands: Count | None = None,
    by: ClipBy = "update",
    ratio: Positive = 1.0,
    sampling: Sampling | None = None,
) -> Algorithm:
    """The wrapper `gaussian` with noise that partly cancels over rounds (DP-FTRL).

    `U_t = (sum_i clip(u_i) + z s C W_t) / M`, where `W = A^-1 Z` for a lower triangular matrix A
    and standard normal Z. s is the sensitivity of A, so that all rounds together cost what one
    Gaussian release with the multiplier z costs. It needs no random cohorts: clients take part in
    known rounds, as with the sampler `cyclic`. A server rule that is linear in U, such as FedAvg's,
    has the error of the prefix sums of W.

    Args:
      algorithm, clip, delta, by, ratio: as in `gaussian`.
      noise: z, for all rounds together. Give it or `epsilon`.
      epsilon: what the run may cost after all of its rounds.
      matrix: "banded" is `privacy.strategies.banded`, which keeps `bands - 1` noises of the size of
        an update; "blt" is `fitted_buffers`, which keeps log_4(rounds); "tree" is `tree`, which
        keeps log_2(rounds).
      bands: the number of bands; by default the number of groups of clients.
      sampling: how cohorts are drawn, with the number of rounds. The command line gives it.

    Raises:
      ValueError: as in `gaussian`, and for cohorts in unknown rounds.
    """
    owner = "correlated_gaussian"
    rounds = known_rounds(sampling, owner)
    assert sampling
    unknown = Release("gaussian", 1.0, delta, lambda rounds, separation: 1.0)
    groups = accountant(unknown, sampling, owner).design.num_groups  # refuses other cohorts
    require(bands is None or matrix == "banded", f"{owner}: bands={bands} is for matrix=banded")
    made = {"banded": lambda rounds: banded(bands or groups), "blt": fitted_buffers, "tree": tree}
    strategy = made[matrix](rounds)
    # z of one release: as if the run had one round
    one = sampling._replace(rounds=1)
    release = _release(algorithm, "gaussian", noise, epsilon, delta, one, owner)
    whole = release.noise * strategy.sensitivity(rounds, groups)
    release = release._replace(noise=whole, sensitivity=strategy.sensitivity)
    return _private(algorithm, release, clip, by, ratio, strategy=strategy, name=owner)


def check_one(owner: str, noise: float | None, epsilon: float | None) -> None:
    """Raises ValueError unless one of noise and epsilon is given."""
    found = f"{owner} has noise={noise} and epsilon={epsilon}"
    one = (noise is None) != (epsilon is None)
    require(one, f"{found}; give the noise multiplier or epsilon, one of the two")


def _release(algorithm, law, noise, epsilon, delta, sampling, owner=""):
    """Returns the release of a noise multiplier, which is computed if epsilon is given."""
    owner = owner or law
    check_one(owner, noise, epsilon)
    add(owner, algorithm, needs=[*NEEDS, "sums"])  # refuses it before the noise is computed
    if sampling is not None:
        sampling = sampling._replace(memory=remembers(algorithm))
    if epsilon is not None:
        known_rounds(sampling, owner)
        noise = noise_for(sampling, epsilon, delta, law)
    release = Release(law, noise, delta)
    if sampling is not None:
        accountant(release, sampling, owner)  # refuses cohorts without a bound
    return release


def _private(algorithm, release, clip, by, ratio, adaptive=None, strategy=None, name=""):
    """Adds the rule of clipped sums with noise."""
    law, noise, name = release.law, release.noise, name or release.law
    order = {"gaussian": 2, "laplace": 1}[law]
    draw = {"gaussian": jax.random.normal, "laplace": jax.random.laplace}[law]

    def of_bit(size):
        return size / 20 if adaptive[2] is None else adaptive[2]

    def first(zeros, population):
        if adaptive is not None:
            most = 2 * of_bit(population.cohort_size)
            found = f"{name}: noise={noise:g} leaves none for the bit of a quantile"
            require(0 < noise < most, f"{found}; give more than 0 and less than {most:g}")
        several = ratio == 1 or len(zeros) > 1
        require(several, f"{name}: ratio={ratio:g} is for a second vector; leave ratio out")
        number = jnp.asarray(0.0)
        earlier = jax.tree.map(strategy.first, zeros) if strategy else ()
        return Memory(jnp.asarray(clip, float), number, number, earlier)

    def summand(vectors, weights, extra, dispatch, own, facts):
        vectors = list(map(scale, weights, vectors))
        shorter, longer = clipped(vectors, own.clip, by=by, ratio=ratio, order=order)
        return shorter, longer.astype(own.clip.dtype)

    def estimate(summed, own, key, facts):
        (total, longer), size, z = summed.total, facts.cohort_size, noise
        share = (longer / jnp.maximum(summed.number, 1)).astype(own.clip.dtype)
        memory = own._replace(clipped=share)
        key_of_vectors, key_of_bit = jax.random.split(key)
        if adaptive is not None:
            gamma, rate, _ = adaptive
            sigma = of_bit(size)
            z = (z**-2 - (2 * sigma) ** -2) ** -0.5
            # the bits are 1/2 and -1/2, so that a client moves their sum by 1/2
            bits = summed.number / 2 - longer + sigma * jax.random.normal(key_of_bit)
            change = jnp.exp(-rate * (bits / size + 0.5 - gamma))
            memory = memory._replace(clip=own.clip * change.astype(own.clip.dtype))
        if noise:
            drawn = optax.tree.random_like(key_of_vectors, total, draw)
            if strategy is not None:
                step = partial(strategy.step, number=facts.step)
                made = jax.tree.map(step, drawn, own.earlier)
                memory = memory._replace(earlier=jax.tree.map(lambda _, m: m[1], drawn, made))
                drawn = jax.tree.map(lambda _, m: m[0], drawn, made)
            drawn = scale(z * own.clip, drawn)
            signal = optax.tree.norm(total) / optax.tree.norm(drawn)
            memory = memory._replace(signal_to_noise=signal.astype(own.clip.dtype))
            total = jax.tree.map(jnp.add, total, drawn)
        noisy = scale(1 / size, total)
        return noisy[:1] + [scale(ratio, tree) for tree in noisy[1:]], memory

    def report(own):
        columns = {"clipped": own.clipped}
        if noise:
            columns["signal_to_noise"] = own.signal_to_noise
        return columns if adaptive is None else {**columns, "clip_norm": own.clip}

    fix = f"leave {name} out"
    rule = Rule(name, estimate, summand, first, report, private=release, equal_weights=fix)
    return add(name, algorithm, rule=rule, needs=NEEDS)
