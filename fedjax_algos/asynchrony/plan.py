"""A plan: who trains when on which model, and what each server step is made of.

On a virtual clock, who arrives when depends on speeds and on the schedule, never on values. So a
schedule runs ahead on the host and writes everything down; what is trained follows from it.
"""

from typing import NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Local, Visit
from fedjax_algos.schedules.synchronous import earlier_amounts, rate_at

AGGREGATED, IN_FLIGHT, LOST = range(3)  # fates of a dispatch
AGGREGATE, FIRST = range(2)  # groups of FedCompass's server steps: a group's, a first arrival's


class Plan(NamedTuple):
    """A timeline in NumPy arrays: dispatches [D], contributions [C], server steps [U].

    Version v is the global model after v server steps; server step u makes version u + 1.
    A dispatch is a visit with a start; a contribution is an arrived update in a server step.
    Of R runs in lockstep (`lockstep.join_plans`), the first R versions are their initial models,
    and server step u makes version u + R.
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
    run: np.ndarray | None = None  # int32[U]: whose server step it is; None for a single run

    @property
    def num_runs(self) -> int:
        """R; each run makes a server step at least."""
        return 1 if self.run is None else int(self.run.max()) + 1

    @property
    def num_versions(self) -> int:
        """Versions that exist at the horizon, the initial models included."""
        return len(self.time) + self.num_runs


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


def plan_visits(plan: Plan, counts: np.ndarray, local: Local) -> Visit:
    """The visits of a plan's dispatches, NumPy arrays [D].

    `server_step` is the version, at which the rate is asked unless `local.rate_by` is "visit".
    Steps of lost dispatches are not in `first_step`: they never happened.

    Args:
      plan: a timeline.
      counts: int[num_clients], n_i of all clients, dispatched or not.
      local: whose rate.

    Raises:
      ValueError: for a client that has no count, or a rate that is not positive and finite.
    """
    counts = np.asarray(counts, np.int32)
    if plan.client.max(initial=0) >= len(counts):
        raise ValueError(
            f"the plan dispatches client {plan.client.max()}, but there are counts of "
            f"{len(counts)} clients; give those of the data that the plan was made for"
        )
    real = jnp.result_type(float)
    shares = counts / counts.sum(dtype=np.int64)
    asked = plan.visit if local.rate_by == "visit" else plan.version
    done = np.where(plan.fate == LOST, 0, plan.num_steps)
    return Visit(
        client=plan.client,
        visit=plan.visit,
        server_step=plan.version,
        num_steps=plan.num_steps,
        full_steps=plan.full_steps,
        num_examples=counts[plan.client],
        share=shares[plan.client].astype(real),
        learning_rate=np.asarray(rate_at(local.learning_rate, asked), real),
        first_step=earlier_amounts(plan.client, done),
    )
