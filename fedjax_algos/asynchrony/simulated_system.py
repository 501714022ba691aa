"""The draws of simulated weather.

They depend on the seed, the client and the visit, so that compared methods meet the same ones.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedjax_algos.schedules.local_work import CLIENTS_IN_BLOCK, Speeds, block_of_times, draw_times

_JITTER, _CHANGES, _ABSENCES = 13, 14, 15  # streams of NumPy's generators, next to those of works
# Drawn together: the first visits of many clients, since there may be a million of them, and then
# ever more visits of one, since the fastest make far more than the others.
_CLIENTS, _FIRST_VISITS = 256, 4  # _CLIENTS divides CLIENTS_IN_BLOCK
_FEWEST, _MOST = 60, 1024


@dataclass(eq=False, repr=False)
class SimulatedWeather:
    """What `simulated` describes. Lists of draws grow with the visits that are asked for."""

    seed: int
    speeds: Speeds
    seconds_per_step: float
    jitter: float
    change: float
    communication: float  # seconds of a visit
    dropout: float
    away_seconds: float
    # of each client: seconds per step and absences by visit, and t_i after these visits
    _times: dict[int, list[float]] = field(init=False, default_factory=dict)
    _absences: dict[int, list[Any]] = field(init=False, default_factory=dict)
    _latest: dict[int, float] = field(init=False, default_factory=dict)

    def seconds(self, client: int, visit: int, num_steps: int) -> float:
        try:
            return num_steps * self._times[client][visit] + self.communication
        except LookupError:
            self._reach(client, visit)
            return num_steps * self._times[client][visit] + self.communication

    def absence(self, client: int, visit: int) -> tuple[float, float] | None:
        if not self.dropout:
            return None
        try:
            return self._absences[client][visit]
        except LookupError:
            self._reach(client, visit)
            return self._absences[client][visit]

    def expected_seconds_per_step(self, client: int) -> float:
        return self._first_times(range(client, client + 1))[0]

    def _first_times(self, clients: range) -> list[float]:
        """t_i at the start, of clients in one block."""
        block, first = divmod(clients[0], CLIENTS_IN_BLOCK)
        times = block_of_times(self.speeds, self.seed, block)[first : first + len(clients)]
        return (self.seconds_per_step * times).tolist()

    def _reach(self, client: int, visit: int) -> None:
        if client not in self._times:
            first = client - client % _CLIENTS
            clients = range(first, first + _CLIENTS)
            self._times.update((i, []) for i in clients)
            self._absences.update((i, []) for i in clients)
            self._latest.update(zip(clients, self._first_times(clients), strict=True))
            self._append(clients, 0, _FIRST_VISITS)
        while (drawn := len(self._times[client])) <= visit:
            num_visits = min(max(drawn, _FEWEST), _MOST)
            self._append(range(client, client + 1), drawn, num_visits)

    def _append(self, clients: range, first_visit: int, num_visits: int) -> None:
        """Draws these clients' next visits."""
        shape = len(clients), num_visits
        where = clients[0], first_visit
        times = np.array([self._latest[client] for client in clients])[:, None]
        if self.change:
            rng = np.random.default_rng([self.seed, _CHANGES, *where])
            changed = rng.random(shape) < self.change
            if not first_visit:
                changed[:, 0] = False
            fresh = self.seconds_per_step * draw_times(self.speeds, rng, shape)
            # t_i of a visit is that of the last change so far, or else the one before them
            last = np.maximum.accumulate(np.arange(1, num_visits + 1) * changed, axis=1)
            times = np.take_along_axis(np.concatenate([times, fresh], axis=1), last, axis=1)
            self._latest.update(zip(clients, times[:, -1].tolist(), strict=True))
        factors = np.ones(shape)
        if self.jitter:
            rng = np.random.default_rng([self.seed, _JITTER, *where])
            factors = np.maximum(1 + self.jitter * rng.standard_normal(shape), 0.5)
        for client, row in zip(clients, (times * factors).tolist(), strict=True):
            self._times[client] += row
        if self.dropout:
            rng = np.random.default_rng([self.seed, _ABSENCES, *where])
            lost = np.argwhere(rng.random(shape) < self.dropout).tolist()
            shares = rng.random(len(lost)).tolist()
            away = rng.exponential(self.away_seconds, len(lost)).tolist()
            for client in clients:
                self._absences[client] += [None] * num_visits
            for (row_number, visit), *absence in zip(lost, shares, away, strict=True):
                self._absences[clients[row_number]][first_visit + visit] = tuple(absence)
