"""The wrapper that changes nothing: the template of what encodes an update on its way."""

from typing import NamedTuple

from fedjax_algos.core import Algorithm, Update
from fedjax_algos.wrappers.registry import check_order, wrappers


class Message(NamedTuple):
    update: Update


@wrappers.register
def identity(algorithm: Algorithm) -> Algorithm:
    """The algorithm, whose clients send each update as a message that the server decodes.

    All results, bytes and FLOPs are those of the algorithm.

    Args:
      algorithm: what is wrapped.
    """
    check_order("identity", algorithm)

    def client_update(broadcast, row, data, dispatch, key):
        row, update, report = algorithm.client_update(broadcast, row, data, dispatch, key)
        return row, Message(update), report

    wrapped = algorithm._replace(
        client_update=client_update, decode=lambda message: algorithm.decode(message.update)
    )
    prelude = algorithm.prelude
    if prelude is None:
        return wrapped
    return wrapped._replace(
        prelude=prelude._replace(
            client_update=lambda *arguments: Message(prelude.client_update(*arguments)),
            decode=lambda message: prelude.decode(message.update),
        )
    )
