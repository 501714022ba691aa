"""Every algorithm with every planner: the allowed pairs run, and the others are refused."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, Case, quadratics, with_unused

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import (
    FixedSystem,
    check_asynchronous,
    check_planner,
    plan_dispatches,
    planners,
)

LOCAL = fa.Local(batch_size=2, learning_rate=0.05, steps=4)
TOY = quadratics([[1.0, 2.0], [0.5], [2.0, 1.0, 0.7]], [[1.0, -1.0], [3.0], [0.0, 0.5, -2.0]])
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
    "mime": set(SPECS),
    "mimemom": set(SPECS),
    "fedlga": set(SPECS),
    "fedat": {"immediate", "buffered", "compass"},
    "fedasync,form=mixing": set(SPECS) - {"immediate"},
    "fedgbo": set(SPECS) - {"barrier"},
    "fedgbo,optimizer=own,upload=both": set(SPECS) - {"barrier"},
    "mfl,optimizer=adam": set(SPECS) - {"barrier"},
}
DEFAULTS = dict(fedasync="immediate", fedbuff="buffered", fedat="tiers", fedcompass="compass")


def refuses(algorithm, planner):
    try:
        check_planner(algorithm, planner)
    except ValueError as error:
        before, reason = f"the algorithm does not run with the planner {planner}: ", str(error)
        assert reason.startswith(before)
        return 20 < len(reason) - len(before) < 300
    return False


@functools.cache
def plan_of(planner):
    assert set(SPECS) == set(planners)
    return planners.make(SPECS[planner])(FixedSystem([1.0, 1.3, 2.1]), 3, seconds=60)


def refused_by(case):
    name = case.name if case.name in ("mime", "fedlga", "fedat") else str(case)
    return REFUSED.get(name, set())


def build(case):
    if case.name == "fedmax":  # scalar outputs have no features
        case = Case("fedmax", {"features": lambda x: jnp.stack([x, 2 * x])[None]})
    return case.build(with_unused(TOY.problem), LOCAL)  # for the patterns of fedbn, fedrep


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_planners_that_an_algorithm_refuses(case):
    algorithm = build(case)
    assert {planner for planner in SPECS if refuses(algorithm, planner)} == refused_by(case)
    assert algorithm.traits.asynchrony.default == DEFAULTS.get(case.name, "barrier")


# one of each file: its other algorithms have the same functions with other constants
ONE_OF_EACH_FILE = {algorithms[case.name].__module__: case for case in ONE_EACH}
RUN = [case for case in ONE_OF_EACH_FILE.values() if refused_by(case) != set(SPECS)]


@pytest.mark.all
@pytest.mark.parametrize("case", RUN, ids=str)
def test_an_algorithm_runs_with_its_planners(case):
    """FedAvg with all; others with the first and the last, because they share a program."""
    executor = fa.make_executor(build(case), slots=2)
    allowed = sorted(set(SPECS) - refused_by(case))
    for planner in allowed if case.name == "fedavg" else {allowed[0], allowed[-1]}:
        plan = plan_of(planner)
        state = executor.init(0, fa.Population(3, 3, 6, int(plan.group.max()) + 1))
        dispatches = plan_dispatches(plan, TOY.data.counts(), LOCAL)
        # the same numbers of rows for all planners, which then share the compiled programs
        waves = executor.waves(state, plan)._replace(num_update_rows=8, num_version_rows=7)
        *_, (done, state, *_) = executor.run(state, TOY.data, plan, dispatches, waves=waves)
        assert done == len(plan.time) > 3
        assert np.isfinite(state.server.params["x"])
        assert float(state.server.params["x"]) != 0.5


@pytest.mark.parametrize(
    ("name", "message"), [("mime", "two exchanges"), ("fedlga", r'reduce="stack"')]
)
def test_algorithms_that_need_synchronous_rounds(name, message):
    algorithm = Case(name, {}).build(TOY.problem, LOCAL)
    for refuse in (check_asynchronous, fa.make_executor):
        with pytest.raises(ValueError, match=f"does not run on the virtual clock: .*{message}"):
            refuse(algorithm)
