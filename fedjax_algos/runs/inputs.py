"""Checks of what a whole run is given, once, before anything is computed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.analysis.evaluation import make_evaluate
from fedjax_algos.analysis.statistics import check_target_metric
from fedjax_algos.core import Batch, Problem
from fedjax_algos.core.checks import check_callable, check_kind, check_whole
from fedjax_algos.core.limits import check_memory
from fedjax_algos.core.options import one_of
from fedjax_algos.core.representation import describe_tree
from fedjax_algos.core.trees import tree_bytes
from fedjax_algos.core.user_functions import check_initial
from fedjax_algos.data.federated_data import FederatedData, check_examples
from fedjax_algos.engine.placed.on_disk import DiskClientState
from fedjax_algos.engine.placed.sharded_data import RunData, data_shapes
from fedjax_algos.engine.state import FederatedState, HostClientState
from fedjax_algos.models.outputs import check_labels

_ROW_BYTES = 500  # of an evaluation's row, at least


def check_data(problem: Problem, data: RunData, test: Batch | None) -> None:
    """Checks the examples that a run trains and is tested on.

    Args:
      problem: what is learned.
      data: the clients' examples; those that are sharded were checked before, and those in files
        are checked when they are read.
      test: the examples to evaluate on, or None.

    Raises:
      TypeError: for data of another type.
      ValueError: for labels that the model does not have, and test examples that are not like those
        of the clients.
    """
    check_kind("data", data, RunData, "give what federate or open_federated returned")
    if isinstance(data, FederatedData):
        check_labels(problem, "the clients' examples", data.examples)
    if test is None:
        return
    if isinstance(test, RunData):
        raise TypeError(
            "test is data of clients; give the examples alone, such as data.examples, or those of "
            "stored data by data.load()"
        )
    total = check_examples("test examples", test)
    _check_alike(test, data_shapes(data).examples)
    if not total:
        raise ValueError("there are 0 test examples; give at least one, or test=None")
    check_labels(problem, "the test examples", test)


def check_metrics(problem: Problem, test: Batch, target_metric: str = "accuracy") -> None:
    """Checks that evaluations measure the accuracy, and the metric by which methods are compared.

    Nothing is computed; so mistakes in metrics appear before anything is trained.

    Args:
      problem: what is learned.
      test: the examples to evaluate on.
      target_metric: the metric by which methods are compared.

    Raises:
      ValueError: for a problem without them, or metrics that the examples do not have.
    """
    check_labels(problem, "the test examples", test)
    model = jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0))
    check_initial(model)
    measured = jax.eval_shape(make_evaluate(problem), model, test)
    if "accuracy" not in measured:
        raise ValueError(
            f"the model measures {one_of(measured)}, but no accuracy, by which methods are "
            "compared; give metrics=accuracy, or FILE.py:NAME with a metric of that name"
        )
    check_target_metric(target_metric, measured)


def check_test_rows(test_rows: Any, data: FederatedData) -> None:
    """Checks which of the clients' examples a run is evaluated on.

    Args:
      test_rows: int32[rows], or None.
      data: the clients' examples.

    Raises:
      ValueError: for other arrays, and rows that do not exist.
    """
    if test_rows is None:
        return
    rows, total = np.asarray(test_rows), len(jax.tree.leaves(data.examples)[0])
    if rows.ndim != 1 or not rows.size or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(
            f"test_rows is {describe_tree(rows)}; give a list of at least one whole number"
        )
    if rows.min() < 0 or rows.max() >= total:
        raise ValueError(
            f"test_rows has {rows.min()} to {rows.max()}; give numbers from 0 to {total - 1}, of "
            "the examples"
        )


def _check_alike(test, examples):
    """Raises ValueError for test examples of another structure, shape or kind than the clients'."""
    alike = jax.tree.structure(test) == jax.tree.structure(examples)
    if alike:
        pairs = zip(jax.tree.leaves(test), jax.tree.leaves(examples), strict=True)
        alike = all(
            np.shape(one)[1:] == other.shape[1:] and _is_float(one) == _is_float(other)
            for one, other in pairs
        )
    if not alike:
        raise ValueError(
            f"the test examples are {describe_tree(test)}, and the clients' are "
            f"{describe_tree(examples)}; give arrays of the same names, shapes and types"
        )


def _is_float(leaf):
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def check_rounds(rounds: Any, eval_every: Any) -> None:
    """Checks the numbers of a run in rounds.

    Args:
      rounds: their number.
      eval_every: rounds between evaluations.

    Raises:
      ValueError: for numbers out of range, or more evaluations than fit into memory.
    """
    check_whole("rounds", rounds)
    check_whole("eval_every", eval_every)
    check_evaluations(-(-rounds // eval_every), "give fewer rounds, or a larger eval_every")


def check_loop(rounds: Any, eval_every: Any, on_evaluation: Any) -> None:
    """Checks the arguments of a batched run.

    Args:
      rounds: their number.
      eval_every: rounds between evaluations.
      on_evaluation: called with each row.

    Raises:
      TypeError: for an `on_evaluation` that is no function.
      ValueError: for numbers out of range, or more evaluations than fit into memory.
    """
    check_rounds(rounds, eval_every)
    check_callable("on_evaluation", on_evaluation, "give a function of a row")


def check_evaluations(evaluations: int, fix: str) -> None:
    """Checks that the rows of a run fit into memory.

    Args:
      evaluations: their number.
      fix: what to give instead.

    Raises:
      ValueError: if they do not.
    """
    check_memory(f"the rows of {evaluations} evaluations", evaluations * _ROW_BYTES, fix)


def check_room_for_rows(state: FederatedState, num_rows: int) -> None:
    """Checks that rows of client state that are not on the devices will fit where they are kept.

    Args:
      state: of the run.
      num_rows: of clients that may be dispatched.

    Raises:
      ValueError: if they do not.
    """
    what = f"the state of {num_rows} clients"
    if isinstance(state.clients, HostClientState):
        size = num_rows * tree_bytes(state.clients.blank)
        fix = "give fewer clients or rounds, or a smaller model, or keep client_state on disk"
        check_memory(what, size, fix)
    if isinstance(state.clients, DiskClientState):
        state.clients.files.check_room(what, num_rows)
