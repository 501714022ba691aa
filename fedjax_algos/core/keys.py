"""Where randomness comes from: keys that depend on what is drawn, never on how it is run.

A client's draws depend on (seed, client, visit) alone and a cohort on (seed, round), so layouts,
devices and algorithms all meet the same batches, and two methods at one seed the same weather.
"""

import jax

from fedjax_algos.core.types import Key

_MODEL, _COHORT, _CLIENT, _ROW = range(4)


def model_key(seed: jax.Array | int) -> Key:
    """Initialises the model."""
    return jax.random.fold_in(jax.random.key(seed), _MODEL)


def cohort_key(seed: jax.Array | int, round_number: jax.Array | int) -> Key:
    """Draws the cohort of a round."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _COHORT), round_number)


def client_key(seed: jax.Array | int, client: jax.Array) -> Key:
    """Initialises a client's state row."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _ROW), client)


def visit_keys(seed: jax.Array | int, client: jax.Array, visit: jax.Array) -> tuple[Key, Key]:
    """A turn's two keys: for the order of its examples, and for its training (dropout, noise)."""
    turn = jax.random.fold_in(jax.random.key(seed), _CLIENT)
    order, training = jax.random.split(jax.random.fold_in(jax.random.fold_in(turn, client), visit))
    return order, training
