"""Rules on the server that put one estimate in place of every client's update.

A rule computes an estimate U of the cohort's mean update. The algorithm's own `contribute` and
`server_update` then see a cohort in which every client has sent U, with its own counts. So the rule
fits algorithms whose updates have several parts, such as SCAFFOLD, FedNova and FedGBO.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_algos.core import Algorithm, Stack
from fedjax_algos.core.update_parts import VECTORS, join_update, kinds, split_update


def replay(
    name: str, algorithm: Algorithm, estimate: Callable[[list[Any], Stack], list[Any]]
) -> Algorithm:
    """An algorithm whose server replaces the vectors of all updates of a round by one estimate.

    Args:
      name: the wrapper's, for messages.
      algorithm: what is wrapped.
      estimate: `(vectors, stack) -> vectors`: the vector parts of the cohort's updates, leaves
        [slots, ...], and the `Stack`; returns one value of each. Updates where `stack.mask` is
        False have not arrived.

    Raises:
      ValueError: for an algorithm whose rule has no meaning if all updates are equal.
    """
    parts = algorithm.traits.parts
    _require_one_estimate(name, algorithm)
    places = [index for index, kind in enumerate(kinds(parts)) if kind in VECTORS]

    def server_update(server, stack, count, group):
        trees = split_update(parts, stack.updates)
        estimates = estimate([trees[place] for place in places], stack)
        replacing = dict(zip(places, estimates, strict=True))

        def contributed(own, dispatch, arrived):
            replaced = [replacing.get(place, tree) for place, tree in enumerate(own)]
            sums = algorithm.contribute(join_update(parts, replaced), dispatch, jnp.int32(0))
            return jax.tree.map(lambda leaf: jnp.where(arrived, leaf, 0), sums)

        contributions = jax.vmap(contributed)(trees, stack.dispatches, stack.mask)
        sums = jax.tree.map(lambda leaf: leaf.sum(0, dtype=leaf.dtype), contributions)
        return algorithm.server_update(server, sums, count, group)

    traits = algorithm.traits._replace(reduce="stack")
    return algorithm._replace(server_update=server_update, traits=traits)


def _require_one_estimate(name, algorithm):
    reason = ""
    if algorithm.traits.reduce == "stack":
        reason = "its server compares the updates with each other, which would all be equal"
    elif algorithm.prelude is not None:
        reason = "a round has two exchanges, and the first one has no server rule to replace"
    elif "choice" in kinds(algorithm.traits.parts):
        reason = "its clients choose what they train, so that they have no common mean"
    if reason:
        raise ValueError(f"{name} cannot wrap this algorithm: {reason}; leave {name} out")
