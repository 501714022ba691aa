"""The table of algorithms and schedules, walked: what runs does, and what is refused says why."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, Case, quadratics

import fedjax_algos as fa
from fedjax_algos.asynchrony import plan_visits, schedules
from fedjax_algos.asynchrony.compatibility import OWN, SCHEDULES, default_schedule, fit
from fedjax_algos.asynchrony.system_model import Fixed
from fedjax_algos.engine.asynchronous.executor import make_executor

LOCAL = fa.Local(batch_size=2, learning_rate=0.05, steps=4)
SPECS = {
    "barrier": "barrier:steps=4",
    "immediate": "immediate:steps=4",
    "buffered": "buffered:steps=4,size=2",
    "tiers": "tiers:steps=4,ratio=1.5",
    "compass": "compass:min_steps=2,max_steps=8",
}
ONE_EACH = list({case.name: case for case in CASES}.values()) + [
    Case("fedasync", {}),
    Case("fedgbo", {"upload": "gradient"}),
    Case("fedgbo", {}),
]
REFUSED = {
    "mime": set(SCHEDULES),
    "mimemom": set(SCHEDULES),
    "fedlga": set(SCHEDULES),
    "fedat": {"immediate", "buffered", "compass"},
    "fedasync,form=mixing": set(SCHEDULES) - {"immediate"},
    "fedgbo": set(SCHEDULES) - {"barrier"},
    "fedgbo,optimizer=own,upload=both": set(SCHEDULES) - {"barrier"},
    "mfl,optimizer=adam": set(SCHEDULES) - {"barrier"},
}


def fits(case, schedule):
    start = f"{case.name} does not run on the schedule {schedule}: "
    try:
        return fit(case.name, case.hyperparameters, schedule)
    except ValueError as error:
        told = str(error)
    assert told.startswith(start)
    assert len(told) > len(start) + 20  # a reason
    return None


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_the_table(case):
    told = {schedule: fits(case, schedule) for schedule in SCHEDULES}
    refused = {schedule for schedule, how in told.items() if how is None}
    name = case.name if case.name in ("mime", "fedlga", "fedat") else str(case)
    assert refused == REFUSED.get(name, set())
    for schedule, how in told.items():
        if how is not None:
            own = schedule in ("barrier", OWN.get(case.name))
            assert how == ("as is" if own else "displacement")
    if refused == set(SCHEDULES):
        return
    if case.name == "fedmax":  # scalar outputs have no features
        case = Case("fedmax", {"features": lambda x: jnp.stack([x, 2 * x])[None]})
    toy = quadratics([[1.0, 2.0], [0.5], [2.0, 1.0, 0.7]], [[1.0, -1.0], [3.0], [0.0, 0.5, -2.0]])
    executor = make_executor(case.build(toy.problem, LOCAL), slots=2)
    for schedule in sorted(set(SCHEDULES) - refused):
        weather = Fixed([1.0, 1.3, 2.1])
        plan = schedules.make(SPECS[schedule])(weather, 3, seconds=60)
        groups = int(plan.group.max()) + 1
        state = executor.init(0, fa.Population(3, 3, 6, groups))
        visits = plan_visits(plan, toy.data.counts(), LOCAL)
        *_, (done, state, _) = executor.run(state, toy.data, plan, visits)
        assert done == len(plan.time) > 3
        assert np.isfinite(state.server.params["x"])
        assert float(state.server.params["x"]) != 0.5


@pytest.mark.parametrize("name", ["mime", "fedlga"])
def test_the_executor_refuses_too(name):
    toy = quadratics([[1.0]], [[1.0]])
    with pytest.raises(ValueError, match=r"barrier|stack"):
        make_executor(Case(name, {}).build(toy.problem, LOCAL))


def test_own_schedules():
    assert set(OWN.values()) <= set(SCHEDULES) == set(schedules)
    assert default_schedule("fedbuff") == "buffered"
    assert default_schedule("scaffold") == "barrier"
