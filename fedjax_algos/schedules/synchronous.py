"""The synchronous schedule: in every round a fresh cohort, and a barrier at its end."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Local, Visit, batches_per_epoch
from fedjax_algos.core.keys import cohort_key
from fedjax_algos.core.permutation import permutation_words, permute

Sampler = Callable[[int, np.ndarray, int, int], np.ndarray]
Work = Callable[[int, np.ndarray, np.ndarray, np.ndarray, Local], np.ndarray]

_BLOCK = np.arange(16, dtype=np.int32)  # rounds drawn in one call: one shape, compiled once


@jax.jit(static_argnames=("num_clients", "cohort_size"))
def _draw(seed, rounds, num_clients, cohort_size):
    def cohort(round_number):
        entries = jnp.arange(cohort_size, dtype=jnp.int32)
        words = permutation_words(cohort_key(seed, round_number))
        return permute(words, entries, num_clients)

    return jax.vmap(cohort)(rounds)


def _idle_device() -> jax.Device | None:
    """The CPU's last device, where a draw need not wait for what others compute, if there is one.

    With one CPU device, on which everything runs, it does.
    """
    try:
        return jax.local_devices(backend="cpu")[-1]
    except RuntimeError:  # jax was told to leave the CPU out
        return None


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
    with jax.default_device(_idle_device()):
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
      sampler: draws the cohorts, like `uniform`; see `samplers`.
      work: `(seed, rounds, clients, full_steps, local) -> num_steps`, int32[rounds, cohort_size]
        all three arrays: who finishes how much of a complete turn; see `works`. None: all of it.

    Raises:
      ValueError: for a cohort larger than the population, work that is not exactly one of steps
        and epochs, or a client with too few examples for batches="dropped".
    """

    def __init__(
        self,
        counts: np.ndarray,
        local: Local,
        *,
        cohort_size: int,
        seed: int,
        sampler: Sampler = uniform,
        work: Work | None = None,
    ):
        if not 1 <= cohort_size <= len(counts):
            raise ValueError(
                f"cohort_size={cohort_size} is out of range; give 1 to {len(counts)}, "
                "the number of clients"
            )
        self.counts = np.asarray(counts, np.int32)
        self.shares = self.counts / self.counts.sum(dtype=np.int64)
        self.steps = full_steps(self.counts, local)
        self.local = local
        self.work = work
        self.cohort_size = cohort_size
        self.seed = seed
        self.sampler = sampler
        self.dispatched = np.zeros(len(counts), np.int32)
        self.steps_done = np.zeros(len(counts), np.int32)
        self.next_round = 0

    def visits(self, rounds: int) -> Visit:
        """The visits of the next `rounds` rounds: NumPy arrays [rounds, cohort_size]."""
        numbers = np.arange(self.next_round, self.next_round + rounds, dtype=np.int32)
        self.next_round += rounds
        clients = self.sampler(self.seed, numbers, len(self.counts), self.cohort_size)
        full = self.steps[clients]
        num_steps = full
        if self.work is not None:
            num_steps = self.work(self.seed, numbers, clients, full, self.local).astype(np.int32)
        visit, first_step = np.empty_like(clients), np.empty_like(clients)
        for index, cohort in enumerate(clients):
            visit[index] = self.dispatched[cohort] + earlier_amounts(cohort, np.ones_like(cohort))
            first_step[index] = self.steps_done[cohort] + earlier_amounts(cohort, num_steps[index])
            np.add.at(self.dispatched, cohort, 1)
            np.add.at(self.steps_done, cohort, num_steps[index])
        step = np.broadcast_to(numbers[:, None], clients.shape)
        real = jnp.result_type(float)
        asked = visit if self.local.rate_by == "visit" else step
        return Visit(
            client=clients,
            visit=visit,
            server_step=step,
            num_steps=num_steps,
            full_steps=full,
            num_examples=self.counts[clients],
            share=self.shares[clients].astype(real),
            learning_rate=np.asarray(rate_at(self.local.learning_rate, asked), real),
            first_step=first_step,
        )


def earlier_amounts(cohort: np.ndarray, amounts: np.ndarray) -> np.ndarray:
    """The sum of the amounts of the same client earlier in the cohort: 0 where all are distinct."""
    order = np.argsort(cohort, kind="stable")
    ordered, before = cohort[order], np.cumsum(amounts[order]) - amounts[order]
    result = np.empty_like(cohort)
    result[order] = before - before[np.searchsorted(ordered, ordered)]
    return result


def rate_at(learning_rate: Any, counts: np.ndarray) -> np.ndarray:
    """The client rate at these counts (of rounds or visits), an array of their shape.

    Raises:
      ValueError: for a rate that is not positive and finite.
    """
    chosen = learning_rate(counts) if callable(learning_rate) else learning_rate
    rates = np.broadcast_to(np.asarray(chosen, float), np.shape(counts))
    good = np.isfinite(rates) & (rates > 0)
    if not good.all():
        where = np.asarray(counts)[~good][0]
        raise ValueError(
            f"the client learning rate is {rates[~good][0]} at count {where}; give a rate that "
            "stays above 0"
        )
    return rates


def full_steps(counts: np.ndarray, local: Local) -> np.ndarray:
    """int32[num_clients]: the local steps of a complete turn of each client.

    Raises:
      ValueError: if `local` does not give exactly one of steps and epochs, or not at least 1 step,
        or if a client has no whole batch where batches="dropped".
    """
    counts = np.asarray(counts)
    if (local.steps is None) == (local.epochs is None):
        raise ValueError(
            f"local work is steps={local.steps} and epochs={local.epochs}; give exactly one of them"
        )
    if local.batches == "dropped" and counts.min() < local.batch_size:
        raise ValueError(
            f"client {counts.argmin()} holds {counts.min()} examples, fewer than "
            f"batch_size={local.batch_size}, and batches='dropped' leaves it none; give smaller "
            "batches, or batches='short'"
        )
    if local.steps is not None:
        if local.steps < 1 or local.steps != int(local.steps):
            raise ValueError(
                f"local work of {local.steps} is out of range; give a whole number of steps of at "
                "least 1"
            )
        return np.full(counts.shape, local.steps, np.int32)
    epochs = local.epochs or 0.0
    if not 0 < epochs < np.inf:
        raise ValueError(f"local work of {epochs} is out of range; give more than 0 epochs")
    an_epoch = batches_per_epoch(counts, local.batch_size, local.batches)
    # .28 * 25 is 7.000000000000001, which is 7 steps and not 8
    return np.ceil(epochs * an_epoch - 1e-9).astype(np.int32)
