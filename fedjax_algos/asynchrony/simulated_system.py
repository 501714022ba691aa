"""The random draws of a simulated system.

They depend only on the seed, the client and the number of the dispatch, so that all compared
methods meet the same system.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedjax_algos.core.representation import describe
from fedjax_algos.schedules.local_work import CLIENTS_IN_BLOCK, SpeedDistribution, block_of_times

_JITTER, _CHANGES, _UNAVAILABLE = 13, 14, 15  # streams of NumPy's generators, after those of works
# The first dispatches of many clients are drawn together, because there may be a million clients;
# then increasing numbers of dispatches of one client, because fast clients make far more of them.
_CLIENTS, _FIRST_DISPATCHES = 256, 4  # _CLIENTS divides CLIENTS_IN_BLOCK
_MIN_DISPATCHES, _MAX_DISPATCHES = 60, 1024  # in a later draw of one client


@dataclass(eq=False, repr=False)
class SimulatedSystem:
    """The system that `simulated` describes, for one seed. Draws are made when they are needed.

    Args:
      seed: of all draws, at least 0.
      distribution: of t_i, in units of mu.
      seconds_per_step: mu.
      jitter: the standard deviation of z.
      change: probability of a new t_i before a dispatch.
      communication: seconds of each dispatch.
      dropout: probability that a dispatch is lost.
      unavailable_seconds: the mean time away.
    """

    seed: int
    distribution: SpeedDistribution
    seconds_per_step: float
    jitter: float
    change: float
    communication: float
    dropout: float
    unavailable_seconds: float
    # by client: seconds per step and unavailability of each dispatch drawn so far, and the last t_i
    _times: dict[int, list[float]] = field(init=False, default_factory=dict)
    _unavailable: dict[int, list[Any]] = field(init=False, default_factory=dict)
    _latest: dict[int, float] = field(init=False, default_factory=dict)

    def __repr__(self) -> str:
        return describe(
            self,
            seed=self.seed,
            speeds=self.distribution.name,
            seconds_per_step=self.seconds_per_step,
            dropout=self.dropout,
        )

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

    def _first_times(self, clients: range) -> list[float]:
        """t_i at the start, of clients in one block."""
        block, first = divmod(clients[0], CLIENTS_IN_BLOCK)
        times = block_of_times(self.distribution, self.seed, block)[first : first + len(clients)]
        return (self.seconds_per_step * times).tolist()

    def _draw_until(self, client: int, number: int) -> None:
        """Draws the client's dispatches up to this number, as far as they are not drawn yet."""
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

    def _draw(self, clients: range, first_dispatch: int, num_dispatches: int) -> None:
        """Draws the next dispatches of these clients."""
        shape = len(clients), num_dispatches
        start = clients[0], first_dispatch
        times = np.array([self._latest[client] for client in clients])[:, None]
        if self.change:
            rng = np.random.default_rng([self.seed, _CHANGES, *start])
            changed = rng.random(shape) < self.change
            if not first_dispatch:
                changed[:, 0] = False
            fresh = self.seconds_per_step * self.distribution.draw(rng, shape)
            # t_i of a dispatch is that of the last change so far, or else the one before them
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
