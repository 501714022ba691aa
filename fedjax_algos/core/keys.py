"""Where randomness comes from: keys depend on what is drawn, never on how it is run.

A client's draws depend on (seed, client, number of the dispatch) alone, and a cohort on (seed,
round). So all layouts, devices and algorithms see the same batches, and two methods at one seed
train in the same system.
"""

import jax

from fedjax_algos.core.types import Array, Key

_MODEL, _COHORT, _CLIENT, _ROW = range(4)


def model_key(seed: jax.Array | int) -> Key:
    """The key that initialises the model.

    Args:
      seed: of the run.
    """
    return jax.random.fold_in(jax.random.key(seed), _MODEL)


def cohort_key(seed: jax.Array | int, round_number: jax.Array | int) -> Key:
    """The key that draws the cohort of a round.

    Args:
      seed: of the run.
      round_number: int32[], from 0.
    """
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _COHORT), round_number)


def client_key(seed: jax.Array | int, client: Array) -> Key:
    """The key that initialises a client's state.

    Args:
      seed: of the run.
      client: int32[]: its id.
    """
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _ROW), client)


def dispatch_keys(seed: jax.Array | int, client: Array, number: Array) -> tuple[Key, Key]:
    """The two keys of a dispatch: one orders the client's examples, one is for its training.

    Args:
      seed: of the run.
      client: int32[]: its id.
      number: int32[]: number of this dispatch of the client, from 0.
    """
    clients = jax.random.fold_in(jax.random.key(seed), _CLIENT)
    of_client = jax.random.fold_in(clients, client)
    order, training = jax.random.split(jax.random.fold_in(of_client, number))
    return order, training
