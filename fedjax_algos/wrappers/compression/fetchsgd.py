"""FetchSGD: clients send count sketches, and the server remembers momentum and errors as sketches.

The count sketch is a small table that is linear in a vector and holds its largest entries
(Charikar et al., "Finding Frequent Items in Data Streams", ICALP 2002).
"""

import zlib
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fedjax_algos.core import Algorithm, Key
from fedjax_algos.core.options import Count, Decay, PositiveShare
from fedjax_algos.wrappers.compose import add
from fedjax_algos.wrappers.compression.sparse import at_positions, entries_sent
from fedjax_algos.wrappers.refusals import ONE_VECTOR
from fedjax_algos.wrappers.registry import wrappers
from fedjax_algos.wrappers.stages import ClientStage, Rule, Sent
from fedjax_algos.wrappers.templates import mean_of, weighted

_HASHES = zlib.crc32(b"fetchsgd")


class Sketches(NamedTuple):
    """The server's two sketches."""

    momentum: jax.Array  # float32[rows, columns]: Su
    error: jax.Array  # float32[rows, columns]: Se


def sketch(key: Key, v: jax.Array, rows: int, columns: int) -> jax.Array:
    """Returns `T[j, h_j(i)] += s_j(i) v_i`, float32[rows, columns]; a key gives h and s."""

    def row(key):
        places, signs = _hashes(key, len(v), columns)
        return jnp.zeros(columns, v.dtype).at[places].add(signs * v)

    return jax.lax.map(row, jax.random.split(key, rows))


def unsketch(key: Key, table: jax.Array, d: int) -> jax.Array:
    """Estimates all d entries, `median_j s_j(i) T[j, h_j(i)]`, with the key of the table."""

    def row(key_and_row):
        places, signs = _hashes(key_and_row[0], d, table.shape[1])
        return signs * key_and_row[1][places]

    return jnp.median(jax.lax.map(row, (jax.random.split(key, len(table)), table)), axis=0)


def _hashes(key, d, columns):
    """Draws a column and a sign for each entry."""
    bits = jax.random.bits(key, (d,), jnp.uint32)
    signs = 1 - 2 * (bits & 1).astype(jnp.float32)
    return (bits >> 1) % columns, signs


@wrappers.register
def fetchsgd(
    algorithm: Algorithm,
    *,
    rows: Count = 5,
    size: PositiveShare = 0.25,
    fraction: PositiveShare = 0.05,
    momentum: Decay = 0.9,
    sent: Literal["zeroed", "subtracted"] = "zeroed",
) -> Algorithm:
    """FetchSGD: clients send count sketches; the server takes the largest entries out of their sum.

    With T the mean of the clients' tables, by the weights of the algorithm's own `contribute`:
    `Su <- rho Su + T`, `Se <- Se + Su`, `D = top_k(estimates of Se)`. Then D leaves Se, and
    replaces each update. Entry i of an update v is added to the cells `T[j, h_j(i)]` with the sign
    `s_j(i)`, and its estimate is `median_j s_j(i) T[j, h_j(i)]`. h and s are the same in all runs.
    A message has 32 `rows` ceil(`size` d / `rows`) bits, and only the server has a memory.
    In the long run momentum multiplies the step by 1/(1 - rho), as in `fedavgm`.

    Rothchild et al., "FetchSGD: Communication-Efficient Federated Learning with Sketching", ICML
    2020, https://arxiv.org/abs/2007.07682.

    Deviations: by default, cells that D touches become 0 in Se and Su, as in the authors' code. The
    paper subtracts the sketch of D from Se; the authors note there that models diverge with that.
    Clients send updates of several local steps, so the learning rate is inside, and the algorithm's
    own rule sees D. The server sends its model, not the k entries of D.

    Args:
      algorithm: the algorithm to wrap.
      rows: rows of the table, at least 1; more make estimates surer.
      size: the entries of the table, as a share of d.
      fraction: k/d, above 0 and at most 1. k is rounded up.
      momentum: rho, from 0 to below 1.
      sent: treatment of the cells of D: "zeroed" or "subtracted".

    Raises:
      ValueError: for an algorithm whose clients send several vectors, models, a choice, or twice in
        a round, or whose server compares updates.
    """
    like = jax.eval_shape(algorithm.traits.like, algorithm.problem.shapes().params)

    def table_of(v):
        return sketch(jax.random.key(_HASHES), v, rows, entries_sent(size / rows, len(v)))

    def encoded(tree):
        return table_of(ravel_pytree(tree)[0].astype(jnp.float32))

    def apply(vectors, own, client):
        return Sent(list(map(encoded, vectors)))

    def first(zeros, population):
        table = encoded(*zeros)
        return Sketches(*(jnp.zeros_like(table) for _ in Sketches._fields))

    def estimate(summed, memory, key, facts):
        flat, restored = ravel_pytree(jax.tree.map(jnp.zeros_like, like))
        velocity = momentum * memory.momentum + mean_of(summed)[0]
        error = memory.error + velocity
        estimates = unsketch(jax.random.key(_HASHES), error, flat.size)
        _, places = jax.lax.top_k(jnp.abs(estimates), entries_sent(fraction, flat.size))
        found = at_positions(places, estimates[places], flat.size)
        table = table_of(found)
        if sent == "subtracted":
            memory = Sketches(velocity, error - table)
        else:
            memory = Sketches(*(jnp.where(table == 0, each, 0) for each in (velocity, error)))
        return [restored(found.astype(flat.dtype))], memory

    name = "fetchsgd"
    stage = ClientStage(name, apply, kind=lambda kind: "vector")
    rule = Rule(name, estimate, weighted, first)
    return add(name, algorithm, client=[stage], rule=rule, needs=ONE_VECTOR)
