"""FedDisco: the weight of a client falls with the discrepancy of its labels from uniform ones.

Ye et al., "FedDisco: Federated Learning with Discrepancy-Aware Collaboration", ICML 2023,
https://arxiv.org/abs/2305.19229.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Traits
from fedjax_algos.core.model_outputs import class_counts, labels_of, logits_of
from fedjax_algos.core.options import NonNegative, Positive
from fedjax_algos.core.trees import add_scaled


class Upload(NamedTuple):
    delta: Params  # x - y_i
    discrepancy: Any  # float[]: d_i before it is divided by the cohort's sum


def discrepancy(counts: jax.Array) -> jax.Array:
    """Returns KL(p || u), float[], of the label distribution p and the uniform one."""
    p = counts / counts.sum()
    return jax.scipy.special.rel_entr(p, jnp.full_like(p, 1 / p.shape[0])).sum()


def disco_weights(counts: jax.Array, discrepancies: jax.Array, a, b) -> jax.Array:
    """Returns the weights of a cohort, float[cohort]; rows with a count of 0 have no weight."""
    p = counts / counts.sum()
    total = jnp.where(counts > 0, discrepancies, 0).sum()
    shares = jnp.where(total > 0, discrepancies / jnp.where(total > 0, total, 1), 0)
    weights = jnp.where(counts > 0, jax.nn.relu(p - a * shares + b), 0)
    sum_ = weights.sum()
    return jnp.where(sum_ > 0, weights / jnp.where(sum_ > 0, sum_, 1), p)


@algorithms.register
def feddisco(
    problem: Problem,
    local: Local,
    *,
    a: NonNegative = 0.5,
    b: NonNegative = 0.1,
    logits: Callable[[Any], jax.Array] = logits_of,
    labels: Callable[[Any], jax.Array] = labels_of,
    server_learning_rate: Positive = 1.0,
) -> Algorithm:
    """`x <- x - eta sum_i w_i (x - y_i)`, where w_i is proportional to `relu(p_i - a d_i + b)`.

    p_i is n_i over the cohort's examples, and d_i the KL divergence of the client's labels from
    uniform ones over the cohort's sum of these. If all w_i are 0, they are p_i; the released code
    (https://github.com/MediaBrain-SJTU/FedDisco) fails there.

    Args:
      problem: the model and the loss.
      local: how a client trains.
      a: a, at least 0, the weight of the discrepancy; 0 with b = 0 is FedAvg.
      b: b, at least 0, added to each weight.
      logits: returns float[batch, classes] from the model's outputs.
      labels: returns the labels, int[batch], from a batch.
      server_learning_rate: eta, above 0; 1 in the paper.

    Raises:
      ValueError: in the first round, if the logits or labels have other shapes.
    """
    frame = fedavg(problem, local)

    def client_update(x, state, data, dispatch, key):
        state, delta, report = frame.client_update(x, state, data, dispatch, key)
        counts = class_counts("feddisco", problem, local, data, logits, labels)
        return state, Upload(delta, discrepancy(counts)), report

    def server_update(server, stack, count, group):
        counts = jnp.where(stack.mask, stack.dispatches.num_examples, 0)
        counts = counts.astype(stack.dispatches.share.dtype)
        weights = disco_weights(counts, stack.updates.discrepancy, a, b)

        def mean(leaf):
            real = stack.mask.reshape(-1, *[1] * (leaf.ndim - 1))
            return jnp.tensordot(weights.astype(leaf.dtype), jnp.where(real, leaf, 0), axes=1)

        delta = jax.tree.map(mean, stack.updates.delta)
        return server._replace(params=add_scaled(server.params, -server_learning_rate, delta))

    traits = Traits(Upload("delta", "count"), reduce="stack")
    return frame._replace(client_update=client_update, server_update=server_update, traits=traits)
