"""The wrapper that changes nothing: the template of what acts on a client's side."""

from fedjax_algos.core import Algorithm
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.stages import OBSERVE, ClientStage, Sent


@wrappers.register
def identity(algorithm: Algorithm) -> Algorithm:
    """The algorithm, whose clients send each update as a message that the server decodes.

    All results, bytes and FLOPs are those of the algorithm.

    Args:
      algorithm: what is wrapped.
    """

    def apply(vectors, own, client):
        return Sent()

    return add("identity", algorithm, client=[ClientStage("identity", apply, place=OBSERVE)])
