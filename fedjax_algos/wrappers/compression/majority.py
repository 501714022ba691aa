"""signSGD with majority vote: clients send signs, and the server takes their vote."""

import jax
import jax.numpy as jnp

from fedjax_algos.core import Algorithm
from fedjax_algos.core.options import Positive
from fedjax_algos.wrappers.compression.bits import pack, unpack
from fedjax_algos.wrappers.compression.codec import Codec
from fedjax_algos.wrappers.compression.compress import compress
from fedjax_algos.wrappers.mean import weighted_mean
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.replay import replay, require_one_vector


def sign_codec() -> Codec:
    """Signs without a scale, of 0 a random one; the last bit says that v is not finite."""

    def encode(key, v):
        negative = jnp.where(v == 0, jax.random.bernoulli(key, shape=v.shape), v < 0)
        return pack(jnp.append(negative, ~jnp.isfinite(v).all()).astype(jnp.uint32), 1)

    def decode(message, d):
        bits = unpack(message, d + 1, 1)
        return jnp.where(bits[d] == 1, jnp.nan, 1 - 2 * bits[:d].astype(jnp.float32))

    return Codec(encode, decode)


@wrappers.register
def majority(algorithm: Algorithm, *, magnitude: Positive = 0.01) -> Algorithm:
    """Majority vote: `U = magnitude * sign(sum_i w_i sign(v_i))` replaces each update v_i.

    The sign of 0 is 0 in a tie of the votes. A client has one bit for an entry, so where an entry
    of v_i is 0 it votes at random. w_i is the weight that the algorithm's own `contribute` gives to
    v_i, such as n_i, so the votes are equal only with equal weights. A message has d + 1 bits; the
    last one says that v_i is not finite, and the client is left out. U has the same size
    wherever the updates are, so it is an algorithm by itself with a rate of its own, `magnitude`.

    Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018,
    https://arxiv.org/abs/1802.04434; "signSGD with Majority Vote is Communication Efficient and
    Fault Tolerant", ICLR 2019, https://arxiv.org/abs/1810.05291.

    Deviations: clients vote on updates of several local steps, and not on gradients or their
    momentum. The server sends its model, and not d bits of U.

    Args:
      algorithm: what is wrapped.
      magnitude: of each entry of U, above 0, in units of the update; with `fedavg` the step of each
        entry of the model.

    Raises:
      ValueError: for an algorithm whose clients send several vectors, models, a choice, or twice in
        a round, or whose server compares updates.
    """
    require_one_vector("majority", algorithm)

    def estimate(vectors, weights, mask):
        (vector,), (weight,) = vectors, weights
        votes = weighted_mean(vector, weight, mask)
        return [jax.tree.map(lambda leaf: (magnitude * jnp.sign(leaf)).astype(leaf.dtype), votes)]

    return replay("majority", compress("majority", algorithm, sign_codec()), estimate)
