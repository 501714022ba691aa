"""pFedMe: clients descend on their Moreau envelopes, whose minimisers are their own models.

Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
https://arxiv.org/abs/2006.08848, Algorithm 1.
"""

import jax
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.averaging.fedprox import proximal
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Model, Problem, Weighting
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import Count, Positive
from fedjax_algos.core.trees import add_scaled, scale


@algorithms.register
def pfedme(
    problem: Problem,
    local: Local,
    *,
    strength: Positive = 15.0,
    inner_steps: Count = 5,
    personal_learning_rate: Positive = 0.01,
    beta: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """`w_i <- w_i - eta lambda (w_i - theta_i)`, where theta_i is near w_i and fits the client.

    `theta_i ~ argmin f_i(theta) + lambda/2 |theta - w_i|^2`. There are R local steps from w; each
    finds theta_i by K gradient steps on one batch, from w_i. The server's rule is
    `w <- (1 - beta) w + beta mean_i w_i`. A client's own model is its last theta_i. The released
    code starts the K steps from the last theta_i of the same local update instead, adds 0.001 theta
    to their gradient, and evaluates w_i as the client's own model. In the paper and its code all
    clients train in each round, and some of them send; here only the cohort trains.
    `local.transform` acts on lambda (w_i - theta_i).

    Args:
      problem: the model and the loss.
      local: how a client trains: R steps with learning rate eta.
      strength: lambda, above 0: how near theta_i is to w_i.
      inner_steps: K, at least 1.
      personal_learning_rate: the rate of the K steps, above 0.
      beta: the factor of the mean delta, above 0; 1 averages the local models.
      weighting: weights of the mean delta: "uniform" as in the paper, or "examples" (proportional
        to n_i) as in the released code.
    """
    train = local_training(problem, local)

    def towards(theta, state, w):
        return scale(strength, optax.tree.sub(w, theta)), theta

    # `correct` returns theta in place of a gradient; the transformation's state keeps the last one
    envelope = optax.GradientTransformation(lambda w: w, towards)
    transform = optax.chain(envelope, local.transform)

    def minimise(gradient, w, step):
        near = proximal(strength, w)

        def descend(theta, gradient):
            return add_scaled(theta, -personal_learning_rate, near(gradient, theta, step))

        def inner_step(_, theta):
            return descend(theta, step.gradient_at(theta))

        return jax.lax.fori_loop(1, inner_steps, inner_step, descend(w, gradient))

    def client_init(params, key):
        return Model(params, problem.init(key).statistics)  # theta_i

    def client_update(w, own, data, dispatch, key):
        trained = train(w, data, dispatch, key, correct=minimise, transform=transform)
        theta = trained.transform_state[0]
        own = Model(theta, trained.report.statistics)
        return own, optax.tree.sub(w, trained.params), trained.report

    frame = fedavg(problem, local, server_learning_rate=beta, weighting=weighting)
    return frame._replace(
        client_update=client_update, client_init=client_init, personal=lambda server, own: own
    )
