"""What a sampler of cohorts is, and the default one."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core.keys import cohort_key
from fedjax_algos.core.limits import check_int32
from fedjax_algos.core.permutation import permutation_words, permute
from fedjax_algos.core.representation import describe_tree

_BLOCK = np.arange(16, dtype=np.int32)  # rounds drawn in one call: one shape, compiled once


def checked_counts(counts: Any) -> np.ndarray:
    """The numbers of the clients' examples, int32[num_clients].

    Args:
      counts: int[num_clients], at least 1 each; also as floats.

    Raises:
      ValueError: for another shape or type, and numbers that are below 1 or too large.
    """
    counts = np.asarray(counts)
    fix = "give the number of examples of each client, such as data.counts()"
    if counts.ndim != 1 or not counts.size or counts.dtype.kind not in "iuf":
        raise ValueError(f"counts are {describe_tree(counts)}; {fix}")
    whole = (counts >= 1) & (counts == np.floor(counts))
    if not whole.all():
        client = int(whole.argmin())
        raise ValueError(
            f"counts have {counts[client]} of client {client}; {fix}, whole numbers of at least 1"
        )
    check_int32("the number of examples of a client", counts.max(), fix)
    return counts.astype(np.int32)


class Sampler(Protocol):
    """Draws the cohorts of rounds; a cohort depends on (seed, round) alone."""

    def __call__(
        self, seed: int, rounds: np.ndarray, num_clients: int, cohort_size: int, /
    ) -> np.ndarray:
        """Returns client ids, int32[rounds, cohort_size].

        Args:
          seed: of the cohorts.
          rounds: int32[rounds], consecutive round numbers from 0.
          num_clients: N, the number of clients.
          cohort_size: M, the number of clients in a cohort.
        """


@jax.jit(static_argnames=("num_clients", "cohort_size"))
def _draw(seed, rounds, num_clients, cohort_size):
    def cohort(round_number):
        entries = jnp.arange(cohort_size, dtype=jnp.int32)
        words = permutation_words(cohort_key(seed, round_number))
        return permute(words, entries, num_clients)

    return jax.vmap(cohort)(rounds)


def _idle_device() -> jax.Device | None:
    """The last CPU device, on which a draw does not wait for the computations of the others.

    A single CPU device runs everything, so there a draw does wait.
    """
    try:
        return jax.local_devices(backend="cpu")[-1]
    except RuntimeError:  # JAX_PLATFORMS excludes the CPU
        return None


def uniform(seed: int, rounds: np.ndarray, num_clients: int, cohort_size: int) -> np.ndarray:
    """The default sampler: draws cohorts without replacement, from (seed, round) alone.

    The cost depends on the cohort and not on the number of clients.

    Args:
      seed: of the cohorts.
      rounds: int[rounds], consecutive round numbers from 0.
      num_clients: N, the number of clients.
      cohort_size: M, the number of clients in a cohort.

    Returns:
      int32[rounds, cohort_size]: client ids.
    """
    with jax.default_device(_idle_device()):
        blocks = [
            _draw(np.uint32(seed), np.int32(rounds[first]) + _BLOCK, num_clients, cohort_size)
            for first in range(0, len(rounds), len(_BLOCK))
        ]
    return np.concatenate(blocks)[: len(rounds)]
