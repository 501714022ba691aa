"""System models: how long dispatches take and which of them are lost, under any schedule."""

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Protocol, runtime_checkable

import numpy as np

from fedjax_algos.asynchrony.fixed_system import FixedSystem, require_at_least_0
from fedjax_algos.asynchrony.plan import SystemModel
from fedjax_algos.asynchrony.simulated_system import SimulatedSystem
from fedjax_algos.core.options import NonNegative, Positive, Range, options
from fedjax_algos.core.registry import Registry
from fedjax_algos.schedules.local_work import Speeds, TimeFloor, speed_distribution


@runtime_checkable
class SystemModelWithSpeeds(SystemModel, Protocol):
    """A system model that knows the clients' mean speeds, which tiers are made of."""

    def expected_seconds_per_step(self, client: int) -> float:
        """The client's t_i at the start, without communication.

        Args:
          client: which client.
        """


class SystemModelFactory(Protocol):
    """Makes the system model of a seed: what the factories of system models return."""

    def __call__(
        self, seed: int, *, download_bytes: float = 0, upload_bytes: float = 0
    ) -> SystemModelWithSpeeds:
        """Makes the system model of a seed.

        Args:
          seed: of all draws, at least 0.
          download_bytes: bytes that a client receives in a dispatch.
          upload_bytes: bytes that a client sends in a dispatch.
        """


system_models = Registry[SystemModelFactory]("system model", Callable)


@system_models.register
def simulated(
    *,
    speeds: Speeds = "normal",
    seconds_per_step: Positive = 0.1,
    jitter: NonNegative = 0.05,
    change: Annotated[float, Range(0, 1)] = 0.0,
    communication_seconds: NonNegative = 0.0,
    bytes_per_second: Positive | None = None,
    dropout: Annotated[float, Range(0, 1, high_open=True)] = 0.0,
    unavailable_seconds: Positive = 10.0,
    time_floor: TimeFloor = 0.01,
    time_bin: Positive | None = None,
) -> SystemModelFactory:
    """A dispatch of Q steps takes Q t_i z + communication, z ~ N(1, jitter^2) and at least .5.

    t_i is drawn once for each client around mu = `seconds_per_step`, as in the local work
    `deadline` and with the same values: "homogeneous" is mu; "normal" is N(mu, (0.3 mu)^2), drawn
    again while it is 0.05 mu or less; "exponential" has mean mu. `SpeedDistribution` defines the
    floor and the bins, and says what is known of FedCompass's. z is drawn for each dispatch.

    Li et al., "FedCompass", ICLR 2024, sections 5.1 and G.2, https://arxiv.org/abs/2309.14675.
    There communication takes no time, and how times are kept positive is not specified. The paper
    has no dropouts: here a client leaves after a uniformly distributed share of the dispatch's
    time, and is away for an exponentially distributed time.

    Args:
      speeds: the distribution of t_i.
      seconds_per_step: mu, in seconds, above 0.
      jitter: the standard deviation of z, at least 0.
      change: probability that a client draws a new t_i before a dispatch other than its first, from
        0 to 1; .1 in the paper's study of changing speeds.
      communication_seconds: seconds that each dispatch takes for download and upload together.
      bytes_per_second: adds (download_bytes + upload_bytes) / bytes_per_second seconds to each
        dispatch; None adds nothing.
      dropout: probability that a dispatch is lost, at least 0 and below 1.
      unavailable_seconds: the mean time away, in seconds, above 0.
      time_floor: the least t_i, in units of mu, from 0 (none) to 1. With exponential speeds it
        decides how many of the server steps the fastest client makes.
      time_bin: the width of the bins of exponential t_i, in units of mu, above 0; None for none.

    Returns:
      A function that makes the system model of a seed. It raises `ValueError` for a negative seed
      or negative numbers of bytes.

    Raises:
      ValueError: for bins of other speeds.
    """
    distribution = speed_distribution(speeds, time_floor, time_bin, "simulated")

    def make(
        seed: int, *, download_bytes: float = 0, upload_bytes: float = 0
    ) -> SystemModelWithSpeeds:
        transfer = transfer_seconds(download_bytes, upload_bytes, bytes_per_second)
        check_system_seed(seed)
        return SimulatedSystem(
            seed,
            distribution,
            seconds_per_step,
            jitter,
            change,
            communication_seconds + transfer,
            dropout,
            unavailable_seconds,
        )

    return make


def traced(
    seconds_per_step: np.ndarray,
    unavailable: Mapping[tuple[int, int], tuple[float, float]] | None = None,
    *,
    communication_seconds: float = 0.0,
    bytes_per_second: float | None = None,
) -> SystemModelFactory:
    """Your own times, for example measured ones. The system is the same for all seeds.

    Args:
      seconds_per_step: float[num_clients], the same for all dispatches, or float[num_clients,
        dispatches]. A dispatch after the end of the trace is an error: nothing is repeated.
      unavailable: which dispatches are lost:
        `{(client, number of the dispatch): (share of the dispatch's time, seconds away)}`; see
        `FixedSystem`.
      communication_seconds: seconds that each dispatch takes for download and upload together.
      bytes_per_second: adds (download_bytes + upload_bytes) / bytes_per_second seconds to each
        dispatch; None adds nothing.

    Returns:
      A function that makes the system model. It raises `ValueError` for negative numbers of bytes.

    Raises:
      ValueError: for another shape, times that are not positive and finite, or an invalid entry of
        `unavailable`.
    """
    times = np.asarray(seconds_per_step, float)
    if times.ndim not in (1, 2) or not times.size:
        raise ValueError(
            f"seconds_per_step has shape {times.shape}; give a time for each client, or for each "
            "client and dispatch"
        )
    if bytes_per_second is not None and not bytes_per_second > 0:
        raise ValueError(
            f"bytes_per_second={bytes_per_second} is out of range; give a number above 0"
        )
    system = functools.partial(FixedSystem, times.tolist(), unavailable)
    return same_for_all_seeds(system, communication_seconds, bytes_per_second)


def same_for_all_seeds(
    system: Callable[..., FixedSystem],
    communication_seconds: float,
    bytes_per_second: float | None,
) -> SystemModelFactory:
    """A factory of the same system for all seeds, whose dispatches also take time to communicate.

    Args:
      system: makes the system, for `communication_seconds`.
      communication_seconds: seconds that each dispatch takes for download and upload together.
      bytes_per_second: adds (download_bytes + upload_bytes) / bytes_per_second seconds to each
        dispatch; None adds nothing.
    """
    system(communication_seconds=communication_seconds)  # raises its errors before any seed

    def make(
        seed: int, *, download_bytes: float = 0, upload_bytes: float = 0
    ) -> SystemModelWithSpeeds:
        transfer = transfer_seconds(download_bytes, upload_bytes, bytes_per_second)
        return system(communication_seconds=communication_seconds + transfer)

    return make


def system_of(spec: str, batch_size: int) -> SystemModelFactory:
    """The system model that a spec names, with the batch size of the run if it needs one.

    Args:
      spec: such as "simulated:speeds=exponential".
      batch_size: for a system model with this option, unless the spec has it.

    Raises:
      ValueError: for an unknown name or option, or a value out of range.
    """
    name, values = system_models.parse(spec)
    if "batch_size" in options(system_models[name]):
        values = {"batch_size": batch_size} | values
    return system_models[name](**values)


def check_system_seed(seed: int) -> None:
    """Raises ValueError for a negative seed.

    Args:
      seed: of a system model.
    """
    if not seed >= 0:
        raise ValueError(f"seed={seed} is out of range; give a whole number of at least 0")


def transfer_seconds(download: float, upload: float, bytes_per_second: float | None) -> float:
    """The seconds that a dispatch's bytes take; 0 if `bytes_per_second` is None.

    Args:
      download: bytes that a client receives.
      upload: bytes that it sends.
      bytes_per_second: above 0.

    Raises:
      ValueError: for negative numbers of bytes.
    """
    require_at_least_0("download_bytes", download)
    require_at_least_0("upload_bytes", upload)
    return 0.0 if bytes_per_second is None else (download + upload) / bytes_per_second
