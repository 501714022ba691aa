"""APFL: a client's model mixes its own and the global model in a learned proportion.

Deng et al., "Adaptive Personalized Federated Learning", 2020, https://arxiv.org/abs/2003.13461,
Algorithm 1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Model, Params, Problem, Weighting
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import Positive, UnitInterval


class Both(NamedTuple):
    """The params of the two models that a client trains together, or their statistics."""

    w: Any  # the client's version of the global model
    v: Any  # the client's own model; as statistics, the mixture's
    alpha: Any = ()  # float[]: the share of v


class ClientState(NamedTuple):
    v: Params  # v_i
    alpha: jax.Array  # float[]: alpha_i
    statistics: Any  # of the mixture


def mix(alpha, v: Params, w: Params) -> Params:
    """`alpha v + (1 - alpha) w`."""
    return jax.tree.map(lambda v, w: alpha.astype(v.dtype) * (v - w) + w, v, w)


def mixture(problem: Problem) -> Problem:
    """Joins both models in one problem with the loss of w; the outputs are (w's, the mixture's).

    If d is the gradient of the mixture's loss by the mixture, its gradient by v is alpha d, and its
    gradient by alpha is <d, v - w>. No gradient flows into w.
    """

    def apply(model, batch, key, training):
        w, v, alpha = model.params
        of_w, w_statistics = problem.apply(
            Model(w, model.statistics.w, model.frozen), batch, key, training
        )
        mixed = Model(mix(alpha, v, jax.lax.stop_gradient(w)), model.statistics.v, model.frozen)
        of_mixed, statistics = problem.apply(mixed, batch, key, training)
        return (of_w, of_mixed), Both(w_statistics, statistics)

    return problem._replace(
        apply=apply,
        loss=lambda outputs, batch: problem.loss(outputs[0], batch),
        metrics=lambda outputs, batch: {},
    )


@algorithms.register
def apfl(
    problem: Problem,
    local: Local,
    *,
    alpha: UnitInterval = 0.5,
    adaptive: bool = True,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """FedAvg for w; `v_i <- v_i - eta grad_v f(alpha_i v_i + (1 - alpha_i) w_i)` beside it.

    Each of the K_i steps updates both, on the same batch. With `adaptive`, also
    `alpha_i <- alpha_i - eta <v_i - w_i, grad f(mixture)>` in each step, clipped to [0, 1], with
    the v_i and w_i before the step. v_i and alpha_i stay with the client; its model mixes v_i and
    the global w, and before its first dispatch v_i is the initial model. The paper's output is a
    weighted mean over all steps; here it is the last model.

    The released code mixes the outputs of the two models in place of their params, takes the
    gradient by v_i with the w_i after its step, and trains alpha_i only in the first step of a
    round, by another gradient plus 0.02 alpha_i.

    `local.transform` acts on the gradients of w and of v separately.

    Args:
      problem: the model and the loss.
      local: how a client trains: K_i steps with learning rate eta.
      alpha: the first alpha_i, from 0 to 1: the share of a client's own model.
      adaptive: trains alpha_i if True.
      server_learning_rate: as in `fedavg`, above 0; 1 in the paper.
      weighting: weights of the mean delta: "uniform" as in the paper, or "examples" (proportional
        to n_i).
    """
    of_mixture = mixture(problem)
    train = local_training(
        of_mixture, local, lambda outputs, batch: problem.loss(outputs[1], batch)
    )
    inner = local.transform

    def transform_init(both):
        return inner.init(both.w), inner.init(both.v)

    def transform_update(gradient, state, both):
        w, w_state = inner.update(gradient.w, state[0], both.w)
        v, v_state = inner.update(gradient.v, state[1], both.v)
        own = gradient.alpha if adaptive else jnp.zeros_like(gradient.alpha)
        return Both(w, v, own), (w_state, v_state)

    transform = optax.GradientTransformation(transform_init, transform_update)

    def clip(both):
        return both._replace(alpha=both.alpha.clip(0, 1))

    def client_init(params, key):
        share = jnp.asarray(alpha, jnp.result_type(float))
        return ClientState(params, share, problem.init(key).statistics)

    def client_update(w, own, data, dispatch, key):
        data = data._replace(statistics=Both(data.statistics, own.statistics))
        start = Both(w, own.v, own.alpha)
        trained = train(start, data, dispatch, key, move=clip, transform=transform)
        after, report = clip(trained.params), trained.report
        own = ClientState(after.v, after.alpha, report.statistics.v)
        report = report._replace(statistics=report.statistics.w)
        return own, optax.tree.sub(w, after.w), report

    def personal(server, own):
        return Model(mix(own.alpha, own.v, server.params), own.statistics)

    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting=weighting)
    return frame._replace(client_update=client_update, client_init=client_init, personal=personal)
