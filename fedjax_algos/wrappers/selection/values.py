"""Selects cohorts by reported or recorded values, and orders and draws candidates."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Algorithm, ClientData, Dispatch, Key, Local, Model, Problem, Report
from fedjax_algos.core.algorithm import Selection
from fedjax_algos.core.local_steps import loss_of_batch, mean_loss
from fedjax_algos.core.options import Range
from fedjax_algos.wrappers.stages import Row

Candidates = Annotated[float, Range(1)]
Share = Annotated[float, Range(0, 1)]
Loss = Literal["full", "batch", "last"]
_BEFORE_ALL = -1  # a step of no dispatch, for the batch of a reported loss


def chosen_by_loss(
    algorithm: Algorithm, loss: Loss, candidates: Candidates, choose: Callable[..., jax.Array]
) -> Algorithm:
    """Selects cohorts with `choose` from losses (with "last", inf before the first update)."""
    if loss == "last":

        def seen(report, data, dispatch):
            return report.metrics["train_loss"].value()

        return chosen_by_memory(algorithm, np.float32(np.inf), seen, candidates, choose)
    loss_of = {"full": mean_loss, "batch": batch_loss}[loss](algorithm.problem, algorithm.local)

    def value(model, row, data, dispatch, key):
        return loss_of(model, data, key).astype(jnp.float32)

    return algorithm._replace(selection=Selection(candidates, value, choose))


def batch_loss(problem: Problem, local: Local) -> Callable[[Model, ClientData, Key], jax.Array]:
    """Makes `(model, data, key) -> float[]`: the mean loss of a batch, drawn with replacement."""

    def run(model, data, key):
        batch, mask = data.batch(jnp.int32(_BEFORE_ALL), local.batch_size, "replacement")
        return loss_of_batch(problem, model, batch, mask, key).value()

    return run


def chosen_by_memory(
    algorithm: Algorithm,
    first: Any,
    seen: Callable[[Report, ClientData, Dispatch], Any],
    candidates: Candidates,
    choose: Callable[..., jax.Array],
) -> Algorithm:
    """Selects cohorts with `choose`, from values recorded with `seen`, at the start `first`."""

    def client_update(broadcast, row, data, dispatch, key):
        inner, message, report = algorithm.client_update(broadcast, row.inner, data, dispatch, key)
        known = seen(report, data, dispatch)
        known = jax.tree.map(lambda new, old: jnp.asarray(new, jnp.result_type(old)), known, first)
        return Row(inner, known), message, report

    personal = algorithm.personal
    return algorithm._replace(
        client_init=lambda params, key: Row(algorithm.client_init(params, key), first),
        client_update=client_update,
        personal=personal and (lambda server, row: personal(server, row.inner)),
        selection=Selection(candidates, lambda model, row, *_: row.own, choose, asks=False),
    )


def by_score(score: jax.Array, allowed: jax.Array, answered: jax.Array) -> jax.Array:
    """int32[candidates]: allowed ones by score, then others, those without an answer first.

    If the score is `log w + g`, with Gumbel noise g, they are drawn in proportion to w.
    """
    rank = jnp.where(allowed, 0, 1 + answered)
    return jnp.lexsort((-score, rank)).astype(jnp.int32)


def joined(first: jax.Array, number: Any, rest: jax.Array, cohort_size: int) -> jax.Array:
    """int32[cohort_size]: the first `number` of one order, then the first ones of another."""
    place = jnp.arange(cohort_size)
    return jnp.where(place < number, first[:cohort_size], rest[jnp.clip(place - number, 0)])
