"""Rules on the server that put one estimate in place of every client's update.

A rule computes an estimate U of the cohort's mean update. The algorithm's own `contribute` and
`server_update` then see a cohort in which every client has sent U, with its own counts. So the rule
fits algorithms whose updates have several parts, such as SCAFFOLD, FedNova and FedGBO.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from fedjax_algos.core import Algorithm, Contribution, Dispatch, Prelude, Stack
from fedjax_algos.core.algorithm import VECTORS, join_update, kinds, split_update
from fedjax_algos.core.checks import check_like
from fedjax_algos.wrappers.linear import why_not_weighted
from fedjax_algos.wrappers.registry import check_order

Estimate = Callable[[list[Any], list[jax.Array], jax.Array], list[Any]]
Phase = TypeVar("Phase", Algorithm, Prelude)


def replay(name: str, algorithm: Algorithm, estimate: Estimate) -> Algorithm:
    """An algorithm whose server replaces the vectors of all updates of a round by one estimate.

    The vectors are the parts of an update that are no counts; see `Traits.parts`. All updates of a
    cohort are in memory at once. In an algorithm with a prelude both exchanges have the rule.

    Args:
      name: the wrapper's, for messages.
      algorithm: what is wrapped.
      estimate: `(vectors, weights, mask) -> vectors`. It is given the vectors of the cohort's
        updates, leaves [slots, ...], for each of them the weights that the algorithm's own
        `contribute` gives to the clients, float[slots], and which updates have arrived,
        bool[slots]; the weights of the others are 0. It returns one value of each vector.

    Raises:
      ValueError: for an algorithm whose rule has no meaning if all updates are equal.
    """
    check_order(name, algorithm)
    reason = ""
    if algorithm.traits.reduce == "stack":
        reason = "its server compares the updates with each other, which would all be equal"
    elif "choice" in kinds(algorithm.traits.parts):
        reason = "its clients choose what they train, so that they have no common mean"
    _refuse_if(reason, name)
    if algorithm.prelude is not None:
        algorithm = algorithm._replace(prelude=_replayed(algorithm.prelude, estimate))
    return _replayed(algorithm, estimate)


def require_one_vector(name: str, algorithm: Algorithm) -> None:
    """Raises ValueError unless clients send one delta or gradient; `name` is the wrapper's."""
    sent = [kind for kind in kinds(algorithm.traits.parts) if kind in VECTORS]
    reason = ""
    if algorithm.prelude is not None:
        reason = "its clients send twice in a round"
    elif len(sent) > 1:
        reason = "its clients send several vectors, whose scales differ"
    elif "model" in sent:
        reason = "its clients send models, and the rule is one of deltas or gradients"
    _refuse_if(reason, name)


def _refuse_if(reason, name):
    if reason:
        raise ValueError(f"{name} cannot wrap this algorithm: {reason}; leave {name} out")


def weights_of(phase: Algorithm | Prelude, trees: list[Any], dispatch: Dispatch) -> list[jax.Array]:
    """float[] for each vector among the parts `trees`: its factor in the linear `contribute`."""

    def weight(place):
        size = sum(leaf.size for leaf in jax.tree.leaves(trees[place]))
        if not size:
            return jnp.zeros_like(dispatch.share)

        def of_vector(tree):
            return _contribution(phase, [*trees[:place], tree, *trees[place + 1 :]], dispatch)

        # w of the linear map u -> w u: its derivative along ones has w in each entry
        ones = jax.tree.map(jnp.ones_like, trees[place])
        _, changes = jax.jvp(of_vector, (trees[place],), (ones,))
        leaves = [leaf for leaf in jax.tree.leaves(changes) if leaf.dtype != jax.dtypes.float0]
        return sum(leaf.sum() for leaf in leaves) / size

    return [weight(place) for place in _places(phase)]


def _contribution(phase, trees, dispatch):
    return phase.contribute(join_update(phase.traits.parts, trees), dispatch, jnp.int32(0))


def _places(phase):
    """Which parts of an update are vectors."""
    return [place for place, kind in enumerate(kinds(phase.traits.parts)) if kind in VECTORS]


def arrived(phase: Algorithm | Prelude, stack: Stack) -> tuple[list[Any], list[jax.Array]]:
    """The vectors of a stack of updates, and their weights, 0 for what has not arrived."""

    def weights(trees, dispatch, has_arrived):
        return [jnp.where(has_arrived, weight, 0) for weight in weights_of(phase, trees, dispatch)]

    trees = split_update(phase.traits.parts, stack.updates)
    of_clients = jax.vmap(weights)(trees, stack.dispatches, stack.mask)
    return [trees[place] for place in _places(phase)], of_clients


def shapes_of_one(stacked: Any) -> Any:
    """The shapes of one client's part of a tree with leaves [slots, ...]."""
    return jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], stacked))


def replaced(phase: Algorithm | Prelude, stack: Stack, estimates: list[Any]) -> Contribution:
    """The sums of a cohort in which every client has sent the estimates, with its own counts.

    Raises ValueError, as they have no meaning, unless `contribute` gives each vector one weight.
    """
    places = _places(phase)

    def contribute(vectors, own):
        trees, dispatch = own
        new = dict(zip(places, vectors, strict=True))
        trees = [new.get(place, tree) for place, tree in enumerate(trees)]
        return _contribution(phase, trees, dispatch)

    def contribution(own, has_arrived):
        sums = contribute(estimates, own)
        return jax.tree.map(lambda leaf: jnp.where(has_arrived, leaf, 0), sums)

    clients = split_update(phase.traits.parts, stack.updates), stack.dispatches
    one = shapes_of_one(clients)
    if reason := why_not_weighted(contribute, [one[0][place] for place in places], one):
        rule = "a wrapper that puts one estimate in place of all updates"
        fix = "leave it out, or let contribute return numbers times the update"
        raise ValueError(f"{rule} does not fit this algorithm's contribute: {reason}; {fix}")
    contributions = jax.vmap(contribution)(clients, stack.mask)
    return jax.tree.map(lambda leaf: leaf.sum(0, dtype=leaf.dtype), contributions)


def _replayed(phase: Phase, estimate: Estimate) -> Phase:
    """A phase whose server update replaces the vectors of a stack before it sums them."""

    def server_update(server, stack, count, group):
        vectors, weights = arrived(phase, stack)
        estimates = estimate(vectors, weights, stack.mask)
        fix = "return one value of each vector"
        check_like("a rule's estimate: ", estimates, shapes_of_one(vectors), fix)
        return phase.server_update(server, replaced(phase, stack, estimates), count, group)

    return phase._replace(server_update=server_update, traits=phase.traits._replace(reduce="stack"))
