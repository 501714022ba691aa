"""Per-FedAvg: learns a global model that one local step adapts well to each client.

Fallah et al., "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020, https://arxiv.org/abs/2002.07948, Algorithm 1.
"""

from typing import Literal

import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Problem, Weighting
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import NonNegative, Positive
from fedjax_algos.core.trees import add_scaled, scale


@algorithms.register
def perfedavg(
    problem: Problem,
    local: Local,
    *,
    alpha: NonNegative = 0.01,
    form: Literal["first_order", "hessian_free"] = "first_order",
    delta: Positive = 1e-3,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """`w~ = w - alpha g(w; D)`; `w <- w - beta (I - alpha H(w; D'')) g(w~; D')`, tau times; FedAvg.

    D, D' and D'' are three batches. "first_order" leaves the Hessian H out; "hessian_free" takes
    its product with d = g(w~; D') as `(g(w + delta d) - g(w - delta d)) / (2 delta)`. pFedMe's
    released code compares with this algorithm in its first-order form.

    A client's own model is w after a step with rate alpha on its examples:
    `make_evaluate_personal(problem, local)` with `steps=1` and `learning_rate=alpha`.

    Args:
      problem: the model and the loss.
      local: how a client trains: tau steps with learning rate beta. In step k, D is batch k, D'
        batch tau + k and D'' batch 2 tau + k of its stream; with `batches="full"` all are the same.
        With `batches="persistent"` the stream continues after the batches that a dispatch used.
      alpha: alpha, at least 0, the rate of the client's own step; 0 is FedAvg on D'.
      form: the form of the gradient, see above.
      delta: delta, above 0, in units of params / gradient.
      server_learning_rate: as in `fedavg`, above 0; 1 in the paper.
      weighting: weights of the mean delta: "uniform" as in the paper, or "examples" (proportional
        to n_i) as in the code of pFedMe.
    """
    train = local_training(problem, local)
    batches_per_step = 2 if form == "first_order" else 3

    def client_update(w, state, data, dispatch, key):
        data = data._replace(first_step=batches_per_step * data.first_step)

        def gradient_at(point, step, batch_number):
            if local.batches == "full":
                return step.gradient_at(point)
            number = step.number + batch_number * dispatch.num_steps
            batch, mask = data.batch(number, local.batch_size, local.batches)
            return train.gradient(data.model(point), batch, mask, key)[0]

        def corrected(gradient, w, step):
            d = gradient_at(add_scaled(w, -alpha, gradient), step, 1)
            if form == "first_order":
                return d
            ahead, behind = (
                gradient_at(add_scaled(w, factor, d), step, 2) for factor in (delta, -delta)
            )
            product = scale(0.5 / delta, optax.tree.sub(ahead, behind))  # H(w) d
            return add_scaled(d, -alpha, product)

        trained = train(w, data, dispatch, key, correct=corrected)
        return state, optax.tree.sub(w, trained.params), trained.report

    frame = fedavg(problem, local, server_learning_rate=server_learning_rate, weighting=weighting)
    return frame._replace(client_update=client_update)
