"""System models in rounds: sessions as a sampler, clients that are late or leave, and their times.

A round has a length in simulated seconds. Traced rounds also ask the system on the host.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.core.options import Positive, options
from fedjax_algos.core.randomness import cohort_key
from fedjax_algos.core.registry import Registry
from fedjax_algos.participation.availability import draw_among
from fedjax_algos.participation.sampling import Failures, failures
from fedjax_algos.participation.systems.system_model import (
    SystemModelFactory,
    SystemModelWithSessions,
)
from fedjax_algos.participation.traced import TracedSampler, register, traced_sampler


def reads_system(registry: Registry, spec: str) -> bool:
    """Returns whether the factory of a spec, such as "late:seconds=30", has the option `system`."""
    return "system" in options(registry[registry.parse(spec)[0]])


def make_in_system(
    registry: Registry,
    spec: str,
    system: SystemModelFactory | None,
    *arguments: Any,
    **more: Any,
) -> Any:
    """Calls the factory of a spec, with `system` and `more` where they are its options."""
    name, values = registry.parse(spec)
    known, given = options(registry[name]), {"system": system, **more}
    return registry[name](*arguments, **values, **{n: v for n, v in given.items() if n in known})


def seconds_in(system: SystemModelFactory | None, owner: str) -> Callable[..., jax.Array]:
    """Returns `(seed, clients, numbers, num_steps) -> float32[...]`, the seconds taken, traced.

    The bytes of a method take no time, as for `late`, so dispatches take equally long in all
    methods. The message for a missing system names `owner`.
    """
    make = _systems(system, owner)

    def seconds_of(seed, *columns):
        model = make(int(seed))
        return np.array([model.seconds(*each) for each in _rows(columns)], np.float32)

    return functools.partial(_ask, seconds_of, jnp.float32)


@register
def in_session(*, seconds: Positive, system: SystemModelFactory | None = None) -> TracedSampler:
    """The cohort is a uniform set of the clients that are in a session of the system model.

    Round t starts at t times `seconds`. Slots are empty if too few clients are available then. On
    the command line `--system fedscale:behaviour=...` gives the system.

    Args:
      seconds: length of a round in simulated seconds, above 0.
      system: makes the system model of a seed; its clients have sessions.

    Raises:
      ValueError: for a system model without sessions.
    """
    make = _systems(system, "in_session", sessions=True)

    def draw(seed, round_number, num_clients, cohort_size):
        def ask(seed, round_number):
            model, now = make(int(seed)), int(round_number) * seconds
            away = (model.unavailability_at(i, now, 0) for i in range(num_clients))
            return np.array([each is None for each in away])

        shape = jax.ShapeDtypeStruct((num_clients,), bool)
        is_here = jax.pure_callback(ask, shape, seed, round_number, vmap_method="sequential")
        return draw_among(cohort_key(seed, round_number), is_here, cohort_size)

    return traced_sampler(draw, may_leave_empty=True)


@failures.register
def late(*, seconds: Positive, system: SystemModelFactory | None = None) -> Failures:
    """A client fails if the system model needs more than `seconds` for its dispatch, or loses it.

    Round t starts at t times `seconds`, and a client with sessions, as in FedScale's traces, fails
    if it is away at this time or leaves before it has finished. The bytes of a method take no time
    here (the system's own `communication_seconds` do), so the same clients fail in all methods. On
    the command line `--system` gives the system.

    Args:
      seconds: length of a round in simulated seconds, above 0.
      system: makes the system model of a seed.
    """
    make = _systems(system, "late")

    def fails_of(seed, clients, numbers, round_number, num_steps):
        model, now = make(int(seed)), int(round_number) * seconds

        def is_lost(client, number, steps):
            needed = model.seconds(client, number, steps)
            if isinstance(model, SystemModelWithSessions):
                away = model.unavailability_at(client, now, needed)
            else:
                away = model.unavailability(client, number)
            return needed > seconds or away is not None

        return np.array([is_lost(*each) for each in _rows((clients, numbers, num_steps))])

    fails = functools.partial(_ask, fails_of, bool)
    fails.reads_round = True  # type: ignore[attr-defined]
    return fails


def _ask(function, dtype, seed, clients, *more):
    """Calls a function on the host, which maps dispatches in NumPy arrays to one value each."""
    shape, given = jax.ShapeDtypeStruct(clients.shape, dtype), (seed, clients, *more)
    return jax.pure_callback(function, shape, *given, vmap_method="sequential")


def _rows(columns):
    """Iterates over the values of dispatches, one dispatch after another."""
    return zip(*(np.asarray(each).tolist() for each in columns), strict=True)


def _systems(system, owner, sessions=False):
    """Returns `system` with a cache of models; ValueError if it is missing or lacks sessions."""
    fits = system is not None and (not sessions or isinstance(system(0), SystemModelWithSessions))
    example = "fedscale(behaviour=..., ...)" if sessions else "simulated()"
    fix = f"give {owner}(..., system=...), such as asynchrony.{example}"
    require(fits, f"{owner} has no system model{' with sessions' * sessions}; {fix}")
    return functools.lru_cache(maxsize=16)(system)
