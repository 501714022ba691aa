"""A round as a pure function, for custom loops and transformations."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax

from fedjax_algos.base.errors import require
from fedjax_algos.base.reprs import describe
from fedjax_algos.core import Algorithm, Dispatch, EqualSteps, Metrics, Model, Params, Population
from fedjax_algos.core.checks import as_model, check_kind, check_seed
from fedjax_algos.core.options import NonFinite
from fedjax_algos.core.types import Array
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.checks import StateCheck, check_options, check_population
from fedjax_algos.engine.federated_round import FederatedRound
from fedjax_algos.engine.non_finite import select
from fedjax_algos.engine.slots import Layout, Placement, fill_slots, mark_equal_steps
from fedjax_algos.engine.state import FederatedState, initial_state


# not a NamedTuple: `jit` needs weak references, and a hash even if options are traced
@dataclasses.dataclass(frozen=True, eq=False)
class PureRound:
    """A round of an algorithm as a pure function; `pure_round` makes it.

    It consumes nothing, has no callbacks and no device placement, and all its arguments may be
    traced. So it composes with `jit`, `scan`, `vmap`, `grad`, `jacfwd`, `checkpoint` and
    `shard_map`. It has the results of `Engine.round` on one device in the same layout.

    Attributes:
      algorithm: the algorithm; its options may be traced.
      layout: how many clients of a cohort are computed at once.
      non_finite: treatment of updates that are not finite, "exclude" or "keep".
    """

    algorithm: Algorithm
    layout: Layout
    non_finite: NonFinite

    def init(
        self, seed: Array | int, population: Population, params: Params | Model | None = None
    ) -> FederatedState:
        """Returns the state before the first round.

        Args:
          seed: uint32[]: the seed of the model, the clients' batches and their noise.
          population, params: as for `Engine.init`.
        """
        check_population(population)
        if not isinstance(seed, jax.core.Tracer):
            check_seed(seed)
        seed = jnp.asarray(seed).astype(jnp.uint32)
        model, placement = as_model(self.algorithm.problem, params), Placement(self.layout)
        return initial_state(self.algorithm, placement, seed, model, population, self.non_finite)

    def __call__(
        self, state: FederatedState, data: FederatedData, dispatches: Dispatch
    ) -> tuple[FederatedState, Metrics]:
        """Runs one round.

        Args:
          state, data: the result of `init` or of the last round, and of `federate`; not consumed.
          dispatches: the dispatches of this round, leaves [cohort]. If clients keep state, each may
            be in the cohort only once: of two rows one would be lost.

        Returns:
          The new state, and the round's metrics: means over all examples of all local steps. If
          `local.reverse` has bounds and a traced dispatch has more steps, the params are NaN.

        Raises:
          TypeError: for data of another type.
          ValueError: for a state of another run. Unless traced, also for dispatches out of range,
            for a client with state twice in the cohort, and for unknown labels.
        """
        check_kind("data", data, FederatedData, "give what federate returned")
        given, dispatches = dispatches, self._checked.check(state, data, dispatches, ("cohort",))
        data = jax.tree.map(jnp.asarray, data)  # NumPy arrays cannot be indexed by tracers
        placement = Placement(self.layout)
        slots = dispatches  # of candidates, whose slots the round fills
        if self.algorithm.selection is None:
            order = placement.slot_order(dispatches.num_steps)
            slots = fill_slots(dispatches, order, data.num_clients)
        if isinstance(given.num_steps, EqualSteps):
            slots = slots._replace(num_steps=given.num_steps)
        else:
            steps = self.algorithm.local.steps
            slots = mark_equal_steps(slots, dispatches, steps, data.num_clients)
        traced = FederatedRound(self.algorithm, placement, non_finite=self.non_finite)
        state, metrics, _ = traced.run_round(state, data, slots)
        reverse, params = self.algorithm.local.reverse, state.server.params
        if reverse is not None:
            within = jnp.max(dispatches.num_steps) <= reverse.max_steps
            params = select(within, params, optax.tree.full_like(params, jnp.nan))
            state = state._replace(server=state.server._replace(params=params))
        return state, metrics

    @functools.cached_property
    def _checked(self) -> StateCheck:
        return StateCheck(self.algorithm)

    def __repr__(self) -> str:
        return describe(self, layout=self.layout, algorithm=self.algorithm)


def pure_round(
    algorithm: Algorithm, layout: Layout = "auto", non_finite: NonFinite = "exclude"
) -> PureRound:
    """Makes a round a pure function `(state, data, dispatches) -> (state, metrics)`.

    Reverse mode needs static bounds on the local loops: build the algorithm with
    `local=differentiable(local, data.counts())`.

    A whole simulation is one function, here with 64 seeds at once::

        def run(seed):
            dispatches = fa.traced_dispatches(seed, counts, local, cohort_size=10, rounds=50)
            step = lambda state, of_round: round_fn(state, data, of_round)
            state, metrics = jax.lax.scan(step, round_fn.init(seed, population), dispatches)
            return state.server.params

        params = jax.jit(jax.vmap(run))(jnp.arange(64))

    Args:
      algorithm: the algorithm. Its options and its client learning rate may be traced.
      layout: as for `make_engine`; "auto" is "vmapped" on an accelerator.
      non_finite: "exclude" or "keep"; see `make_engine`. "error" needs the host.

    Raises:
      TypeError: if `algorithm` is not an `Algorithm`.
      ValueError: for an unknown value of an option.
    """
    check_options(algorithm, layout, non_finite)
    fix = "give 'exclude' and read state.excluded, or give 'keep'"
    require(non_finite != "error", f"non_finite='error' needs the host; {fix}")
    return PureRound(algorithm, layout, non_finite)
