"""Any algorithm with a codec: its clients send encoded vectors, which the server decodes.

`Algorithm.decode` makes the update of a message, so the algorithm's own `contribute` and
`server_update` see vectors as before, and bytes are counted of what is sent.
"""

import zlib
from typing import get_args

from fedjax_algos.core import Algorithm
from fedjax_algos.core.options import check_choice
from fedjax_algos.wrappers.compression.codec import Codec
from fedjax_algos.wrappers.compression.coding import Coding, Scope
from fedjax_algos.wrappers.compression.feedback import Feedback, with_feedback

__all__ = ["Feedback", "Scope", "compress"]


def compress(
    name: str,
    algorithm: Algorithm,
    codec: Codec,
    feedback: Feedback = "none",
    scope: Scope = "part",
) -> Algorithm:
    """An algorithm whose clients send the vectors of their updates encoded by a codec.

    In an algorithm with a prelude both exchanges are encoded. Counts and choices are sent as they
    are, and statistics of the model, which the engine averages, are not encoded either.

    Args:
      name: the wrapper's, for messages and random numbers.
      algorithm: what is wrapped.
      codec: how one vector is sent. It works in float32.
      feedback: what a client keeps of each vector: nothing ("none"), what was lost ("ef"), or what
        the server knows of it ("ef21", "diana").
      scope: what is one vector: all leaves of a part of the update together ("part"), or each leaf
        by itself ("leaf"). Parts are never joined, because their scales differ.

    Raises:
      ValueError: for an unknown feedback or scope, or an algorithm or a codec that the feedback is
        not for.
    """
    check_choice("feedback", feedback, get_args(Feedback))
    check_choice("scope", scope, get_args(Scope))
    coding = Coding(codec, scope, algorithm.traits.parts, zlib.crc32(name.encode()))
    if feedback != "none":
        return with_feedback(name, algorithm, coding, feedback)

    def client_update(broadcast, row, data, dispatch, key):
        row, message, report = algorithm.client_update(broadcast, row, data, dispatch, key)
        return row, coding.encode(key, algorithm.decode(message)), report

    wrapped = algorithm._replace(client_update=client_update, decode=coding.decode)
    prelude = algorithm.prelude
    if prelude is None:
        return wrapped
    tag = zlib.crc32(f"{name} of a prelude".encode())
    first = coding._replace(parts=prelude.traits.parts, tag=tag)

    def first_update(broadcast, data, dispatch, key):
        message = prelude.client_update(broadcast, data, dispatch, key)
        return first.encode(key, prelude.decode(message))

    return wrapped._replace(
        prelude=prelude._replace(client_update=first_update, decode=first.decode)
    )
