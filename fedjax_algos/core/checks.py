"""Validates arguments of the public functions, and the results of a user's problem.

Values of tracers always pass.
"""

import contextlib
import inspect
import math
import traceback
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import MAX_INT32, MAX_SEED
from fedjax_algos.base.reprs import describe_tree
from fedjax_algos.core.options import Batches, RateBy, check_choice, is_number
from fedjax_algos.core.registry import is_own
from fedjax_algos.core.types import (
    Batch,
    Dispatch,
    Key,
    Local,
    Mean,
    Model,
    Outputs,
    Params,
    Problem,
    ReverseMode,
    Statistics,
)

_ARGUMENTS = {  # of the functions of a problem, an algorithm, a prelude and a selection
    "Problem.init": "key",
    "apply": "model batch key training",
    "loss": "outputs batch",
    "metrics": "outputs batch",
    "Algorithm.init": "params population",
    "client_init": "params key",
    "broadcast": "server group",
    "Algorithm.client_update": "broadcast client_state data dispatch key",
    "Prelude.client_update": "broadcast data dispatch key",
    "decode": "message",
    "download": "server group",
    "contribute": "update dispatch staleness",
    "server_update": "server sums count group",
    "personal": "server client_state",
    "report": "server",
    "value": "model client_state data dispatch key",
    "choose": "values dispatches answered cohort_size seed",
}
_PACKAGE = Path(__file__).parents[1]
_SHOWN = 60  # characters of a wrong value in a message


class KindError(TypeError, ValueError):
    """An object has the wrong type; the command line shows it as it shows a ValueError."""


def check_kind(name: str, value: Any, kind: Any, fix: str) -> None:
    """Checks that an object is of a class."""
    if not isinstance(value, kind):
        kinds = [each.__name__ for each in typing.get_args(kind) or (kind,)]
        raise KindError(f"{name}={_short(value)} is not of type {' or '.join(kinds)}; {fix}")


def check_callable(name: str, value: Any, fix: str, *arguments: str, **keywords: Any) -> None:
    """Checks that an object is a function, and that it takes these arguments."""
    if not callable(value):
        raise KindError(f"{name}={_short(value)} cannot be called; {fix}")
    try:
        if arguments:
            inspect.signature(value).bind(*arguments, **keywords)
    except TypeError as error:
        given = ", ".join([*arguments, *(f"{keyword}=..." for keyword in keywords)])
        found = f"{name}={_short(value)} does not take ({given}): {error}"
        raise KindError(f"{found}; {fix}") from None
    except ValueError:  # some functions of C have no signature
        pass


def check_functions(owner: Any, **more: str) -> None:
    """Checks all functions of a NamedTuple; some take `more` arguments."""
    kind, defaults = type(owner).__name__, owner._field_defaults
    for name, function in owner._asdict().items():
        arguments = _ARGUMENTS.get(f"{kind}.{name}", _ARGUMENTS.get(name, ""))
        if arguments and (function is not None or defaults.get(name, owner) is not None):
            names = f"{arguments} {more.get(name, '')}".split()
            fix = f"give a function ({', '.join(names)})"
            check_callable(f"{kind}: {name}", function, fix, *names)


def _short(value):
    text = repr(value) if not callable(value) else getattr(value, "__name__", "a function")
    return text if len(text) <= _SHOWN and "\n" not in text else f"<{type(value).__name__}>"


def check_whole(name: str, value: Any, low: int = 1, high: int = MAX_INT32) -> None:
    """Checks a whole number."""
    if isinstance(value, jax.core.Tracer):
        return
    if isinstance(value, jax.Array) and is_number(value, float):
        value = value.item()  # an int32 cannot be compared with uint32's largest number
    if not is_number(value, int) or not low <= value <= high:
        most = f" and at most {high}" if is_number(value, float) and value > high else ""
        fix = f"give a whole number of at least {low}{most}"
        raise ValueError(f"{name}={_short(value)} is out of range; {fix}")


def check_seed(seed: Any) -> None:
    """Checks the seed of a run or of a partition."""
    check_whole("seed", seed, 0, MAX_SEED)


def check_local(local: Local) -> None:
    """Checks a `Local`, except for its transform and for what depends on the client's examples."""
    check_kind("local", local, Local, "give fedjax_algos.Local(batch_size=..., ...)")
    check_whole("Local: batch_size", local.batch_size)
    pieces, size = local.gradient_accumulation, local.batch_size
    divides = is_number(pieces, int) and pieces >= 1 and size % pieces == 0
    found = f"gradient_accumulation={_short(pieces)} does not divide batch_size={size}"
    require(divides, f"Local: {found}; give a whole number that does")
    check_whole("Local: steps", 1 if local.steps is None else local.steps)
    rate = 1 if callable(local.learning_rate) else local.learning_rate
    epochs = 1 if local.epochs is None else local.epochs
    for name, value in {"epochs": epochs, "learning_rate": rate}.items():
        fits = isinstance(value, jax.core.Tracer) or (is_number(value, float) and value > 0)
        require(fits, f"Local: {name}={_short(value)} is out of range; give a number above 0")
    check_choice("Local: batches", local.batches, typing.get_args(Batches))
    noise = local.example_noise
    if noise is not None:
        found = "Local: example_noise needs batches='poisson' and gradient_accumulation=1"
        fits = local.batches == "poisson" and pieces == 1 and noise.clip > 0 <= noise.noise
        require(fits, f"{found}, a clip above 0 and noise of at least 0; change {_short(noise)}")
    check_choice("Local: rate_by", local.rate_by, typing.get_args(RateBy))
    if local.reverse is not None:
        fix = "make it with differentiable(local, data.counts())"
        check_kind("Local: reverse", local.reverse, ReverseMode, fix)
        check_whole("Local: reverse.max_steps", local.reverse.max_steps)
        check_whole("Local: reverse.max_examples", local.reverse.max_examples)
        if local.reverse.policy is not None:
            fix = "give one of jax.checkpoint_policies, or None"
            check_callable("Local: reverse.policy", local.reverse.policy, fix)


def as_model(problem: Problem, params: Params | Model | None) -> Model | None:
    """Checks the initial params or model that a caller gives, and returns them as a model."""
    if params is None:
        return None
    model = params if isinstance(params, Model) else Model(params)
    for name, given, expected in zip(Model._fields, model, problem.shapes(), strict=True):
        fix = f"give {name} as problem.init(key).{name} has them"
        if name != "params" and jax.tree.leaves(expected) and not jax.tree.leaves(given):
            fix = "give fedjax_algos.Model(params, statistics, frozen), such as state.model"
        check_like(f"params: {name}", given, expected, fix, any_dtype=True)
        check_not_consumed(given)
    return model


def check_like(name: str, given: Any, expected: Any, fix: str, *, any_dtype: bool = False) -> None:
    """Checks that two trees have the same paths, shapes and dtypes."""

    def parts(tree):
        leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
        kinds = {}
        for path, leaf in leaves:
            dtype = "of shape " if any_dtype else jnp.result_type(leaf)
            kinds[jax.tree_util.keystr(path)] = f"{dtype}{[*np.shape(leaf)]}"
        return kinds | {" as a whole": structure}

    given_parts, expected_parts = parts(given), parts(expected)
    for path in sorted(given_parts | expected_parts, key=" as a whole".__eq__):
        found, wanted = given_parts.get(path, "missing"), expected_parts.get(path, "nothing")
        require(found == wanted, f"{name}{path} is {found}, where {wanted} is expected; {fix}")


def check_not_consumed(tree: Any) -> None:
    """Checks that the arrays of a run's state, or of a part of it, have not been donated."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if not isinstance(leaf, jax.core.Tracer)]
    # also rows on disk, which the engine holds
    consumed = any(leaf.is_deleted() for leaf in leaves if hasattr(leaf, "is_deleted"))
    fix = "use the one that it returned, or copy it before the round: jax.tree.map(jnp.copy, state)"
    require(not consumed, f"this state was consumed by the round that it was given to; {fix}")


def check_dispatches(dispatches: Dispatch, num_clients: int, axes: tuple[str, ...]) -> None:
    """Checks dispatches, or only their shapes if traced; with `arrives`, N is an empty slot."""
    check_kind("dispatches", dispatches, Dispatch, "give the result of Cohorts(...).dispatches")
    shape, all_arrive = np.shape(dispatches.client), isinstance(dispatches.arrives, tuple)
    fits = len(shape) == len(axes) and 0 not in shape
    fix = f"give arrays [{', '.join(axes)}] of one shape, at least one entry in each axis"
    for name, leaf in dispatches._asdict().items():
        same = np.shape(leaf) == shape or (name == "arrives" and all_arrive)
        require(fits and same, f"dispatches have {name} of shape {np.shape(leaf)}; {fix}")
    if any(isinstance(leaf, jax.core.Tracer) for leaf in dispatches):
        return
    check_clients(np.asarray(dispatches.client), num_clients, may_be_empty=not all_arrive)
    arrives, steps = np.asarray(dispatches.arrives), np.asarray(dispatches.num_steps)
    rates = np.asarray(dispatches.learning_rate)
    low, high = rates.min(), rates.max()
    found = f"num_steps={steps.min()} of type {steps.dtype}, learning_rate={low} to {high}"
    found += f" and arrives of type {arrives.dtype}" * (not all_arrive)
    fix = "give steps from 0, finite rates above 0, and bools for arrives"
    fits = steps.dtype.kind in "iu" and steps.min() >= 0 and 0 < low <= high < math.inf
    require(fits and (all_arrive or arrives.dtype == bool), f"dispatches have {found}; {fix}")


def check_clients(clients: np.ndarray, num_clients: int, *, may_be_empty: bool = False) -> None:
    """Checks client ids; N may stand for an empty slot."""
    last = num_clients - 1
    fix = "draw the dispatches from data.counts(), set may_leave_empty = True on a sampler that "
    fix += "leaves slots empty, and give np.flatnonzero(mask) in place of a mask"
    for client in (clients.min(), clients.max()):
        found = f"client {client} is in a cohort of type {clients.dtype}"
        fits = clients.dtype.kind in "iu" and 0 <= client <= last + may_be_empty
        require(fits, f"{found}; there are clients 0 to {last}: {fix}")


def check_problem(problem: Any) -> None:
    """Checks that an object is a problem, and not a factory, a name or a Flax module."""
    fix = "give Problem(init, apply, loss), or what models.mlp or models.classifier returns"
    check_kind("problem", problem, Problem, fix)
    check_functions(problem)


def check_initial(model: Any) -> None:
    """Checks the types in the result of `Problem.init`, or in a model that replaces it."""
    check_kind("Problem.init(key)", model, Model, "return fedjax_algos.Model(params, statistics)")
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.params):
        dtype = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
        found = f"the model has params{jax.tree_util.keystr(path)} of type {dtype}"
        fix = "give float32, cast it to float16 in Problem.apply, or keep it in Model.statistics"
        trains = jnp.issubdtype(dtype, jnp.floating) and dtype != jnp.float16
        require(trains, f"{found}, which has no gradient or overflows in sums; {fix}")
        if dtype == jnp.bfloat16:
            fix = "keep float32 params and compute in bfloat16 with models.compute_in(problem)"
            found += ", which has 8 bits of precision: steps below a 256th of a weight are lost"
            warnings.warn(f"{found}; {fix}", stacklevel=2)
            return  # one warning is enough


def with_mask(batch: Batch, mask: jax.Array) -> Batch:
    """Adds the mask, bool[batch], to a batch that is a dict, as training gives it to `apply`."""
    if not isinstance(batch, dict):
        return batch
    found = "the examples have an array of the name 'mask', as every batch has in training"
    require("mask" not in batch, f"{found}; give federate another name for it")
    return batch | {"mask": mask}


def apply_model(
    problem: Problem, model: Model, batch: Batch, key: Key, training: bool
) -> tuple[Outputs, Statistics]:
    """Calls `problem.apply` and checks its result."""
    with _of_problem("apply", batch, f"its params {describe_tree(model.params)}"):
        result = problem.apply(model, batch, key, training)
    named = hasattr(result, "_fields")  # such as outputs without statistics
    if not isinstance(result, tuple | list) or named or len(result) != 2:
        fix = "return (outputs, statistics), with () for statistics if the model has none"
        raise KindError(f"Problem.apply returned {described(result)}; {fix}")
    outputs, statistics = result
    return outputs, statistics


def losses_of(problem: Problem, outputs: Outputs, batch: Batch) -> jax.Array:
    """Calls `problem.loss`, which returns float[batch]."""
    with _of_problem("loss", batch, f"the model's outputs are {described(outputs)}"):
        return problem.loss(outputs, batch)


def metrics_of(problem: Problem, outputs: Outputs, batch: Batch) -> dict[str, jax.Array | Mean]:
    """Calls `problem.metrics`, which returns float[batch] or a `Mean` each, and checks it."""
    with _of_problem("metrics", batch, f"the model's outputs are {described(outputs)}"):
        metrics = problem.metrics(outputs, batch)
    if isinstance(metrics, dict) and "loss" not in metrics:
        return metrics
    fix = "return a dictionary without the name 'loss', such as {'error': values}"
    raise KindError(f"Problem.metrics returned {described(metrics)}; {fix}")


@contextlib.contextmanager
def named_errors(name: str, given: str, fix: str) -> Iterator[None]:
    """Adds the function's name, the line and the arguments to an error in a user's function."""
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        is_ours = Path(frames[-1].filename).is_relative_to(_PACKAGE)
        if is_ours and isinstance(error, ValueError | TypeError):
            raise
        users = [frame for frame in frames if is_own(Path(frame.filename))]
        place = f" in {Path(users[-1].filename).name}, line {users[-1].lineno}" if users else ""
        first_line = str(error).partition("\n")[0]
        found = f"{name} raised {type(error).__name__}{place} ({first_line})"
        raise ValueError(f"{found}: {given}; fix it, or {fix}") from error


def _of_problem(name, batch, rest):
    given = f"its batch holds {describe_tree(batch)}, and {rest}"
    return named_errors(f"Problem.{name}", given, "give federate examples that it accepts")


def described(value: Any) -> str:
    """Describes the result of a user's function in a message."""
    fields = getattr(value, "_fields", ())
    kind = type(value).__name__ + (f" with the fields {', '.join(fields)}" if fields else "")
    if isinstance(value, tuple) and not fields:
        kind += f" ({', '.join(type(each).__name__ for each in value)})"
    is_array = hasattr(value, "dtype")
    return f"an array {describe_tree(value)}" if is_array else f"an object of type {kind}"
