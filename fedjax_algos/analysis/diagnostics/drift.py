"""How far a cohort's models point apart, and how far they are from a shared sequence of models."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.analysis.diagnostics.gradients import full_gradients, mean_gradient
from fedjax_algos.core import Local, Model, Params, Problem, Update, Visit
from fedjax_algos.core.local_training import Correction, local_training, uncorrected
from fedjax_algos.core.trees import add_scaled
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.engine import FederatedState, Layout, make_engine


def steps_of(params: Params, updates: Update) -> Params:
    """The cohort's steps x - y_i, leaves [cohort, ...], from what it uploaded.

    Args:
      params: x, the model that the cohort started from.
      updates: `Stack.updates`: the steps themselves, or a NamedTuple that holds them as `step`, or
        as `change` with the opposite sign.

    Raises:
      ValueError: for updates without the steps, such as FedNova's or FedGBO's gradients.
    """
    if hasattr(updates, "change"):
        steps = jax.tree.map(jnp.negative, updates.change)
    else:
        steps = getattr(updates, "step", updates)
    shapes = [[leaf.shape[1:] for leaf in jax.tree.leaves(steps)], jax.tree.structure(steps)]
    if shapes != [[leaf.shape for leaf in jax.tree.leaves(params)], jax.tree.structure(params)]:
        raise ValueError(
            f"updates of the form {jax.tree.structure(updates)} do not hold the steps x - y_i; "
            "give those of an algorithm that uploads steps (FedGBO: upload='model' or 'both')"
        )
    return steps


def local_models(params: Params, updates: Update) -> Params:
    """The cohort's models y_i, leaves [cohort, ...], from x and its uploads: see `steps_of`."""
    return jax.tree.map(lambda x, step: x[None] - step, params, steps_of(params, updates))


@jax.jit
def cosine_drift(models: Params) -> jax.Array:
    """Mean over all pairs of a cohort of 1 - cos(y_i, y_j), whole models taken as vectors.

    At least 0 and at most M / (M - 1); NaN where a vector is 0. Give it `local_models(...)`, or
    `steps_of(...)` for the drift of the updates.

    Source: Mills et al., "Accelerating Federated Learning with a Global Biased Optimiser", 2023,
    Figure 1, which says average distance of the uploaded models; that all pairs count once is our
    reading.

    Args:
      models: leaves [cohort, ...].

    Raises:
      ValueError: for a cohort of one.
    """
    cohort = jax.tree.leaves(models)[0].shape[0]
    if cohort < 2:
        raise ValueError(f"a cohort of {cohort} has no pairs; give at least 2 clients' models")

    def unit(y):
        y = jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), y)
        norm = optax.tree.norm(y)
        return jax.tree.map(lambda leaf: leaf / norm.astype(leaf.dtype), y)

    # On unit vectors 1 - cos is half the squared distance, and half its mean over all pairs is the
    # sum of squares around the mean over M - 1: no products of pairs, no small differences from 1.
    return sum(leaf.var(0, ddof=1).sum() for leaf in jax.tree.leaves(jax.vmap(unit)(models)))


def client_drift(
    problem: Problem,
    local: Local,
    model: Model,
    data: FederatedData,
    visits: Visit,
    *,
    seed: int | jax.Array = 0,
    shadow: Literal["all", "cohort"] = "all",
    correct: Correction = uncorrected,
    layout: Layout = "auto",
) -> jax.Array:
    """float[]: how far local models are from the model that averaged gradients would have made.

    `epsilon_t = (1 / M) sum_i (1 / K_i) sum over k = 1..K_i of |y_i^k - z^k|^2`, where y_i^k is
    client i's model after k steps from x of local training with `local`, and z is the shadow
    sequence `z^0 = x, z^k = z^{k-1} - rate (1 / N) sum_i g_i(z^{k-1})` with full-batch gradients.

    Source: Definition 3.1 and eq. 1 of Zaccone et al., "Communication-Efficient Heterogeneous
    Federated Learning with Generalized Heavy-Ball Momentum", TMLR 2025,
    https://arxiv.org/abs/2311.18578. Our reading of what it leaves open:

    - The printed shadow step has no rate; the clients' steps have one, so here it has the clients'.
    - In the paper S is all clients. So the shadow averages all clients' gradients, and the outer
      mean runs over `visits`: with one visit of each client this is the definition, and with a
      cohort drawn uniformly an unbiased estimate of it. `shadow="cohort"` has both averages over
      the cohort.
    - The expectation is over the clients' batches. Here are those of the visits and the seed, as
      in a run; average over several visits, or have batches="full", which need no expectation.
    - Where clients do unequal work, each client's mean over its own steps counts equally.

    Args:
      problem: what is learned.
      local: how clients train. `local.transform` acts on the shadow's mean gradient as well.
      model: x and the model's statistics, such as `Model(state.server.params, state.statistics)`.
      data: all clients' examples.
      visits: of one round, leaves [cohort]. The shadow's rate is the mean of theirs.
      seed: of the clients' batches; a run's `state.seed` gives the run's own.
      shadow: whose gradients the shadow sequence averages. It is kept whole: K_i models.
      correct: changes the local models' gradients as in `local_training`, as GHBM's does; it is
        the same for all clients, and does not act on the shadow.
      layout: of the local training, as for `make_engine`.

    Raises:
      ValueError: for an unknown choice of `shadow`.
    """
    if shadow not in ("all", "cohort"):
        raise ValueError(f"shadow={shadow!r} does not exist here; choose all or cohort")
    clients = visits.client if shadow == "cohort" else np.arange(data.num_clients)
    steps, seed = max(int(np.max(visits.num_steps)), 1), jnp.asarray(seed, jnp.uint32)
    shadows = _shadows(problem, local, steps, model, data, clients, visits.learning_rate, seed)
    state = FederatedState((model.params, shadows), model.statistics, (), (), seed)
    return _measuring(problem, local, correct, layout).updates(state, data, visits).updates.mean()


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _shadows(problem, local, steps, model, data, clients, rates, seed):
    """z^1 to z^steps, leaves [steps, ...]."""
    gradient = full_gradients(problem, local.batch_size, model, data, seed)

    def step(carry, _):
        params, state = carry
        direction = mean_gradient(gradient, params, clients)
        direction, state = local.transform.update(direction, state, params)
        params = add_scaled(params, -rates.mean(), direction)
        return (params, state), params

    return jax.lax.scan(step, (model.params, local.transform.init(model.params)), length=steps)[1]


@functools.lru_cache
def _measuring(problem, local, correct, layout):
    """An engine whose clients upload the mean of |y_i^k - z^k|^2 over their steps."""
    train = local_training(problem, local)

    def client_update(server, own, view, visit, key):
        x, shadows = server

        def distance(params, number):  # |y_i^k - z^k|^2, 0 for k = 0
            at = jax.tree.map(lambda leaf: leaf[number - 1], shadows)
            square = optax.tree.norm(optax.tree.sub(params, at), squared=True)
            return jnp.where(number > 0, square, 0).astype(float)

        def observe(gradient, state, params):
            """The identity, adding up the distances of the models that steps start from."""
            number, total = state
            return gradient, (number + 1, total + distance(params, number))

        observer = optax.GradientTransformation(lambda params: (0, 0.0), observe)
        observed = optax.chain(observer, local.transform)
        trained = train(x, view, visit, key, correct=correct, transform=observed)
        number, total = trained.transform_state[0]
        total += distance(trained.params, number)
        return own, total / jnp.maximum(number, 1), trained.report

    measuring = fedavg(problem, local)._replace(
        broadcast=lambda server, group: server, client_update=client_update
    )
    return make_engine(measuring, layout)
