"""Measures quantities that the papers plot, assume or bound, without changing the state.

FedGBO plots `cosine_drift`, computed from the uploads that `Engine.updates` returns. The other
quantities are GHBM's.
"""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm, Array, Dispatch, Local, Model, Params, Problem, Update
from fedjax_algos.core.algorithm import kinds, split_update
from fedjax_algos.core.checks import check_clients, check_like, check_whole
from fedjax_algos.core.local_steps import Correction, full_gradient, local_training, uncorrected
from fedjax_algos.core.options import check_choice
from fedjax_algos.core.randomness import dispatch_keys, permutation_words
from fedjax_algos.core.trees import add_scaled
from fedjax_algos.core.types import with_arrays
from fedjax_algos.data.federated_data import FederatedData, client_view
from fedjax_algos.engine.engine import make_engine
from fedjax_algos.engine.slots import Layout
from fedjax_algos.engine.state import FederatedState

__all__ = [
    "AveragedGradientError",
    "averaged_gradient_error",
    "client_deltas",
    "client_drift",
    "cosine_drift",
    "local_models",
]


def client_deltas(algorithm: Algorithm, params: Params, updates: Update) -> Params:
    """Computes a cohort's deltas x - y_i from its uploads, leaves [cohort, ...].

    Args:
      algorithm: the algorithm of the updates; its `traits.parts` say what they contain.
      params: x, the model that the cohort started from.
      updates: `Stack.updates`, of `engine.updates`.

    Raises:
      ValueError: for updates without the deltas, such as FedNova's or FedGBO's gradients.
    """
    parts = algorithm.traits.parts
    trees = dict(zip(kinds(parts), split_update(parts, updates), strict=True))
    deltas = trees.get("delta", ())
    if "model" in trees:
        deltas = jax.tree.map(lambda x, y: x[None] - y, params, trees["model"])
    elif "change" in trees:
        deltas = jax.tree.map(jnp.negative, trees["change"])
    delta = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), deltas)
    fix = "use an algorithm that uploads deltas (FedGBO: upload='model' or 'both')"
    check_like(f"x - y_i of updates with parts={parts!r}", delta, params, fix, any_dtype=True)
    return deltas


def local_models(algorithm: Algorithm, params: Params, updates: Update) -> Params:
    """Computes a cohort's models y_i from its uploads, leaves [cohort, ...].

    Args:
      algorithm, params, updates: as for `client_deltas`, with the same errors.
    """
    deltas = client_deltas(algorithm, params, updates)
    return jax.tree.map(lambda x, delta: x[None] - delta, params, deltas)


@jax.jit
def cosine_drift(models: Params) -> jax.Array:
    """Computes the mean of 1 - cos(y_i, y_j) over all pairs of a cohort, float[].

    A whole model is one vector. For M clients the result is from 0 to M / (M - 1), or NaN if a
    model is 0.

    Source: Mills et al., "Accelerating Federated Learning with a Global Biased Optimiser", 2023,
    https://arxiv.org/abs/2108.09134, Figure 1. We count each pair once, which is our reading.

    Args:
      models: `local_models` of at least two clients, leaves [cohort, ...]; or their deltas.
    """
    check_whole("the number of models", jax.tree.leaves(models)[0].shape[0], 2)

    def unit(y):
        y = jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), y)
        norm = optax.tree.norm(y)
        return jax.tree.map(lambda leaf: leaf / norm.astype(leaf.dtype), y)

    # half the mean squared distance of all pairs is the unbiased variance
    return sum(leaf.var(0, ddof=1).sum() for leaf in jax.tree.leaves(jax.vmap(unit)(models)))


def client_drift(
    problem: Problem,
    local: Local,
    model: Model,
    data: FederatedData,
    dispatches: Dispatch,
    *,
    seed: int | jax.Array = 0,
    shadow: Literal["all", "cohort"] = "all",
    correct: Correction = uncorrected,
    layout: Layout = "auto",
) -> jax.Array:
    """Computes the mean squared distance of local models from a shadow sequence, float[].

    `epsilon_t = (1 / M) sum_i (1 / K_i) sum over k = 1..K_i of |y_i^k - z^k|^2`, where y_i^k is
    client i's model after k local steps from x, and z is the shadow sequence
    `z^0 = x, z^k = z^{k-1} - rate (1 / N) sum_i g_i(z^{k-1})` with full-batch gradients.

    Source: Definition 3.1 and eq. 1 of Zaccone et al., "Communication-Efficient Heterogeneous
    Federated Learning with Generalized Heavy-Ball Momentum", TMLR 2025,
    https://arxiv.org/abs/2311.18578. Our reading where it is not specific:

    - The printed shadow step has no rate, but the clients' steps have one. Here both have it.
    - The outer mean runs over `dispatches`. With one dispatch of each client this is the
      definition; with a uniformly drawn cohort it is an unbiased estimate.
    - The expectation is over the clients' batches. Here the dispatches and the seed fix the
      batches, as in a run; with batches="full" no expectation is left.
    - Each client's mean is over its own steps, and all clients have the same weight.

    Args:
      problem: what is learned.
      local: the clients' training. `local.transform` also acts on the shadow's mean gradient.
      model: x and the model's statistics, such as `state.model`.
      data: all clients' examples.
      dispatches: the dispatches of one round, leaves [cohort]; empty slots are left out. The
        shadow's rate is the mean of their rates.
      seed: the seed of the clients' batches; `state.seed` gives a run's batches.
      shadow: the clients whose gradients the shadow sequence averages, "all" or the "cohort". All
        its models, max K_i, are kept in memory.
      correct: corrects the local models' gradients, as in `local_training`, but not the shadow's.
      layout: the layout of the local training, as for `make_engine`.
    """
    check_choice("shadow", shadow, ("all", "cohort"))
    filled = dispatches.client < data.num_clients
    dispatches = jax.tree.map(lambda leaf: leaf[filled], with_arrays(dispatches))
    clients = dispatches.client if shadow == "cohort" else np.arange(data.num_clients)
    steps, seed = max(int(np.max(dispatches.num_steps)), 1), jnp.asarray(seed, jnp.uint32)
    shadows = _shadows(problem, local, steps, model, data, clients, dispatches.learning_rate, seed)
    trained = (model.params, shadows), model.statistics
    state = FederatedState(*trained, (), (), seed, frozen=model.frozen)
    engine = _distance_engine(problem, local, correct, layout)
    return engine.updates(state, data, dispatches).updates.mean()


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _shadows(problem, local, steps, model, data, clients, rates, seed):
    """Computes z^1 to z^steps, leaves [steps, ...]."""
    gradient = _full_gradients(problem, local.batch_size, model, data, seed)

    def step(carry, _):
        params, state = carry
        direction = _mean_gradient(gradient, params, clients)
        direction, state = local.transform.update(direction, state, params)
        params = add_scaled(params, -rates.mean(), direction)
        return (params, state), params

    return jax.lax.scan(step, (model.params, local.transform.init(model.params)), length=steps)[1]


@functools.lru_cache
def _distance_engine(problem, local, correct, layout):
    """Makes an engine whose clients upload the mean of |y_i^k - z^k|^2 over their steps."""
    train = local_training(problem, local)

    def client_update(server, row, view, dispatch, key):
        x, shadows = server

        def distance(params, number):  # |y_i^k - z^k|^2, 0 for k = 0
            at = jax.tree.map(lambda leaf: leaf[number - 1], shadows)
            square = optax.tree.norm(optax.tree.sub(params, at), squared=True)
            return jnp.where(number > 0, square, 0).astype(float)

        def observe(gradient, state, params):
            """Returns the gradient, and adds up the distances of the models."""
            number, total = state
            return gradient, (number + 1, total + distance(params, number))

        observer = optax.GradientTransformation(lambda params: (0, 0.0), observe)
        observed = optax.chain(observer, local.transform)
        trained = train(x, view, dispatch, key, correct=correct, transform=observed)
        number, total = trained.transform_state[0]
        total += distance(trained.params, number)
        return row, total / jnp.maximum(number, 1), trained.report

    functions = {"broadcast": lambda server, group: server, "client_update": client_update}
    return make_engine(fedavg(problem, local)._replace(**functions), layout)


class AveragedGradientError(NamedTuple):
    """The result of `averaged_gradient_error`; all are float[].

    Attributes:
      error: |g^{t_tau} - g|^2.
      bound: 8 (1 - tau C)^2 (G^2 + |g|^2), as printed.
      worst_case_bound: `bound` with the largest dissimilarity in place of G^2.
      dissimilarity: G^2, the mean over clients of |g_i - g|^2.
      largest_dissimilarity: the largest |g_i - g|^2.
      gradient: |g|^2.
    """

    error: jax.Array
    bound: jax.Array
    worst_case_bound: jax.Array
    dissimilarity: jax.Array
    largest_dissimilarity: jax.Array
    gradient: jax.Array


def averaged_gradient_error(
    problem: Problem,
    model: Model,
    data: FederatedData,
    cohorts: Array,
    tau: int,
    *,
    seed: int | jax.Array = 0,
    batch_size: int = 128,
) -> AveragedGradientError:
    """Computes the error of the mean gradient over the last tau rounds' clients, and its bound.

    The error is `|g^{t_tau} - g|^2`. Here `g^{t_tau}` is the unweighted mean of the full-batch
    gradients of the clients in the union S_tau of the last tau cohorts, and g is the mean over all
    N clients, at the same params. Under cyclic participation the paper bounds the error by
    `8 (1 - tau C)^2 (G^2 + |g|^2)`. For other cohorts we replace 1 - tau C by 1 - |S_tau| / N, as
    in the lemma behind the corollary.

    Source: Lemma 4.7 and Corollary 4.8 of Zaccone et al., "Communication-Efficient Heterogeneous
    Federated Learning with Generalized Heavy-Ball Momentum", TMLR 2025,
    https://arxiv.org/abs/2311.18578. Its Assumption 4.3 bounds the MEAN dissimilarity by G^2, which
    gives `bound`. The proof needs the mean over any subset to be within G^2, and only the largest
    dissimilarity ensures that. So the error can exceed `bound`, but never `worst_case_bound`.

    Args:
      problem: what is learned.
      model: the model where the gradients are taken.
      data: all clients' examples.
      cohorts: int[rounds, M]: the clients of each round, the latest round last.
      tau: the number of rounds, counted back from the last; from 1 to all rounds.
      seed: the seed of the model's random layers, such as dropout.
      batch_size: examples computed at once.
    """
    cohorts = np.asarray(cohorts)
    fix = "give the clients of each round as [rounds, cohort]"
    require(cohorts.ndim == 2, f"cohorts have shape {cohorts.shape}; {fix}")
    check_whole("tau", tau, 1, len(cohorts))
    number = data.num_clients
    recent = np.unique(cohorts[-tau:])
    check_clients(recent, number)
    # g^{t_tau} - g as one sum is exactly 0 if both are means over the same clients
    weights = np.full(number, -1 / number)
    weights[recent] += 1 / len(recent)
    seed, missing = jnp.asarray(seed, jnp.uint32), 1 - len(recent) / number
    norms = _averaged_gradient_error(problem, batch_size, model, data, weights, seed)
    error, dissimilarity, largest, gradient = norms
    bound, worst_case = (8 * missing**2 * (g + gradient) for g in (dissimilarity, largest))
    return AveragedGradientError(error, bound, worst_case, dissimilarity, largest, gradient)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _averaged_gradient_error(problem, batch_size, model, data, weights, seed):
    gradient = _full_gradients(problem, batch_size, model, data, seed)
    square = functools.partial(optax.tree.norm, squared=True)
    clients = jnp.arange(data.num_clients)
    mean = _mean_gradient(gradient, model.params, clients)

    def add(difference, entry):
        client, weight = entry
        deviation = optax.tree.sub(gradient(model.params, client), mean)  # g_i - g
        return add_scaled(difference, weight, deviation), square(deviation)

    difference, deviations = jax.lax.scan(add, optax.tree.zeros_like(mean), (clients, weights))
    return square(difference), deviations.mean(), deviations.max(), square(mean)


def _full_gradients(problem, batch_size, model, data, seed):
    """Builds `(params, client) -> g_i(params)`, the gradient over all of a client's examples."""
    full = full_gradient(problem, batch_size)

    def gradient(params, client):
        order, key = dispatch_keys(seed, client, jnp.int32(0))
        view = client_view(data, client, permutation_words(order), model.statistics)
        return full(model._replace(params=params), view, key)[0]

    return gradient


def _mean_gradient(gradient, params, clients):
    """Averages the gradients of int32[clients] without weights, one after another."""

    def add(total, client):
        return optax.tree.add(total, gradient(params, client)), None

    total, _ = jax.lax.scan(add, optax.tree.zeros_like(params), clients)
    return jax.tree.map(lambda leaf: leaf / len(clients), total)
