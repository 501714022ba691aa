"""A system model of given times."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedjax_algos.core.representation import describe


class FixedSystem:
    """Given times in numbers of any type; with `fractions.Fraction`s a timeline is exact.

    Args:
      seconds_per_step: for each client a number, or a sequence of one number for each dispatch.
      unavailable: `{(client, number of the dispatch): (share, seconds away)}`: the dispatch is lost
        after this share of its time, from 0 to 1, and the client is back after these seconds,
        `math.inf` for never.
      communication_seconds: seconds that each dispatch takes for download and upload together.

    Raises:
      ValueError: for no clients, times that are not positive and finite, or an invalid entry of
        `unavailable`.
    """

    def __init__(
        self,
        seconds_per_step: Sequence[Any],
        unavailable: Mapping[tuple[int, int], tuple[Any, Any]] | None = None,
        *,
        communication_seconds: Any = 0,
    ):
        self._times = [tuple(t) if isinstance(t, Iterable) else t for t in seconds_per_step]
        self._unavailable = dict(unavailable or {})
        self._communication = communication_seconds
        if not self._times:
            raise ValueError("seconds_per_step is empty; give a time for each client")
        for client, times in enumerate(self._times):
            if isinstance(times, tuple) and not times:
                raise ValueError(f"client {client} has no times; give one for each dispatch")
            for time in times if isinstance(times, tuple) else (times,):
                if not 0 < time < math.inf:
                    raise ValueError(
                        f"seconds_per_step={time} of client {client} is out of range; give a "
                        "number above 0"
                    )
        for (client, number), unavailability in self._unavailable.items():
            if not (0 <= client < len(self._times) and number >= 0):
                raise ValueError(
                    f"unavailable has an entry for dispatch {number} of client {client}; give "
                    f"dispatches of at least 0 and clients of 0 to {len(self._times) - 1}"
                )
            check_unavailability(client, number, unavailability)
        require_at_least_0("communication_seconds", communication_seconds)

    def __repr__(self) -> str:
        return describe(self, clients=len(self._times), unavailable=len(self._unavailable))

    def seconds(self, client: int, number: int, num_steps: int) -> Any:
        """Seconds that a dispatch takes, including communication.

        Args:
          client: which client.
          number: number of this dispatch of the client, from 0.
          num_steps: local steps of the dispatch.

        Raises:
          ValueError: for a client or dispatch without a time.
        """
        return num_steps * self._time(client, number) + self._communication

    def unavailability(self, client: int, number: int) -> tuple[Any, Any] | None:
        """None, or (share of the dispatch's time after which it is lost, seconds away).

        Args:
          client: which client.
          number: number of this dispatch of the client, from 0.
        """
        return self._unavailable.get((client, number))

    def expected_seconds_per_step(self, client: int) -> Any:
        """The client's time, or the mean of its times.

        Args:
          client: which client.

        Raises:
          ValueError: for a client without a time.
        """
        self._time(client, 0)
        times = self._times[client]
        return sum(times) / len(times) if isinstance(times, tuple) else times

    def _time(self, client: int, number: int) -> Any:
        if client >= len(self._times):
            raise ValueError(
                f"client {client} has no time in seconds_per_step, which has {len(self._times)}; "
                "give one for each client"
            )
        times = self._times[client]
        if not isinstance(times, tuple):
            return times
        if number >= len(times):
            raise ValueError(
                f"dispatch {number} of client {client} is after the end of its trace of "
                f"{len(times)} dispatches; give a longer one, or a single time for each client"
            )
        return times[number]


def check_unavailability(client: int, number: int, unavailability: tuple[Any, Any]) -> None:
    """Checks what a system model says about a lost dispatch.

    Args:
      client: which client.
      number: number of this dispatch of the client, from 0.
      unavailability: (share of the dispatch's time, seconds away).

    Raises:
      ValueError: unless the share is from 0 to 1 and the time away at least 0. They may not both be
        0, because the client would leave and return without end at the same time.
    """
    share, away = unavailability
    if not (0 <= share <= 1 and away >= 0 and (share or away)):
        raise ValueError(
            f"dispatch {number} of client {client} has unavailability=({share}, {away}); give a "
            "share of its time from 0 to 1 and seconds away of at least 0, not both of them 0"
        )


def require_at_least_0(name: str, value: Any) -> None:
    """Checks a number.

    Args:
      name: of the number, for the message.
      value: the number.

    Raises:
      ValueError: unless it is finite and at least 0.
    """
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}={value} is out of range; give a number of at least 0")
