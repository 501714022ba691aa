"""Draws the dispatches of rounds.

The virtual clock also uses the functions for steps, learning rates and earlier dispatches.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import check_int32, check_memory
from fedjax_algos.base.reprs import describe, describe_tree
from fedjax_algos.core import Array, Dispatch, Local, batches_per_epoch, checks
from fedjax_algos.data.partitioning.base import describe_counts
from fedjax_algos.participation import sampling
from fedjax_algos.participation.local_work import LocalWork, full

_DISPATCH_BYTES = 3 * 9 * 4  # at least: 9 fields, held as drawn, in slots, and on the device


class Position(NamedTuple):
    """The position of a `Cohorts` in its dispatches."""

    next_round: Any  # int32[]
    dispatched: np.ndarray  # int32[num_clients]: dispatches of each client so far
    steps_done: np.ndarray  # int32[num_clients]: their local steps
    last_round: np.ndarray  # int32[num_clients]: the round of the last one; -1 before the first
    gaps: np.ndarray  # int64[next_round + 1]: dispatches, by rounds since the client's last one
    lost: Any = ()  # int64[]: dispatches that failed; () if none can
    chosen: Any = ()  # int64[]: candidates that were chosen; () if all are

    def after(self, rounds: int) -> "Position":
        """Returns a position whose arrays have the shapes of a position after `rounds` rounds."""
        return self._replace(gaps=np.zeros(rounds + 1, np.int64))


class Cohorts:
    """The dispatches of rounds: a cohort for each round, and a barrier at the end of the round.

    Each call of `dispatches` continues after the last one.

    Args:
      counts: int[num_clients], n_i, the number of examples of each client.
      local: how clients train. A complete local update has `local.steps` steps, or `local.epochs`
        times the batches of an epoch, rounded up.
      cohort_size: M, at most the number of clients.
      seed: the seed of the cohorts and of `work`.
      sampler: draws the cohorts; see `samplers`.
      work: decides how much of its local update each client finishes (`local_works`); None for all.
      failures: decides which clients fail to answer after training; see `failures`. None for none.
      chosen: number of clients that are chosen from a cohort of candidates; None for all.
      labels: returns the labels that each client holds, bool[num_clients, classes], such as
        `lambda: fa.data.held_labels(data)`; for samplers that need them.

    Raises:
      ValueError: for counts that are not whole and at least 1, a cohort larger than the population,
        work that is not one of steps and epochs, or too few examples for batches="dropped".
    """

    def __init__(
        self,
        counts: np.ndarray,
        local: Local,
        *,
        cohort_size: int,
        seed: int,
        sampler: sampling.Sampler = sampling.uniform_cohorts,
        work: LocalWork | None = None,
        failures: sampling.Failures | None = None,
        labels: Callable[[], np.ndarray] | None = None,
        chosen: int | None = None,
    ):
        if work is not None:
            fix = "give one of participation.local_works, such as partial()"
            arguments = "seed", "rounds", "clients", "full_steps", "local"
            checks.check_callable("work", work, fix, *arguments)
        self.counts = checked_counts(counts)
        num_clients = len(self.counts)
        check_draws(seed, cohort_size, num_clients, failures, sampler)
        self.shares = self.counts / self.counts.sum(dtype=np.int64)
        self.steps = full_steps(self.counts, local)
        self.local, self.cohort_size, self.seed = local, cohort_size, seed
        self.sampler = sampling.of_clients(sampler, self.counts, labels)
        self.work, self.failures, self.most_chosen = work or full(), failures, chosen
        dispatched, steps_done = np.zeros((2, num_clients), np.int32)
        last_round, gaps = np.full(num_clients, -1, np.int32), np.zeros(1, np.int64)
        none = (() if each is None else np.int64(0) for each in (failures, chosen))
        self._at = Position(np.int32(0), dispatched, steps_done, last_round, gaps, *none)

    def dispatches(self, rounds: int) -> Dispatch:
        """Draws the dispatches of the next rounds.

        Args:
          rounds: number of rounds, at least 1.

        Returns:
          A `Dispatch` whose fields are NumPy arrays [rounds, cohort_size]: int32, but JAX's default
          float type for `share` and `learning_rate`. A client that is drawn twice in a cohort has
          two dispatches, in the order of the cohort. `arrives` is `()` unless clients may fail or
          the sampler may leave slots empty. An empty slot has client `num_clients`, the share 0,
          and no steps or examples. A dispatch that fails counts like the client's others.

        Raises:
          ValueError: for a learning rate that is not positive and finite, local work that is not an
            integer from 1 to a complete update's, and what the sampler, work and failures raise.
        """
        checks.check_whole("rounds", rounds)
        at, end = self._at, self.next_round + rounds
        check_int32("the number of the last round", end, "give fewer rounds")
        check_dispatch_memory(rounds, self.cohort_size, "draw fewer rounds in a call (eval_every)")
        numbers = np.arange(self.next_round, end, dtype=np.int32)
        drawn = self._sampled(numbers)
        filled = drawn < len(self.counts)
        clients = np.where(filled, drawn, 0)  # what an empty slot looks up is masked
        complete = self.steps[clients]
        num_steps = self._worked(numbers, clients, complete) * filled
        number = (at.dispatched[clients] + _earlier_sums(clients, filled)) * filled
        first_step = first_steps(clients, num_steps, at.steps_done) * filled
        arrives = self._arrive(numbers, clients, number.astype(np.int32), num_steps, filled)
        gaps = _add_gaps(at, end, drawn[filled], np.repeat(numbers, filled.sum(1)))
        np.add.at(at.dispatched, clients, filled)
        np.add.at(at.steps_done, clients, num_steps)
        lost, chosen = at.lost, at.chosen
        if self.failures is not None:
            lost = lost + filled.sum() - np.sum(arrives)
        if self.most_chosen is not None:
            answered = filled if isinstance(arrives, tuple) else filled & arrives
            chosen = chosen + np.minimum(answered.sum(1), self.most_chosen).sum()
        self._at = at._replace(next_round=np.int32(end), gaps=gaps, lost=lost, chosen=chosen)
        step = np.broadcast_to(numbers[:, None], clients.shape)
        float_type = jnp.result_type(float)
        count = rate_counts(self.local, number, step, np.where(filled, complete, 0))
        return Dispatch(
            client=drawn,
            number=number.astype(np.int32),
            server_step=step,
            num_steps=num_steps,
            full_steps=np.where(filled, complete, 1),
            num_examples=self.counts[clients] * filled,
            share=self.shares[clients].astype(float_type) * filled,
            learning_rate=np.asarray(rate_at(self.local.learning_rate, count), float_type),
            first_step=first_step,
            arrives=arrives,
        )

    def _sampled(self, numbers):
        """Draws and checks the cohorts of rounds."""
        clients = np.asarray(self.sampler(self.seed, numbers, len(self.counts), self.cohort_size))
        shape = len(numbers), self.cohort_size
        check_integers("the cohorts are", clients, "client ids [rounds, cohort_size]", shape)
        checks.check_clients(clients, len(self.counts), may_be_empty=may_leave_empty(self.sampler))
        return clients

    def _worked(self, numbers, clients, complete):
        """Computes and checks the local steps of the cohorts."""
        steps = np.asarray(self.work(self.seed, numbers, clients, complete, self.local))
        check_integers("the local work is", steps, "steps [rounds, cohort_size]", clients.shape)
        wrong = ((steps < 1) | (steps > complete)).argmax()
        client, number, most = clients.flat[wrong], steps.flat[wrong], complete.flat[wrong]
        fix = f"give 1 to {most}, its complete local update"
        require(1 <= number <= most, f"the local work of client {client} is {number} steps; {fix}")
        return steps.astype(np.int32)

    def _arrive(self, rounds, clients, number, num_steps, filled):
        """Returns which dispatches arrive, bool[rounds, cohort]; () if all do."""
        if self.failures is None:
            return filled if may_leave_empty(self.sampler) else ()
        with jax.default_device(sampling.idle_device()):
            of_rounds = zip(clients, number, rounds, num_steps, strict=True)  # compiled once
            shared = self.failures, np.uint32(self.seed)
            fails = [np.asarray(sampling.draw_failures(*shared, *each)) for each in of_rounds]
        return filled & ~np.stack(fails)

    @property
    def next_round(self) -> int:
        """The number of the next round."""
        return int(self._at.next_round)

    def position(self) -> Position:
        """Returns the position in the dispatches; `go_to` continues from there."""
        return jax.tree.map(np.copy, self._at)

    def go_to(self, position: Position) -> None:
        """Continues from the position of an equal `Cohorts`.

        Args:
          position: the result of its `position`.
        """
        self._at = jax.tree.map(np.array, position)

    def __repr__(self) -> str:
        facts: dict[str, Any] = {"clients": len(self.counts), "cohort_size": self.cohort_size}
        facts |= {"full_steps": describe_counts(self.steps), "seed": self.seed}
        return describe(self, **facts, next_round=self.next_round)


def _add_gaps(at, end, clients, rounds):
    """Returns `gaps` with those of new dispatches [...], up to round `end`; sets `last_round`."""
    order = np.argsort(clients, kind="stable")
    clients, rounds = clients[order], rounds[order]
    again = np.append(False, clients[1:] == clients[:-1])
    previous = np.where(again, np.roll(rounds, 1), at.last_round[clients])
    gaps = np.where(previous < 0, 0, np.maximum(rounds - previous, 1))  # 1: twice in a cohort
    counted = np.bincount(gaps, minlength=end + 1)
    counted[: len(at.gaps)] += at.gaps
    np.maximum.at(at.last_round, clients, rounds)
    return counted


def may_leave_empty(sampler: Any) -> bool:
    """Returns whether a sampler, also a traced one, may leave slots of a cohort empty."""
    return bool(getattr(sampler, "may_leave_empty", False))


def checked_counts(counts: Any) -> np.ndarray:
    """Checks numbers of examples, which may be whole floats, and returns int32[num_clients]."""
    fix = "give the number of examples of each client, such as data.counts()"
    require(not hasattr(counts, "counts"), f"counts are of type {type(counts).__name__}; {fix}")
    counts = np.asarray(counts)
    are_numbers = counts.ndim == 1 and counts.size and counts.dtype.kind in "iuf"
    require(are_numbers, f"counts are {describe_tree(counts)}; {fix}")
    whole = (counts >= 1) & (counts == np.floor(counts))
    found = f"counts have {counts[whole.argmin()]} of client {whole.argmin()}"
    require(whole.all(), f"{found}; {fix}, whole numbers of at least 1")
    check_int32("the number of examples of a client", counts.max(), fix)
    return counts.astype(np.int32)


def check_integers(found: str, values: Any, expected: str, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless values, which may be traced, are integers of this shape."""
    fits = values.shape == shape and jnp.issubdtype(values.dtype, jnp.integer)
    fix = f"give a function that returns {expected}, here integers {[*shape]}"
    require(fits, f"{found} {describe_tree(values)}; {fix}")


def check_draws(seed: Any, cohort_size: int, num_clients: int, failures: Any, sampler: Any) -> None:
    """Checks the arguments that draw cohorts, on the host or on the device."""
    checks.check_seed(seed)
    fix = "give one of participation.samplers, or of traced_samplers on the device"
    arguments = "seed", "rounds", "num_clients", "cohort_size"
    checks.check_callable("sampler", sampler, fix, *arguments)
    if failures is not None:
        fix = "give one of participation.failures, such as independent(probability=0.3)"
        checks.check_callable("failures", failures, fix, "seed", "clients", "numbers")
    checks.check_whole("cohort_size", cohort_size, 0)
    fix = f"give 1 to {num_clients}, the number of clients"
    require(1 <= cohort_size <= num_clients, f"cohort_size={cohort_size} is out of range; {fix}")


def check_dispatch_memory(rounds: int, cohort_size: int, fix: str) -> None:
    """Raises ValueError if the dispatches of rounds, drawn at once, do not fit into memory."""
    num_bytes = rounds * cohort_size * _DISPATCH_BYTES
    check_memory(f"the dispatches of {rounds} rounds of {cohort_size} clients", num_bytes, fix)


def _earlier_sums(clients: np.ndarray, amounts: np.ndarray) -> np.ndarray:
    """Sums the amounts of the client's earlier entries, in row-major order; int64[...]."""
    order = np.argsort(clients, axis=None, kind="stable")
    ordered, amounts = clients.ravel()[order], amounts.ravel()[order].astype(np.int64)
    before = np.cumsum(amounts) - amounts
    before -= before[np.searchsorted(ordered, ordered)]
    result = np.empty(clients.shape, np.int64)
    result.flat[order] = before
    return result


def first_steps(
    clients: np.ndarray, num_steps: np.ndarray, steps_done: np.ndarray | None = None
) -> np.ndarray:
    """Counts a client's local steps before each dispatch, with `steps_done`; int32[...]."""
    done = _earlier_sums(clients, num_steps) + (0 if steps_done is None else steps_done[clients])
    if done.size:
        most = (done + num_steps).argmax()
        what = f"the local steps of client {clients.flat[most]} in all its dispatches"
        check_int32(what, (done + num_steps).flat[most], "give fewer rounds or fewer local steps")
    return done.astype(np.int32)


def rate_counts(local: Local, number: Array, server_step: Array, full_steps: Array) -> Any:
    """Returns the counts that learning rates are taken at, int[...]; see `Local.rate_by`."""
    if local.rate_by != "step":
        return number if local.rate_by == "dispatch" else server_step
    if isinstance(full_steps, np.ndarray):
        server_step = np.asarray(server_step, np.int64)
        most = ((server_step + 1) * full_steps).max(initial=0)
        check_int32("the local steps of the run", most, "give fewer rounds or local steps")
    return server_step * full_steps


def rate_at(learning_rate: Any, counts: np.ndarray) -> np.ndarray:
    """Evaluates a rate, a number or a function, at these counts: float64[...], checked if known."""
    values = learning_rate
    if callable(learning_rate):
        fix = "give one of int32[...], such as lambda n: np.where(n < 3, 0.1, 0.01)"
        with checks.named_errors("learning_rate", "its argument is an array of counts", fix):
            values = learning_rate(counts)
        found = f"learning_rate returned shape {np.shape(values)} for counts of {np.shape(counts)}"
        require(np.shape(values) in ((), np.shape(counts)), f"{found}; {fix}")
    if isinstance(values, jax.core.Tracer):
        return values  # type: ignore[return-value]
    rates = np.broadcast_to(np.asarray(values, float), np.shape(counts))
    valid = np.isfinite(rates) & (rates > 0)
    if not valid.all():
        found = f"{rates[~valid][0]} at count {np.asarray(counts)[~valid][0]}"
        raise ValueError(f"the client learning rate is {found}; give a rate that stays above 0")
    return rates


def common_steps(local: Local, counts: np.ndarray | None) -> int | None:
    """Returns the steps of a complete local update if all clients have the same, else None.

    With epochs, they do if all hold the same number of examples, and `counts` is not None.
    """
    if local.steps is not None or counts is None:
        return local.steps
    return int(full_steps(counts[:1], local)[0]) if (counts == counts[0]).all() else None


def full_steps(counts: np.ndarray, local: Local) -> np.ndarray:
    """Computes and checks the steps of each client's complete local update, int32[num_clients]."""
    checks.check_local(local)
    counts = np.asarray(counts)
    found = f"local work is steps={local.steps} and epochs={local.epochs}"
    require((local.steps is None) != (local.epochs is None), f"{found}; give exactly one of them")
    few = f"client {counts.argmin()} has {counts.min()} examples for batch_size={local.batch_size}"
    has_batch = local.batches != "dropped" or counts.min() >= local.batch_size
    require(has_batch, f"{few} and batches='dropped'; give smaller batches, or batches='short'")
    if local.steps is not None:
        return np.full(counts.shape, local.steps, np.int32)
    per_epoch = batches_per_epoch(counts.astype(np.int64), local.batch_size, local.batches)
    # .28 * 25 is 7.000000000000001, which means 7 steps and not 8
    steps = np.ceil((local.epochs or 0.0) * per_epoch - 1e-9)
    client = steps.argmax()
    check_int32(f"the local steps of client {client}", steps[client], "give fewer epochs")
    return steps.astype(np.int32)
