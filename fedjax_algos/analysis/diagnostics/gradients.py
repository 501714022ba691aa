"""Clients' full-batch gradients, and how well those of recent cohorts approximate their mean."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_algos.core import Array, Model, Params, Problem
from fedjax_algos.core.local_training import full_gradient
from fedjax_algos.core.randomness import dispatch_keys, permutation_words
from fedjax_algos.core.trees import add_scaled
from fedjax_algos.data.federated_data import FederatedData, client_view


class AveragedGradientError(NamedTuple):
    """The result of `averaged_gradient_error`; all are float[].

    Attributes:
      error: |g^{t_tau} - g|^2.
      bound: 8 (1 - tau C)^2 (G^2 + |g|^2), as printed.
      worst_case_bound: with the largest dissimilarity in place of G^2.
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
    """The error of the mean gradient over the clients of the last tau rounds, and its bound.

    The error is `|g^{t_tau} - g|^2`. Here `g^{t_tau}` is the unweighted mean of the full-batch
    gradients of the clients in the union S_tau of the last tau cohorts, and g that of all N
    clients, at the same params. Under cyclic participation of whole groups the paper bounds the
    error by `8 (1 - tau C)^2 (G^2 + |g|^2)` for tau up to 1 / C, where the bound is 0. For other
    cohorts 1 - tau C is replaced by 1 - |S_tau| / N, as in the lemma behind the corollary.

    Source: Lemma 4.7 and Corollary 4.8 of Zaccone et al., "Communication-Efficient Heterogeneous
    Federated Learning with Generalized Heavy-Ball Momentum", TMLR 2025,
    https://arxiv.org/abs/2311.18578. Its Assumption 4.3 bounds the MEAN dissimilarity by G^2, which
    gives `bound`. The proof needs the mean over any subset to be within G^2, and only the largest
    dissimilarity ensures that: one deviant client of ten breaks the printed bound at tau = 1. So
    the error can exceed `bound`, but never `worst_case_bound`.

    Args:
      problem: what is learned.
      model: where the gradients are taken.
      data: all clients' examples.
      cohorts: int[rounds, M]: the clients of each round, the latest round last.
      tau: number of rounds, counted back from the last.
      seed: the seed of the model's random layers, such as dropout.
      batch_size: examples computed at once.

    Raises:
      ValueError: for a tau that is not from 1 to the number of rounds, or a client that does not
        exist.
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
    # g^{t_tau} - g as one sum, which is exactly 0 if both are means over the same clients
    weights = np.full(number, -1 / number)
    weights[recent] += 1 / len(recent)
    seed, missing = jnp.asarray(seed, jnp.uint32), 1 - len(recent) / number
    error, dissimilarity, largest, gradient = _averaged_gradient_error(
        problem, batch_size, model, data, weights, seed
    )
    bound, worst_case = (8 * missing**2 * (each + gradient) for each in (dissimilarity, largest))
    return AveragedGradientError(error, bound, worst_case, dissimilarity, largest, gradient)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _averaged_gradient_error(problem, batch_size, model, data, weights, seed):
    gradient = full_gradients(problem, batch_size, model, data, seed)
    square = functools.partial(optax.tree.norm, squared=True)
    clients = jnp.arange(data.num_clients)
    mean = mean_gradient(gradient, model.params, clients)

    def add(difference, entry):
        client, weight = entry
        deviation = optax.tree.sub(gradient(model.params, client), mean)  # g_i - g
        return add_scaled(difference, weight, deviation), square(deviation)

    difference, deviations = jax.lax.scan(add, optax.tree.zeros_like(mean), (clients, weights))
    return square(difference), deviations.mean(), deviations.max(), square(mean)


def full_gradients(
    problem: Problem, batch_size: int, model: Model, data: FederatedData, seed: jax.Array
) -> Callable[[Params, jax.Array], Params]:
    """Builds `(params, client) -> g_i(params)`, the gradient over all of a client's examples.

    Args:
      problem: what is learned.
      batch_size: examples computed at once.
      model: its statistics are used; its params are not.
      data: all clients' examples.
      seed: uint32[], of the model's random layers.
    """
    full = full_gradient(problem, batch_size)

    def gradient(params, client):
        order, key = dispatch_keys(seed, client, jnp.int32(0))
        view = client_view(data, client, permutation_words(order), model.statistics)
        return full(model._replace(params=params), view, key)[0]

    return gradient


def mean_gradient(
    gradient: Callable[[Params, jax.Array], Params], params: Params, clients: Array
) -> Params:
    """The unweighted mean of the gradients of some clients, added up one after another.

    Args:
      gradient: what `full_gradients` returned.
      params: where the gradients are taken.
      clients: int32[clients].
    """

    def add(total, client):
        return optax.tree.add(total, gradient(params, client)), None

    total, _ = jax.lax.scan(add, optax.tree.zeros_like(params), clients)
    return jax.tree.map(lambda leaf: leaf / len(clients), total)
