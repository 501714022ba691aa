"""The synchronous schedule: in every round a fresh cohort, and a barrier at its end."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Local, Visit
from fedjax_algos.keys import cohort_key
from fedjax_algos.permutation import permutation_words, permute

Sampler = Callable[[int, np.ndarray, int, int], np.ndarray]

_BLOCK = np.arange(16, dtype=np.int32)  # rounds drawn in one call: one shape, compiled once


@jax.jit(static_argnames=("num_clients", "cohort_size"))
def _draw(seed, rounds, num_clients, cohort_size):
    def cohort(round_number):
        entries = jnp.arange(cohort_size, dtype=jnp.int32)
        words = permutation_words(cohort_key(seed, round_number))
        return permute(words, entries, num_clients)

    return jax.vmap(cohort)(rounds)


def uniform(seed: int, rounds: np.ndarray, num_clients: int, cohort_size: int) -> np.ndarray:
    """The default sampler: each round's cohort without replacement, from (seed, round) alone.

    A cohort of 100 out of a million clients is drawn without touching the million.

    Args:
      seed: of the cohorts.
      rounds: int[rounds], consecutive round numbers.
      num_clients: N.
      cohort_size: M.

    Returns:
      int32[rounds, cohort_size]: client ids.
    """
    blocks = [
        _draw(seed, np.int32(rounds[first]) + _BLOCK, num_clients, cohort_size)
        for first in range(0, len(rounds), len(_BLOCK))
    ]
    return np.concatenate(blocks)[: len(rounds)]


class Synchronous:
    """A cohort for each round, and a barrier at its end.

    `visits(rounds)` gives the next rounds' visits; calls go on where the last one ended.

    Args:
      counts: int[num_clients], n_i.
      local: the work of a turn: `local.steps`, or `local.epochs` of ceil(n_i / batch_size) steps.
      cohort_size: M, at most the number of clients.
      seed: of the cohorts.
      sampler: draws the cohorts, like `uniform`.

    Raises:
      ValueError: for a cohort larger than the population, or work that is not exactly one of steps
        and epochs.
    """

    def __init__(
        self,
        counts: np.ndarray,
        local: Local,
        *,
        cohort_size: int,
        seed: int,
        sampler: Sampler = uniform,
    ):
        if not 1 <= cohort_size <= len(counts):
            raise ValueError(
                f"cohort_size={cohort_size} is out of range; give 1 to {len(counts)}, "
                "the number of clients"
            )
        self.counts = np.asarray(counts, np.int32)
        self.shares = self.counts / self.counts.sum(dtype=np.int64)
        self.steps = full_steps(self.counts, local)
        self.learning_rate = local.learning_rate
        self.cohort_size = cohort_size
        self.seed = seed
        self.sampler = sampler
        self.dispatched = np.zeros(len(counts), np.int32)
        self.next_round = 0

    def visits(self, rounds: int) -> Visit:
        """The visits of the next `rounds` rounds: NumPy arrays [rounds, cohort_size]."""
        numbers = np.arange(self.next_round, self.next_round + rounds, dtype=np.int32)
        self.next_round += rounds
        clients = self.sampler(self.seed, numbers, len(self.counts), self.cohort_size)
        visit = np.empty(clients.shape, np.int32)
        for row, cohort in zip(visit, clients, strict=True):
            row[:] = self.dispatched[cohort]
            self.dispatched[cohort] += 1
        real = jnp.result_type(float)
        return Visit(
            client=clients,
            visit=visit,
            server_step=np.broadcast_to(numbers[:, None], clients.shape),
            num_steps=self.steps[clients],
            full_steps=self.steps[clients],
            num_examples=self.counts[clients],
            share=self.shares[clients].astype(real),
            learning_rate=np.full(clients.shape, self.learning_rate, real),
        )


def full_steps(counts: np.ndarray, local: Local) -> np.ndarray:
    """int32[num_clients]: the local steps of a complete turn of each client.

    Raises:
      ValueError: if `local` does not give exactly one of steps and epochs, or not at least 1.
    """
    amount = local.steps if local.epochs is None else local.epochs
    if amount is None or None not in (local.steps, local.epochs):
        raise ValueError(
            f"local work is steps={local.steps} and epochs={local.epochs}; give exactly one of them"
        )
    if amount < 1 or amount != int(amount):
        raise ValueError(
            f"local work of {amount} is out of range; give a whole number of at least 1"
        )
    an_epoch = 1 if local.epochs is None else -(-np.asarray(counts) // local.batch_size)
    return np.broadcast_to(np.asarray(amount * an_epoch, np.int32), np.shape(counts)).copy()
