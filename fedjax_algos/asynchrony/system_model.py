"""Weather: how long visits take, and which are lost, whatever the schedule."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np

from fedjax_algos.asynchrony.plan import Weather
from fedjax_algos.asynchrony.simulated_system import SimulatedWeather
from fedjax_algos.core.registry import NonNegative, Positive, Range, Registry
from fedjax_algos.schedules.local_work import Speeds

weathers = Registry("weather")


@runtime_checkable
class Forecast(Weather, Protocol):
    """Weather with clients' mean speeds, which tiers are made of."""

    def expected_seconds_per_step(self, client: int) -> float:
        """The client's t_i at the start, without communication."""
        ...


class MakeWeather(Protocol):
    """What the factories return: it makes the weather of a seed.

    Args:
      seed: of all draws, at least 0.
      download_bytes: that a client receives in a visit.
      upload_bytes: that it sends.
    """

    def __call__(
        self, seed: int, *, download_bytes: float = 0, upload_bytes: float = 0
    ) -> Forecast: ...


@weathers
def simulated(
    *,
    speeds: Speeds = "normal",
    seconds_per_step: Positive = 0.1,
    jitter: NonNegative = 0.05,
    change: Annotated[float, Range(0, 1)] = 0.0,
    communication_seconds: NonNegative = 0.0,
    bytes_per_second: Positive | None = None,
    dropout: Annotated[float, Range(0, 1, high_open=True)] = 0.0,
    away_seconds: Positive = 10.0,
) -> MakeWeather:
    """A visit of Q steps takes Q t_i z + communication, z ~ N(1, jitter^2) and at least .5.

    t_i is drawn once for each client around mu = `seconds_per_step`, as in the work `deadline` and
    with the same values: "homogeneous" is mu; "normal" is N(mu, (0.3 mu)^2), drawn again while it
    is 0.05 mu or less; "exponential" has mean mu, and is at least 0.01 mu. z is drawn for each
    visit. Li et al., "FedCompass", sections 5.1 and G.2, https://arxiv.org/abs/2309.14675, where
    communication takes no time; it leaves open how times are kept positive.

    The paper knows no dropouts. Here a client leaves after a uniform share of the visit's time, and
    is away for an exponential time.

    Args:
      speeds: the distribution of t_i.
      seconds_per_step: mu.
      jitter: the standard deviation of z.
      change: probability that a client draws a new t_i before a visit other than its first; .1 in
        the paper's study of changing speeds.
      communication_seconds: of each visit, both ways together.
      bytes_per_second: adds (download_bytes + upload_bytes) / bytes_per_second to each visit;
        None adds nothing.
      dropout: probability that a visit is lost.
      away_seconds: the mean of the time away.
    """

    def make(seed: int, *, download_bytes: float = 0, upload_bytes: float = 0) -> Forecast:
        communication = communication_seconds + _transfer(
            download_bytes, upload_bytes, bytes_per_second
        )
        if not seed >= 0:
            raise ValueError(f"seed={seed} is out of range; give a whole number of at least 0")
        return SimulatedWeather(
            seed, speeds, seconds_per_step, jitter, change, communication, dropout, away_seconds
        )

    return make


def traced(
    seconds_per_step: np.ndarray,
    absences: Mapping[tuple[int, int], tuple[float, float]] | None = None,
    *,
    communication_seconds: float = 0.0,
    bytes_per_second: float | None = None,
) -> MakeWeather:
    """Weather of your own, such as measured one. It is the same for all seeds.

    Args:
      seconds_per_step: float[num_clients] for all visits, or float[num_clients, visits]. A visit
        past the end of a trace is an error: nothing is repeated.
      absences: `{(client, visit): (share of the visit's time, seconds away)}`; see `Fixed`.
      communication_seconds: of each visit, both ways together.
      bytes_per_second: adds (download_bytes + upload_bytes) / bytes_per_second to each visit.

    Raises:
      ValueError: for another shape, times that are not positive and finite, or absences that
        cannot be.
    """
    times = np.asarray(seconds_per_step, float)
    if times.ndim not in (1, 2) or not times.size:
        raise ValueError(
            f"seconds_per_step has shape {times.shape}; give a time for each client, or for each "
            "client and visit"
        )
    _require_at_least_0("communication_seconds", communication_seconds)
    if bytes_per_second is not None and not bytes_per_second > 0:
        raise ValueError(
            f"bytes_per_second={bytes_per_second} is out of range; give a number above 0"
        )
    rows = times.tolist()
    Fixed(rows, absences)  # its errors now, not when it is made for a seed

    def make(seed: int, *, download_bytes: float = 0, upload_bytes: float = 0) -> Forecast:
        del seed
        transfer = _transfer(download_bytes, upload_bytes, bytes_per_second)
        return Fixed(rows, absences, communication_seconds=communication_seconds + transfer)

    return make


class Fixed:
    """Given times in numbers of any type; with `fractions.Fraction`s a timeline is exact.

    Args:
      seconds_per_step: of each client, a number or a sequence of one for each visit.
      absences: `{(client, visit): (share, seconds away)}`: the visit is lost after this share of
        its time, and the client is back after these seconds, `math.inf` for never.
      communication_seconds: of each visit, both ways together.

    Raises:
      ValueError: for no clients, times that are not positive and finite, or absences that cannot
        be.
    """

    def __init__(
        self,
        seconds_per_step: Sequence[Any],
        absences: Mapping[tuple[int, int], tuple[Any, Any]] | None = None,
        *,
        communication_seconds: Any = 0,
    ):
        self._times = [tuple(t) if isinstance(t, Iterable) else t for t in seconds_per_step]
        self._absences = dict(absences or {})
        self._communication = communication_seconds
        if not self._times:
            raise ValueError("seconds_per_step is empty; give a time for each client")
        for client, times in enumerate(self._times):
            if isinstance(times, tuple) and not times:
                raise ValueError(f"client {client} has no times; give one for each visit")
            for time in times if isinstance(times, tuple) else (times,):
                if not 0 < time < math.inf:
                    raise ValueError(
                        f"seconds_per_step={time} of client {client} is out of range; give a "
                        "number above 0"
                    )
        for (client, visit), absence in self._absences.items():
            if not (0 <= client < len(self._times) and visit >= 0):
                raise ValueError(
                    f"absences name visit {visit} of client {client}; give visits of at least 0 "
                    f"and clients of 0 to {len(self._times) - 1}"
                )
            require_absence(client, visit, absence)
        _require_at_least_0("communication_seconds", communication_seconds)

    def seconds(self, client: int, visit: int, num_steps: int) -> Any:
        """How long the visit takes, communication included.

        Raises:
          ValueError: for a client or visit without a time.
        """
        return num_steps * self._time(client, visit) + self._communication

    def absence(self, client: int, visit: int) -> tuple[Any, Any] | None:
        """None, or (share of the visit's time after which it is lost, seconds away)."""
        return self._absences.get((client, visit))

    def expected_seconds_per_step(self, client: int) -> Any:
        """The client's time, or the mean of its times.

        Raises:
          ValueError: for a client without a time.
        """
        self._time(client, 0)
        times = self._times[client]
        return sum(times) / len(times) if isinstance(times, tuple) else times

    def _time(self, client: int, visit: int) -> Any:
        if client >= len(self._times):
            raise ValueError(
                f"client {client} has no time in seconds_per_step, which has {len(self._times)}; "
                "give one for each client"
            )
        times = self._times[client]
        if not isinstance(times, tuple):
            return times
        if visit >= len(times):
            raise ValueError(
                f"visit {visit} of client {client} is past its trace of {len(times)} visits; give "
                "a longer one, or a single time for each client"
            )
        return times[visit]


def require_absence(client: int, visit: int, absence: tuple[Any, Any]) -> None:
    """Raises ValueError unless the share is in [0, 1] and the time away at least 0.

    Both may not be 0: a client that leaves and is back at once would do so for ever.
    """
    share, away = absence
    if not (0 <= share <= 1 and away >= 0 and (share or away)):
        raise ValueError(
            f"visit {visit} of client {client} has absence=({share}, {away}); give a share of its "
            "time from 0 to 1 and seconds away of at least 0, not both of them 0"
        )


def _transfer(download: float, upload: float, bytes_per_second: float | None) -> float:
    """Seconds that the bytes of a visit take."""
    _require_at_least_0("download_bytes", download)
    _require_at_least_0("upload_bytes", upload)
    return 0.0 if bytes_per_second is None else (download + upload) / bytes_per_second


def _require_at_least_0(name: str, value: Any) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}={value} is out of range; give a number of at least 0")
