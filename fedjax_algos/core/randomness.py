"""Makes random keys, which depend on what is drawn and never on how it is run.

A client's draws depend only on (seed, client, number of the dispatch), and a cohort on (seed,
round). So all layouts, devices and algorithms see the same batches. Orders of examples and cohorts
are keyed permutations with random access: entry j of a shuffle, without the shuffle.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.core.types import Array, Key

_MODEL, _COHORT, _CLIENT, _ROW, _SERVER, _FAILURE, _SELECTION = range(7)
ONCE = np.uint32(2**32 - 1)  # the number of a draw that happens once; others count from 0
_ROUNDS = 20  # with fewer, some orders of five examples are more frequent than others


def model_key(seed: jax.Array | int) -> Key:
    """Returns the key that initialises the model."""
    return jax.random.fold_in(jax.random.key(seed), _MODEL)


def cohort_key(seed: jax.Array | int, round_number: jax.Array | int) -> Key:
    """Returns the key that draws the cohort of a round."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _COHORT), round_number)


def server_key(seed: jax.Array | int, step: jax.Array | int) -> Key:
    """Returns the key of a server step, for server rules that draw random numbers."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _SERVER), step)


def client_key(seed: jax.Array | int, client: Array) -> Key:
    """Returns the key that initialises a client's state."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _ROW), client)


def selection_key(seed: jax.Array | int, step: jax.Array | int) -> Key:
    """Returns the key that chooses the cohort of a server step among candidates."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _SELECTION), step)


def value_key(key: Key) -> Key:
    """Returns the key of a candidate's report, from the key of its training."""
    return jax.random.fold_in(key, _SELECTION)


def dispatch_keys(seed: jax.Array | int, client: Array, number: Array) -> tuple[Key, Key]:
    """Returns two keys of a dispatch: one orders the client's examples, one is for training."""

    def fold(key, step):
        data, is_path = step
        folded = jax.random.fold_in(key, data)
        return jnp.where(is_path, folded, key), folded

    # a loop compiles faster than the same calls one after another
    data = [jnp.asarray(each).astype(jnp.uint32) for each in (_CLIENT, client, number, 0, 1)]
    steps = jnp.stack(data), np.array([True, True, True, False, False])
    _, keys = jax.lax.scan(fold, jax.random.key(seed), steps)
    return keys[3], keys[4]


def failure_key(seed: jax.Array | int, client: Array, number: Array) -> Key:
    """Returns the key that decides whether a dispatch fails."""
    of_client = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _FAILURE), client)
    return jax.random.fold_in(of_client, number)


def _mix(x: jax.Array) -> jax.Array:
    """Applies the 32-bit finaliser of MurmurHash3: every input bit reaches every output bit."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _scale(x: jax.Array, modulus: jax.Array) -> jax.Array:
    """Returns floor(x * modulus / 2^32) without 64 bits or a division; modulus <= 2^16."""
    high, low = x >> 16, x & jnp.uint32(0xFFFF)
    return (high * modulus + ((low * modulus) >> 16)) >> 16


def permutation_words(key: jax.Array) -> jax.Array:
    """Returns the round keys of a permutation, uint32[20]."""
    return jax.random.bits(key, (_ROUNDS,), jnp.uint32)


def next_words(words: jax.Array, index: jax.Array) -> jax.Array:
    """Returns round keys of permutation `index` of a series, far cheaper than a new key each."""
    return _mix(words + (index.astype(jnp.uint32) + 1) * jnp.uint32(0x9E3779B9))


def permute(words: jax.Array, positions: jax.Array, size: jax.Array | int) -> jax.Array:
    """Returns entries `positions`, int32[...], of a pseudo-random permutation of 0..size-1.

    This is a Feistel network over pairs (left, right) with left < a, right < b and a*b just above
    `size`. Results outside the range are permuted again until they fall inside (cycle walking).
    Each entry costs O(1). All arguments may be traced. a is even because rotating columns of odd
    length is an even permutation.
    """
    size = jnp.asarray(size, jnp.uint32)
    a = 2 * jnp.ceil(jnp.sqrt(size.astype(jnp.float32)) / 2).astype(jnp.uint32)
    b = (size + a - 1) // a

    def add(half, other, word, modulus):
        half = half + _scale(_mix((other + 1) * jnp.uint32(0x9E3779B9) ^ word), modulus)
        return jnp.where(half >= modulus, half - modulus, half)

    def network(x):
        def round_pair(i, halves):
            left, right = halves
            left = add(left, right, words[2 * i], a)
            return left, add(right, left, words[2 * i + 1], b)

        # a loop compiles faster than unrolled rounds and runs as fast
        left, right = jax.lax.fori_loop(0, _ROUNDS // 2, round_pair, (x // b, x % b))
        return left * b + right

    def walk(state):
        x, inside = state
        x = jnp.where(inside, x, network(x))
        return x, x < size

    start = jnp.asarray(positions).astype(jnp.uint32)
    initial = start, jnp.zeros(start.shape, bool)
    entries, _ = jax.lax.while_loop(lambda state: ~state[1].all(), walk, initial)
    return entries.astype(jnp.int32)
