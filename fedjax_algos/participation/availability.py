"""Draws uniform cohorts of the available clients, with empty slots if too few are available.

All draws take time and memory in proportion to the number of clients.
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.core.options import Decay, PositiveShare
from fedjax_algos.core.randomness import ONCE, cohort_key
from fedjax_algos.core.types import Array, Key
from fedjax_algos.participation.traced import TracedSampler, needs_clients, register, traced_sampler

Mode = Literal[
    "homogeneous", "more_data", "less_data", "label_max", "label_few", "label_cycle",
    "lognormal", "day",
]  # fmt: skip
_PERIOD = 24  # rounds of a day
_LAST_ROUND = 2**31  # above all numbers of rounds


def draw_among(key: Key, available: Array, cohort_size: int) -> jax.Array:
    """Draws a uniform set of available clients, int32[cohort_size], traced; N marks empty slots."""
    # 29 bits in floats between 1e-19 and 2: `top_k` of integers sorts all of them
    bits = (jax.random.bits(key, available.shape, jnp.uint32) >> 3) + jnp.uint32(2**29)
    order = jnp.where(available, jax.lax.bitcast_convert_type(bits, jnp.float32), -1)
    first, clients = jax.lax.top_k(order, cohort_size)
    return jnp.where(first > 0, clients, len(available)).astype(jnp.int32)


@register
def available(*, mode: Mode, beta: Decay) -> TracedSampler:
    """Client i is available in round t with probability a_i(t), independently of all else.

    The cohort is a uniform set of the available clients, and slots are empty if there are too few.
    The modes follow the code of FLGo (https://github.com/WwZzz/easyFL):

    - "homogeneous": 1 - beta.
    - "more_data": n_i^beta, divided by the largest; "less_data": n_i^-beta, divided by the largest.
    - "label_max": beta y / (C - 1) + 1 - beta, where y is the client's smallest label, of C.
    - "label_few": beta c / C + 1 - beta, where c is the number of labels that the client holds.
    - "lognormal": T_i / max T with T_i = exp(sigma g_i), g_i ~ N(0, 1) drawn once and
      sigma = -ln(1 - beta).
    - "day": a_i(t) of "lognormal" times .4 sin(2 pi (t mod 24) / 23) + .5.
    - "label_cycle": 1 if (1 + t mod 24) / 24 is between the client's smallest and largest label,
      both divided by C - 1, and 1 - beta if not.

    FLGo counts the labels of the test examples; here C - 1 is the largest label of any client.
    "label_max" is from https://arxiv.org/abs/2106.04159, and "lognormal" and "day" are from
    https://arxiv.org/abs/2205.06730. All except "homogeneous" favour some clients, and means are
    not reweighted for this.

    Args:
      mode: one of the modes above.
      beta: at least 0 and below 1; 0 makes all clients always available, except in "day".
    """

    def of_clients(counts, labels):
        shares = _shares(mode, beta, counts, labels).astype(np.float32)
        sigma = np.float32(-np.log1p(-beta) if mode in ("lognormal", "day") else 0)
        return traced_sampler(_draw_available, shares, sigma, may_leave_empty=True)

    return needs_clients("available", of_clients, may_leave_empty=True)


def _shares(mode, beta, counts, labels):
    """Returns a_i(t) without the log-normal factor, float[rounds of a period, num_clients or 1]."""
    hours = np.arange(_PERIOD)[:, None]
    if mode == "day":
        return 0.4 * np.sin(2 * np.pi * hours / (_PERIOD - 1)) + 0.5
    if mode in ("homogeneous", "lognormal"):
        return np.array([[1 - beta if mode == "homogeneous" else 1.0]])
    if mode in ("more_data", "less_data"):
        powers = counts.astype(float) ** (beta if mode == "more_data" else -beta)
        return powers[None] / powers.max()
    held = labels()
    classes = held.shape[1]
    first, last = held.argmax(1), classes - 1 - held[:, ::-1].argmax(1)
    most, now = max(classes - 1, 1), (1 + hours) / _PERIOD
    favoured = {
        "label_max": first[None] / most,
        "label_few": held.sum(1)[None] / classes,
        "label_cycle": (first / most <= now) & (now <= last / most),
    }
    return beta * favoured[mode] + 1 - beta


def _draw_available(shares, sigma, seed, round_number, num_clients, cohort_size):
    noise = jax.random.normal(cohort_key(seed, ONCE), (num_clients,), jnp.float32)
    factor = jnp.exp(sigma * noise)
    come, members = jax.random.split(cohort_key(seed, round_number))
    uniform = jax.random.uniform(come, (num_clients,), jnp.float32)
    is_here = uniform < jnp.asarray(shares)[round_number % len(shares)] * factor / factor.max()
    return draw_among(members, is_here, cohort_size)


@register
def on_off(*, leave: PositiveShare, join: PositiveShare) -> TracedSampler:
    """Each client is on or off, a Markov chain: it leaves with one rate and joins with another.

    From round to round, a client that is on goes off with probability `leave`, and one that is off
    goes on with probability `join`. In each round, also in round 0, a client is on with the
    stationary probability join / (leave + join). The cohort is a uniform set of the clients that
    are on, and slots are empty if there are too few.

    Each state depends on (seed, round) alone: states are drawn at the first and the last of 2^31
    rounds, then in the middle between them given both, and so on in the half that has the round. So
    a round takes time in proportion to 32 N, whatever the rates are.

    Args:
      leave, join: the rates, above 0; their sum is at most 1. If it is 1, rounds are independent;
        if it is small, clients stay on and off for long.

    Raises:
      ValueError: for rates whose sum is above 1.
    """
    both = leave + join
    require(both <= 1, f"on_off: leave + join = {both:g} is above 1; give smaller rates")
    rate = math.inf if both == 1 else -math.log1p(-both)
    share = np.float32(join / both)
    return traced_sampler(_draw_on_off, np.float32(rate), share, may_leave_empty=True)


def _draw_on_off(rate, share, seed, round_number, num_clients, cohort_size):
    def drawn(number, chance):
        come = jax.random.split(cohort_key(seed, number))[0]
        return jax.random.uniform(come, (num_clients,), jnp.float32) < chance

    def changes(rounds):  # the probabilities that a client has left, and has joined
        mixed = -jnp.expm1(-rate * rounds.astype(jnp.float32))
        return (1 - share) * mixed, share * mixed

    def halve(level, state):
        start, first, last = state
        half = jnp.uint32(_LAST_ROUND // 2) >> level.astype(jnp.uint32)
        leaves, joins = changes(half)
        on = jnp.where(first, 1 - leaves, joins) * jnp.where(last, 1 - leaves, leaves)
        off = jnp.where(first, leaves, 1 - joins) * jnp.where(last, joins, 1 - joins)
        is_on = drawn(start + half, on / (on + off))
        later = jnp.asarray(round_number).astype(jnp.uint32) >= start + half
        ends = jnp.where(later, is_on, first), jnp.where(later, last, is_on)
        return jnp.where(later, start + half, start), *ends

    first = drawn(jnp.uint32(0), share)
    leaves, joins = changes(jnp.uint32(_LAST_ROUND))
    last = drawn(jnp.uint32(_LAST_ROUND), jnp.where(first, 1 - leaves, joins))
    _, is_on, _ = jax.lax.fori_loop(0, 31, halve, (jnp.uint32(0), first, last))
    members = jax.random.split(cohort_key(seed, round_number))[1]
    return draw_among(members, is_on, cohort_size)
