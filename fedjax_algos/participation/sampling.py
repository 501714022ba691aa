"""Samplers, which draw cohorts from (seed, round) alone, and failures, which lose dispatches.

A failure depends on the seed, the client and the number of the dispatch, and on nothing else that
differs between methods. So the same clients fail in all compared methods.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import describe_tree
from fedjax_algos.core import randomness
from fedjax_algos.core.options import Count, Decay, NonNegative, Positive, Proportion
from fedjax_algos.core.registry import Registry
from fedjax_algos.core.types import Array, Key
from fedjax_algos.data.partitioning.base import log_dirichlet


class Sampler(Protocol):
    """Draws the cohorts of rounds; a cohort depends on (seed, round) alone."""

    def __call__(
        self, seed: int, rounds: np.ndarray, num_clients: int, cohort_size: int, /
    ) -> np.ndarray:
        """Returns client ids, int32[rounds, cohort_size].

        If the function has `may_leave_empty = True`, the id `num_clients` marks an empty slot. If
        it has a function `of_clients(counts, labels)`, the sampler that this returns is called
        instead. `counts` is int32[num_clients], n_i; `labels()` is bool[num_clients, classes], the
        labels that each client holds. The command line takes `slots` as the default cohort size,
        and prints the line `note(num_clients, cohort_size)`. Noise for differential privacy needs
        its `design`, a `Design`.

        Args:
          seed: the seed of the cohorts.
          rounds: int32[rounds], consecutive round numbers from 0.
          num_clients: N, the number of clients.
          cohort_size: M, the number of clients in a cohort.
        """


samplers = Registry[Sampler]("sampler", Callable)


class Design(NamedTuple):
    """Describes how cohorts are drawn, for differential privacy: the `design` of a sampler.

    Attributes:
      kind: "fixed" is M different clients, all sets equally likely. "poisson" is each client with
        probability M / N, at most as many as there are slots. "groups" is clients that take part
        only in the rounds r, r + G, r + 2 G, ... for their own r, where G is `num_groups`.
        "buffers" is server steps of the virtual clock with equally many updates. "messages" is for
        noise that each client adds, and "examples" for noise on its gradients, with any sampler.
      mean: M, the expected number of clients; None is the cohort size.
      num_groups: see above.
    """

    kind: Literal["fixed", "poisson", "groups", "buffers", "messages", "examples"]
    mean: float | None = None
    num_groups: int = 1


def expected_size(sampler: Any, cohort_size: int) -> float:
    """Returns M, the expected number of clients in a cohort of `cohort_size` slots."""
    design = sampler if isinstance(sampler, Design) else getattr(sampler, "design", None)
    return cohort_size if design is None or design.mean is None else design.mean


_BLOCK = np.arange(16, dtype=np.int32)  # rounds drawn in one call: one shape, compiled once
# Tags of the streams of NumPy's generators. To NumPy [seed, tag] and [seed, tag, 0] are the same
# seed, so draws that are made once have their own tags, and no tag is 0.
_GROUPS, _MEMBERS, _SHARES, _CHOICE, _REPLACED = range(1, 6)


def cohort_count(cohort: float, num_clients: int) -> int:
    """Returns M, the cohort size: max(floor(C N), 1) for a fraction C, or M itself.

    Args:
      cohort: C if it is below 1, and M otherwise; 1 is one client.
      num_clients: N, the number of clients.

    Raises:
      ValueError: unless `cohort` is a fraction between 0 and 1 or a whole number from 1 to N; for
        the float 1.0, which may be meant as one client or as all.
    """
    if 0 < cohort < 1:
        return max(int(cohort * num_clients + 1e-9), 1)  # .29 * 100 is 28.999999999999996
    unclear = isinstance(cohort, float) and cohort == 1 < num_clients
    fits = 1 <= cohort <= num_clients and cohort == int(cohort) and not unclear
    problem = "may mean one client or all" if unclear else "is out of range"
    fix = f"give a whole number from 1 to {num_clients}, or a fraction of clients between 0 and 1"
    require(fits, f"cohort={cohort} {problem}; {fix}")
    return int(cohort)


def draw_members(key: Key, cohort_size: int, size: int | jax.Array) -> jax.Array:
    """Draws different numbers below `size`, all sets equally likely; int32[cohort_size], traced."""
    entries = jnp.arange(cohort_size, dtype=jnp.int32)
    return randomness.permute(randomness.permutation_words(key), entries, size)


def draw_uniform(seed: Any, round_number: Any, num_clients: int, cohort_size: int) -> jax.Array:
    """Draws the cohort of a round, traced; see `uniform_cohorts`."""
    return draw_members(randomness.cohort_key(seed, round_number), cohort_size, num_clients)


@jax.jit(static_argnums=(3, 4))
def _draw(draw, seed, rounds, num_clients, cohort_size):
    return jax.lax.map(lambda number: draw(seed, number, num_clients, cohort_size), rounds)


def idle_device() -> jax.Device | None:
    """Returns the last CPU device, so that draws do not wait for work on the others, if any."""
    try:
        return jax.local_devices(backend="cpu")[-1]
    except RuntimeError:  # JAX_PLATFORMS excludes the CPU
        return None


def on_host(draw: Partial) -> Sampler:
    """Makes a sampler from a traced one, which is compiled and draws 16 rounds in one call.

    It has the attributes of the traced one. The last blocks of 16 rounds are cached.
    """

    @functools.lru_cache(maxsize=16)
    def block(seed, number, *sizes):
        rounds = np.int32(number * len(_BLOCK)) + _BLOCK
        return np.array(_draw(draw, np.uint32(seed), rounds, *sizes))  # no device's memory

    def sampler(seed, rounds, num_clients, cohort_size):
        start, size = int(rounds[0]), len(_BLOCK)
        numbers = range(start // size, (start + len(rounds) - 1) // size + 1)
        with jax.default_device(idle_device()):
            blocks = [block(seed, number, num_clients, cohort_size) for number in numbers]
        return np.concatenate(blocks)[start % size :][: len(rounds)]

    vars(sampler).update(vars(draw))
    if bind := getattr(draw, "of_clients", None):
        sampler.of_clients = lambda *known: on_host(bind(*known))  # type: ignore[attr-defined]
    return sampler


def of_clients(sampler: Any, counts: np.ndarray, labels: Callable[[], np.ndarray] | None) -> Any:
    """Gives a sampler, also a traced one, the clients' counts and labels if it needs them.

    Args:
      sampler: a sampler with a function `of_clients` is replaced by what that returns.
      counts: int32[num_clients], n_i, the number of examples of each client.
      labels: returns the labels of each client, bool[num_clients, classes]; None if unknown.
    """
    bind = getattr(sampler, "of_clients", None)
    return sampler if bind is None else bind(counts, labels or _no_labels)


def _no_labels():
    fix = "give labels=lambda: fa.data.held_labels(data)"
    raise ValueError(f"the sampler needs the labels that each client holds; {fix}")


draw_uniform.design = Design("fixed")  # type: ignore[attr-defined]
_uniform_on_host = on_host(Partial(draw_uniform))


def uniform_cohorts(
    seed: int, rounds: np.ndarray, num_clients: int, cohort_size: int
) -> np.ndarray:
    """The default sampler: all cohorts are equally likely, without replacement.

    The cost depends on the cohort and not on the number of clients.

    Args:
      seed, rounds, num_clients, cohort_size: as for a `Sampler`; the result is int32[rounds,
        cohort_size], client ids.
    """
    return _uniform_on_host(seed, rounds, num_clients, cohort_size)


uniform_cohorts.design = Design("fixed")  # type: ignore[attr-defined]


def _by_round(tag: int, draw: Callable, **attributes: Any) -> Sampler:
    """Makes a sampler of `draw(generator, round, seed, num_clients, cohort_size)`."""

    def sampler(seed, rounds, *sizes):
        draws = ((np.random.default_rng([seed, tag, t]), t) for t in map(int, rounds))
        return np.array([draw(*each, seed, *sizes) for each in draws], np.int32)

    vars(sampler).update(attributes)
    return sampler


@samplers.register
def uniform() -> Sampler:
    """All cohorts are equally likely, without replacement; see `participation.uniform`."""
    return uniform_cohorts


def check_groups(num_groups: int, num_clients: int, cohort_size: int) -> None:
    """Raises ValueError for a cohort that is larger than the smallest group."""
    size, most = num_clients // num_groups, num_clients // cohort_size
    found = f"cohort_size={cohort_size} is more than the {size} clients of the smallest group"
    fix = f"give num_groups of at most {most}, not {num_groups}, or a smaller cohort"
    require(cohort_size <= size, f"{found}; {fix}")


@samplers.register
def cyclic(*, num_groups: Count) -> Sampler:
    """Round t, from 0, draws its cohort from group t mod `num_groups` of the clients.

    A random permutation of the clients is cut into groups whose sizes differ by at most one, and
    cohorts are drawn from a group without replacement. If cohorts are as large as the groups, every
    client participates once in `num_groups` rounds, as in the papers on heavy-ball momentum.

    Args:
      num_groups: the period in rounds, at least 1.

    Raises:
      ValueError: when the result is called, for a cohort larger than the smallest group.
    """

    @functools.lru_cache(maxsize=1)
    def groups(seed, num_clients):
        order = np.random.default_rng([seed, _GROUPS]).permutation(num_clients)
        return np.array_split(order, num_groups)

    def members(rng, number, seed, num_clients, cohort_size):
        check_groups(num_groups, num_clients, cohort_size)
        group = groups(seed, num_clients)[number % num_groups]
        return rng.choice(group, cohort_size, replace=False)

    return _by_round(_MEMBERS, members, design=Design("groups", num_groups=num_groups))


@functools.lru_cache(maxsize=1)
def log_shares(seed: int, num_clients: int, gamma: float) -> np.ndarray:
    """Draws log p of the sampler `dirichlet`, float[num_clients]."""
    return log_dirichlet(np.random.default_rng([seed, _SHARES]), np.full(num_clients, gamma))


@samplers.register
def dirichlet(*, gamma: Positive = 1.0) -> Sampler:
    """Some clients are more likely than others: p ~ Dir(gamma 1_N), drawn once for all rounds.

    A cohort is drawn without replacement, one client after another, by p renormalised over the
    clients that are not in it yet. Its clients have the M largest values of log p_i + g_i, where
    g_i has a standard Gumbel distribution.

    Args:
      gamma: concentration, above 0; a small one draws the same few clients in nearly all rounds.
    """

    def members(rng, number, seed, num_clients, cohort_size):
        keys = -log_shares(seed, num_clients, gamma) - rng.gumbel(size=num_clients)
        chosen = np.argpartition(keys, cohort_size - 1)[:cohort_size]
        return chosen[np.argsort(keys[chosen])]

    return _by_round(_CHOICE, members)


@samplers.register
def with_replacement() -> Sampler:
    """Each member of a cohort is drawn uniformly from the N clients, independently of the others.

    Algorithms whose clients have state do not support it.
    """
    return _by_round(_REPLACED, lambda rng, t, seed, n, size: rng.integers(n, size=size))


class Failures(Protocol):
    """Decides which clients of a cohort fail, by (seed, client, number) alone.

    If the function has `reads_round = True`, it is called with two more arguments: the number of
    the round, int32[], and the local steps, int32[cohort_size]. These are also the same in all
    methods.
    """

    def __call__(self, seed: Array, clients: Array, numbers: Array, /) -> Array:
        """Returns which of the dispatches fail, bool[cohort_size].

        Args:
          seed: uint32[], the seed of the run.
          clients: int32[cohort_size], client ids; may be traced, as the others.
          numbers: int32[cohort_size], numbers of the dispatches of each client, from 0.
        """


failures = Registry[Failures]("failure", Callable)


@failures.register
def independent(*, probability: Decay) -> Failures:
    """Each dispatch fails with the same probability, independently of all others.

    Args:
      probability: the chance that a dispatch fails, at least 0 and below 1.
    """

    return lambda seed, clients, n: _drawn(jax.random.uniform, seed, clients, n) < probability


@failures.register
def by_client(*, median: Proportion, spread: NonNegative = 1.0) -> Failures:
    """Client i fails with its own probability p_i, drawn once: logit p_i ~ N(logit m, s^2).

    Given the p_i, dispatches fail independently of each other.

    Args:
      median: m, the median of the p_i over the clients, above 0 and below 1.
      spread: s, at least 0. With 0 it is `independent`; with 1 two thirds of the clients have odds
        between 0.37 and 2.7 times the median's; with a large one some clients always fail and the
        others never do.
    """
    center = np.float32(np.log(median) - np.log1p(-median))

    def fails(seed, clients, numbers):
        once = jnp.full(jnp.shape(clients), randomness.ONCE)  # for all dispatches of a client
        odds = center + np.float32(spread) * _drawn(jax.random.normal, seed, clients, once)
        return _drawn(jax.random.uniform, seed, clients, numbers) < jax.nn.sigmoid(odds)

    return fails


@jax.jit(static_argnames="draw")
def _drawn(draw, seed, clients, numbers):
    """Draws float32[cohort_size], whatever the default precision is."""
    keys = jax.vmap(randomness.failure_key, (None, 0, 0))(seed, clients, numbers)
    return jax.vmap(lambda key: draw(key, (), jnp.float32))(keys)


def draw_failures(
    failures: Any, seed: Array, clients: Array, numbers: Array, *of_round: Array
) -> Array:
    """Draws and checks which dispatches of a cohort fail; `of_round` is for `reads_round`."""
    reads_round = getattr(failures, "reads_round", False)
    fails = failures(seed, clients, numbers, *(of_round if reads_round else ()))
    shape = jnp.shape(clients)
    fix = f"give a function that returns which dispatches fail, here bool{[*shape]}"
    fits = getattr(fails, "shape", None) == shape and fails.dtype == bool
    require(fits, f"the failures are {describe_tree(fails)}; {fix}")
    return fails
