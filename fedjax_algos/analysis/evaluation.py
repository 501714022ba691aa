"""Computes exact means of the loss and the metrics over all examples or each client's own."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.analysis.statistics import CLIENTS
from fedjax_algos.base.errors import require
from fedjax_algos.core import Batch, ClassMean, Mean, Metrics, Model, Problem, checks
from fedjax_algos.core.local_steps import check_one_each
from fedjax_algos.core.options import check_choice
from fedjax_algos.data.federated_data import FederatedData, check_examples
from fedjax_algos.data.stored.stored_data import StoredData
from fedjax_algos.models.outputs import LabelCheck

_PART = 4  # batches in memory at once, for examples in files


def make_evaluate(problem: Problem, batch_size: int = 1024) -> Callable[[Model, Batch], Metrics]:
    """Builds a compiled `(model, examples) -> metrics`: exact means over examples, leaves [n, ...].

    Further calls for the same problem return the same function and compile nothing.

    Args:
      problem: what is learned. While `training` is False, the outputs for an example must not
        depend on the other examples of the batch.
      batch_size: examples computed at once.

    Returns:
      A function that returns "loss" and the problem's metrics as `Mean`s of float[], or
      `ClassMean`s of float[classes].

    Raises:
      ValueError: for a batch size below 1; when called, for a model without the problem's
        statistics, for labels out of range (unless traced), and for a loss or a metric that does
        not give one value for each example.
    """
    checks.check_problem(problem)
    checks.check_whole("batch_size", batch_size)
    return _compiled_evaluate(problem, batch_size)


@functools.lru_cache(maxsize=32)  # compiled once for all runs on a problem
def _compiled_evaluate(problem, batch_size):
    @jax.jit
    def compute(model, examples):
        check_model(problem, model)
        total = check_examples("the examples", examples)
        checks.check_whole("the number of examples", total)
        size = min(batch_size, total)

        def measure(step):
            return evaluate_batch(problem, model, examples, *places(step, size, total))

        parts = jax.lax.map(measure, jnp.arange(-(-total // size)))
        return jax.tree.map(lambda leaf: leaf.sum(0), parts)

    check = LabelCheck(problem, "the examples")

    def evaluate(model: Model, examples: Batch) -> Metrics:
        check_examples("the examples", examples)  # before JAX makes 64-bit numbers 32-bit
        metrics = compute(model, examples)  # checks the types first
        check(examples)
        return metrics

    return evaluate


def make_evaluate_clients(
    problem: Problem, batch_size: int = 1024
) -> Callable[[Model, FederatedData | StoredData], Metrics]:
    """Builds a compiled `(model, data) -> metrics` of one model on each client's own examples.

    `metric_i = (1 / n_i) sum over j of metric(model, example_ij)`, for all clients i.

    Args:
      problem, batch_size: as for `make_evaluate`.

    Returns:
      A function of a model and of clients' training or held-out examples; examples in files are
      read in parts of several clients. It returns "loss" and the problem's metrics as `Mean`s with
      leaves float[num_clients], or `ClassMean`s with leaves float[num_clients, classes]. `.value()`
      gives each client's value, NaN without examples. Summed over clients, the `Mean`s give the
      metric over all examples.

    Raises:
      ValueError: as for `make_evaluate`, or if no client holds an example.
    """
    checks.check_problem(problem)
    checks.check_whole("batch_size", batch_size)

    @jax.jit
    def compute(model, data):
        check_model(problem, model)
        checks.check_kind("data", data, FederatedData, "give what federate returned")
        total = data.indices.shape[0]
        checks.check_whole("the number of the clients' examples", total)
        size = min(batch_size, total)

        def measure(step):
            slots, real = places(step, size, total)
            clients = jnp.searchsorted(data.offsets, slots, side="right") - 1
            return clients, _values(problem, model, data.examples, data.indices[slots], real)

        def add(step, sums):
            clients, values = measure(step)
            return jax.tree.map(
                lambda own, new: own.at[clients].add(new, indices_are_sorted=True), sums, values
            )

        def zeros(leaf):
            return jnp.zeros((data.num_clients, *leaf.shape[1:]), leaf.dtype)

        _, shapes = jax.eval_shape(measure, 0)
        sums = jax.lax.fori_loop(0, -(-total // size), add, jax.tree.map(zeros, shapes))
        counts = jnp.diff(data.offsets)
        return {name: _as_mean(each, counts) for name, each in sums.items()}

    check = LabelCheck(problem, "the clients' examples")

    def evaluate(model: Model, data: FederatedData | StoredData) -> Metrics:
        metrics = []
        for part in _parts(data, _PART * batch_size):
            metrics.append(compute(model, part))  # checks the types first
            check(part.examples)
        return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *metrics)

    return evaluate


def _parts(data: Any, rows: int) -> Iterator[Any]:
    """Yields data in memory whole, and data in files in equal parts of about `rows` examples."""
    if not isinstance(data, StoredData):
        yield data
        return
    counts = data.counts().astype(np.int64)
    number = (np.cumsum(counts) - 1) // rows  # of each client's part
    parts = [np.flatnonzero(number == part) for part in np.unique(number)]
    longest = max(int(counts[clients].sum()) for clients in parts)
    for clients in parts:
        yield data.cohort(clients, longest)


class ClientSummary(NamedTuple):
    """The distribution of a metric over clients, as `summarise_clients` computes it.

    Its `mean`, `standard_deviation`, `worst_decile`, `weighted_mean`, `best_decile` and
    `jain_index` are defined there.
    """

    mean: float
    standard_deviation: float
    worst_decile: float
    weighted_mean: float
    best_decile: float
    jain_index: float


# columns of a run with `settings.evaluate_clients_at="evaluations"`, by field
CLIENT_COLUMNS = {name: f"{CLIENTS}{name}" for name in ClientSummary._fields}


def summarise_clients(values: Mean, worst: Literal["lowest", "highest"]) -> ClientSummary:
    """Summarises a metric over clients: its mean and its spread.

    With v_i the value of client i and C clients:

    - `mean = (1 / C) sum v_i`;
    - `standard_deviation = sqrt((1 / C) sum (v_i - mean)^2)`;
    - `worst_decile` is the mean of the ceil(C / 10) worst v_i; NaN is worse than any number;
    - `weighted_mean = sum n_i v_i / sum n_i` is the mean over all examples; for a `ClassMean`, the
      value of all examples together;
    - `best_decile` is the mean of the ceil(C / 10) best v_i;
    - `jain_index = (sum v_i)^2 / (C sum v_i^2)` is 1 / C if one client has everything, and 1 if all
      v_i are equal, even if all are 0.

    Clients of weight 0, such as those without examples, are left out.

    Source: Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020,
    https://arxiv.org/abs/1905.10497, reports the means of the worst and best 10% of clients.

    Args:
      values: leaves float[num_clients], or [num_clients, classes] of a `ClassMean`: one metric of
        `make_evaluate_clients` or `make_evaluate_personal`.
      worst: "lowest" for an accuracy, "highest" for a loss.

    Raises:
      ValueError: for another `worst`, or if no client has examples.
    """
    check_choice("worst", worst, ("lowest", "highest"))
    fix = "give one metric, such as evaluate(model, data)['loss']"
    checks.check_kind("values", values, Mean, fix)
    nonempty = np.asarray(values.over_classes().weight) > 0
    fix = "evaluate on data with at least one example"
    require(nonempty.any(), f"none of the {nonempty.size} clients has examples; {fix}")
    values = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[nonempty], values)
    means, pooled = _quotients(values), _quotients(jax.tree.map(lambda leaf: leaf.sum(0), values))
    sign, tenth = 1 if worst == "highest" else -1, -(-means.size // 10)
    ordered = sign * np.sort(sign * means)  # NaN last
    worst_decile, best_decile = ordered[-tenth:].mean(), ordered[:tenth].mean()
    squares = means.size * (means**2).sum()
    jain = means.sum() ** 2 / squares if squares else 1.0
    fields = means.mean(), means.std(), worst_decile, pooled, best_decile, jain
    return ClientSummary(*map(float, fields))


def _quotients(values: Mean) -> np.ndarray:
    """Returns the values of means of positive weight; only the division is in float64."""
    total, weight = (np.asarray(leaf, np.float64) for leaf in values.over_classes())
    return total / weight


def check_model(problem: Problem, model: Model) -> None:
    """Checks that an object is a model of a problem."""
    checks.check_kind("model", model, Model, "give state.model")
    checks.as_model(problem, model)


def places(step: Any, size: int, total: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the positions of a batch among `total` examples, int[size], and which are real."""
    slots = step * size + jnp.arange(size, dtype=jnp.int32)
    return jnp.minimum(slots, total - 1), slots < total


def evaluate_batch(
    problem: Problem, model: Model, examples: Batch, rows: jax.Array, real: jax.Array
) -> Metrics:
    """Sums the loss and the metrics over int32[batch] rows that are `real`."""
    sums = jax.tree.map(lambda x: x.sum(0), _values(problem, model, examples, rows, real))
    count = real.sum()
    return {name: _as_mean(each, count) for name, each in sums.items()}


def _as_mean(sums: jax.Array | Mean, count: jax.Array) -> Mean:
    """Makes a `Mean` of sums over `count` examples; returns a `Mean` unchanged."""
    return sums if isinstance(sums, Mean) else Mean(sums, count.astype(sums.dtype))


def _values(problem, model, examples, rows, real):
    """Computes each example's loss and metrics, float[batch] or `Mean`s; 0 for padding."""
    batch = jax.tree.map(lambda leaf: leaf[rows], examples)
    outputs, _ = checks.apply_model(problem, model, batch, jax.random.key(0), False)
    values = {"loss": checks.losses_of(problem, outputs, batch)}
    values |= checks.metrics_of(problem, outputs, batch)

    def masked(value):  # sums of flags, or in half precision, would be inexact
        dtype = jnp.promote_types(value.dtype, jnp.result_type(float))
        mask = real if value.ndim == 1 else real[:, None]
        return jnp.where(mask, value, 0).astype(dtype)

    for name, value in values.items():
        _check_shapes(name, value, real)
    return jax.tree.map(masked, values)


def _check_shapes(name, value, real):
    """Raises ValueError unless there is one value, or one total and weight, for each example."""
    if not isinstance(value, Mean):
        return check_one_each(name, value, real)
    kind, shapes = type(value).__name__, [jnp.shape(leaf) for leaf in value]
    axes, rest = (2, ", classes") if isinstance(value, ClassMean) else (1, ",")
    if shapes[0] != shapes[1] or len(shapes[0]) != axes or shapes[0][0] != len(real):
        found = f"{name} is a {kind} of total {shapes[0]} and weight {shapes[1]}"
        raise ValueError(f"{found}, but must give both for each example, shape ({len(real)}{rest})")
