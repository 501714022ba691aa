"""Simulated systems, which draw clients' speeds, lost dispatches and unavailability."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedjax_algos.core.options import Decay, NonNegative, Positive, UnitInterval
from fedjax_algos.participation import local_work
from fedjax_algos.participation.systems import system_model

_JITTER, _CHANGES, _UNAVAILABLE = 13, 14, 15  # tags of NumPy's streams, after local work's
# There may be a million clients, so the first dispatches of many are drawn together. Later draws
# are for one client, and grow, because fast clients make many dispatches.
_CLIENTS, _FIRST_DISPATCHES = 256, 4  # _CLIENTS divides CLIENTS_IN_BLOCK
_MIN_DISPATCHES, _MAX_DISPATCHES = 60, 1024  # in a later draw of one client


@system_model.system_models.register
def simulated(
    *,
    speeds: local_work.Speeds = "normal",
    seconds_per_step: Positive = 0.1,
    jitter: NonNegative = 0.05,
    change: UnitInterval = 0.0,
    communication_seconds: NonNegative = 0.0,
    bytes_per_second: Positive | None = None,
    dropout: Decay = 0.0,
    unavailable_seconds: Positive = 10.0,
    time_floor: UnitInterval = 0.01,
    time_bin: Positive | None = None,
) -> system_model.SystemModelFactory:
    """A dispatch of Q steps takes Q t_i z + communication, with z ~ N(1, jitter^2), at least .5.

    t_i is drawn once for each client, with mean mu = `seconds_per_step`, as the local work
    `deadline` draws it, and z for each dispatch. `SpeedDistribution` has the floor and bins.

    Li et al., "FedCompass", ICLR 2024, sections 5.1 and G.2, https://arxiv.org/abs/2309.14675.
    There communication takes no time, and how times are kept positive is not specified. The paper
    has no dropouts: here a client leaves after a uniformly distributed share of the dispatch's
    time, and is away for an exponentially distributed time.

    Args:
      speeds: the distribution of t_i, as for `deadline`.
      seconds_per_step: mu, in seconds, above 0.
      jitter: the standard deviation of z, at least 0.
      change: probability that a client draws a new t_i before a dispatch other than its first, from
        0 to 1; .1 in the paper's study of changing speeds.
      communication_seconds, bytes_per_second: as in `traced`.
      dropout: probability that a dispatch is lost, at least 0 and below 1.
      unavailable_seconds: the mean time away, in seconds, above 0.
      time_floor: the least t_i, in units of mu, from 0 (none) to 1. With exponential speeds it
        decides how many of the server steps the fastest client makes.
      time_bin: the width of the bins of exponential t_i, in units of mu, above 0; None for none.

    Returns:
      A function that makes the system model of a seed; ValueError for a negative seed or bytes.

    Raises:
      ValueError: for `time_bin` with other `speeds` than "exponential".
    """
    distribution = local_work.speed_distribution(speeds, time_floor, time_bin, "simulated")
    facts = distribution, seconds_per_step, jitter, change, dropout, unavailable_seconds

    def make(seed: int, *, download_bytes: float = 0, upload_bytes: float = 0) -> SimulatedSystem:
        transfer = system_model.transfer_seconds(download_bytes, upload_bytes, bytes_per_second)
        system_model.require_at_least_0(seed=seed)
        return SimulatedSystem(seed, communication_seconds + transfer, *facts)

    return make


@dataclass(eq=False, repr=False)
class SimulatedSystem:
    """The system that `simulated` describes, for one seed. Draws are made when they are needed."""

    seed: int
    communication: float  # seconds of each dispatch
    distribution: local_work.SpeedDistribution  # of t_i, in units of mu
    seconds_per_step: float
    jitter: float
    change: float
    dropout: float
    unavailable_seconds: float
    # by client: seconds per step and unavailability of each dispatch drawn so far, and the last t_i
    _times: dict[int, list[float]] = field(init=False, default_factory=dict)
    _unavailable: dict[int, list[Any]] = field(init=False, default_factory=dict)
    _latest: dict[int, float] = field(init=False, default_factory=dict)

    def seconds(self, client: int, number: int, num_steps: int) -> float:
        """See `SystemModel.seconds`."""
        self._draw_until(client, number)
        return num_steps * self._times[client][number] + self.communication

    def unavailability(self, client: int, number: int) -> tuple[float, float] | None:
        """See `SystemModel.unavailability`."""
        if not self.dropout:
            return None
        self._draw_until(client, number)
        return self._unavailable[client][number]

    def expected_seconds_per_step(self, client: int) -> float:
        """See `SystemModelWithSpeeds.expected_seconds_per_step`."""
        return self._first_times(range(client, client + 1))[0]

    def _first_times(self, clients):
        """Returns t_i at the start, for clients in one block."""
        number, first = divmod(clients[0], local_work.CLIENTS_IN_BLOCK)
        block = local_work.block_of_times(self.distribution, self.seed, number)
        return (self.seconds_per_step * block[first : first + len(clients)]).tolist()

    def _draw_until(self, client, number):
        if client not in self._times:
            first = client - client % _CLIENTS
            clients = range(first, first + _CLIENTS)
            self._times.update((i, []) for i in clients)
            self._unavailable.update((i, []) for i in clients)
            self._latest.update(zip(clients, self._first_times(clients), strict=True))
            self._draw(clients, 0, _FIRST_DISPATCHES)
        while (drawn := len(self._times[client])) <= number:
            num_dispatches = min(max(drawn, _MIN_DISPATCHES), _MAX_DISPATCHES)
            self._draw(range(client, client + 1), drawn, num_dispatches)

    def _draw(self, clients, first_dispatch, num_dispatches):
        shape, start = (len(clients), num_dispatches), (clients[0], first_dispatch)
        times = np.array([self._latest[client] for client in clients])[:, None]
        if self.change:
            rng = np.random.default_rng([self.seed, _CHANGES, *start])
            changed = rng.random(shape) < self.change
            if not first_dispatch:
                changed[:, 0] = False
            fresh = self.seconds_per_step * self.distribution.draw(rng, shape)
            # a dispatch has t_i of the last change up to it, or the old t_i if there was none
            last = np.maximum.accumulate(np.arange(1, num_dispatches + 1) * changed, axis=1)
            times = np.take_along_axis(np.concatenate([times, fresh], axis=1), last, axis=1)
            self._latest.update(zip(clients, times[:, -1].tolist(), strict=True))
        factors = np.ones(shape)
        if self.jitter:
            rng = np.random.default_rng([self.seed, _JITTER, *start])
            factors = np.maximum(1 + self.jitter * rng.standard_normal(shape), 0.5)
        for client, row in zip(clients, (times * factors).tolist(), strict=True):
            self._times[client] += row
        if self.dropout:
            rng = np.random.default_rng([self.seed, _UNAVAILABLE, *start])
            lost = np.argwhere(rng.random(shape) < self.dropout).tolist()
            shares = rng.random(len(lost)).tolist()
            seconds_away = rng.exponential(self.unavailable_seconds, len(lost)).tolist()
            for client in clients:
                self._unavailable[client] += [None] * num_dispatches
            for (row, column), share, away in zip(lost, shares, seconds_away, strict=True):
                self._unavailable[clients[row]][first_dispatch + column] = share, away
