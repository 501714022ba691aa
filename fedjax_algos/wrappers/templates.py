"""The two shortest wrappers: `identity` acts on clients, and `mean` is a rule on the server."""

from typing import Any

import jax

from fedjax_algos.core import Algorithm
from fedjax_algos.core.trees import scale
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.stages import OBSERVE, ClientStage, Rule, Sent, Summed


@wrappers.register
def identity(algorithm: Algorithm) -> Algorithm:
    """Changes nothing: clients send each update as a message that the server decodes.

    The algorithm keeps all its results, bytes and FLOPs.

    Args:
      algorithm: the algorithm to wrap.
    """

    def apply(vectors, own, client):
        return Sent()

    return add("identity", algorithm, client=[ClientStage("identity", apply, place=OBSERVE)])


@wrappers.register
def mean(algorithm: Algorithm) -> Algorithm:
    """Replaces each u_i by `U = sum_i w_i u_i / sum_i w_i` before the algorithm's rule.

    w_i is the weight that the algorithm's own `contribute` gives to the part u_i. So the results
    equal the algorithm's own results, up to rounding.

    Args:
      algorithm: the algorithm to wrap.

    Raises:
      ValueError: for an algorithm whose server compares updates (FedLGA), or whose clients choose
        a cluster (IFCA).
    """

    def estimate(summed, own, key, facts):
        return mean_of(summed), own

    return add("mean", algorithm, rule=Rule("mean", estimate, weighted))


def weighted(vectors: list[Any], weights: list[jax.Array], *rest: Any) -> list[Any]:
    """Returns the summand of a weighted sum: `weight * vector`."""
    return list(map(scale, weights, vectors))


def mean_of(summed: Summed) -> list[Any]:
    """Returns the weighted mean of each vector, from the sums of `weighted` vectors."""

    def of_vector(total, weight):
        return jax.tree.map(lambda leaf: leaf / weight.astype(leaf.dtype), total)

    return list(map(of_vector, summed.total, summed.weights))
