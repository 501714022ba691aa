"""Exact evaluation on a fixed set of examples, of all together or of each client's."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Batch, Mean, Metrics, Model, Problem
from fedjax_algos.data.federated_data import FederatedData


def make_evaluate(problem: Problem, batch_size: int = 1024) -> Callable[[Model, Batch], Metrics]:
    """A compiled `(model, examples) -> metrics`: "loss" and the problem's own, as `Mean`s.

    Means are over examples, exact also where the last batch is short.

    Raises:
      ValueError: for a batch size below 1; when called, for a loss or a metric that does not give
        one value for each example.
    """
    check_batch_size(batch_size)

    @jax.jit
    def evaluate(model: Model, examples: Batch) -> Metrics:
        total = jax.tree.leaves(examples)[0].shape[0]
        size = min(batch_size, total)

        def measure(step):
            rows = step * size + jnp.arange(size)
            real = rows < total
            values = values_of(problem, model, examples, jnp.minimum(rows, total - 1), real)
            return {
                name: Mean(value.sum(), real.sum().astype(value.dtype))
                for name, value in values.items()
            }

        parts = jax.lax.map(measure, jnp.arange(-(-total // size)))
        return jax.tree.map(lambda leaf: leaf.sum(0), parts)

    return evaluate


def make_evaluate_clients(
    problem: Problem, batch_size: int = 1024
) -> Callable[[Model, FederatedData], Metrics]:
    """One model on each client's own examples: a compiled `(model, data) -> metrics`.

    `metric_i = (1 / n_i) sum over j of metric(model, example_ij)`, for all clients i.

    As all clients share the model, batches run through all clients' examples, one client after
    another, and may hold several clients or a part of one; each row's values are added to its
    client. So only the last batch is short, whatever the n_i, and there is no layout to choose.

    Args:
      problem: what is learned. As for `make_evaluate`, outputs for a row must not depend on the
        other rows of the batch while `training` is False.
      batch_size: rows computed at once.

    Returns:
      A function of a model and of clients' training or held-out examples. It returns "loss" and
      the problem's metrics as `Mean`s with leaves float[num_clients]: `.value()` gives each
      client's, and the sum over clients is the `Mean` over all examples. A client without
      examples has weight 0.

    Raises:
      ValueError: for a batch size below 1; when called, for a loss or a metric that does not give
        one value for each example, or where no client holds an example.
    """
    check_batch_size(batch_size)

    @jax.jit
    def evaluate(model: Model, data: FederatedData) -> Metrics:
        assigned = data.indices.shape[0]
        if not assigned:
            raise ValueError(
                f"the {data.num_clients} clients hold 0 examples; give at least one client some"
            )
        size = min(batch_size, assigned)

        def measure(step):
            slots = step * size + jnp.arange(size, dtype=jnp.int32)
            real = slots < assigned
            slots = jnp.minimum(slots, assigned - 1)
            holders = jnp.searchsorted(data.offsets, slots, side="right") - 1
            return holders, values_of(problem, model, data.examples, data.indices[slots], real)

        def add(step, totals):
            holders, values = measure(step)
            return {
                name: total.at[holders].add(values[name], indices_are_sorted=True)
                for name, total in totals.items()
            }

        _, shapes = jax.eval_shape(measure, 0)
        zeros = {name: jnp.zeros(data.num_clients, value.dtype) for name, value in shapes.items()}
        totals = jax.lax.fori_loop(0, -(-assigned // size), add, zeros)
        counts = jnp.diff(data.offsets)
        return {name: Mean(total, counts.astype(total.dtype)) for name, total in totals.items()}

    return evaluate


class ClientSummary(NamedTuple):
    """How a metric is spread over clients: see `summarise_clients`."""

    mean: float
    standard_deviation: float
    worst_decile: float
    weighted_mean: float


def summarise_clients(values: Mean, worst: Literal["lowest", "highest"]) -> ClientSummary:
    """The mean, the spread and the worst tenth of a metric over clients.

    With v_i the value of client i and C clients: `mean = (1 / C) sum v_i`;
    `standard_deviation = sqrt((1 / C) sum (v_i - mean)^2)`, of these clients and not an estimate
    for others; `worst_decile` is the mean of the ceil(C / 10) worst v_i, so of at least one. In
    these three all clients count the same, however many examples they hold;
    `weighted_mean = sum n_i v_i / sum n_i` is the mean over all examples. Clients without examples
    are left out. A NaN is worst of all, and shows.

    Source: Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020,
    https://arxiv.org/abs/1905.10497, reports the means of the worst and best 10% of clients.

    Args:
      values: leaves float[num_clients], one metric of `make_evaluate_clients` or
        `make_evaluate_personal`.
      worst: "lowest" for an accuracy, "highest" for a loss.

    Raises:
      ValueError: for another `worst`, or where no client has examples.
    """
    if worst not in ("lowest", "highest"):
        raise ValueError(
            f"worst={worst!r} is unknown; give 'lowest' for an accuracy, 'highest' for a loss"
        )
    totals, weights = (np.asarray(leaf, np.float64) for leaf in values)
    held = weights > 0
    if not held.any():
        raise ValueError(
            f"none of the {held.size} clients has examples; evaluate on data that some client holds"
        )
    each = totals[held] / weights[held]
    sign = 1 if worst == "highest" else -1
    tenth = -(-each.size // 10)
    last = sign * np.sort(sign * each)[-tenth:]  # sort puts NaN last
    return ClientSummary(
        mean=float(each.mean()),
        standard_deviation=float(each.std()),
        worst_decile=float(last.mean()),
        weighted_mean=float(totals[held].sum() / weights[held].sum()),
    )


def values_of(
    problem: Problem, model: Model, examples: Batch, rows: jax.Array, real: jax.Array
) -> dict[str, jax.Array]:
    """The loss and the metrics of some rows of `examples`, evaluated as one batch.

    Args:
      problem: what is learned.
      model: what is evaluated.
      examples: leaves [total, ...].
      rows: int32[batch].
      real: bool[batch]: False for rows that only fill the batch.

    Returns:
      float[batch] each, in jax's default float type or a wider one, since sums of flags or of half
      precision would be wrong; 0 where `real` is False.

    Raises:
      ValueError: for a loss or a metric that does not give one value for each example.
    """
    batch = jax.tree.map(lambda leaf: leaf[rows], examples)
    outputs, _ = problem.apply(model, batch, jax.random.key(0), False)
    values = {"loss": problem.loss(outputs, batch), **problem.metrics(outputs, batch)}
    for name, value in values.items():
        if value.shape != real.shape:
            raise ValueError(
                f"{name} has shape {value.shape}, but must give one value for each example, shape "
                f"{real.shape}: return the values without averaging them"
            )
    default = jnp.result_type(float)
    return {
        name: jnp.where(real, value, 0).astype(jnp.promote_types(value.dtype, default))
        for name, value in values.items()
    }


def check_batch_size(batch_size: int) -> None:
    """Refuses a batch size below 1 with a ValueError."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} is out of range; give at least 1")
