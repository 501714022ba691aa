"""Divides activations over the devices of a client."""

import jax
from jax.sharding import PartitionSpec

from fedjax_algos.core.types import MODEL_AXIS


def shard(x: jax.Array, *axes: str | None) -> jax.Array:
    """Divides an array over the devices that compute a client together.

    Call it where a model is applied. It is a constraint for the compiler, and changes no value.
    Where no devices share a client, as in evaluations, it does nothing.

    Args:
      x: an array of a model, such as the inputs or outputs of a layer.
      axes: for each axis of the array, "model" if it is divided, or None, which is the default.

    Raises:
      ValueError: for other names, and for more names than axes.
    """
    if MODEL_AXIS not in jax.sharding.get_abstract_mesh().axis_names:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))
