"""FedMuon: clients orthogonalise the momentum of matrices, from the mean of the last momenta.

Liu et al., "FedMuon: Accelerating Federated Learning with Matrix Orthogonalization", 2025,
https://arxiv.org/abs/2510.27403. Another method of this name is https://arxiv.org/abs/2509.26337.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.local_optimizers.diloco import ONE_RATE
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Params, Problem, Traits
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import Decay, NonNegative, Positive
from fedjax_algos.core.trees import Leaves, add_scaled, scale

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the Newton-Schulz steps


class ServerState(NamedTuple):
    params: Params  # x
    update: Params  # G, the last mean of x - y_i
    momentum: Any  # `Leaves`: the last mean of m_i, of the matrices


class Upload(NamedTuple):
    delta: Params  # x - y_i
    momentum: Any  # `Leaves`: m_i


def matrices(tree: Params) -> Leaves:
    """Returns the leaves with two or more axes."""
    return tuple(leaf for leaf in jax.tree.leaves(tree) if leaf.ndim > 1)


def orthogonalised(matrix: jax.Array) -> jax.Array:
    """Moves the singular values of [..., out] near `sqrt(max(1, out / in))` in 5 steps."""
    a, b, c = _COEFFICIENTS
    flat = matrix.reshape(-1, matrix.shape[-1])
    wide = flat if flat.shape[0] <= flat.shape[1] else flat.T
    wide = wide / (jnp.sqrt(jnp.square(wide).sum()) + 1e-8)
    for _ in range(5):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    result = wide if flat.shape[0] <= flat.shape[1] else wide.T
    factor = max(1, flat.shape[1] / flat.shape[0]) ** 0.5
    return (factor * result).reshape(matrix.shape)


@algorithms.register
def fedmuon(
    problem: Problem,
    local: Local,
    *,
    alpha: Positive = 10.0,
    gamma: Decay = 0.5,
    beta: Decay = 0.98,
    weight_decay: NonNegative = 0.01,
) -> Algorithm:
    """`y <- y - eta_l (1 - gamma) d - gamma G / K_i`, with Muon's direction d for matrices.

    `m <- beta m + (1 - beta) g`, `d = alpha (O(beta m + (1 - beta) g) + wd y)`, where O is an
    orthogonalisation in five Newton-Schulz steps and m starts at the mean of the cohort's last
    momenta. Arrays with one axis have AdamW's direction with the decays .9 and .95, from 0 in each
    local update. G is the mean of x - y_i, which clients receive one round later; `x <- x - G`.

    The released code (https://github.com/junkangLiu0/FedMuon) has bfloat16 in O and, for
    convolutions, a factor of kernel height / width in place of out / in. It multiplies G by this
    round's rate over the last round's, and adds smaller epsilons: 1e-7 in O and 1e-10 for arrays
    with one axis, which have 1e-8 here.

    Args:
      problem: the model and the loss.
      local: how a client trains: K_i steps with learning rate eta_l.
      alpha: the factor of the rate of matrices, above 0. The released
        commands have 10 with the rate 3e-4, and 0.5 with 3e-2.
      gamma: gamma, the weight of the last update, from 0 to below 1.
      beta: beta, the decay of m, from 0 to below 1.
      weight_decay: wd, at least 0; it is decoupled.
    """
    train = local_training(problem, local)
    adam = optax.scale_by_adam(0.9, 0.95)

    def init(params, population):
        zeros = optax.tree.zeros_like(params)
        return ServerState(params, zeros, matrices(zeros))

    def client_update(broadcast, state, data, dispatch, key):
        x, last, mean = broadcast
        work = dispatch.learning_rate * jnp.maximum(dispatch.num_steps, 1)  # eta_l K_i
        pull = scale(gamma / work, last)

        def update(gradient, state, params):
            momentum, rest = state
            momentum = optax.tree.update_moment(matrices(gradient), momentum, beta, 1)
            ahead = optax.tree.update_moment(matrices(gradient), momentum, beta, 1)
            turned = iter([alpha * orthogonalised(leaf) for leaf in ahead])
            step, rest = adam.update(gradient, rest)
            step = jax.tree.map(lambda leaf: next(turned) if leaf.ndim > 1 else leaf, step)

            def decayed(d, y):
                return d + (alpha if y.ndim > 1 else 1) * weight_decay * y

            step = add_scaled(pull, 1 - gamma, jax.tree.map(decayed, step, params))
            return step, (momentum, rest)

        own = optax.chain(local.transform, optax.GradientTransformation(lambda params: (), update))
        start = local.transform.init(x), (mean, adam.init(x))
        trained = train(x, data, dispatch, key, transform=own, transform_state=start)
        momentum = trained.transform_state[1][0]
        return state, Upload(optax.tree.sub(x, trained.params), momentum), trained.report

    def server_update(server, sums, count, group):
        mean = sums.mean()
        return ServerState(optax.tree.sub(server.params, mean.delta), *mean)

    frame = fedavg(problem, local, weighting="uniform")
    return frame._replace(
        init=init,
        broadcast=lambda server, group: server,
        client_update=client_update,
        server_update=server_update,
        traits=Traits(
            Upload("delta", "vector"),
            ServerState("model", "vector", "vector"),
            requires_sgd=ONE_RATE,
            like=lambda params: Upload(params, matrices(params)),
        ),
    )
