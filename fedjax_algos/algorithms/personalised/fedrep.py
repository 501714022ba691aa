"""FedRep: clients share the body of the model, and each keeps its own head.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021,
https://arxiv.org/abs/2102.07078, Algorithm 1.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.algorithms.averaging.fedavg import fedavg
from fedjax_algos.algorithms.registry import algorithms
from fedjax_algos.core import Algorithm, Local, Model, Problem, Traits, Weighting
from fedjax_algos.core.local_steps import local_training
from fedjax_algos.core.options import Positive, Proportion
from fedjax_algos.core.trees import Parts, Pattern, add_scaled, check_match, split_params


def average_shared(problem, local, parts: Parts, server_learning_rate, weighting) -> Algorithm:
    """Averages the shared leaves as FedAvg does; the global model keeps its other leaves."""

    def broadcast(server, group):
        return parts.shared_leaves(server.params)

    def server_update(server, sums, count, group):
        shared = parts.shared_leaves(server.params)
        shared = add_scaled(shared, -server_learning_rate, sums.mean())
        return server._replace(params=parts.join(shared, parts.own_leaves(server.params)))

    frame = fedavg(problem, local, weighting=weighting)
    traits = Traits(like=parts.shared_leaves)
    return frame._replace(broadcast=broadcast, server_update=server_update, traits=traits)


def in_turns(
    inner: optax.GradientTransformation, parts: Parts, head_steps
) -> optax.GradientTransformation:
    """Applies `inner` to the head for `head_steps` steps, then, from a fresh state, to the body."""

    def only(tree, steps_done):
        leaves = [
            jnp.where((steps_done < head_steps) == own, leaf, 0)
            for leaf, own in zip(jax.tree.leaves(tree), parts.own, strict=True)
        ]
        return parts.structure.unflatten(leaves)

    def init(params):
        return jnp.int32(0), inner.init(params)

    def update(gradient, state, params=None):
        steps_done, state = state
        first = steps_done == head_steps  # the body's optimiser starts afresh
        fresh = inner.init(params)
        state = jax.tree.map(lambda new, old: jnp.where(first, new, old), fresh, state)
        update, state = inner.update(only(gradient, steps_done), state, params)
        return only(update, steps_done), (steps_done + 1, state)  # else decay moves all

    return optax.GradientTransformation(init, update)


@algorithms.register
def fedrep(
    problem: Problem,
    local: Local,
    *,
    head: Pattern,
    body_share: Proportion = 0.1,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "uniform",
) -> Algorithm:
    """The client trains its head h_i, then the body phi; the server averages the bodies.

    `h_i <- h_i - alpha grad_h f(h_i, phi)` in the first steps of a local update, and
    `phi_i <- phi_i - alpha grad_phi f(h_i, phi_i)` in the last ones. Only the body is sent. The
    global model keeps the initial head, so its own accuracy means little. A client's first head is
    the initial one. In the released code it is the mean of the last cohort's heads. There, head and
    body also train for whole epochs with momentum and weight decay, and in a last round all clients
    train their heads alone.

    Args:
      problem: the model and the loss.
      local: how a client trains: all its steps, with learning rate alpha.
      head: the params of the head: a pattern of their paths, such as "Dense_1/*" for the last layer
        of `mlp`, or a function from a path to a bool.
      body_share: the share of the steps that train the body, above 0 and below 1. Their number is
        rounded up. The paper's algorithm has tau steps of the head and one of the body:
        1 / (tau + 1). The scripts of the released code have ten epochs of the head, and one or
        five of the body.
      server_learning_rate: the factor of the mean delta, above 0; 1 in the paper.
      weighting: weights of the bodies: "uniform" as in the paper, or "examples" (proportional to
        n_i) as in the released code on FEMNIST and Sent140.

    Raises:
      ValueError: if the pattern matches none or all of the params.
    """
    parts = split_params(problem, head)
    check_match("fedrep: head", parts, head, rest="the body")
    train = local_training(problem, local)

    def client_init(params, key):
        return parts.own_leaves(params)  # h_i

    def client_update(body, own, data, dispatch, key):
        body_steps = jnp.ceil(body_share * dispatch.num_steps - 1e-4).astype(jnp.int32)
        transform = in_turns(local.transform, parts, dispatch.num_steps - body_steps)
        trained = train(parts.join(body, own), data, dispatch, key, transform=transform)
        delta = optax.tree.sub(body, parts.shared_leaves(trained.params))
        return parts.own_leaves(trained.params), delta, trained.report

    def personal(server, own):
        return Model(parts.join(parts.shared_leaves(server.params), own))

    frame = average_shared(problem, local, parts, server_learning_rate, weighting)
    return frame._replace(client_update=client_update, client_init=client_init, personal=personal)
