"""Secure aggregation, as arithmetic and cost: updates are whole numbers, and only sums are read."""

from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_algos.base.errors import require
from fedjax_algos.core import Algorithm, Mean
from fedjax_algos.core.algorithm import Static
from fedjax_algos.core.options import Positive, Range
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.compression.bits import pack, unpack
from fedjax_algos.wrappers.compression.quantised import round_at_random
from fedjax_algos.wrappers.privacy.accounting import Sampling
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.stages import WHOLE, ClientStage, Rule, Sent, shapes_of

_WORD = 32
_KEY = 256  # a_K = a_S: bits of a public key, and of an encrypted share of a secret
Bits = Annotated[int, Range(2, 31)]


def sum_width(clients: int, bits: int) -> int:
    """Returns the bits of an entry in a sum of so many clients: `ceil(log2(n (2^b - 1) + 1))`."""
    return (clients * (2**bits - 1)).bit_length()


def secure_sum_bits(clients: int, entries: int, bits: int) -> int:
    """Returns all bits that a client sends and receives in a secure sum, but for the model.

    It is `2 n a_K + (5 n - 4) a_S + n + d ceil(log2(n (2^b - 1) + 1))` with 256 bits for a_K and
    a_S: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
    CCS 2017, https://eprint.iacr.org/2017/281.

    Args:
      clients: n, the number of clients.
      entries: d, the number of entries of an update.
      bits: b, the bits of an entry.
    """
    keys = 2 * clients * _KEY + (5 * clients - 4) * _KEY
    return keys + clients + entries * sum_width(clients, bits)


@wrappers.register
def secure_sum(
    algorithm: Algorithm,
    *,
    clip: Positive = 8.0,
    bits: Bits = 22,
    sampling: Sampling | None = None,
) -> Algorithm:
    """Sums updates as whole numbers, as in secure aggregation.

    A client clips each entry v to at most c, and sends `q = (v / c + 1) r` for `r = 2^(b-1) - 1`,
    rounded at random to one of the two nearest whole numbers, so that the mean is right without
    clipping, and 0 stays 0. The server knows the number n of clients and the sum of q, and reads
    the mean `c (sum q / (n r) - 1)` from them. For s slots in a cohort the sum has at most `w =
    ceil(log2(s (2^b - 1) + 1))` bits, and so has an entry of the upload. Masks would cancel
    exactly, so none are drawn; a client that fails is left out of the sum. The exchange of keys is
    not in the columns of bytes: `secure_sum_bits` counts it. The column `clipped` is the share of
    entries with a magnitude above c. With `non_finite="keep"` NaN counts as 0.

    Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS
    2017, https://eprint.iacr.org/2017/281.

    Args:
      algorithm: the algorithm to wrap.
      clip: c, above 0, in units of an entry of the update.
      bits: b, the bits of an entry of one client, from 2 to 31.
      sampling: how cohorts are drawn. The command line gives it. If more clients come than it has
        slots, the mean is NaN.

    Raises:
      ValueError: for an algorithm whose clients have different weights, choose what they train, or
        send counts, or whose server compares updates; for a sum that takes more than 32 bits; for
        unknown cohorts, as on the virtual clock.
    """
    name, slots = "secure_sum", sampling.cohort_size if sampling else 0
    width, half, path = sum_width(slots, bits), 2 ** (bits - 1) - 1, algorithm.transport
    unit = clip / half
    wrong = {
        "the cohorts are not known; give sampling=Sampling(...), and no seconds": not slots,
        f"a sum of {slots} clients takes {width} bits; give bits={bits + _WORD - width} or fewer":
            width > _WORD,
        f"{path.server[0].name if path and path.server else ''} reads single updates; leave it out":
            bool(path and path.server),
    }  # fmt: skip
    require(not any(wrong.values()), f"{name}: {max(wrong, key=lambda text: wrong[text])}")

    def apply(vectors, own, client):
        leaves = jax.tree.leaves(vectors)
        numbers = [number(jax.random.fold_in(client.key, i), v) for i, v in enumerate(leaves)]
        words = [pack(leaf.reshape(-1), width) for leaf in numbers]
        # NaN tells that the update is not finite, which whole numbers cannot say
        far = sum(jnp.where(jnp.isfinite(v), jnp.abs(v) > clip, jnp.nan).sum() for v in leaves)
        share = Mean(jnp.float32(far), jnp.float32(sum(v.size for v in leaves)))
        like = Static(tuple(map(shapes_of, vectors)))
        return Sent(like, extra={"words": words}, metrics={"clipped": share})

    def number(key, v):
        v = jnp.where(jnp.isnan(v), 0, v).astype(jnp.promote_types(v.dtype, jnp.float32))
        level = round_at_random(key, jnp.clip(v / unit, -half, half)).astype(jnp.int32)
        level = jnp.clip(level, -half, half)  # from 26 bits on, float32 rounds `half` up
        return level.astype(jnp.uint32) + jnp.uint32(half)

    def undo(like):  # one update cannot be read; the words are for the sum
        def zeros(structure, shapes):
            return structure.unflatten(jnp.zeros(v.shape, v.dtype) for v in shapes)

        return [zeros(*each) for each in like.value]

    def summand(vectors, weights, extra, *rest):
        leaves, structure = jax.tree.flatten(vectors)
        pairs = zip(extra["words"], leaves, strict=True)
        numbers = [unpack(words, v.size, width).reshape(v.shape) for words, v in pairs]
        like = [jnp.zeros((), v.dtype) for v in leaves]
        return structure.unflatten(numbers), structure.unflatten(like)

    def estimate(summed, own, key, facts):
        middle = summed.number.astype(jnp.uint32) * jnp.uint32(half)

        def mean(total, like):
            signed = jax.lax.bitcast_convert_type(total - middle, jnp.int32)
            found = signed / jnp.maximum(summed.number, 1) * unit
            return jnp.where(summed.number <= slots, found, jnp.nan).astype(like.dtype)

        return jax.tree.map(mean, *summed.total), own

    stage = ClientStage(name, apply, undo, place=WHOLE)
    rule = Rule(name, estimate, summand, equal_weights=f"leave {name} out")
    needs = ["one exchange", "no counts", "no statistics"]
    return add(name, algorithm, client=[stage], rule=rule, needs=needs)
