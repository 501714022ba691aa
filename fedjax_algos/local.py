"""Local training, shared by all algorithms: SGD steps with a hook for the gradient."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.core import (
    Batch,
    ClientData,
    Key,
    Local,
    Mean,
    Model,
    Params,
    Problem,
    Report,
    Statistics,
    Visit,
)


class Step(NamedTuple):
    """What a gradient correction may look at beside the gradient and the local model."""

    batch: Batch  # leaves [batch, ...]
    mask: jax.Array  # bool[batch]
    number: jax.Array  # int32[]: k, from 0
    key: Key  # the step's own key


class Trained(NamedTuple):
    """A finished turn."""

    params: Params  # y_K
    transform_state: Any
    report: Report


Correction = Callable[[Params, Params, Step], Params]  # (gradient, y, step) -> gradient


class Train(Protocol):
    """The signature of what `local_training` returns."""

    def __call__(
        self,
        params: Params,
        data: ClientData,
        visit: Visit,
        key: Key,
        *,
        correct: Correction = ...,
        transform: optax.GradientTransformation | None = None,
        transform_state: Any = None,
    ) -> Trained: ...


def uncorrected(gradient: Params, params: Params, step: Step) -> Params:
    """The correction that leaves the gradient as it is."""
    del params, step
    return gradient


def batch_gradient(problem: Problem) -> Callable[..., tuple[Params, Statistics, Mean]]:
    """`(Model, batch, mask, key) -> (gradient, statistics, loss)` of the mean loss over real rows.

    A batch without a real row has gradient 0. The losses of masked rows, which repeat real ones,
    are cut out with `where`.
    """

    def mean_loss(params, statistics, batch, mask, key):
        shown = batch | {"mask": mask} if isinstance(batch, dict) else batch
        outputs, statistics = problem.apply(Model(params, statistics), shown, key, True)
        losses = problem.loss(outputs, batch)
        if losses.shape != mask.shape:
            raise ValueError(
                f"the loss has shape {losses.shape}, but must give one value for each example, "
                f"shape {mask.shape}: return the losses without averaging them"
            )
        loss = Mean(jnp.where(mask, losses, 0).sum(), mask.sum().astype(losses.dtype))
        return loss.total / jnp.maximum(loss.weight, 1), (statistics, loss)

    def gradient(model, batch, mask, key):
        grads, (statistics, loss) = jax.grad(mean_loss, has_aux=True)(*model, batch, mask, key)
        return grads, statistics, loss

    return gradient


def local_training(problem: Problem, local: Local) -> Train:
    """A function that runs one client's local steps.

    In step k: `g = transform(correct(gradient of the batch at y, y, step))`, then `y <- y - rate g`
    with the rate in `visit.learning_rate`. The number of steps is data (`visit.num_steps`), so
    clients with less work recompile nothing.

    The returned function takes the starting params, the client's data, its visit and its key, and
    optionally `correct`, another `transform` than `local.transform` and the state that it starts
    from. Its report holds the mean training loss over all examples of all steps.
    """
    gradient = batch_gradient(problem)

    def train(
        params,
        data,
        visit,
        key,
        *,
        correct=uncorrected,
        transform=None,
        transform_state=None,
    ):
        transform = local.transform if transform is None else transform
        if transform_state is None:
            transform_state = transform.init(params)

        def descend(y, g):
            return (y - visit.learning_rate.astype(y.dtype) * g).astype(y.dtype)

        def step(k, carry):
            params, transform_state, statistics, losses = carry
            step_key = jax.random.fold_in(key, k)
            batch, mask = data.batch(k, local.batch_size)
            grads, statistics, loss = gradient(Model(params, statistics), batch, mask, step_key)
            grads = correct(grads, params, Step(batch, mask, k, step_key))
            grads, transform_state = transform.update(grads, transform_state, params)
            params = jax.tree.map(descend, params, grads)
            return params, transform_state, statistics, jax.tree.map(jnp.add, losses, loss)

        zero = jnp.zeros((), jnp.result_type(float))
        start = (params, transform_state, data.statistics, Mean(zero, zero))
        params, transform_state, statistics, losses = jax.lax.fori_loop(
            0, visit.num_steps, step, start
        )
        return Trained(params, transform_state, Report({"train_loss": losses}, statistics))

    return train
