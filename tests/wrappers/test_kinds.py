"""Every wrapper around every kind of algorithm: without loss it changes nothing, or it is refused.

Quick has each kind of both once, `all` each pair of these kinds, and nightly every algorithm.
"""

import functools
import itertools

import chex
import jax
import numpy as np
import pytest
from helpers import (
    CASES,
    LAYOUTS,
    OF_FEATURES,
    Case,
    by_kind,
    dispatches_of,
    kind_of,
    quadratics,
    run,
    small_network,
    with_statistics,
    with_unused,
)
from wrapper_helpers import NETWORK_LOCAL, in_a_round, later, traced

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import simulated
from fedjax_algos.core.options import options
from fedjax_algos.engine.non_finite import run_rounds, without_screening
from fedjax_algos.wrappers import wrap

NIGHTLY = pytest.mark.nightly
TOY = quadratics([[1, 2], [0.5], [1.5, 1, 0.3], [0.7]], [[1, -1], [3], [0.2, 0.4, -2], [1]])
SAMPLING = fa.wrappers.Sampling(fa.participation.samplers.make("uniform"), 4, 4)
SETS = [(0, 1, 2, 3), (3, 2, 0, 1)]  # all clients, so that the server's memories have their mean
LOSSLESS = {
    **{name: name for name in ("identity", "mifa", "mean")},
    "codec": "cast:dtype=float32",
    "ef": "cast:dtype=float32,feedback=ef",
    "ef21": "topk:fraction=1,feedback=ef21",
    "diana": "randk:fraction=1,feedback=diana",
    "broadcast": "cast:dtype=float32,direction=down",
    "differences": "topk:fraction=1,direction=down,feedback=ef21",
    "sampling": "optimal_client_sampling:uploads=4",
    "gaussian": "gaussian:clip=1e30,noise=0",
    "secure": "secure_sum:clip=2,bits=29",
    "superquantile": "superquantile:1",
    "term": "term:t=0",
    "power_of_choice": "power_of_choice:candidates=1,loss=batch",
    "active": "active:candidates=1,alpha1=0",
    "oort": "oort:candidates=1,seconds=1",
}
LOSSY = {"majority": "majority", "fetchsgd": "fetchsgd:size=0.5", "afl": "afl"}
SAME_BITS = {"identity", "codec", "ef", "broadcast", "superquantile", "term", "sampling"}
SIMILAR = {"identity", "diana", "mifa", "term", "active"}  # to others of these
TWICE, CHOICE = "its clients send twice in a round", "its clients choose what they train"
SEVERAL, COUNTS = "its clients send several vectors", "its clients send counts"
COMPARES, MODELS = "its server compares the updates", "its clients send models"
WORK = "needs equal weights, but clients' depend on their"
NO_MEAN, NO_MODEL = "not of type WeightedSum", "do not receive the whole global model"
SQUARE = {"fedexp": "it computes 'square' of the update"}
STALE = "clients' depend on their staleness"
WHILE_TRACED = {WORK, NO_MEAN, NO_MODEL, STALE, *SQUARE.values()}
BOTH = "fedgbo,optimizer=own,upload=both"
OF_MODELS = dict.fromkeys(("fedat", "fedasync,form=mixing"), MODELS)
IN_PRELUDE = dict.fromkeys(("mime", "mimemom"), TWICE)
OF_PARTS = f"scaffold {BOTH} mfl mimelite mimexlite mimelitemom fedgamma fedsmoo fedadamw fedlada"
OF_PARTS = dict.fromkeys([*OF_PARTS.split(), "fedmuon"], SEVERAL)
STACKS = dict.fromkeys(("fedlga", "feddisco"), COMPARES)
OTHER_SUMS = "scaffold feddyn fedgbo fedasync fedbuff fedcompass fedgamma fedlesam fedspeed fedsmoo"
OTHER_SUMS = SQUARE | dict.fromkeys(
    [*OTHER_SUMS.split(), "ca2fl", "ace", "fadas", "asyncsgd"], NO_MEAN
)
REFUSED = {
    "ef": {**IN_PRELUDE, "ifca": CHOICE, **OF_MODELS},
    "ef21": IN_PRELUDE | STACKS | SQUARE | {"ifca": CHOICE, "fedcompass": WORK, BOTH: WORK},
    "differences": IN_PRELUDE,
    "mean": {"ifca": CHOICE, **STACKS, **SQUARE},
    "majority": {**IN_PRELUDE, **OF_PARTS, "ifca": CHOICE, **STACKS, **OF_MODELS},
    "term": IN_PRELUDE
    | OTHER_SUMS
    | dict.fromkeys(("fedrep", "fedbn", "fedper", "lgfedavg"), NO_MODEL)
    | {**STACKS, "ifca": CHOICE},
}
REFUSED["gaussian"] = REFUSED["mean"] | IN_PRELUDE | OF_MODELS
REFUSED["gaussian"] |= dict.fromkeys(("fednova", "qfedavg", *STACKS), COUNTS)
REFUSED["secure"] = (
    REFUSED["gaussian"] | dict.fromkeys(OF_MODELS) | {"fedcompass": WORK, BOTH: WORK}
)
REFUSED["gaussian"] |= {"fadas": STALE}
REFUSED |= dict.fromkeys(("diana", "mifa"), REFUSED["ef21"]) | {"fetchsgd": REFUSED["majority"]}
REFUSED |= dict.fromkeys(("superquantile", "afl"), REFUSED["term"])
REFUSED["sampling"] = (
    REFUSED["majority"] | SQUARE | dict.fromkeys(("fednova", "qfedavg", *STACKS), COUNTS)
)

OF_KINDS = {kind_of(case): case for (case,), marks, _ in by_kind() if not marks}
LAST = {case.name: case for case in CASES}
EVERY = [*OF_KINDS.values(), *(case for case in LAST.values() if case not in OF_KINDS.values())]
# each kind of algorithm, and each kind of wrapper
QUICK = {("plain", "ef21"), ("parts", "ef"), ("prelude", "codec"), ("rows", "differences")}
QUICK |= {("personal", "superquantile"), ("choice", "oort"), ("stack", "broadcast")}
QUICK |= {("clock", "mean"), ("pools", "sampling")}


def uniform(case, problem):
    """The algorithm of a case, with equal weights of all clients."""
    has_weighting = "weighting" in options(algorithms[case.name])
    given = {"weighting": "uniform"} if has_weighting else {}
    return algorithms[case.name](problem, NETWORK_LOCAL, **case.hyperparameters | given)


def reason_of(case, name):
    """Why a wrapper refuses an algorithm, or None."""
    reasons = REFUSED.get(name, {})
    return reasons.get(str(case), reasons.get(case.name))


def pairs():
    kinds = [*OF_KINDS]
    for (number, case), name in itertools.product(enumerate(EVERY), LOSSLESS):
        is_first = number < len(kinds)
        mark = pytest.mark.all if is_first and name not in SIMILAR else NIGHTLY
        mark = () if is_first and (kinds[number], name) in QUICK else mark
        yield pytest.param(number, name, marks=mark, id=f"{case}-{name}")


@functools.cache
def rounds_with(number, spec, x64=False):
    """The params after each round of an algorithm with wrappers; some need a hidden layer."""
    problem, data, _ = TOY._replace(problem=with_unused(TOY.problem))
    if EVERY[number].name in OF_FEATURES:
        problem, data, _ = small_network()
    with jax.enable_x64(x64):
        return run(wrap(uniform(EVERY[number], problem), spec, simulated(), SAMPLING), data, SETS)


@pytest.mark.parametrize(("number", "name"), [*pairs()])
def test_without_loss_a_wrapper_changes_nothing_or_it_is_refused(number, name):
    if reason := reason_of(EVERY[number], name):
        with pytest.raises(ValueError, match=reason):
            rounds_with(number, LOSSLESS[name])
        return
    # in float32 a last bit of the weights that qfedavg has itself differs
    x64 = EVERY[number].name == "qfedavg" and name in ("superquantile", "term")
    found = rounds_with(number, LOSSLESS[name], x64)
    expected = rounds_with(number, "mean" if name == "sampling" else "", x64)
    if name in SAME_BITS:
        chex.assert_trees_all_equal(found, expected)
    else:
        chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)


def test_each_kind_occurs_in_a_quick_test():
    assert {kind for kind, _ in QUICK} == set(OF_KINDS)
    assert not any(reason_of(OF_KINDS[kind], name) for kind, name in QUICK)


@pytest.mark.parametrize("case", LAST.values(), ids=str)
def test_what_an_algorithm_declares_is_refused_before_a_round(case):
    bare = uniform(case, small_network().problem)
    for name, spec in (LOSSLESS | LOSSY).items():
        reason = reason_of(case, name)
        if reason is None or reason in WHILE_TRACED:
            wrap(bare, spec, simulated(), SAMPLING)
        else:
            with pytest.raises(ValueError, match=f"{reason}.*; (leave|give) "):
                wrap(bare, spec, simulated(), SAMPLING)


@pytest.mark.parametrize(
    ("case", "name", "reason"),
    [
        (LAST["fedgbo"], "ef21", "num_steps and learning_rate.*give feedback=ef or none"),
        (Case("fedavg", {}), "ef21", "their num_examples.*weighting=uniform"),
        (Case("fedavg", {}), "mifa", "their num_examples.*weighting=uniform, or leave mifa out"),
        (LAST["scaffold"], "term", NO_MEAN),
        (LAST["fedrep"], "term", NO_MODEL),
    ],
)
def test_weights_and_models_are_looked_at_in_a_round(case, name, reason):
    bare = case.build(small_network().problem, NETWORK_LOCAL)
    with pytest.raises(ValueError, match=reason):
        traced(wrap(bare, LOSSLESS[name]))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (LOSSLESS["sampling"], 'reduce="stack"'),
        ("afl", 'reduce="stack"'),
        (LOSSLESS["differences"], "build upon each other"),
        ("power_of_choice", "candidates report.*synchronous rounds"),
    ],
)
def test_wrappers_of_rounds_are_refused_on_the_virtual_clock(spec, reason):
    bare = fa.algorithms.fedavg(small_network().problem, NETWORK_LOCAL, weighting="uniform")
    with pytest.raises(ValueError, match=reason):
        fa.make_executor(wrap(bare, spec))


DOWN = "topk:fraction=0.3,direction=down"
REFUSED_OPTIONS = {
    "qsgd:levels=65536": "levels=65536.*16 bits",
    "terngrad:feedback=ef": "terngrad: feedback=ef.*give clip=0",
    "powersgd:scope=part": "powersgd: scope=part.*give scope=leaf",
    "topk:feedback=diana": "feedback=diana.*biased; give feedback=ef or ef21",
    "eden:scale=least_squares,feedback=diana": "feedback=diana.*biased; give",
    "eden:bits=4,feedback=diana": "feedback=diana.*biased for vectors with few large entries; give",
    "drive:blocks=true,feedback=diana": "feedback=diana.*biased for vectors with few large entries",
    "topk:direction=sideways": "direction='sideways'.*up or down",
    "topk:direction=down,feedback=ef": "direction=down, feedback=ef,.*give feedback=none or ef21",
    "randk:direction=down,feedback=diana": "feedback=diana,.*give feedback=none or ef21",
    "terngrad:direction=down,feedback=ef21": "feedback=ef21.*give clip=0",
    f"{DOWN}+qsgd:direction=down": "encoded already; leave one of the two out",
    "topk:catch_up=full": "catch_up=full .*do not fit.*is for ef21 downwards",
    f"{DOWN},catch_up=full": "catch_up=full .*do not fit",
    f"{DOWN},feedback=ef21,catch_up=half": "catch_up='half'",
    "qsgd:direction=down,measure_size=true": "measure_size=True do not fit.*no measure_size",
    **{
        f"{first}+{name}": f"{name}: its clients are chosen already.*after {name}"
        for first in ("optimal_client_sampling", "power_of_choice")
        for name in ("topk", "identity", "mean", "oort", "power_of_choice", first)
    },
    "active:candidates=2": "0.5 candidates for 0.9 places.*more candidates",
    "oort:seconds=10": "oort has no system model",
}


@pytest.mark.parametrize("spec", REFUSED_OPTIONS)
def test_options_that_do_not_fit_are_refused(spec):
    bare = fa.algorithms.fedavg(small_network().problem, NETWORK_LOCAL, weighting="uniform")
    with pytest.raises(ValueError, match=REFUSED_OPTIONS[spec]):
        wrap(bare, spec)


def test_a_size_of_two_exchanges_and_uploads_of_statistics_are_refused():
    problem = small_network().problem
    with pytest.raises(ValueError, match=r"report=3 .*function \(server\)"):
        fa.make_engine(fa.algorithms.fedavg(problem, NETWORK_LOCAL)._replace(report=3))
    with pytest.raises(ValueError, match=r"measure_size=True.*twice in a round"):
        wrap(fa.algorithms.mime(problem, NETWORK_LOCAL), "topk:measure_size=true")
    bare = fa.algorithms.fedavg(with_statistics(problem), NETWORK_LOCAL)
    with pytest.raises(ValueError, match="the model has statistics"):
        wrap(bare, "optimal_client_sampling")


@pytest.mark.parametrize("more", ["", ",feedback=ef", ",direction=down"])
def test_all_entries_are_sent_as_they_are(more):
    bare = fa.algorithms.fedavg(small_network().problem, NETWORK_LOCAL)
    assert wrap(bare, f"topk:fraction=1{more}+randk:fraction=1{more}") is bare


@pytest.mark.parametrize(
    "number",
    [*later(*range(len(OF_KINDS))), *later(*range(len(OF_KINDS), len(EVERY)), mark=NIGHTLY)],
)
def test_the_identity_is_the_same_program_and_is_lowered_for_accelerators(number):
    """Rounds in one program, in each layout, for CUDA and TPU, without callbacks and float64."""
    programs, bare = [], EVERY[number].build(small_network().problem, NETWORK_LOCAL)
    for algorithm in (bare, fa.wrappers.identity(bare)):
        round_fn = fa.pure_round(algorithm, LAYOUTS[number % 3])
        state, data, _ = in_a_round(algorithm, cohort=(0, 1, 2))
        both = dispatches_of(data, NETWORK_LOCAL, [(0, 1, 2), (3, 2, 0)])
        both = both._replace(num_steps=np.array([[2, 1, 2], [2, 2, 1]], np.int32))
        rounds = jax.jit(functools.partial(run_rounds, without_screening(round_fn)))
        traced_rounds = rounds.trace(state, data, both, np.int32(2))
        programs.append(traced_rounds.lower(lowering_platforms=("cuda", "tpu")).as_text())
    assert programs[0] == programs[1]
    assert "f64" not in programs[0]
    assert "callback" not in programs[0]
