"""A plan: who trains when on which model, and what each server step is made of.

On a virtual clock, who arrives when depends on speeds and on the schedule, never on values. So a
schedule runs ahead on the host and writes everything down; what is trained follows from it.
"""

from typing import NamedTuple, Protocol

import numpy as np

AGGREGATED, IN_FLIGHT, LOST = range(3)  # fates of a dispatch
AGGREGATE, FIRST = range(2)  # groups of FedCompass's server steps: a group's, a first arrival's


class Plan(NamedTuple):
    """A timeline in NumPy arrays: dispatches [D], contributions [C], server steps [U].

    Version v is the global model after v server steps; server step u makes version u + 1.
    A dispatch is a visit with a start; a contribution is an arrived update in a server step.
    """

    # dispatches, in the order in which they are made
    client: np.ndarray  # int32[D]
    visit: np.ndarray  # int32[D]: the client's how-manyeth dispatch
    num_steps: np.ndarray  # int32[D]
    full_steps: np.ndarray  # int32[D]
    version: np.ndarray  # int32[D]: the global model that it starts from
    started: np.ndarray  # float64[D]: virtual seconds
    ended: np.ndarray  # float64[D]: when it arrives, or is lost; may lie past the horizon
    fate: np.ndarray  # int8[D]: AGGREGATED, IN_FLIGHT (or buffered) at the horizon, or LOST
    # contributions, ordered by server step and then by arrival
    dispatch: np.ndarray  # int32[C]
    staleness: np.ndarray  # int32[C]: server steps since its version, where the schedule counts it
    step: np.ndarray  # int32[C]: which server step it is part of, not decreasing
    # server steps, in order
    time: np.ndarray  # float64[U]: virtual seconds
    group: np.ndarray  # int32[U]: what `server_update` is told; see each schedule

    @property
    def num_versions(self) -> int:
        """Versions that exist at the horizon, the initial model included."""
        return len(self.time) + 1


class Weather(Protocol):
    """What clients meet, from (seed, client, visit) alone, so that all methods meet the same."""

    def seconds(self, client: int, visit: int, num_steps: int) -> float:
        """How long the visit takes, communication included."""
        ...

    def absence(self, client: int, visit: int) -> tuple[float, float] | None:
        """None, or (share of the visit's time after which the client leaves, seconds it is away).

        The visit is then lost. The server learns of it when the client leaves.
        """
        ...
