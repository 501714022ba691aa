"""The codec: encodes one vector as a message and decodes it again."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedjax_algos.core import Key

Message = Any  # packed arrays; exactly their bytes are sent


class Codec(NamedTuple):
    """The encoding of one vector of d floats.

    A message has arrays that are packed into whole words of 32 bits, so exactly their bytes are
    sent. Values that both ends derive from the seed and the client, such as a rotation or random
    positions, are in the message as a typed key of JAX (`jax.random.key`), which is never counted.

    Attributes:
      encode: `(key, v) -> message` of float[d].
      decode: `(message, d) -> v~`, float32[d]; d is a Python number.
      variance: `d -> omega` of an unbiased codec, with E|v~ - v|^2 <= omega |v|^2; None for a
        biased one.
      unbounded: why a biased codec may make a vector longer, so that no client may remember its
        losses, and what to do; "" if it never does.
      of_leaves: whether v is a leaf of the update in its shape, which `decode` receives for d. Such
        a codec has the scope "leaf".
      nearly: whether an unbiased codec is biased for some vectors, so that theorems do not hold.
      coded_bits: `(message, d) -> float32[]`, the bits of the message with an entropy code; None if
        it has none.
    """

    encode: Callable[[Key, jax.Array], Message]
    decode: Callable[[Message, Any], jax.Array]
    variance: Callable[[int], float] | None = None
    unbounded: str = ""
    of_leaves: bool = False
    nearly: bool = False
    coded_bits: Callable[[Message, int], jax.Array] | None = None


unchanged = Codec(lambda key, v: v, lambda message, d: message, lambda d: 0.0)
