"""A plan: which client trains when, on which model, and what each server step consists of.

On a virtual clock, arrival times never depend on the values of a model. A planner therefore records
the whole timeline as a `Plan` on the host; the executor then trains what the plan contains.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_algos.core import Dispatch, Local
from fedjax_algos.core.reprs import describe
from fedjax_algos.participation.cohorts import checked_counts, first_steps, rate_at

AGGREGATED, IN_FLIGHT, LOST = range(3)  # fates of a dispatch
AGGREGATE, FIRST = range(2)  # FedCompass's server steps: of an arrival group, of a first arrival


class Plan(NamedTuple):
    """A timeline in NumPy arrays: dispatches [D], contributions [C], server steps [U], in order.

    Version v is the global model after v server steps; server step u makes version u + 1. A
    contribution is an update that has arrived and is part of a server step; they are ordered by
    server step and then by arrival. In a merged plan of R runs (`merge_plans`), the first R
    versions are the runs' initial models, and server step u makes version u + R.

    Attributes:
      client: int32[D]: the client of each dispatch.
      number: int32[D]: number of this dispatch of the client, from 0.
      num_steps: int32[D]: local steps that the client does.
      full_steps: int32[D]: local steps of its complete local update.
      version: int32[D]: the global model that it starts from.
      started: float64[D]: simulated seconds.
      ended: float64[D]: when it arrives or is lost; may be after the horizon.
      fate: int8[D]: AGGREGATED, IN_FLIGHT (or buffered) at the horizon, or LOST.
      dispatch: int32[C]: the dispatch of each contribution.
      staleness: int32[C]: server steps since its version; 0 if the planner counts none.
      step: int32[C]: the server step that it is part of, in ascending order.
      time: float64[U]: when each server step is made, in simulated seconds.
      group: int32[U]: the group given to `server_update`; see each planner.
      run: int32[U]: the run whose server step it is; None for one run.
      trace: the planner's record of its decisions, such as `CompassTrace`, or None.
    """

    client: np.ndarray
    number: np.ndarray
    num_steps: np.ndarray
    full_steps: np.ndarray
    version: np.ndarray
    started: np.ndarray
    ended: np.ndarray
    fate: np.ndarray
    dispatch: np.ndarray
    staleness: np.ndarray
    step: np.ndarray
    time: np.ndarray
    group: np.ndarray
    run: np.ndarray | None = None
    trace: Any = None

    @property
    def num_runs(self) -> int:
        """R; each run makes at least one server step."""
        return 1 if self.run is None else int(self.run.max()) + 1

    @property
    def num_versions(self) -> int:
        """Number of versions at the horizon, including the initial models."""
        return len(self.time) + self.num_runs

    def __repr__(self) -> str:
        sizes = {"dispatches": len(self.client), "lost": int((self.fate == LOST).sum())}
        sizes |= {"contributions": len(self.dispatch), "server_steps": len(self.time)}
        return describe(self, **sizes, runs=self.num_runs)


def plan_dispatches(plan: Plan, counts: np.ndarray, local: Local) -> Dispatch:
    """The facts that clients receive in a plan's dispatches.

    Args:
      plan: a timeline.
      counts: int[num_clients]: n_i, also of clients that are never dispatched.
      local: how clients train; its learning rate is evaluated at the version, or at the number of
        the dispatch if `local.rate_by` is "dispatch".

    Returns:
      NumPy arrays [D]. `server_step` is the version. `first_step` does not count the steps of lost
      dispatches.

    Raises:
      ValueError: for counts or rates out of range, or a client without a count.
    """
    counts = checked_counts(counts)
    if plan.client.max(initial=0) >= len(counts):
        raise ValueError(
            f"the plan dispatches client {plan.client.max()}, but there are counts of "
            f"{len(counts)} clients; give those of the data that the plan was made for"
        )
    real = jnp.result_type(float)
    shares = counts / counts.sum(dtype=np.int64)
    rate_index = plan.number if local.rate_by == "dispatch" else plan.version
    steps_done = np.where(plan.fate == LOST, 0, plan.num_steps)
    return Dispatch(
        client=plan.client,
        number=plan.number,
        server_step=plan.version,
        num_steps=plan.num_steps,
        full_steps=plan.full_steps,
        num_examples=counts[plan.client],
        share=shares[plan.client].astype(real),
        learning_rate=np.asarray(rate_at(local.learning_rate, rate_index), real),
        first_step=first_steps(plan.client, steps_done),
    )
