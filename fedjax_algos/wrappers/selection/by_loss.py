"""Selects candidates by their losses; also has functions for all selections by values."""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm, ClientData, Dispatch, Report
from fedjax_algos.core.algorithm import Selection
from fedjax_algos.core.local_steps import loss_of_batch, mean_loss
from fedjax_algos.core.options import Positive, Range, UnitInterval
from fedjax_algos.core.randomness import selection_key
from fedjax_algos.wrappers.refusals import check_order
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.stages import Row

Candidates = Annotated[float, Range(1)]
Loss = Literal["full", "batch", "last"]
_BEFORE_ALL = -1  # a step of no dispatch, for the batch of a reported loss
_ROUNDING = 1e-12  # (1 - .9) * 10 is .9999999999999998


def chosen_by_loss(
    algorithm: Algorithm, loss: Loss, candidates: Candidates, choose: Callable[..., jax.Array]
) -> Algorithm:
    """Selects cohorts with `choose` from losses (with "last", inf before the first update)."""
    if loss == "last":
        first, seen = np.float32(np.inf), lambda report, *_: report.metrics["train_loss"].value()
        return chosen_by_memory(algorithm, first, seen, candidates, choose)
    problem, local = algorithm.problem, algorithm.local

    def of_batch(model, data, key):
        batch, mask = data.batch(jnp.int32(_BEFORE_ALL), local.batch_size, "replacement")
        return loss_of_batch(problem, model, batch, mask, key).value()

    loss_of = of_batch if loss == "batch" else mean_loss(problem, local)

    def value(model, row, data, dispatch, key):
        return loss_of(model, data, key).astype(jnp.float32)

    return algorithm._replace(selection=Selection(candidates, value, choose))


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


@wrappers.register
def power_of_choice(
    algorithm: Algorithm, *, candidates: Candidates = 2.0, loss: Loss = "full"
) -> Algorithm:
    """Selects the M clients with the largest local loss `F_i(x)` from d candidates.

    Candidates download x, the server's model, and report their loss; in a tie the smaller ids
    are chosen. The paper draws candidates in proportion to their examples (the sampler `by_size`)
    and takes the uniform mean of the chosen (`weighting=uniform`). Clients with a large loss are
    preferred, so the model converges to another point than the minimum of the mean loss.

    Cho et al., "Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice
    Selection Strategies", https://arxiv.org/abs/2010.01243.

    Args:
      algorithm: the algorithm to wrap; selection is the last wrapper.
      candidates: d/M, at least 1; d is rounded up. With 1 all candidates are chosen.
      loss: "full" is the mean over all of the client's examples (pow-d), "batch" the mean over one
        batch of the size of the local ones, drawn with replacement (cpow-d), and "last" the mean of
        the client's last local update (rpow-d), which needs no report; clients that have not
        trained yet are chosen first.

    Raises:
      ValueError: for an algorithm with a selection. In rounds, also for more candidates than
        clients, for encoded broadcasts, or for sharded examples.
    """
    check_order("power_of_choice", algorithm)

    def choose(losses, dispatches, answered, cohort_size, seed):
        order = jnp.lexsort((dispatches.client, -losses, ~answered))
        return order[:cohort_size].astype(jnp.int32)

    return chosen_by_loss(algorithm, loss, candidates, choose)


@wrappers.register
def active(
    algorithm: Algorithm,
    *,
    candidates: Candidates = 4.0,
    alpha1: UnitInterval = 0.75,
    alpha2: Positive = 0.01,
    alpha3: UnitInterval = 0.1,
    loss: Loss = "full",
) -> Algorithm:
    """Draws most clients in proportion to `exp(alpha2 v_i)`, and the rest uniformly.

    The value of client i is `v_i = sqrt(n_i) F_i(x)`. Of the d candidates that answer, the
    floor(alpha1 d) with the lowest values are left out, and floor((1 - alpha3) M) of the others are
    drawn without replacement. The rest of the M clients is drawn uniformly from all other
    candidates, including the low values. x is the server's model. Clients with a large loss are
    preferred, so the model converges to another point than the minimum of the mean loss.

    Goetz et al., "Active Federated Learning", 2019, https://arxiv.org/abs/1909.12641. Its text was
    not at hand. The rule and the constants follow Plato, which implements its Algorithm 1
    (https://github.com/TL-System/plato, examples/client_selection/afl), and the authors of power of
    choice, who compare with it. The value follows FLSim, by the authors' institution
    (https://github.com/facebookresearch/FLSim). Plato divides the mean loss by sqrt(n_i).

    Deviations: in the paper all clients are candidates, and a client's value is taken at the model
    that it received when it trained last. Here candidates report the value of the present model, or
    with `loss=last` the server knows an approximate one.

    Args:
      algorithm: the algorithm to wrap; selection is the last wrapper.
      candidates: d/M, at least 1; d is rounded up. The paper has N/M.
      alpha1: the share of candidates that are left out, from 0 to 1.
      alpha2: the inverse temperature of the draw, above 0, in units of 1 / v_i.
      alpha3: the share of M that is drawn uniformly, from 0 to 1; rounded up to whole clients.
      loss: how F_i is found, as for `power_of_choice`. With "last", clients that have not trained
        yet have the highest value, and the sampler's first ones among them are drawn first.

    Raises:
      ValueError: if fewer candidates are left than clients to be drawn by value, and as for
        `power_of_choice`.
    """
    check_order("active", algorithm)
    left, share = candidates * (1 - alpha1), 1 - alpha3  # the share that is drawn by value
    found = f"active: candidates={candidates:g} and alpha1={alpha1:g} leave {left:g} candidates"
    fix = "give more candidates, or a smaller alpha1"
    enough = left >= share * (1 - _ROUNDING)
    require(enough, f"{found} for {share:g} places of a cohort; {fix}")

    def choose(losses, dispatches, answered, cohort_size, seed):
        values = jnp.sqrt(dispatches.num_examples.astype(losses.dtype)) * losses
        key = selection_key(seed, dispatches.server_step[0])
        noise = jax.random.gumbel(key, (2, *values.shape), values.dtype)
        number, place = answered.sum(), jnp.arange(len(values))
        rank = jnp.zeros_like(place).at[by_score(values, answered, answered)].set(place)
        high = answered & (rank < number - jnp.floor(alpha1 * number))
        most = math.floor(share * cohort_size * (1 + _ROUNDING))
        by_value = jnp.minimum(most, high.sum())
        first = by_score(alpha2 * values + noise[0], high, answered)
        drawn = jnp.zeros_like(answered).at[first].set(place < by_value)
        rest = by_score(noise[1], answered & ~drawn, answered)
        return joined(first, by_value, rest, cohort_size)

    return chosen_by_loss(algorithm, loss, candidates, choose)
