"""The count sketch: a small table that is linear in a vector, and holds its largest entries.

Charikar et al., "Finding Frequent Items in Data Streams", ICALP 2002; FetchSGD sends it
(Rothchild et al., https://arxiv.org/abs/2007.07682).
"""

import jax
import jax.numpy as jnp

from fedjax_algos.core import Key


def sketch(key: Key, v: jax.Array, rows: int, columns: int) -> jax.Array:
    """`T[j, h_j(i)] += s_j(i) v_i`, with random columns h_j(i) and signs s_j(i).

    The sum of the sketches of several vectors with one key is the sketch of their sum.

    Args:
      key: of the columns and signs.
      v: float[d].
      rows: how many columns each entry is added to, in a row each; more make estimates surer.
      columns: the entries of a row; more make estimates more exact.

    Returns:
      float[rows, columns].
    """

    def row(key):
        places, signs = _hashes(key, len(v), columns)
        return jnp.zeros(columns, v.dtype).at[places].add(signs * v)

    return jax.lax.map(row, jax.random.split(key, rows))


def unsketch(key: Key, table: jax.Array, d: int) -> jax.Array:
    """The estimates of all entries, float[d]: `median_j s_j(i) T[j, h_j(i)]`.

    Args:
      key: that with which the table was made.
      table: float[rows, columns].
      d: the entries of the vector.
    """

    def row(key, entries):
        places, signs = _hashes(key, d, table.shape[1])
        return signs * entries[places]

    keys = jax.random.split(key, len(table))
    return jnp.median(jax.lax.map(lambda each: row(*each), (keys, table)), axis=0)


def _hashes(key, d, columns):
    """A random column, and a sign, of each entry."""
    bits = jax.random.bits(key, (d,), jnp.uint32)
    signs = 1 - 2 * (bits & 1).astype(jnp.float32)
    return (bits >> 1) % columns, signs
