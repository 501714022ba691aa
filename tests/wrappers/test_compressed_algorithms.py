"""Every algorithm with compression: what runs, what is refused and why, what is sent, and where."""

import math
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    CASES,
    LAYOUTS,
    dispatches_of,
    one_round,
    run,
    small_network,
    stored,
    with_statistics,
)
from wrapper_helpers import rounds_of, sends

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import FixedSystem, immediate
from fedjax_algos.asynchrony.planning import check_asynchronous
from fedjax_algos.core.options import options
from fedjax_algos.engine.exchange import count_transfer
from fedjax_algos.wrappers import Codec, compress, wrap

pytestmark = pytest.mark.usefixtures("x64")
TOY = small_network()
LOCAL = fa.Local(batch_size=4, learning_rate=0.1, steps=2)
SETS = [(0, 1), (3, 0)]
POPULATION = fa.Population(4, 2, 17)
ONE_EACH = list({case.name: case for case in CASES}.values())
WRAPPERS = [
    "eden:bits=2",
    "klevel:levels=4",
    "topk:fraction=0.3,feedback=ef",
    "topk:fraction=0.3,feedback=ef21",
    "randk:fraction=0.3,feedback=diana",
    "powersgd:rank=1,min_rate=1,feedback=ef",
    "majority",
    "fetchsgd:size=0.5",
    "eden:bits=2,direction=down",
    "qsgd:levels=7,direction=down",
    "topk:fraction=0.3,direction=down,feedback=ef21",
]
TWICE, CHOICE = "its clients send twice in a round", "its clients choose what they train"
SEVERAL = "its clients send several vectors, whose scales differ; leave .* out"
REFUSED = {
    "ef": {"mime": TWICE, "mimemom": TWICE, "ifca": CHOICE, "fedat": "its clients send models"},
    "ef21": {
        "mime": TWICE,
        "mimemom": TWICE,
        "ifca": CHOICE,
        "fedlga": "its server compares the updates with each other",
        "fedgbo": "depend on their num_steps and learning_rate.*; give feedback=ef or none",
        "fedcompass": "depend on their num_steps",
    },
}
REFUSED["diana"] = REFUSED["ef21"]
REFUSED["fetchsgd"] = REFUSED["majority"] = {
    **REFUSED["ef"],
    "fedlga": "its server compares the updates with each other",
    **dict.fromkeys(("scaffold", "fedgbo", "mfl", "mimelite", "mimexlite", "mimelitemom"), SEVERAL),
}
REFUSED_DOWNWARDS = dict.fromkeys(("mime", "mimemom"), "the server sends twice in a round")


def uniform(case):
    """The algorithm of a case, with equal weights of all clients."""
    has_weighting = "weighting" in options(algorithms[case.name])
    given = {"weighting": "uniform"} if has_weighting else {}
    return case._replace(hyperparameters=case.hyperparameters | given).build(TOY.problem, LOCAL)


@pytest.mark.all
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_every_algorithm_runs_or_is_refused_with_its_reason(case):
    """All are traced; one, in turn, is compiled: its results are finite, and not the bare ones."""
    dispatch = one_round(dispatches_of(TOY.data, LOCAL, SETS), 0)

    def traced(spec):
        algorithm = wrap(bare, spec)
        round_fn = fa.pure_round(algorithm)
        state = jax.eval_shape(lambda: round_fn.init(0, POPULATION))
        jax.eval_shape(round_fn, state, TOY.data, dispatch)
        return algorithm

    with jax.enable_x64(False):
        bare, runs = uniform(case), []
        for spec in WRAPPERS:
            rule = re.split("feedback=|:", spec)[-1] if "feedback" in spec else spec.split(":")[0]
            refused = REFUSED.get(rule, {})
            if "direction=down" in spec:
                refused = REFUSED_DOWNWARDS if "feedback" in spec else {}
            reason = refused.get(case.name)
            if reason is None:
                runs.append(traced(spec))
                continue
            with pytest.raises(ValueError, match=reason):
                traced(spec)
        chosen = runs[ONE_EACH.index(case) % len(runs)]
        end, plain = (run(algorithm, TOY.data, SETS)[-1] for algorithm in (chosen, bare))
    chex.assert_tree_all_finite(end)
    assert any(map(np.any, jax.tree.leaves(jax.tree.map(np.not_equal, end, plain))))


def test_operations_of_every_wrapper_are_counted():
    bare = fa.algorithms.fedavg(TOY.problem, LOCAL, weighting="uniform")

    def flops(algorithm):
        state = jax.eval_shape(lambda: fa.pure_round(algorithm).init(0, POPULATION))
        first = one_round(dispatches_of(TOY.data, LOCAL, SETS), 0)
        return fa.count_flops(algorithm, state, TOY.data).of(first).sum()

    upwards = [spec for spec in WRAPPERS if "direction=down" not in spec]
    assert all(flops(wrap(bare, spec)) > flops(bare) for spec in upwards)


@pytest.mark.parametrize("upload", ["model", "gradient"])
def test_a_part_that_is_not_sent_is_no_vector(upload):
    algorithm = fa.algorithms.fedgbo(TOY.problem, LOCAL, upload=upload)
    for spec in ("majority", "fetchsgd:size=0.5"):
        round_fn = fa.pure_round(wrap(algorithm, spec))
        state = jax.eval_shape(lambda init=round_fn.init: init(0, POPULATION))
        jax.eval_shape(
            round_fn, state, TOY.data, one_round(dispatches_of(TOY.data, LOCAL, SETS), 0)
        )


def test_example_weights_are_refused_where_the_server_remembers():
    algorithm = wrap(fa.algorithms.fedavg(TOY.problem, LOCAL), "topk:feedback=ef21")
    with pytest.raises(ValueError, match=r"their num_examples.*weighting=uniform"):
        run(algorithm, TOY.data, SETS)


def test_a_biased_codec_is_refused_by_diana():
    with pytest.raises(ValueError, match="biased; give feedback=ef or ef21, or an unbiased codec"):
        wrap(uniform(ONE_EACH[0]), "topk:feedback=diana")


def upload_bytes(algorithm, data=TOY.data):
    state = fa.make_engine(algorithm).init(0, POPULATION)
    return count_transfer(algorithm, state, data, one_round(dispatches_of(data, LOCAL, SETS), 0))


@pytest.mark.parametrize("d", [1, 2, 33, 1000, 65537])
def test_bytes_are_those_of_the_formulas(d):
    k, width = math.ceil(d / 10), max(1, math.ceil(math.log2(d)))
    top = 4 * k + 4 * math.ceil(k * width / 32)
    expected = {
        "identity": 4 * d,
        "topk:fraction=0.1": top,
        "topk:fraction=0.1,feedback=ef": top,
        "randk:fraction=0.1": 4 * k,
        "cast:dtype=float16": 2 * d,
        "cast:dtype=float8_e4m3fn": d,
    }
    bare = sends(np.zeros((4, 1, d), np.float32))
    transfers = {spec: upload_bytes(wrap(bare, spec)) for spec in expected}
    assert {spec: transfer.upload for spec, transfer in transfers.items()} == expected
    assert {transfer.download for transfer in transfers.values()} == {4 * d}


def test_each_part_and_each_leaf_has_its_own_entries():
    """The network has leaves of 4, 12 and 4 entries, and SCAFFOLD sends two trees like it."""
    with jax.enable_x64(False):
        found = {
            (name, scope): upload_bytes(wrap(bare, f"topk:fraction=0.3,scope={scope}")).upload
            for name in ("scaffold", "fednova")
            for bare in [algorithms[name](TOY.problem, LOCAL)]
            for scope in ("part", "leaf")
        }
    part, leaves = 4 * 6 + 4, (4 * 2 + 4) + (4 * 4 + 4) + (4 * 2 + 4)
    counts = 4  # of FedNova's work
    assert found == {
        ("scaffold", "part"): 2 * part,
        ("scaffold", "leaf"): 2 * leaves,
        ("fednova", "part"): part + counts,
        ("fednova", "leaf"): leaves + counts,
    }


def test_keys_are_not_counted():
    algorithm = fa.algorithms.fedavg(TOY.problem, LOCAL)
    plain, dithered = (upload_bytes(each) for each in (algorithm, dithering(algorithm)))
    assert dithered.upload == plain.upload / 2 == 80  # float32 instead of float64


def dithering(algorithm):
    """Sends v + z and the key of z, which the server subtracts: the algorithm, if it has z."""

    def noise(key, d):
        return jax.random.normal(key, (d,), jnp.float32)

    codec = Codec(
        lambda key, v: (v + noise(key, v.size), key),
        lambda message, d: message[0] - noise(message[1], d),
    )
    return compress("dithering", algorithm, codec)


@pytest.mark.parametrize(
    ("name", "layout"), [("scaffold", LAYOUTS[0]), ("fedlga", LAYOUTS[1]), ("mime", LAYOUTS[2])]
)
def test_random_keys_arrive_with_what_they_belong_to(name, layout):
    """Sums of two parts, a stack, and a prelude; in every layout."""
    bare = algorithms[name](TOY.problem, LOCAL)
    expected = run(bare, TOY.data, SETS)[-1]
    found = run(dithering(bare), TOY.data, SETS, layout=layout)[-1]
    chex.assert_trees_all_close(found, expected, atol=1e-5)


def run_async(algorithm, data, slots, devices=1):
    """The end of a run in which clients need different times."""
    executor = fa.make_executor(algorithm, slots=slots, devices=jax.devices()[:devices])
    system = lambda seed, **transfer: FixedSystem([1.0, 1.5, 2.0, 2.5])  # noqa: E731
    result = fa.simulate_async(
        executor, data, immediate(steps=2), system, seconds=6.0, evaluations=1, seed=0
    )
    return result.state


@pytest.fixture(scope="module")
def given():
    """An algorithm that sends given vectors, its data, and its end on the virtual clock."""
    algorithm = sends(np.random.default_rng(0).normal(size=(4, 6, 20)))
    data = stored([{"b": np.zeros(1)}] * 4)
    return algorithm, data, run_async(algorithm, data, 4).server.params["x"]


@pytest.mark.parametrize(("slots", "devices"), [(1, 1), (4, 2)])
def test_random_keys_arrive_on_the_virtual_clock(slots, devices, given):
    algorithm, data, expected = given
    end = run_async(dithering(algorithm), data, slots, devices)
    np.testing.assert_allclose(end.server.params["x"], expected, atol=1e-5)
    assert np.any(expected)


@pytest.mark.parametrize("spec", ["topk:fraction=0.3,feedback=ef", "cast:dtype=float8_e4m3fn"])
def test_compression_on_the_virtual_clock(spec, given):
    """One dispatch after another is the same as four in a wave; float8 has no infinity."""
    bare, data, plain = given
    ends = [run_async(wrap(bare, spec), data, slots) for slots in (1, 4)]
    chex.assert_trees_all_equal(ends[0][:3], ends[1][:3])
    assert ends[0].excluded.number == 0
    assert np.any(ends[0].server.params["x"] != plain)


@pytest.mark.parametrize("spec", ["topk:fraction=0.3,feedback=ef", "qsgd:levels=7,direction=down"])
def test_rows_of_an_algorithm_and_broadcasts_on_the_virtual_clock(spec):
    algorithm = wrap(algorithms["scaffold"](TOY.problem, LOCAL), spec)
    ends = [run_async(algorithm, TOY.data, slots) for slots in (1, 4)]
    chex.assert_trees_all_equal(ends[0][:3], ends[1][:3])
    assert all(np.any(leaf) for leaf in jax.tree.leaves(ends[0].clients))


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_every_algorithm_has_codecs_on_the_virtual_clock_or_is_refused_with_its_reason(case):
    """Whatever runs there without a codec does so with one; a dispatch is traced."""
    bare = uniform(case)
    try:
        check_asynchronous(bare)
        reason = None
    except ValueError as error:
        reason = str(error).partition("; ")[0]
    for spec in ("eden:bits=2", "topk:fraction=0.3,feedback=ef", "topk:feedback=ef21"):
        _, _, feedback = spec.partition("feedback=")
        refused = REFUSED.get(feedback, {}).get(case.name) if feedback else None
        if refused is not None and "depend on" not in refused:
            with pytest.raises(ValueError, match=refused):
                wrap(bare, spec)
        elif reason is not None or feedback == "ef21":
            why = re.escape(reason) if reason is not None else 'reduce="stack"'
            with pytest.raises(ValueError, match=why):
                fa.make_executor(wrap(bare, spec))
        else:
            algorithm = wrap(bare, spec)
            sent = upload_bytes(fa.make_executor(algorithm).algorithm)
            assert 0 < sent.upload < upload_bytes(bare).upload


@pytest.mark.parametrize("feedback", ["ef21", "diana"])
def test_a_server_that_remembers_needs_rounds(feedback):
    algorithm = wrap(algorithms["scaffold"](TOY.problem, LOCAL), f"randk:feedback={feedback}")
    with pytest.raises(ValueError, match=r'reduce="stack".*; use synchronous rounds'):
        fa.make_executor(algorithm)


@pytest.mark.parametrize("feedback", ["ef", "diana"])
def test_layouts_give_the_same_results(feedback, given):
    algorithm = wrap(given[0], f"randk:fraction=0.3,feedback={feedback}")
    first, *others = [
        rounds_of(algorithm, [(0, 1, 2), (3, 0, 1)], 4, layout=layout)[-1] for layout in LAYOUTS
    ]
    for other in others:
        chex.assert_trees_all_close(
            (other.server, other.clients), (first.server, first.clients), rtol=1e-6
        )


@pytest.mark.parametrize("spec", ["topk:fraction=1", "randk:fraction=1,feedback=ef"])
def test_all_entries_are_sent_as_they_are(spec):
    algorithm = algorithms["fedavg"](TOY.problem, LOCAL)
    assert wrap(algorithm, spec) is algorithm


@pytest.mark.parametrize("name", ["scaffold", "fedgbo"])
def test_a_cast_to_the_type_of_the_params_changes_no_bit(name):
    with jax.enable_x64(False):
        bare = algorithms[name](TOY.problem, LOCAL)
        cast = "cast:dtype=float32"
        end, *others = [
            run(wrap(bare, spec), TOY.data, SETS) for spec in ("", cast, f"{cast},direction=down")
        ]
    for other in others:
        chex.assert_trees_all_equal(other, end)


SPECS = [
    "topk:fraction=0.5",
    "randk:fraction=0.5",
    "randk:fraction=0.5,feedback=ef",
    "topk:fraction=0.5,feedback=ef21",
    "cast:dtype=float16",
    "cast:dtype=float8_e4m3fn",
]


@pytest.mark.parametrize("spec", SPECS)
def test_what_is_not_finite_is_left_out(spec):
    """Also if a codec would clip it or not send it; the client's memory stays as it was."""
    vectors = np.ones((3, 2, 4), np.float32)
    vectors[1, :, 2], vectors[2, :, 2] = np.nan, np.inf
    with jax.enable_x64(False):
        (state,) = rounds_of(wrap(sends(vectors), spec), [(0, 1, 2)], 3)
    assert (state.excluded.number, state.excluded.client) == (2, 1)
    chex.assert_tree_all_finite((state.server.params, state.clients))
    assert np.any(state.server.params["x"])
    for leaf in jax.tree.leaves(state.clients):
        assert np.all(leaf[1:] == 0)


def test_statistics_bypass_the_codec():
    problem = with_statistics(TOY.problem)
    plain, coded = (
        rounds_with_statistics(wrap(algorithms["fedavg"](problem, LOCAL), spec))
        for spec in ("", "topk:fraction=0.1")
    )
    chex.assert_trees_all_equal(plain, coded)


def rounds_with_statistics(algorithm):
    """After one round; they do not depend on what the server made of the updates."""
    round_fn = fa.pure_round(algorithm)
    state = round_fn.init(0, POPULATION)
    dispatches = one_round(dispatches_of(TOY.data, LOCAL, SETS), 0)
    return jax.jit(round_fn)(state, TOY.data, dispatches)[0].statistics
