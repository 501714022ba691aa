"""Draws dispatches on the device, so that a whole simulation is one traced function."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_algos.core import Dispatch, EqualSteps, Local
from fedjax_algos.core.checks import check_callable, check_clients, check_local, check_whole
from fedjax_algos.core.options import Count, Positive
from fedjax_algos.core.randomness import ONCE, cohort_key, permutation_words, permute
from fedjax_algos.core.registry import Registry
from fedjax_algos.core.types import Array, ReverseMode
from fedjax_algos.participation import cohorts, sampling

P = ParamSpec("P")


class TracedSampler(Protocol):
    """Draws the cohort of a round on the device; it depends on (seed, round) alone."""

    def __call__(
        self, seed: Array, round_number: Array, num_clients: int, cohort_size: int, /
    ) -> jax.Array:
        """Returns client ids, int32[cohort_size]; empty slots are marked as in `Sampler`.

        The seed is uint32[], the round int32[], from 0, and the sizes are ints.
        """


class TracedWork(Protocol):
    """Decides on the device how much of its complete local update each client finishes."""

    def __call__(self, seed: Array, round_number: Array, full_steps: Array, /) -> jax.Array:
        """Returns numbers of local steps, int32[cohort_size], from 1 to `full_steps`.

        `full_steps` has the steps of complete updates. The seed is uint32[] and the round int32[].
        """


traced_samplers = Registry[TracedSampler]("traced sampler", Callable)


def register(factory: Callable[P, TracedSampler]) -> Callable[P, sampling.Sampler]:
    """Registers a traced sampler of this name, and the sampler that calls it compiled."""
    make = traced_samplers.register(factory)

    @sampling.samplers.register
    @functools.wraps(factory)
    def make_on_host(*args: P.args, **keywords: P.kwargs) -> sampling.Sampler:
        return sampling.on_host(make(*args, **keywords))  # type: ignore[arg-type]

    return make_on_host


def traced_sampler(draw: Callable, *tables: Any, **attributes: Any) -> Any:
    """Makes the traced sampler `draw(*tables, seed, round_number, num_clients, cohort_size)`.

    Equal `draw` and shapes of `tables` share a compiled program. For `attributes` see `Sampler`.
    """
    sampler = Partial(draw, *tables)
    vars(sampler).update(attributes)
    return sampler


def needs_clients(name: str, of_clients: Callable, **attributes: Any) -> Any:
    """Makes a sampler that `of_clients(counts, labels)` replaces before it draws."""

    def draw(seed, round_number, num_clients, cohort_size):
        fix = f"give it to Cohorts, or call {name}(...).of_clients(counts, labels)"
        raise ValueError(f"the sampler {name} does not know the clients; {fix}")

    def of_checked(counts, labels):
        return of_clients(cohorts.checked_counts(counts), labels)

    return traced_sampler(draw, of_clients=of_checked, **attributes)


@traced_samplers.register
def uniform() -> TracedSampler:
    """Draws the cohorts of `participation.uniform`: all are equally likely, without replacement."""
    return sampling.draw_uniform


@traced_samplers.register
def cyclic(*, num_groups: Count) -> TracedSampler:
    """Round t draws from group t mod `num_groups` of the clients; see `participation.cyclic`."""

    def sampler(seed, round_number, num_clients, cohort_size):
        sampling.check_groups(num_groups, num_clients, cohort_size)
        smallest, larger = divmod(num_clients, num_groups)
        group = jnp.asarray(round_number) % num_groups
        # the first `larger` groups have one client more, as in np.array_split
        first = group * smallest + jnp.minimum(group, larger)
        size = smallest + (group < larger).astype(jnp.int32)
        members = sampling.draw_members(cohort_key(seed, round_number), cohort_size, size)
        order = permutation_words(cohort_key(seed, ONCE))
        return permute(order, first + members, num_clients)

    sampler.design = sampling.Design("groups", num_groups=num_groups)  # type: ignore[attr-defined]
    return sampler


@traced_samplers.register
def dirichlet(*, gamma: Positive = 1.0) -> TracedSampler:
    """Some clients are more likely than others: p ~ Dir(gamma), as in `participation.dirichlet`."""

    def sampler(seed, round_number, num_clients, cohort_size):
        # Gumbel-top-k needs the logarithms up to a constant, so nothing is normalised
        shares = jax.random.loggamma(cohort_key(seed, ONCE), gamma, (num_clients,))
        noise = jax.random.gumbel(cohort_key(seed, round_number), (num_clients,))
        return jax.lax.top_k(shares + noise, cohort_size)[1].astype(jnp.int32)

    return sampler


@traced_samplers.register
def with_replacement() -> TracedSampler:
    """Each member of a cohort is uniform over the N clients, as in `with_replacement`."""

    def sampler(seed, round_number, num_clients, cohort_size):
        key = cohort_key(seed, round_number)
        return jax.random.randint(key, (cohort_size,), 0, num_clients, jnp.int32)

    return sampler


def traced_dispatches(
    seed: Array | int,
    counts: np.ndarray,
    local: Local,
    *,
    cohort_size: int,
    rounds: int,
    sampler: TracedSampler | None = None,
    work: TracedWork | None = None,
    failures: sampling.Failures | None = None,
    labels: Callable[[], np.ndarray] | None = None,
) -> Dispatch:
    """Draws the dispatches of a whole simulation on the device.

    They equal the dispatches of `Cohorts` with the same seed and sampler, except that `cyclic`,
    `dirichlet` and `with_replacement` draw other cohorts with the same distributions.

    Args:
      seed: uint32[], may be traced: the seed of the cohorts and of `work`.
      counts: int[num_clients], n_i, on the host, such as `data.counts()`.
      local: how clients train. A learning rate that is a number may be traced.
      cohort_size: M, at most the number of clients.
      rounds: number of rounds, at least 1.
      sampler: one of `traced_samplers`; None draws uniformly without replacement.
      work: decides how much of its local update each client finishes; None for all.
      failures: decides which clients fail to answer, as in `Cohorts`; None for none.
      labels: as in `Cohorts`, for samplers that need them.

    Returns:
      Leaves [rounds, cohort_size], in the dtypes of `Cohorts.dispatches`. Without `work`, and if a
      complete local update has the same number of steps for all clients, `num_steps` is
      `core.EqualSteps`, so that the loops of a pure round have a fixed length.

    Raises:
      ValueError: for numbers out of range, counts that are not whole numbers of at least 1, and
        cohorts of another shape or type, or of clients that do not exist. The values of traced
        cohorts are not known. There, a client that does not exist becomes the first or the last
        client with the rate NaN, so that its update is not finite.
    """
    check_whole("rounds", rounds)
    sampler = uniform() if sampler is None else sampler
    counts = cohorts.checked_counts(counts)
    complete, num_clients = cohorts.full_steps(counts, local), len(counts)
    cohorts.check_draws(seed, cohort_size, num_clients, failures, sampler)
    if work is not None:
        check_callable("work", work, "give a TracedWork", "seed", "round_number", "full_steps")
    sampler = sampling.of_clients(sampler, counts, labels)
    may_be_empty = cohorts.may_leave_empty(sampler)
    seed, numbers = jnp.asarray(seed).astype(jnp.uint32), np.arange(rounds, dtype=np.int32)

    def draw(carry, round_number):
        dispatched, steps_done = carry
        given = jnp.asarray(sampler(seed, round_number, num_clients, cohort_size))
        cohorts.check_integers("the cohort is", given, "client ids", (cohort_size,))
        client = given.clip(0, num_clients - 1)
        filled = given != num_clients if may_be_empty else jnp.ones(cohort_size, bool)
        full = _lookup(complete, client)
        num_steps = full if work is None else jnp.asarray(work(seed, round_number, full))
        cohorts.check_integers("the local work is", num_steps, "local steps", (cohort_size,))
        num_steps = num_steps.astype(jnp.int32) * filled
        # entries of the same client earlier in the cohort, if it is drawn with replacement
        earlier = (jnp.tril(client[:, None] == client[None], -1) & filled[None]).astype(jnp.int32)
        number = (dispatched[client] + earlier.sum(1, dtype=jnp.int32)) * filled
        first_step = (steps_done[client] + earlier @ num_steps) * filled
        carry = dispatched.at[client].add(filled), steps_done.at[client].add(num_steps)
        arrives: Any = filled if may_be_empty else ()
        if failures is not None:
            fails = sampling.draw_failures(failures, seed, client, number, round_number, num_steps)
            arrives = filled & ~fails
        return carry, (given, client, number, num_steps, full, first_step, arrives)

    zeros = jnp.zeros(num_clients, jnp.int32)
    _, drawn = jax.lax.scan(draw, (zeros, zeros), numbers)
    given, client, number, num_steps, full, first_step, arrives = drawn
    common = cohorts.common_steps(local, counts)
    if work is None and not may_be_empty and common is not None:
        num_steps = EqualSteps(common)
    if not isinstance(given, jax.core.Tracer):
        check_clients(np.asarray(given), num_clients, may_be_empty=may_be_empty)
    exists = (given >= 0) & (given < num_clients + may_be_empty)
    rates = jnp.where(exists, _rates(local, numbers, number, full, cohort_size), jnp.nan)
    step = jnp.broadcast_to(numbers[:, None], client.shape)
    float_type = jnp.result_type(float)
    shares = (counts / counts.sum(dtype=np.int64)).astype(float_type)

    def where_filled(values, otherwise):
        return jnp.where(given != num_clients, values, otherwise) if may_be_empty else values

    return Dispatch(
        client=where_filled(client, num_clients),
        number=number,
        server_step=step,
        num_steps=num_steps,
        full_steps=where_filled(full, 1),
        num_examples=where_filled(_lookup(counts, client), 0),
        share=where_filled(_lookup(shares, client), 0),
        learning_rate=rates.astype(float_type),
        first_step=first_step,
        arrives=arrives,
    )


def _lookup(values, client):
    """Returns `values[client]`; equal values stay independent of traced ids, which is faster."""
    if (values == values[0]).all():
        return jnp.full(client.shape, values[0])
    return jnp.asarray(values)[client]


def _rates(local, numbers, number, full, cohort_size):
    """Returns the learning rates of the dispatches, float[rounds, cohort_size]."""
    rate, shape = local.learning_rate, (len(numbers), cohort_size)
    if not callable(rate):
        return jnp.broadcast_to(jnp.asarray(rate), shape)
    if local.rate_by == "step":
        counts = cohorts.rate_counts(local, number, numbers[:, None], full)
        return jnp.broadcast_to(rate(counts), shape)
    # a learning rate schedule is called on the host, for all counts that can occur
    by_dispatch = local.rate_by == "dispatch"
    counts = np.arange(len(numbers) * cohort_size, dtype=np.int32) if by_dispatch else numbers
    rates = jnp.broadcast_to(jnp.asarray(cohorts.rate_at(rate, counts)), counts.shape)
    return rates[number] if by_dispatch else jnp.broadcast_to(rates[:, None], shape)


def differentiable(
    local: Local, counts: np.ndarray, policy: Callable[..., bool] | None = None
) -> Local:
    """Returns local work whose loops have static bounds, for reverse-mode differentiation.

    Algorithms compute the same; a dispatch has at most the steps of a complete local update.

    Args:
      local: how clients train.
      counts: int[num_clients], n_i, on the host, such as `data.counts()`.
      policy: selects what a local step keeps for the reverse pass; see `ReverseMode`.

    Raises:
      TypeError: for a policy that is not a function.
      ValueError: for local work or counts that `Cohorts` refuses.
    """
    counts = cohorts.checked_counts(counts)
    most = int(cohorts.full_steps(counts, local).max())
    bounded = local._replace(reverse=ReverseMode(most, int(counts.max()), policy))
    check_local(bounded)
    return bounded
