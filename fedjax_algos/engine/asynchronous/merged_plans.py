"""Several runs in lockstep: their plans, data and states joined to those of one run.

The waves of a joined plan take dispatches of all runs, so they are wider, and fewer. No run reads
what another one makes, so each has the results that it has alone. One run is left as it is.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.asynchrony.plan import Plan
from fedjax_algos.core import Visit
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.federated_round import FederatedState


def join_plans(
    plans: Sequence[Plan], visits: Sequence[Visit], num_clients: int
) -> tuple[Plan, Visit]:
    """One plan of several runs, and its visits.

    Server steps are in the order of their virtual time, those of the first run first where runs
    tie, and dispatches in the order of the versions that they start from.

    Args:
      plans: one of each run.
      visits: of each plan, of `plan_visits`. Their clients and server steps stay those of the run.
      num_clients: of each run; in the plan, client i of run r is r * num_clients + i.
    """
    if len(plans) == 1:
        return plans[0], visits[0]

    def all_of(name):
        return np.concatenate([getattr(plan, name) for plan in plans])

    def runs_of(name):
        """Which run's each entry is, and where that run's entries begin, for each run."""
        lengths = [len(getattr(plan, name)) for plan in plans]
        return np.repeat(np.arange(len(plans), dtype=np.int32), lengths), _starts(lengths)

    of_step, first_step = runs_of("time")
    of_dispatch, first_dispatch = runs_of("client")
    of_contribution, _ = runs_of("step")

    steps = np.argsort(all_of("time"), kind="stable")
    step_place = _places(steps)
    made_by = np.maximum(all_of("version") - 1, 0) + first_step[of_dispatch]
    version = np.where(all_of("version") == 0, of_dispatch, step_place[made_by] + len(plans))
    # in a run dispatches keep their order, also where a later one starts from an earlier version
    latest = [np.maximum.accumulate(part) for part in np.split(version, first_dispatch[1:])]
    dispatches = np.argsort(np.concatenate(latest), kind="stable")
    step = step_place[all_of("step") + first_step[of_contribution]]
    contributions = np.argsort(step, kind="stable")
    dispatch = _places(dispatches)[all_of("dispatch") + first_dispatch[of_contribution]]

    joined = Plan(
        client=(all_of("client") + of_dispatch * num_clients)[dispatches],
        visit=all_of("visit")[dispatches],
        num_steps=all_of("num_steps")[dispatches],
        full_steps=all_of("full_steps")[dispatches],
        version=version[dispatches],
        started=all_of("started")[dispatches],
        ended=all_of("ended")[dispatches],
        fate=all_of("fate")[dispatches],
        dispatch=dispatch[contributions],
        staleness=all_of("staleness")[contributions],
        step=step[contributions],
        time=all_of("time")[steps],
        group=all_of("group")[steps],
        run=of_step[steps],
    )
    return joined, jax.tree.map(lambda *leaves: np.concatenate(leaves)[dispatches], *visits)


def join_data(data: Sequence[FederatedData]) -> FederatedData:
    """The clients of several runs, run by run, over the examples that all of them share.

    Raises:
      ValueError: for runs whose examples are not the same arrays, or whose numbers of clients
        differ.
    """
    first, *others = data
    if not others:
        return first
    arrays = [tuple(map(id, jax.tree.leaves(each.examples))) for each in data]
    for number, (each, ids) in enumerate(zip(data, arrays, strict=True)):
        if ids != arrays[0]:
            raise ValueError(
                f"the examples of run {number} are other arrays than those of run 0; put them on "
                "the device once, with jax.device_put, and give these to each federate"
            )
        if each.num_clients != first.num_clients:
            raise ValueError(
                f"run {number} has {each.num_clients} clients and run 0 {first.num_clients}; give "
                "runs with the same number"
            )
    starts = _starts([len(each.indices) for each in data])
    offsets = [np.asarray(each.offsets)[1:] + s for each, s in zip(data, starts, strict=True)]
    return FederatedData(
        first.examples,
        jnp.concatenate([each.indices for each in data]),
        jnp.asarray(np.concatenate([[0], *offsets]), jnp.int32),
    )


def join_states(states: Sequence[FederatedState]) -> FederatedState:
    """First states as one: leaves [runs, ...], and the tables of clients' rows after each other.

    Raises:
      ValueError: for states of unlike shapes.
    """
    first, *others = states
    if not others:
        return first
    shapes = [_shapes(state) for state in states]
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(
                f"the state of run {number} has other shapes than that of run 0; join runs of the "
                "same algorithm, model, number of clients and number of groups"
            )
    return _joined(tuple(states))


def of_run(state: FederatedState, run: int) -> FederatedState:
    """The state of one run of a joined one; its client rows are those of its own clients."""
    return _of_run(state, run) if state.seed.ndim else state


@jax.jit
def _joined(states):
    clients = jax.tree.map(lambda *rows: jnp.concatenate(rows), *(s.clients for s in states))
    others = [state._replace(clients=()) for state in states]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *others)
    return stacked._replace(clients=clients)


@jax.jit
def _of_run(state, run):
    rows = jax.tree.map(
        lambda leaf: leaf.reshape(state.seed.size, -1, *leaf.shape[1:]), state.clients
    )
    return jax.tree.map(lambda leaf: leaf[run], state._replace(clients=rows))


def _starts(lengths):
    return np.cumsum([0, *lengths[:-1]])


def _places(order):
    """Where an order puts each entry."""
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    return places


def _shapes(state):
    leaves, tree = jax.tree.flatten(state)
    return tree, [(leaf.shape, leaf.dtype) for leaf in leaves]
