"""Quantities that the papers plot, assume or bound, measured on a state that stays as it was.

The FedGBO paper plots how far a cohort's models point apart, the GHBM paper defines client drift
and bounds the error of gradients averaged over some rounds, and the FedLGA paper approximates
updates of complete turns. `Engine.updates` gives the updates for the first and the last.
"""

import functools
import typing
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_algos.algorithms.fedavg import ServerState, fedavg
from fedjax_algos.algorithms.fedlga import Mode, approximate, factors
from fedjax_algos.core import Array, Local, Model, Params, Problem, Stack, Update, Visit
from fedjax_algos.data.store import FederatedData, client_view
from fedjax_algos.engine import Engine, FederatedState, Layout, make_engine
from fedjax_algos.keys import visit_keys
from fedjax_algos.local import Correction, full_gradient, local_training, uncorrected
from fedjax_algos.trees import add_scaled

Fallback = Literal["none", "max"]


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
    flat = [
        leaf.reshape(cohort, -1).astype(jnp.promote_types(leaf.dtype, jnp.float32))
        for leaf in jax.tree.leaves(models)
    ]
    norms = jnp.sqrt(sum(jnp.square(leaf).sum(1) for leaf in flat))[:, None]

    # On unit vectors 1 - cos is half the squared distance, and half its mean over all pairs is the
    # sum of squares around the mean over M - 1: no products of pairs, no small differences from 1.
    def spread(leaf):
        units = leaf / norms.astype(leaf.dtype)
        return jnp.square(units - units.mean(0, keepdims=True)).sum()

    return sum(map(spread, flat)) / (cohort - 1)


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
    _check("shadow", shadow, ("all", "cohort"))
    steps = max(int(np.max(visits.num_steps)), 1)
    return _client_drift(
        model,
        data,
        visits,
        jnp.asarray(seed, jnp.uint32),
        problem=problem,
        local=local,
        steps=steps,
        shadow=shadow,
        correct=correct,
        layout=layout,
    )


@functools.partial(
    jax.jit, static_argnames=("problem", "local", "steps", "shadow", "correct", "layout")
)
def _client_drift(model, data, visits, seed, *, problem, local, steps, shadow, correct, layout):
    train = local_training(problem, local)
    clients = visits.client if shadow == "cohort" else jnp.arange(data.num_clients)
    shadows = _shadows(problem, local, steps, model, data, clients, visits.learning_rate, seed)

    def distance(params, number):  # |y_i^k - z^k|^2 for k >= 1
        at = jax.tree.map(lambda leaf: leaf[number - 1], shadows)
        return _squared_norm(optax.tree.sub(params, at))

    def start(params):
        return local.transform.init(params), jnp.int32(0), jnp.zeros((), jnp.result_type(float))

    def observe(gradient, state, params):
        """As `local.transform`, adding up the distances of the models that steps start from."""
        inner, number, total = state
        total += jnp.where(number > 0, distance(params, number), 0).astype(total.dtype)
        gradient, inner = local.transform.update(gradient, inner, params)
        return gradient, (inner, number + 1, total)

    def client_update(params, own, view, visit, key):
        observer = optax.GradientTransformation(start, observe)
        trained = train(params, view, visit, key, correct=correct, transform=observer)
        _, number, total = trained.transform_state
        last = jnp.where(number > 0, distance(trained.params, number), 0).astype(total.dtype)
        return own, (total + last) / jnp.maximum(number, 1), trained.report

    measuring = fedavg(problem, local)._replace(client_update=client_update)
    state = FederatedState(ServerState(model.params, ()), model.statistics, (), (), seed)
    return make_engine(measuring, layout).updates(state, data, visits).updates.mean()


def _shadows(problem, local, steps, model, data, clients, rates, seed):
    """z^1 to z^steps, leaves [steps, ...]."""
    gradient = _gradient_of(problem, local.batch_size, model, data, seed)
    rate = rates.mean()

    def step(carry, _):
        params, transform_state = carry

        def add(total, client):
            return optax.tree.add(total, gradient(params, client)), None

        total, _ = jax.lax.scan(add, optax.tree.zeros_like(params), clients)
        mean = jax.tree.map(lambda leaf: leaf / len(clients), total)
        direction, transform_state = local.transform.update(mean, transform_state, params)
        params = add_scaled(params, -rate, direction)
        return (params, transform_state), params

    start = model.params, local.transform.init(model.params)
    _, shadows = jax.lax.scan(step, start, length=steps)
    return shadows


def _gradient_of(problem, size, model, data, seed):
    """`(params, client) -> g_i(params)`, over all of the client's examples."""
    full = full_gradient(problem, size)

    def gradient(params, client):
        order, key = visit_keys(seed, client, jnp.int32(0))
        view = client_view(data, client, order, model.statistics)
        return full(Model(params, model.statistics), view, key)[0]

    return gradient


def _squared_norm(tree):
    return optax.tree.norm(tree, squared=True)


class AveragedGradientError(NamedTuple):
    """See `averaged_gradient_error`; all are float[]."""

    error: jax.Array  # |g^{t_tau} - g|^2
    bound: jax.Array  # 8 (1 - tau C)^2 (G^2 + |g|^2), as printed
    sure_bound: jax.Array  # the same with the largest dissimilarity in place of G^2
    dissimilarity: jax.Array  # G^2, the mean over clients of |g_i - g|^2
    largest_dissimilarity: jax.Array  # the largest |g_i - g|^2
    gradient: jax.Array  # |g|^2


def averaged_gradient_error(
    problem: Problem,
    model: Model,
    data: FederatedData,
    cohorts: Array,
    tau: int,
    *,
    seed: int | jax.Array = 0,
    size: int = 128,
) -> AveragedGradientError:
    """How well the clients of the last tau rounds stand for all: |g^{t_tau} - g|^2 and its bound.

    `g^{t_tau}` is the plain mean of the full-batch gradients of the clients in the union S_tau of
    the last tau cohorts, and g that of all N clients, at the same params. Under cyclic
    participation of whole groups the paper bounds the error by `8 (1 - tau C)^2 (G^2 + |g|^2)` for
    tau up to 1 / C, where it is 0. For other cohorts 1 - tau C is replaced by 1 - |S_tau| / N, as
    in the lemma that the corollary follows from.

    Source: Lemma 4.7 and Corollary 4.8 of Zaccone et al., "Communication-Efficient Heterogeneous
    Federated Learning with Generalized Heavy-Ball Momentum", TMLR 2025,
    https://arxiv.org/abs/2311.18578. Its Assumption 4.3 bounds by G^2 the MEAN dissimilarity; that
    is `bound`. The proof needs the mean over any subset to be within G^2, which only the largest
    dissimilarity gives, and one deviant client of ten breaks the printed bound at tau = 1: so the
    error may exceed `bound`, never `sure_bound`.

    Args:
      problem: what is learned.
      model: where the gradients are taken.
      data: all clients' examples.
      cohorts: int[rounds, M]: who took part, the latest round last.
      tau: rounds that count, from the last.
      seed: of dropout and the like, where the model has any.
      size: examples computed at once.

    Raises:
      ValueError: for a tau beyond the rounds, or a client that is none.
    """
    cohorts = np.asarray(cohorts)
    if cohorts.ndim != 2:
        raise ValueError(f"cohorts has shape {cohorts.shape}; give clients as [rounds, cohort]")
    if not 1 <= tau <= len(cohorts):
        raise ValueError(
            f"tau={tau} is out of range; give 1 to {len(cohorts)}, the number of cohorts"
        )
    number = data.num_clients
    recent = np.unique(cohorts[-tau:])
    if not 0 <= recent[0] <= recent[-1] < number:
        wrong = recent[0] if recent[0] < 0 else recent[-1]
        raise ValueError(f"client {wrong} is in a cohort; there are clients 0 to {number - 1}")
    # g^{t_tau} - g as one sum, so that it is exactly 0 where both are means over the same clients
    weights = np.full(number, -1 / number)
    weights[recent] += 1 / len(recent)
    seed, missing = jnp.asarray(seed, jnp.uint32), 1 - len(recent) / number
    error, dissimilarity, largest, gradient = _averaged_gradient_error(
        model, data, weights, seed, problem=problem, size=size
    )
    bound, sure_bound = (8 * missing**2 * (each + gradient) for each in (dissimilarity, largest))
    return AveragedGradientError(error, bound, sure_bound, dissimilarity, largest, gradient)


@functools.partial(jax.jit, static_argnames=("problem", "size"))
def _averaged_gradient_error(model, data, weights, seed, *, problem, size):
    gradient = _gradient_of(problem, size, model, data, seed)
    clients = jnp.arange(data.num_clients)

    def add(sums, entry):
        total, difference = sums
        client, weight = entry
        own = gradient(model.params, client)
        return (optax.tree.add(total, own), add_scaled(difference, weight, own)), None

    zeros = optax.tree.zeros_like(model.params)
    (total, difference), _ = jax.lax.scan(add, (zeros, zeros), (clients, weights))
    mean = jax.tree.map(lambda leaf: leaf / len(clients), total)

    def deviation(client):  # |g_i - g|^2
        return _squared_norm(optax.tree.sub(gradient(model.params, client), mean))

    deviations = jax.lax.map(deviation, clients)
    return _squared_norm(difference), deviations.mean(), deviations.max(), _squared_norm(mean)


def lga_factors(
    stack: Stack,
    *,
    mode: Literal["outer", "update"] = "outer",
    strength: float = 1.0,
    clip: bool = False,
    fallback: Fallback = "none",
) -> jax.Array:
    """FedLGA's factors c_i, float[cohort], by which partial clients' updates are multiplied.

    With D the mean change of the complete clients, `c_i = 1 + strength <Delta_i, D - Delta_i> /
    (rate S_i)^2` in the mode "outer", and without the denominator in "update"; 1 for complete
    clients, and for all where none is complete and fallback is "none". The mode "diag" changes
    directions and has no factors.

    Args:
      stack: changes y_i - x or steps x - y_i, leaves [cohort, ...], of FedLGA's or any algorithm's
        upload, with their visits: the factor does not depend on the sign.
      mode, strength, clip, fallback: as for `fedlga`.

    Raises:
      ValueError: for the mode "diag", an unknown one, or an unknown fallback.
    """
    _check("mode", mode, ("outer", "update"))
    _check("fallback", fallback, typing.get_args(Fallback))
    updates = stack.updates
    changes = getattr(updates, "change", getattr(updates, "step", updates))
    stack = stack._replace(updates=changes)
    return factors(stack, mode=mode, strength=strength, clip=clip, fallback=fallback)


class PartialTurns(NamedTuple):
    """What a cohort changes, and what it would have changed had all done full turns."""

    stack: Stack  # y_i - x after num_steps, leaves [cohort, ...]
    full: Params  # y_i - x after full_steps, likewise


class ApproximationError(NamedTuple):
    """float[cohort] each but the first; relative to |Delta_i,full|; 0 for complete clients."""

    partial: jax.Array  # bool[cohort]: who did not complete its turn
    error: jax.Array  # |Delta_i,full - approximation|
    relative: jax.Array
    uncorrected: jax.Array  # |Delta_i,full - Delta_i|, the error of doing nothing
    uncorrected_relative: jax.Array


def partial_turns(
    engine: Engine, state: FederatedState, data: FederatedData, visits: Visit
) -> PartialTurns:
    """Computes a cohort twice, with its partial work and to the end, on the same keys and batches.

    Args:
      engine: of FedLGA, FedAvg or another algorithm that uploads steps.
      state: as before the round; it is not consumed.
      data: all clients' examples.
      visits: of one round, leaves [cohort]; `num_steps` is below `full_steps` where partial.

    Raises:
      ValueError: for an algorithm whose uploads do not hold the steps.
    """

    def changes(visits):
        stack = engine.updates(state, data, visits)
        steps = steps_of(state.server.params, stack.updates)
        return stack._replace(updates=jax.tree.map(jnp.negative, steps))

    full_steps = np.asarray(visits.full_steps)
    return PartialTurns(changes(visits), changes(visits._replace(num_steps=full_steps)).updates)


def approximation_error(
    turns: PartialTurns,
    *,
    mode: Mode = "outer",
    strength: float = 1.0,
    clip: bool = False,
    fallback: Fallback = "none",
) -> ApproximationError:
    """The difference of FedLGA's approximations from the updates of complete turns.

    `|Delta_i,E - Delta^_i|` for each partial client i: what eq. 3 of Li et al., "FedLGA: Towards
    System-Heterogeneity of Federated Learning via Local Gradient Approximation", 2023,
    https://arxiv.org/abs/2112.11989, wants to be small. With the fallback "max" the clients that
    did the largest share of their work are left as they are, and keep their error.

    Args:
      turns: what `partial_turns` gave; one serves any number of settings.
      mode, strength, clip, fallback: as for `fedlga`.

    Raises:
      ValueError: for an unknown mode or fallback.
    """
    _check("mode", mode, typing.get_args(Mode))
    _check("fallback", fallback, typing.get_args(Fallback))
    stack, full = turns

    def norms(tree):
        return jnp.sqrt(jax.vmap(_squared_norm)(tree))

    def missed(updates):
        error = norms(optax.tree.sub(full, updates))
        return error, jnp.where(error > 0, error / norms(full), 0)

    partial = stack.mask & (stack.visits.num_steps < stack.visits.full_steps)
    approximated = approximate(stack, mode=mode, strength=strength, clip=clip, fallback=fallback)
    return ApproximationError(partial, *missed(approximated), *missed(stack.updates))


def _check(name, value, known):
    if value not in known:
        raise ValueError(f"{name}={value!r} does not exist here; choose {' or '.join(known)}")
