"""The facts of a dispatch that are public, for rules with noise."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_algos.core import Dispatch, Local


def public_fields(local: Local, step: Any) -> dict[str, Any]:
    """Returns the fields of a dispatch that all clients share in a server step, by name."""
    known = {"server_step": step}
    if local.steps is not None:
        known |= dict.fromkeys(("num_steps", "full_steps"), jnp.int32(local.steps))
    if not callable(local.learning_rate):
        known["learning_rate"] = jnp.asarray(local.learning_rate, float)
    elif local.rate_by == "round":
        known["learning_rate"] = jnp.asarray(local.learning_rate(step), float)
    return known


def public_dispatch(local: Local, step: Any) -> Dispatch:
    """Returns a dispatch of a server step whose other fields are 0."""
    zeros = dict.fromkeys(Dispatch._fields[:-1], jnp.int32(0))
    zeros |= dict.fromkeys(("share", "learning_rate"), jnp.zeros(()))
    return Dispatch(**zeros | public_fields(local, step))


def ratio(weight: jax.Array, of: jax.Array) -> jax.Array:
    """Returns `weight / of`; 1 for a vector without entries, whose weights are 0."""
    return jnp.where(of == 0, 1, weight / jnp.where(of == 0, 1, of))
