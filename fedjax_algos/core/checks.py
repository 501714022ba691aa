"""Checks of what is made by hand: seeds, local work, params, dispatches. Tracers always pass."""

import math
import typing
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedjax_algos.core.limits import MAX_INT32, MAX_SEED
from fedjax_algos.core.options import check_choice, is_number
from fedjax_algos.core.reprs import describe_tree
from fedjax_algos.core.types import Batches, Dispatch, Local, Model, Params, ReverseMode

_SHOWN = 60  # characters of a wrong value in a message


def check_kind(name: str, value: Any, kind: Any, fix: str) -> None:
    """Checks that an object is of a class.

    Args:
      name: of the argument.
      value: what was given.
      kind: a class, or a union of classes.
      fix: what to give instead.

    Raises:
      TypeError: if it is not.
    """
    if not isinstance(value, kind):
        kinds = [each.__name__ for each in typing.get_args(kind) or (kind,)]
        raise TypeError(f"{name}={_shown(value)} is not of type {' or '.join(kinds)}; {fix}")


def check_callable(name: str, value: Any, fix: str) -> None:
    """Checks that an object is a function.

    Args:
      name: of the argument.
      value: what was given.
      fix: what to give instead.

    Raises:
      TypeError: if it cannot be called.
    """
    if not callable(value):
        raise TypeError(f"{name}={_shown(value)} cannot be called; {fix}")


def _shown(value):
    text = repr(value) if not callable(value) else getattr(value, "__name__", "a function")
    return text if len(text) <= _SHOWN and "\n" not in text else f"<{type(value).__name__}>"


def check_whole(name: str, value: Any, low: int = 1, high: int = MAX_INT32) -> None:
    """Checks a whole number.

    Args:
      name: of the argument.
      value: a whole number of any integer type.
      low: the smallest one.
      high: the largest one.

    Raises:
      ValueError: if it is none or out of range.
    """
    if isinstance(value, jax.core.Tracer):
        return
    if not is_number(value, int) or not low <= value <= high:
        most = f" and at most {high}" if is_number(value, float) and value > high else ""
        raise ValueError(
            f"{name}={_shown(value)} is out of range; give a whole number of at least {low}{most}"
        )


def check_seed(seed: Any) -> None:
    """Checks the seed of a run or of a partition.

    Args:
      seed: a whole number.

    Raises:
      ValueError: if it is none, or out of range.
    """
    check_whole("seed", seed, 0, MAX_SEED)


def check_local(local: Local) -> None:
    """Checks how a client trains, apart from its transform and what depends on its examples.

    Args:
      local: its numbers may be tracers, as in a sweep.

    Raises:
      TypeError: for an object of another type.
      ValueError: for a value out of range.
    """
    check_kind("local", local, Local, "give fedjax_algos.Local(batch_size=..., ...)")
    check_whole("Local: batch_size", local.batch_size)
    if local.steps is not None:
        check_whole("Local: steps", local.steps)
    for name, value in (("epochs", local.epochs), ("learning_rate", local.learning_rate)):
        if value is not None and not callable(value):
            _check_positive(f"Local: {name}", value)
    if local.learning_rate is None:
        raise ValueError("Local: learning_rate=None is out of range; give a number above 0")
    check_choice("Local: batches", local.batches, typing.get_args(Batches))
    check_choice("Local: rate_by", local.rate_by, ("round", "dispatch"))
    if local.reverse is not None:
        fix = "make it with differentiable(local, data.counts())"
        check_kind("Local: reverse", local.reverse, ReverseMode, fix)
        check_whole("Local: reverse.max_steps", local.reverse.max_steps)
        check_whole("Local: reverse.max_examples", local.reverse.max_examples)
        if local.reverse.policy is not None:
            fix = "give one of jax.checkpoint_policies, or None"
            check_callable("Local: reverse.policy", local.reverse.policy, fix)


def _check_positive(name, value):
    if isinstance(value, jax.core.Tracer):
        return
    if not (is_number(value, float) and value > 0):
        raise ValueError(f"{name}={_shown(value)} is out of range; give a number above 0")


def as_model(init: Callable, params: Params | Model | None) -> Model | None:
    """The model that a caller gives in place of the problem's own initialisation; None for None.

    Args:
      init: of the problem, whose structure and shapes the model must have.
      params: params, or a model.

    Raises:
      ValueError: for other params or statistics, or arrays that a round has consumed.
    """
    if params is None:
        return None
    model = params if isinstance(params, Model) else Model(params)
    expected = jax.eval_shape(init, jax.eval_shape(jax.random.key, 0))
    for name, given, own in zip(Model._fields, model, expected, strict=True):
        leaves, own_leaves = jax.tree.leaves(given), jax.tree.leaves(own)
        fix = f"give {name} as problem.init(key).{name} has them"
        if name != "params" and own_leaves and not leaves:
            fix = "give fedjax_algos.Model(params, statistics, frozen)"
        structures: list[Any] = [jax.tree.structure(tree) for tree in (given, own)]
        if structures[0] != structures[1]:
            raise ValueError(
                f"params have {name} of another structure ({describe_tree(given)}) than the "
                f"problem's ({describe_tree(own)}); {fix}"
            )
        for leaf, own_leaf in zip(leaves, own_leaves, strict=True):
            if np.shape(leaf) != own_leaf.shape:
                raise ValueError(
                    f"params have {name} of shape {list(np.shape(leaf))} where the problem's have "
                    f"{list(own_leaf.shape)}; {fix}"
                )
        if any(is_deleted(leaf) for leaf in leaves):
            raise ValueError(
                f"the {name} in params were consumed by a round, because they are those of its "
                "state; copy them before, with jax.tree.map(jnp.copy, ...), or take those of the "
                "state that the round returned"
            )
    return model


def check_not_consumed(tree: Any) -> None:
    """Checks that a part of a run's state still has its arrays.

    Args:
      tree: of which the first array is looked at: a round consumes all or none.

    Raises:
      ValueError: if a round has consumed them.
    """
    if any(map(is_deleted, jax.tree.leaves(tree)[:1])):
        raise ValueError(
            "this state was consumed by the round that it was given to; use the one that it "
            "returned, or copy it before the round: jax.tree.map(jnp.copy, state)"
        )


def is_deleted(leaf: Any) -> bool:
    """Whether an array has given its buffer away.

    Args:
      leaf: an array of any kind.
    """
    deleted = getattr(leaf, "is_deleted", None)  # also of rows on disk, which the engine has
    return deleted is not None and not isinstance(leaf, jax.core.Tracer) and deleted()


def check_dispatches(dispatches: Dispatch, num_clients: int, axes: tuple[str, ...]) -> None:
    """Checks dispatches that may have been made by hand.

    Args:
      dispatches: NumPy arrays.
      num_clients: N, of all clients of the data.
      axes: the names of the arrays' axes, such as ("rounds", "cohort").

    Raises:
      TypeError: for an object of another type.
      ValueError: for arrays of unequal shapes, clients that do not exist, steps below 0, rates
        that are not positive and finite, or `arrives` that are no bools. With `arrives`, client
        `num_clients` is an empty slot.
    """
    check_kind("dispatches", dispatches, Dispatch, "give those of Cohorts(...).dispatches")
    shape, all_arrive = np.shape(dispatches.client), isinstance(dispatches.arrives, tuple)
    for name, leaf in zip(dispatches._fields, dispatches, strict=True):
        if np.shape(leaf) != shape and not (name == "arrives" and all_arrive):
            raise ValueError(
                f"dispatches have {name} of shape {np.shape(leaf)} and client of shape {shape}; "
                "give arrays of one shape"
            )
    if len(shape) != len(axes) or 0 in shape:
        raise ValueError(
            f"dispatches have shape {shape}; give arrays [{', '.join(axes)}], at least one entry "
            "in each axis"
        )
    if not all_arrive and np.asarray(dispatches.arrives).dtype != bool:
        raise ValueError(
            f"dispatches have arrives of type {np.asarray(dispatches.arrives).dtype}; give bools"
        )
    check_clients(np.asarray(dispatches.client), num_clients, may_be_empty=not all_arrive)
    steps, rates = np.asarray(dispatches.num_steps), np.asarray(dispatches.learning_rate)
    if steps.dtype.kind not in "iu" or steps.min() < 0:
        raise ValueError(
            f"dispatches have num_steps={steps.min()} of type {steps.dtype}; give whole numbers of "
            "at least 0"
        )
    low, high = rates.min(), rates.max()
    if not 0 < low <= high < math.inf:
        wrong = high if low > 0 else low
        raise ValueError(
            f"dispatches have learning_rate={wrong}; give numbers above 0 that are finite"
        )


def check_clients(clients: np.ndarray, num_clients: int, *, may_be_empty: bool = False) -> None:
    """Checks client ids.

    Args:
      clients: int[...], at least one.
      num_clients: N, the number of clients.
      may_be_empty: whether N may stand for an empty slot.

    Raises:
      ValueError: for ids that are no whole numbers or belong to no client.
    """
    if clients.dtype.kind not in "iu":
        mask = ": a mask holds no ids, give np.flatnonzero(mask)" * (clients.dtype.kind == "b")
        raise ValueError(
            f"the clients of dispatches are of type {clients.dtype}; give their ids, whole numbers "
            f"from 0 to {num_clients - 1}{mask}"
        )
    for client in (clients.min(), clients.max()):
        if not 0 <= client < num_clients + may_be_empty:
            empty = ", and set may_leave_empty = True on a sampler that leaves slots empty"
            raise ValueError(
                f"client {client} is in a cohort; there are clients 0 to {num_clients - 1}: draw "
                f"the dispatches from data.counts(){empty * bool(client == num_clients)}"
            )
