"""System models: how long dispatches take and which of them are lost, under any planner."""

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from fedjax_algos.core.options import options
from fedjax_algos.core.registry import Registry


class SystemModel(Protocol):
    """Speeds and unavailability of clients.

    The answers depend only on the seed, the client and the number of the dispatch, so that all
    compared methods meet the same system.
    """

    def seconds(self, client: int, number: int, num_steps: int) -> float:
        """Seconds that a dispatch takes, including communication.

        Args:
          client, number: its id, and the number of this dispatch of the client, from 0.
          num_steps: local steps of the dispatch.
        """

    def unavailability(self, client: int, number: int) -> tuple[float, float] | None:
        """Whether and how the client leaves during a dispatch, which is then lost.

        Args:
          client, number: as for `seconds`.

        Returns:
          None, or (share of the dispatch's time after which the client leaves, seconds away). The
          server learns of the loss when the client leaves.
        """


@runtime_checkable
class SystemModelWithSessions(SystemModel, Protocol):
    """A system model whose clients leave and come back at given times, in all compared methods."""

    def unavailability_at(
        self, client: int, now: float, seconds: float
    ) -> tuple[float, float] | None:
        """Whether and how the client leaves during a dispatch; replaces `unavailability`.

        Args:
          client: the client's id.
          now, seconds: when the dispatch starts, and how long it takes.

        Returns:
          As `SystemModel.unavailability`; a share of 0 for a client that is away at `now`.
        """


@runtime_checkable
class SystemModelWithSpeeds(SystemModel, Protocol):
    """A system model that knows the clients' mean speeds, which tiers are made of."""

    def expected_seconds_per_step(self, client: int) -> float:
        """The client's t_i at the start, without communication.

        Args:
          client: the client's id.
        """


class SystemModelFactory(Protocol):
    """Makes the system model of a seed; the factories of system models return it."""

    def __call__(
        self, seed: int, *, download_bytes: float = 0, upload_bytes: float = 0
    ) -> SystemModelWithSpeeds:
        """The system model of a seed.

        Args:
          seed: the seed of all draws, at least 0.
          download_bytes, upload_bytes: that a client receives and sends in a dispatch.
        """


system_models = Registry[SystemModelFactory]("system model", Callable)


def system_of(spec: str, batch_size: int) -> SystemModelFactory:
    """The system model that a spec names, with the batch size of the run if it needs one.

    Args:
      spec: such as "simulated:speeds=exponential".
      batch_size: the batch size for a system model with this option, unless the spec has it.

    Raises:
      ValueError: for an unknown name or option, or a value out of range.
    """
    name, values = system_models.parse(spec)
    if "batch_size" in options(system_models[name]):
        values = {"batch_size": batch_size} | values
    return system_models[name](**values)


def check_unavailability(client: int, number: int, unavailability: tuple[Any, Any]) -> None:
    """Raises ValueError for a share or seconds away out of range."""
    share, away = unavailability
    # not both 0, because the client would leave and return without end at the same time
    if not (0 <= share <= 1 and away >= 0 and (share or away)):
        raise ValueError(
            f"dispatch {number} of client {client} has unavailability=({share}, {away}); give a "
            "share of its time from 0 to 1 and seconds away of at least 0, not both of them 0"
        )


def transfer_seconds(download: float, upload: float, bytes_per_second: float | None) -> float:
    """The seconds that a dispatch's bytes take; 0 if `bytes_per_second` is None."""
    require_at_least_0(download_bytes=download, upload_bytes=upload)
    return 0.0 if bytes_per_second is None else (download + upload) / bytes_per_second


def require_at_least_0(**values: Any) -> None:
    """Raises ValueError unless each of these values is finite and at least 0."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}={value} is out of range; give a number of at least 0")
