"""Algorithms with planners: the allowed pairs run, and the others are refused."""

import numpy as np
import pytest
from helpers import CASES, OF_FEATURES, by_kind, quadratics, small_network, with_unused

import fedjax_algos as fa
from fedjax_algos.asynchrony import FixedSystem, check_asynchronous, check_planner, planners

LOCAL = fa.Local(batch_size=2, learning_rate=0.05, steps=4)
TOY = quadratics([[1.0, 2.0], [0.5], [2.0, 1.0, 0.7]], [[1.0, -1.0], [3.0], [0.0, 0.5, -2.0]])
SPECS = {
    "barrier": "barrier:steps=4",
    "immediate": "immediate:steps=4",
    "buffered": "buffered:steps=4,size=2",
    "tiers": "tiers:steps=4,ratio=1.5",
    "compass": "compass:min_steps=2,max_steps=8",
}
ROUNDS = {"mime", "mimemom", "fedlga", "feddisco"}  # two exchanges, or a stack of updates
ONLY = {
    "fedat": {"barrier", "tiers"},
    "fedasync,form=mixing": {"immediate"},
    "fedgbo,optimizer=sgdm": {"barrier"},
    "fedgbo,optimizer=own,upload=both": {"barrier"},
    "fedgbo,optimizer=adam,weighting=examples,server_learning_rate=0.7": {"barrier"},
    "mfl,optimizer=adam": {"barrier"},
    "mfl,optimizer=sgdm": {"barrier"},
}
DEFAULTS = {
    **dict.fromkeys(("fedasync", "asyncsgd", "ace"), "immediate"),
    **dict.fromkeys(("fedbuff", "ca2fl", "fadas"), "buffered"),
    **{"fedat": "tiers", "fedcompass": "compass"},
}


def allowed(case):
    return ONLY.get(case.name, ONLY.get(str(case), set() if case.name in ROUNDS else set(SPECS)))


def build(case):
    if case.name in OF_FEATURES:  # scalar outputs have none
        return case.build(small_network().problem, LOCAL)
    return case.build(with_unused(TOY.problem), LOCAL)  # for the patterns of fedbn, fedrep


def test_planners_that_an_algorithm_refuses():
    assert set(SPECS) == set(planners)
    for case in CASES:
        algorithm = build(case)
        assert algorithm.traits.asynchrony.default == DEFAULTS.get(case.name, "barrier")
        for planner in SPECS:
            if planner in allowed(case):
                check_planner(algorithm, planner)
            else:
                message = f"does not run (on the|with the planner {planner}: )"
                with pytest.raises(ValueError, match=message):
                    check_planner(algorithm, planner)
        for refuse in () if allowed(case) else (check_asynchronous, fa.make_executor):
            with pytest.raises(ValueError, match="does not run on the virtual clock"):
                refuse(algorithm)


KINDS = [param.values[0] for param in by_kind() if not param.marks]
OTHERS = [case for case in KINDS if allowed(case) and case.name != "fedavg"]


@pytest.mark.parametrize(
    "case", [CASES[0], *(pytest.param(case, marks=pytest.mark.all) for case in OTHERS)], ids=str
)
def test_an_algorithm_runs_with_its_planners(case):
    """FedAvg with all; others with the first and the last, because they share a program."""
    executor, names = fa.make_executor(build(case), slots=2), sorted(allowed(case))
    for planner in names if case.name == "fedavg" else {names[0], names[-1]}:
        plan = planners.make(SPECS[planner])(FixedSystem([1.0, 1.3, 2.1]), 3, seconds=60)
        state = executor.init(0, fa.Population(3, 3, 6, int(plan.group.max()) + 1))
        dispatches = fa.asynchrony.plan_dispatches(plan, TOY.data.counts(), LOCAL)
        # the same numbers of rows for all planners, which then share the compiled programs
        waves = executor.waves(state, plan)._replace(num_update_rows=8, num_version_rows=7)
        *_, (done, state, *_) = executor.run(state, TOY.data, plan, dispatches, waves=waves)
        assert done == len(plan.time) > 3
        assert np.isfinite(state.server.params["x"])
        assert float(state.server.params["x"]) != 0.5
