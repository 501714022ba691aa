"""Failures: which clients train, and then do not answer.

A draw depends on the seed, the client and the number of the dispatch alone, so the same clients
fail in all methods that are compared. On the virtual clock the system model says who is lost.
"""

from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp

from fedjax_algos.core.checks import check_callable
from fedjax_algos.core.options import Decay
from fedjax_algos.core.randomness import failure_key
from fedjax_algos.core.registry import Registry
from fedjax_algos.core.reprs import describe_tree
from fedjax_algos.core.types import Array


class Failures(Protocol):
    """Says which clients of a cohort fail; it depends on (seed, client, number) alone."""

    def __call__(self, seed: Array, clients: Array, numbers: Array, /) -> Array:
        """Returns which of the dispatches fail, bool[cohort_size].

        Args:
          seed: uint32[], the seed of the run.
          clients: int32[cohort_size], client ids; may be traced, as the others.
          numbers: int32[cohort_size], numbers of the dispatches of each client, from 0.
        """


failures = Registry[Failures]("failure", Callable)


@failures.register
def independent(*, probability: Decay) -> Failures:
    """Each dispatch fails with the same probability, independently of all others.

    Args:
      probability: that a dispatch fails, at least 0 and below 1.
    """

    return lambda seed, clients, numbers: _draw(seed, clients, numbers) < probability


@jax.jit
def _draw(seed, clients, numbers):
    """float32[cohort_size], whatever the default precision is."""
    keys = jax.vmap(failure_key, (None, 0, 0))(seed, clients, numbers)
    return jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(keys)


def check_failures(failures: Failures | None) -> None:
    """Raises TypeError for what is no function and not None."""
    if failures is not None:
        fix = "give one of participation.failures, such as independent(probability=0.3)"
        check_callable("failures", failures, fix)


def draw_failures(failures: Failures, seed: Array, clients: Array, numbers: Array) -> Array:
    """bool[cohort_size]: which dispatches of a cohort fail, checked."""
    fails = failures(seed, clients, numbers)
    if jnp.shape(fails) != jnp.shape(clients) or jnp.result_type(fails).kind != "b":
        raise ValueError(
            f"the failures are {describe_tree(fails)}; give a function that returns which "
            f"dispatches fail, bool[cohort_size], here bool{list(jnp.shape(clients))}"
        )
    return fails
