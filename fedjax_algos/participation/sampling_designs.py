"""Draws cohorts of random size, and cohorts by the clients' numbers of examples n_i."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import check_int32
from fedjax_algos.core.options import Count, Positive
from fedjax_algos.core.randomness import ONCE, cohort_key, permutation_words, permute
from fedjax_algos.participation.sampling import Design, draw_members
from fedjax_algos.participation.traced import TracedSampler, needs_clients, register, traced_sampler


def overflow_probability(mean: float, num_clients: int, slots: int) -> float:
    """Returns the probability that a Poisson cohort would have more clients than slots."""
    from scipy import special

    return float(special.bdtrc(slots, num_clients, mean / num_clients))


@register
def poisson(*, mean: Positive) -> TracedSampler:
    """Each client is in a cohort with probability M / N, independently of all others.

    `cohort_size` is B, the slots of a cohort. The size is k ~ Binomial(N, M / N), to 2^-32 in each
    probability, and min(k, B) different clients are drawn uniformly. So if more than B clients
    would come, B of them are kept, all sets equally likely: truncated Poisson sampling
    (https://arxiv.org/abs/2406.17298, Lemma 1). Without --cohort the command line takes
    B = ceil(M + 6 sqrt(M)), and prints how likely it is that more would come.

    Args:
      mean: M, above 0 and at most B.

    Raises:
      ValueError: when the result is called, for fewer slots than `mean`.
    """

    def note(num_clients, slots):
        chance = f"{overflow_probability(mean, num_clients, slots):.2g}"
        return f"poisson: more than {slots} clients would come to a round with probability {chance}"

    slots = math.ceil(mean + 6 * math.sqrt(mean))
    about = {"slots": slots, "note": note, "design": Design("poisson", mean)}
    return traced_sampler(_poisson(mean), may_leave_empty=True, **about)


@functools.cache
def _poisson(mean):
    from scipy import special

    def draw(seed, round_number, num_clients, cohort_size):
        found = f"poisson: mean={mean:g} is more than the {cohort_size} slots of a cohort"
        require(mean <= cohort_size, f"{found}; give more slots (--cohort, cohort_size)")
        slots = np.arange(cohort_size)
        below = special.bdtr(slots, num_clients, mean / num_clients)  # P(k <= slot)
        thresholds = np.minimum(below * 2**32, 2**32 - 1).astype(np.uint32)
        of_size, of_members = jax.random.split(cohort_key(seed, round_number))
        size = (jax.random.bits(of_size, (), jnp.uint32) >= thresholds).sum()
        members = draw_members(of_members, cohort_size, num_clients)
        return jnp.where(slots < size, members, num_clients)

    return draw


@register
def by_size(*, replacement: bool = True) -> TracedSampler:
    """Clients are drawn one after another with probabilities p_i = n_i / n, n the sum of all n_i.

    With replacement all M draws are independent, as in FedAvg's second scheme (scheme II of Li et
    al., https://arxiv.org/abs/1907.02189). The uniform mean of what the drawn clients send is then
    an unbiased estimate of the mean over all clients with the weights p_i, so give algorithms
    `weighting=uniform`: other weights would count n_i twice. Clients with state do not support it,
    because a client may be in a cohort twice.

    Without replacement, p is renormalised over the clients that are not in the cohort yet. No
    weights of p_i alone make the mean unbiased: large clients come less often than M p_i.

    Args:
      replacement: whether a client may be drawn more than once.
    """

    def of_clients(counts, labels):
        if replacement:
            return traced_sampler(_draw_tickets, _ends(counts))
        return traced_sampler(_draw_without_replacement, np.log(counts, dtype=np.float32))

    return needs_clients("by_size", of_clients)


def _ends(counts):
    """Returns where the examples of each client end, one after another; int32[num_clients]."""
    ends = np.cumsum(counts, dtype=np.int64)
    check_int32("the number of examples of all clients", ends[-1], "give fewer")
    return ends.astype(np.int32)


def _draw_tickets(ends, seed, round_number, num_clients, cohort_size):
    """Draws examples uniformly, and returns their clients."""
    key = cohort_key(seed, round_number)
    tickets = jax.random.randint(key, (cohort_size,), 0, ends[-1], jnp.int32)
    return jnp.searchsorted(ends, tickets, side="right").astype(jnp.int32)


def _draw_without_replacement(logs, seed, round_number, num_clients, cohort_size):
    """Returns the clients of the largest log n_i + g_i, with Gumbel noise g_i."""
    key = cohort_key(seed, round_number)
    noise = jax.random.gumbel(key, (num_clients,), jnp.float32, mode="high")
    return jax.lax.top_k(logs + noise, cohort_size)[1].astype(jnp.int32)


@register
def clustered_by_size() -> TracedSampler:
    """One client is drawn from each of M distributions r_k, such that the mean is unbiased.

    Clients in descending order of n_i, equal ones by their ids, are laid side by side, each as long
    as M n_i / n. r_k is the part from k to k + 1. So sum_k r_ki = M n_i / n, and the uniform
    mean is unbiased (`weighting=uniform`), as with `by_size` with replacement, but its variance is
    never larger. A client with n_i > n / M is always in the cohort, and may be there twice.

    Fraboni et al., "Clustered Sampling: Low-Variance and Improved Representativity for Clients
    Selection in Federated Learning", ICML 2021, https://arxiv.org/abs/2105.05883, Algorithm 1.
    """

    def of_clients(counts, labels):
        order = np.argsort(-counts.astype(np.int64), kind="stable").astype(np.int32)
        return traced_sampler(_draw_clustered, order, _ends(counts[order]))

    return needs_clients("clustered_by_size", of_clients)


def _draw_clustered(order, ends, seed, round_number, num_clients, cohort_size):
    """Returns the clients at (k + u_k) n / M in the order, u_k uniform on [0, 1), in integers."""
    slot, total = jnp.arange(cohort_size, dtype=jnp.uint32), ends[-1].astype(jnp.uint32)
    key = cohort_key(seed, round_number)
    within = jax.random.randint(key, (cohort_size,), 0, ends[-1], jnp.int32).astype(jnp.uint32)
    whole, rest = total // cohort_size, total % cohort_size
    # floor((k n + u) / M), where k n may have more than 32 bits
    position = slot * whole + (slot * rest + within) // cohort_size
    return jnp.asarray(order)[jnp.searchsorted(ends, position.astype(jnp.int32), side="right")]


@register
def seen(*, new: Count) -> TracedSampler:
    """All cohorts of the clients that are not new are equally likely; new clients never train.

    The seed chooses the new clients. Evaluate clients' own models at the end, after some steps of
    their own (`evaluate_clients="held_out"`, `personal_steps`): a new client starts from the global
    model and from the initial row. In `clients.csv` its participations are 0.

    Args:
      new: the number of new clients, at least 1.

    Raises:
      ValueError: when the result is called, if fewer clients than the cohort's are left.
    """

    def draw(seed, round_number, num_clients, cohort_size):
        left = num_clients - new
        found = f"seen: new={new} leaves {left} of {num_clients} clients for a cohort of"
        require(cohort_size <= left, f"{found} {cohort_size}; give a smaller number")
        members = draw_members(cohort_key(seed, round_number), cohort_size, left)
        return permute(permutation_words(cohort_key(seed, ONCE)), members, num_clients)

    return traced_sampler(draw)
