"""The wrapper that changes nothing: a template for wrappers that act on clients."""

from fedjax_algos.core import Algorithm
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.stages import OBSERVE, ClientStage, Sent


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
