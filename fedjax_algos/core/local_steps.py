"""Local training for all algorithms: SGD steps with hooks for the gradient and the model."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_algos.base.errors import require
from fedjax_algos.base.limits import check_device_memory
from fedjax_algos.core.checks import apply_model, check_local, losses_of, with_mask
from fedjax_algos.core.client_data import ClientData
from fedjax_algos.core.example_noise import noisy_gradient, opened, refuse
from fedjax_algos.core.optimizers import check_transform
from fedjax_algos.core.trees import take, tree_bytes
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
    Report,
    ReverseMode,
    Statistics,
)

_bounds_apply = contextvars.ContextVar("bounds_apply", default=True)


@contextlib.contextmanager
def without_bounds() -> Iterator[None]:
    """Makes `repeat` ignore bounds in a `with` block, so that a trace has the real loop lengths."""
    token = _bounds_apply.set(False)
    try:
        yield
    finally:
        _bounds_apply.reset(token)


def repeat(
    step: Callable[[jax.Array, Any], Any],
    number: Any,
    start: Any,
    most: int | None = None,
    policy: Callable[..., bool] | None = None,
) -> Any:
    """Applies `step(k, carry)` for k = 0 to `number` - 1; for `most` see `ReverseMode`."""
    if most is None or not _bounds_apply.get():
        return jax.lax.fori_loop(0, number, step, start)
    known = not isinstance(number, jax.core.Tracer)

    def masked(carry, k):
        if known:
            return step(k, carry), None
        return jax.lax.cond(k < number, lambda: step(k, carry), lambda: carry), None

    masked = jax.checkpoint(masked, policy=policy, prevent_cse=False)
    length = min(int(number), most) if known else most
    end, _ = jax.lax.scan(masked, start, np.arange(length, dtype=np.int32))

    def checked(leaf):
        inexact = jnp.issubdtype(leaf.dtype, jnp.inexact)
        return jnp.where(number > most, jnp.nan, leaf).astype(leaf.dtype) if inexact else leaf

    return jax.tree.map(checked, end)


class Step(NamedTuple):
    """The third argument of a gradient correction, after the gradient and the local model.

    Attributes:
      number: int32[]: k, from 0.
      gradient_at: `params -> gradient` over the same examples with the same dropout.
    """

    number: jax.Array
    gradient_at: Callable[[Params], Params]


class Trained(NamedTuple):
    """A finished local update.

    Attributes:
      params: y_K, the local model after the last step.
      transform_state: the last state of the transform.
      report: the mean training loss over all examples of all steps, and the statistics.
      correct_state: the last state of the correction; `()` if it has none.
    """

    params: Params
    transform_state: Any
    report: Report
    correct_state: Any = ()


Correction = Callable[[Params, Params, Step], Params]  # (gradient, y, step) -> gradient
Penalty = Callable[[Outputs, Batch], jax.Array]  # float[batch], added to the loss


def rate_of(local: Local, dispatch: Dispatch, k: jax.Array) -> Any:
    """Returns the learning rate of local step k, float[]; it depends on k if `rate_by="step"`."""
    if local.rate_by != "step" or not callable(local.learning_rate):
        return dispatch.learning_rate
    first = dispatch.server_step * dispatch.full_steps
    change = local.learning_rate(first + k) / local.learning_rate(first)
    return dispatch.learning_rate * change  # the dispatch has the run's rate


def uncorrected(gradient: Params, params: Params, step: Step) -> Params:
    """Returns the gradient unchanged."""
    return gradient


def in_order(first: Correction, second: Correction) -> Correction:
    """Returns the correction that applies `first` and then `second`."""

    def corrected(gradient, params, step):
        return second(first(gradient, params, step), params, step)

    return corrected


def check_one_each(name: str, values: jax.Array, mask: jax.Array) -> None:
    """Raises ValueError unless there is one value for each example of a batch."""
    found = f"{name} has shape {values.shape}, not one value for each example, {mask.shape}"
    require(values.shape == mask.shape, f"{found}; return the values without averaging them")


Gradient = tuple[Params, Statistics, Mean]  # (gradient, statistics, loss) at one point


def batch_gradient(
    problem: Problem, penalty: Penalty | None = None, pieces: int = 1
) -> Callable[..., Gradient]:
    """Returns `(model, batch, mask, key) -> (gradient, statistics, loss without penalty)`."""

    def mean_loss(params, statistics, frozen, batch, mask, key):
        given = with_mask(batch, mask | ~mask.any())  # so that means over real rows are finite
        model = Model(params, statistics, frozen)
        outputs, statistics = apply_model(problem, model, given, key, True)
        losses = losses_of(problem, outputs, batch)
        check_one_each("the loss", losses, mask)
        is_float = jnp.issubdtype(losses.dtype, jnp.floating)
        require(is_float, f"the loss is of type {losses.dtype}, whose gradient is 0; return floats")
        loss = Mean(jnp.where(mask, losses, 0).sum(), mask.sum().astype(losses.dtype))
        total = losses if penalty is None else losses + penalty(outputs, given)
        mean = jnp.where(mask, total, 0).sum() / jnp.maximum(loss.weight, 1)
        return mean, (statistics, loss)

    def gradient(model, batch, mask, key):
        grads, (statistics, loss) = jax.grad(mean_loss, has_aux=True)(*model, batch, mask, key)
        return grads, statistics, loss

    def in_pieces(model, batch, mask, key):
        rows = jax.tree.map(lambda leaf: leaf.reshape(pieces, -1, *leaf.shape[1:]), (batch, mask))
        return _accumulate(gradient, partial(take, rows), pieces, None, model, key)

    return gradient if pieces == 1 else in_pieces


def _accumulate(gradient, piece, number, most, model, key) -> Gradient:
    """Computes the gradient over pieces `piece(k) -> (batch, mask)`; for `most` see `repeat`."""

    def add(k, carry):
        total, statistics, losses = carry
        current = model._replace(statistics=statistics)
        grads, statistics, loss = gradient(current, *piece(k), jax.random.fold_in(key, k))
        total = jax.tree.map(lambda t, g: t + loss.weight.astype(g.dtype) * g, total, grads)
        return total, statistics, jax.tree.map(jnp.add, losses, loss)

    zero = jnp.zeros((), jnp.result_type(float))
    start = (optax.tree.zeros_like(model.params), model.statistics, Mean(zero, zero))
    total, statistics, losses = repeat(add, number, start, most)
    count = jnp.maximum(losses.weight, 1)
    return jax.tree.map(lambda t: t / count.astype(t.dtype), total), statistics, losses


def full_size(local: Local) -> int:
    """Returns the number of examples in a piece of a full gradient outside local steps."""
    pieces = local.gradient_accumulation
    return 128 if pieces == 1 else min(128, local.batch_size // pieces)


def full_gradient(
    problem: Problem,
    size: int = 128,
    penalty: Penalty | None = None,
    reverse: ReverseMode | None = None,
) -> Callable[[Model, ClientData, Key], Gradient]:
    """Returns `(model, data, key) -> (gradient, statistics, loss)`, in pieces of `size`."""
    gradient = batch_gradient(problem, penalty)

    def run(model, data, key):
        width = min(size, data.indices.shape[0])
        most = None
        if reverse is not None:  # a pool of all clients' examples has a static number
            known = not isinstance(data.num_examples, jax.core.Tracer)
            most = -(-(int(data.num_examples) if known else reverse.max_examples) // width)
        number = -(-data.num_examples // width)
        return _accumulate(gradient, lambda k: data.piece(k, width), number, most, model, key)

    return run


def mean_loss(problem: Problem, local: Local) -> Callable[[Model, ClientData, Key], jax.Array]:
    """Returns `(model, data, key) -> F_i`, float[], the mean loss of all examples in evaluation."""

    def run(model, data, key):
        width = min(local.batch_size, data.indices.shape[0])

        def add(number, total):
            batch, mask = data.piece(number, width)
            return jax.tree.map(jnp.add, total, loss_of_batch(problem, model, batch, mask, key))

        zero = jnp.zeros((), jnp.result_type(float))
        most = None if local.reverse is None else -(-local.reverse.max_examples // width)
        return repeat(add, -(-data.num_examples // width), Mean(zero, zero), most).value()

    return run


def loss_of_batch(problem: Problem, model: Model, batch: Batch, mask: jax.Array, key: Key) -> Mean:
    """Returns the loss over the real examples of a batch, computed as in an evaluation."""
    outputs, _ = apply_model(problem, model, with_mask(batch, mask | ~mask.any()), key, False)
    losses = losses_of(problem, outputs, batch)
    float_type = jnp.result_type(float)
    return Mean(jnp.where(mask, losses, 0).sum(dtype=float_type), mask.sum(dtype=float_type))


class Train(NamedTuple):
    """The function that `local_training` returns; it runs one client's local steps.

    Attributes:
      local: how a client trains.
      gradient: `(model, batch, mask, key) -> (gradient, statistics, loss)`, for the mean loss over
        the real rows of a batch. The returned loss is without the penalty.
      full_gradient: `(model, data, key) -> (gradient, statistics, loss)` over all of a client's
        examples.
    """

    local: Local
    gradient: Callable[..., Gradient]
    full_gradient: Callable[[Model, ClientData, Key], Gradient]

    def __call__(
        self,
        params: Params,
        data: ClientData,
        dispatch: Dispatch,
        key: Key,
        *,
        correct: Callable[..., Any] = uncorrected,
        correct_state: Any = None,
        move: Callable[[Params], Params] | None = None,
        transform: optax.GradientTransformation | None = None,
        transform_state: Any = None,
    ) -> Trained:
        """Runs the local steps and returns the last local model.

        Args:
          params: x, the model that the client starts from.
          data: the client's examples.
          dispatch: gives `num_steps` and `learning_rate`.
          key: for dropout and noise.
          correct: `(gradient, y, step) -> gradient`, applied before `transform`.
          correct_state: the first state of a correction that changes from step to step, which is
            `(gradient, y, step, state) -> (gradient, state)`; None if `correct` has no state.
          move: `y -> y`, applied before the gradient is taken; None leaves y as it is.
          transform: replaces `local.transform`.
          transform_state: the state that `transform` starts from; None initialises it at `params`.
        """
        local = self.local
        data = data._replace(examples=opened(data.examples))
        if local.batches != "full":  # its pieces have at most the client's examples
            row = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], data.examples))
            size = local.batch_size * (tree_bytes(row) + 4)
            check_device_memory(f"batch_size={local.batch_size}", size, "give a smaller one")
        transform = local.transform if transform is None else transform
        if transform_state is None:
            transform_state = transform.init(params)

        def descend(rate, y, g):
            found = f"a step of shape {g.shape} is made from params of shape {y.shape}"
            fix = "keep the gradient's shapes in the transform and the correction"
            require(g.shape == y.shape, f"{found}; {fix}")
            return (y - rate.astype(y.dtype) * g).astype(y.dtype)

        def step(k, carry):
            params, transform_state, statistics, losses, *kept = carry
            step_key = jax.random.fold_in(key, k)
            whole = local.batches == "full"
            batch = () if whole else data.local_batch(k, local)

            def gradient_of(point):
                model = Model(point, statistics, data.frozen)
                if whole:
                    return self.full_gradient(model, data, step_key)
                return self.gradient(model, *batch, step_key)

            params = params if move is None else move(params)
            grads, new_statistics, loss = gradient_of(params)
            again = refuse if local.example_noise else lambda point: gradient_of(point)[0]
            corrected = correct(grads, params, Step(k, again), *kept)
            grads, *kept = corrected if kept else (corrected,)
            grads, transform_state = transform.update(grads, transform_state, params)
            params = jax.tree.map(partial(descend, rate_of(local, dispatch, k)), params, grads)
            losses = jax.tree.map(jnp.add, losses, loss)
            return params, transform_state, new_statistics, losses, *kept

        zero = jnp.zeros((), jnp.result_type(float))
        kept = () if correct_state is None else (correct_state,)
        start = (params, transform_state, data.statistics, Mean(zero, zero), *kept)
        bounds = () if local.reverse is None else (local.reverse.max_steps, local.reverse.policy)
        end = repeat(step, dispatch.num_steps, start, *bounds)
        params, transform_state, statistics, losses, *kept = end
        report = Report({"train_loss": losses}, statistics)
        return Trained(params, transform_state, report, *kept)


def local_training(problem: Problem, local: Local, penalty: Penalty | None = None) -> Train:
    """Returns a function that runs one client's local steps.

    In step k: `y <- move(y)`, `g = transform(correct(gradient of the batch at y, y, step))`, then
    `y <- y - rate g` with the rate in `dispatch.learning_rate`. The number of steps may be traced.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      penalty: `(outputs, batch) -> float[batch]`, added to the loss; the reported loss does not
        contain it. A batch that is a dict has its mask as "mask". If the penalty also needs the
        received model or the client's state, call `local_training` inside `client_update`.

    Raises:
      TypeError: if `local` is not a `Local`.
      ValueError: if a value of `local` is out of range or its transform holds a rate; when called,
        if batches do not fit into memory.
    """
    check_local(local)
    check_transform("Local: transform", local.transform, problem)
    pieces = local.gradient_accumulation
    full = full_gradient(problem, local.batch_size // pieces, penalty, local.reverse)
    gradient = batch_gradient(problem, penalty, pieces)
    if local.example_noise is not None:
        gradient = noisy_gradient(gradient, problem, local.example_noise, local.batch_size)
    return Train(local, gradient, full)
