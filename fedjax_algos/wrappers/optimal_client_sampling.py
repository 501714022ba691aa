"""Optimal client sampling: all clients of a cohort train, and few of them send their update."""

import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.core import Algorithm, Update
from fedjax_algos.core.algorithm import kinds
from fedjax_algos.core.files import require
from fedjax_algos.core.options import Positive
from fedjax_algos.wrappers.compression.feedback import vectors_of, with_server_memory
from fedjax_algos.wrappers.mean import weighted_sum
from fedjax_algos.wrappers.registry import check_order, wrappers
from fedjax_algos.wrappers.replay import arrived, require_one_vector

_NAME = "optimal_client_sampling"
_DRAW = zlib.crc32(_NAME.encode())


class Message(NamedTuple):
    """What a client sends: the norm first, and the rest if it is chosen."""

    norm: Any  # float32[]: |u_i|
    rest: Any  # its message, and the key of its draw, which is not counted


class Offered(NamedTuple):
    """An update, which counts only if its client is chosen."""

    update: Update
    norm: Any  # float32[]: |u_i|
    draw: Any  # float[]: uniform in [0, 1)


def inclusion(importance: jax.Array, uploads: float) -> jax.Array:
    """`p_i = min(1, c a_i)` with the sum M, `uploads`, for importances a_i, float[n].

    It is 1 wherever a_i > 0 if there are at most M such clients, and 0 where a_i is 0.
    """
    ordered, number = jnp.sort(importance), importance.size
    below = jnp.cumsum(ordered)
    # the l smallest share what the n - l others, whose p_i is 1, leave of M
    left = uploads - number + jnp.arange(1, number + 1)
    fits = (left > 0) & (left * ordered <= below)
    last = number - 1 - jnp.argmax(fits[::-1])
    few = (importance > 0).sum() <= uploads
    c = jnp.where(few, jnp.inf, left[last] / below[last])
    return jnp.where(importance == 0, 0, jnp.minimum(c * importance, 1))


@wrappers.register
def optimal_client_sampling(algorithm: Algorithm, *, uploads: Positive = 3.0) -> Algorithm:
    """Client i sends its update with probability `p_i = min(1, c w_i |u_i|)`, on average M send.

    All clients of a cohort train and send |u_i|, and c makes the sum of the p_i M. Each draws
    independently of the others whether it sends u_i, too. `U = sum (w_i / p_i) u_i / sum w_i`, over
    those that send and over all, replaces each update, and the algorithm's own rule goes on. w_i is
    the weight that its `contribute` gives to u_i. U is unbiased for the mean over the cohort, and
    of all such p_i these have the smallest variance. If M is at least the size of the cohort, the
    results are those of the wrapper `mean`, bit for bit.

    Chen et al., "Optimal Client Sampling for Federated Learning", TMLR 2022,
    https://arxiv.org/abs/2010.13723; the code is in
    https://github.com/SamuelHorvath/FL-optimal-client-sampling. There c is approximated by sums
    over clients in at most four exchanges (AOCS), so that it suffices for secure aggregation; here
    the server knows all norms, and c is exact.

    Bytes are those that clients send: 4 for the norm of each client that answers, and the update of
    each whose draw is positive, whose number is in the server state (`Algorithm.uploads`). c, which
    the server returns, is not counted. Download and operations are those of the whole cohort, of
    which all updates are in memory at once.

    Args:
      algorithm: what is wrapped. Codecs come before, and |u_i| is that of what they decode.
      uploads: M, the mean number of clients of a cohort that send their update, above 0.

    Raises:
      ValueError: for an algorithm whose clients send several vectors, models, counts, a choice, or
        twice in a round, whose server compares updates, or whose model has statistics.
    """
    check_order(_NAME, algorithm)
    require_one_vector(_NAME, algorithm)
    parts, problem = algorithm.traits.parts, algorithm.problem
    model = jax.eval_shape(problem.init, jax.eval_shape(jax.random.key, 0))
    reason = ""
    if "count" in kinds(parts):
        reason = "its clients send counts, which the server would need of all of them"
    elif jax.tree.leaves(model.statistics):
        reason = "the model has statistics, which the engine averages over all clients"
    require(not reason, f"{_NAME} cannot wrap this algorithm: {reason}; leave {_NAME} out")

    def client_update(broadcast, row, data, dispatch, key):
        row, message, report = algorithm.client_update(broadcast, row, data, dispatch, key)
        (vector,) = vectors_of(parts, algorithm.decode(message))
        norm = optax.tree.norm(vector).astype(jnp.float32)
        return row, Message(norm, (message, jax.random.fold_in(key, _DRAW))), report

    def decode(message):
        sent, key = message.rest
        return Offered(algorithm.decode(sent), message.norm, jax.random.uniform(key))

    def estimate(server, stack, count):
        (vectors,), (weights,) = arrived(wrapped, stack)
        p = inclusion(weights * jnp.where(stack.mask, stack.updates.norm, 0), uploads)
        sends = ~(stack.updates.draw >= p)  # also where p is not a number, as the mean would be
        factors = jnp.where(sends, weights / jnp.where(sends, p, 1), 0)
        total = weighted_sum(vectors, factors, stack.mask)
        mean = jax.tree.map(lambda leaf: leaf / weights.sum().astype(leaf.dtype), total)
        return [mean], server.own + sends.sum(dtype=jnp.int32)

    wrapped = algorithm._replace(
        client_update=client_update,
        decode=decode,
        contribute=lambda offered, *rest: algorithm.contribute(offered.update, *rest),
        traits=algorithm.traits._replace(parts=Offered(parts, "count", "count")),
    )
    none = lambda inner, population: jnp.int32(0)  # noqa: E731
    sampled = with_server_memory(_NAME, wrapped, none, estimate)
    return sampled._replace(uploads=lambda server: server.own)
