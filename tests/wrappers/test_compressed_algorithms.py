"""Algorithms with compression: how an update is cut into vectors, what arrives, what is counted."""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, LAYOUTS, run, small_network
from wrapper_helpers import (
    NETWORK_LOCAL,
    later,
    one_example_each,
    rounds_of,
    sends,
    traced,
    transfer_of,
)

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import FixedSystem, immediate
from fedjax_algos.wrappers import Codec, Rule, add, compress, wrap
from fedjax_algos.wrappers.compression.coding import Coding

pytestmark = pytest.mark.usefixtures("x64")
TOY = small_network()
SETS = [(0, 1), (3, 0)]
EDEN, TOP, TERM = "eden:bits=2.5", "topk:fraction=0.3", "term:t=2"
SAMPLING = "optimal_client_sampling"
CASE = {case.name: case for case in CASES}


class Update(NamedTuple):
    delta: Any
    moments: Any
    nothing: Any
    steps: Any


PARTS = Update("delta", "moments", "vector", "count")
EXACT = Codec(lambda key, v: (v, key), lambda message, d: message[0])
NEGATIVE = Codec(lambda key, v: v, lambda message, d: -message)


def update():
    delta = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.float32(7), "c": jnp.zeros((0, 2))}
    return Update(delta, jnp.array([1.0, -2.0], jnp.float16), (), jnp.int32(5))


@pytest.mark.parametrize(
    ("scope", "sizes", "of_leaves"),
    [("part", [7, 2], {"a": 7, "b": 7, "c": 7}), ("leaf", [6, 1, 2], {"a": 6, "b": 1, "c": 0})],
)
def test_an_update_is_cut_into_vectors_and_put_together(scope, sizes, of_leaves):
    """Each part, or each leaf, of at least one entry is a vector of float32."""
    coding, given = Coding(EXACT, scope), [*update()][:3]

    @jax.jit
    def there_and_back():
        sent = coding.encode(jax.random.key(0), given)
        return sent, coding.decode(sent)

    sent, decoded = there_and_back()
    messages = [message for part in sent.messages for message in part]
    assert [message[0].shape for message in messages] == [(size,) for size in sizes]
    assert {message[0].dtype for message in messages} == {jnp.dtype("float32")}
    chex.assert_trees_all_equal(decoded, given)
    chex.assert_trees_all_equal_shapes_and_dtypes(decoded, given)
    assert coding.sizes(given[0]) == of_leaves


def test_no_two_vectors_have_the_same_random_numbers():
    """Nor two wrappers, also of one name, a vector and the algorithm itself, or two dispatches."""
    seen, frame = [], fa.algorithms.fedavg(TOY.problem, NETWORK_LOCAL)
    made = {"client_update": lambda *given: ((), update(), None), "traits": fa.Traits(PARTS)}
    sending = frame._replace(**made)
    codec = EXACT._replace(decode=lambda message, d: seen.append(message[1]) or message[0])
    for name in "aaabbb":
        sending = compress(name, sending, codec, scope="leaf")
    for key in jax.random.split(jax.random.key(0), 2):
        seen.append(key)
        sending.client_update(*range(4), key)
    found = {tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in seen}
    assert len(found) == 2 + 2 * 6 * 3


@pytest.mark.parametrize("spec", later("randk:fraction=0.2", "qsgd:levels=1"))
def test_a_codec_twice_is_unbiased(spec):
    v = np.arange(1, 11, dtype=np.float32)
    frame = fa.algorithms.fedavg(TOY.problem, NETWORK_LOCAL)
    sending = frame._replace(client_update=lambda *arguments: ((), v, None))
    twice = wrap(sending, f"{spec}+{spec}")
    decoded = jax.vmap(lambda key: twice.decode(twice.client_update(*range(4), key)[1]))
    found = np.asarray(jax.jit(decoded)(jax.random.split(jax.random.key(0), 20_000)))
    np.testing.assert_allclose(found.mean(0), v, rtol=0, atol=4 * found.std(0).max() / 20_000**0.5)


@pytest.mark.parametrize("feedback", ["none", *later("ef", "ef21")])
def test_moments_stay_non_negative(feedback):
    """This codec changes signs; what the client remembers keeps its sign."""
    bare = sends(np.ones((1, 2, 3)))
    for kind, expected in (("moments", 0), ("vector", 1)):
        traits = fa.Traits({"x": kind}, like=lambda params: params["x"])
        algorithm = compress("a", bare._replace(traits=traits), NEGATIVE, feedback=feedback)
        (state,) = rounds_of(algorithm, [(0,)], 1)
        np.testing.assert_array_equal(state.server.params["x"], expected)


@pytest.mark.parametrize("name", ["ditto", "fedrep", "apfl"])
def test_personal_models_are_made_of_the_algorithms_own_rows(name):
    bare = CASE[name].build(TOY.problem, NETWORK_LOCAL)
    params, key = TOY.problem.init(jax.random.key(0)).params, jax.random.key(1)
    models = [
        each.personal(each.init(params, fa.Population(4, 2, 17)), each.client_init(params, key))
        for each in (bare, wrap(bare, "topk:feedback=ef"), wrap(bare, "topk:feedback=ef21"))
    ]
    chex.assert_trees_all_equal(*models)


def test_parts_that_do_not_fit_are_refused():
    """FedRep's vectors are the shared leaves; without `Traits.like` a memory would not fit."""
    frame = fa.algorithms.fedavg(TOY.problem, NETWORK_LOCAL)

    def in_whole_numbers(*arguments):
        row, update, report = frame.client_update(*arguments)
        return row, jax.tree.map(lambda leaf: leaf.astype(int), update), report

    structure = frame._replace(traits=fa.Traits(parts={"a": "delta"}))
    dtype = frame._replace(client_update=in_whole_numbers, traits=fa.Traits("vector"))
    none = add("r", frame, rule=Rule("r", lambda cohort, own, key, facts: (None, own)))
    undeclared = CASE["fedrep"].build(TOY.problem, NETWORK_LOCAL)._replace(traits=fa.Traits())
    for wrong, spec, reason in (
        (structure, "mean", r"parts=.*the update is.*give Traits\(parts="),
        (dtype, "mean", r"parts=.*a vector has int64 entries.*give Traits\(parts="),
        (none, "", r"estimate of r: .* is missing.*; return one"),
        (undeclared, "topk:feedback=ef", r"vectors of the update.*Traits\(like="),
    ):
        with pytest.raises(ValueError, match=reason):
            traced(wrap(wrong, spec))


def test_each_part_and_each_leaf_has_its_own_entries():
    """The network has leaves of 4, 12 and 4 entries, and SCAFFOLD sends two trees like it."""
    part, leaves = 4 * 6 + 4, (4 * 2 + 4) + (4 * 4 + 4) + (4 * 2 + 4)
    for name, trees, counts in (("scaffold", 2, 0), ("fednova", 1, 8)):  # bytes of its work
        bare = algorithms[name](TOY.problem, NETWORK_LOCAL)
        for scope, size in (("part", part), ("leaf", leaves)):
            coded = wrap(bare, f"topk:fraction=0.3,scope={scope}")
            assert transfer_of(coded).upload == trees * size + counts


@pytest.mark.parametrize(
    ("upload", "spec"), [("model", "majority"), ("gradient", "fetchsgd:size=0.5")]
)
def test_a_part_that_is_not_sent_is_no_vector(upload, spec):
    traced(wrap(fa.algorithms.fedgbo(TOY.problem, NETWORK_LOCAL, upload=upload), spec))


def dithering(algorithm):
    """Sends v + z and the key of z, which the server subtracts: the algorithm, if it has z."""

    def noise(key, d):
        return jax.random.normal(key, (d,), jnp.float32)

    codec = Codec(
        lambda key, v: (v + noise(key, v.size), key),
        lambda message, d: message[0] - noise(message[1], d),
    )
    return compress("dithering", algorithm, codec)


@pytest.mark.all
@pytest.mark.parametrize(
    ("name", "layout"), [("scaffold", "vmapped"), ("fedlga", 2), ("mime", "sequential")]
)
def test_random_keys_arrive_with_what_they_belong_to(name, layout):
    """Sums of two parts, a stack, and a prelude; in every layout. They are not counted."""
    bare = algorithms[name](TOY.problem, NETWORK_LOCAL)
    expected = run(bare, TOY.data, SETS)[-1]
    found = run(dithering(bare), TOY.data, SETS, layout=layout)[-1]
    chex.assert_trees_all_close(found, expected, atol=1e-5)
    if name != "fedlga":  # which sends counts
        assert transfer_of(dithering(bare)).upload == transfer_of(bare).upload / 2  # of float64


@functools.cache
def given():
    return sends(np.random.default_rng(0).normal(size=(4, 6, 20)))


def run_async(algorithm, data, slots):
    """The end of a run in which clients need different times."""
    executor = fa.make_executor(algorithm, slots=slots)
    system = lambda seed, **transfer: FixedSystem([1.0, 1.5, 2.0, 2.5])  # noqa: E731
    options = {"seconds": 6.0, "evaluations": 1, "seed": 0}
    return fa.simulate_async(executor, data, immediate(steps=2), system, **options).state


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        *later(("given", "dithering")),
        *later(("given", "randk:fraction=0.3,feedback=ef"), ("given", "cast:dtype=float8_e4m3fn")),
        *later(("scaffold", f"{TOP},feedback=ef"), ("scaffold", "qsgd:levels=7,direction=down")),
    ],
)
def test_compression_on_the_virtual_clock(name, spec):
    """One dispatch after another is the same as four in a wave; float8 has no infinity."""
    bare, data = given(), one_example_each(4)
    if name != "given":
        bare, data = algorithms[name](TOY.problem, NETWORK_LOCAL), TOY.data
    algorithm = dithering(bare) if spec == "dithering" else wrap(bare, spec)
    plain, one = run_async(bare, data, 4), run_async(algorithm, data, 1)
    chex.assert_trees_all_equal(one[:3], run_async(algorithm, data, 4)[:3])
    assert one.excluded.number == 0
    found, expected = (jax.tree.leaves(state.server.params)[0] for state in (one, plain))
    assert np.any(expected)
    if spec == "dithering":
        np.testing.assert_allclose(found, expected, atol=1e-5)
    else:
        assert np.any(found != expected)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(one.clients))


OF_FLOAT32 = ["randk:fraction=0.3,feedback=ef", "randk:fraction=0.3,feedback=diana", EDEN]
OF_FLOAT32 += ["eden:bits=2,direction=down", f"{TOP},direction=down,feedback=ef21"]


@pytest.mark.all
@pytest.mark.parametrize("spec", [*OF_FLOAT32, TERM, f"{SAMPLING}:uploads=1.5"])
def test_layouts_give_the_same_results(spec):
    sets, algorithm = [(0, 1, 2), (3, 0, 1)], wrap(given(), spec)
    first, *others = [rounds_of(algorithm, sets, 4, layout=layout)[-1] for layout in LAYOUTS]
    assert np.linalg.norm(first.server.params["x"]) > 1
    rtol = 1e-6 if spec in OF_FLOAT32 else 1e-12
    atol = 1e-5 if spec == EDEN else 0
    for other in others:
        chex.assert_trees_all_close(other[:3], first[:3], rtol=rtol, atol=atol)


@pytest.mark.all
@pytest.mark.parametrize(
    "specs", [(SAMPLING, f"identity+{SAMPLING}"), (f"{TOP}+{TERM}", f"{TERM}+identity+{TOP}")]
)
def test_codecs_inside_and_outside_agree(specs):
    """What is sent beside an update, such as a loss, is not encoded."""
    first, *others = [rounds_of(wrap(given(), spec), [(0, 1, 2, 3)], 4)[-1] for spec in specs]
    for other in others:
        chex.assert_trees_all_equal(other.server.params, first.server.params)


NOT_FINITE = [
    "randk:fraction=0.5,feedback=ef",
    "majority",
    "powersgd:rank=1,feedback=ef",
    *later("topk", "topk:feedback=ef21", "cast:dtype=float16", "natural"),
    *later("cast:dtype=float8_e4m3fn", "fetchsgd:size=1"),
    *later("natural:feedback=ef21", "eden:bits=2,feedback=ef"),
]


@pytest.mark.parametrize("spec", NOT_FINITE)
def test_what_is_not_finite_is_left_out(spec):
    """Also if a codec would clip it or not send it; the client's memory stays as it was."""
    vectors = np.ones((3, 1, 6, 6), np.float32)
    vectors[1, 0, 2, 3], vectors[2, 0, 2, 3] = np.nan, np.inf
    with jax.enable_x64(False):
        (state,) = rounds_of(wrap(sends(vectors), spec), [(0, 1, 2)], 3)
    assert (state.excluded.number, state.excluded.client) == (2, 1)
    chex.assert_tree_all_finite((state.server.params, state.clients))
    assert np.any(state.server.params["x"])
    for leaf in jax.tree.leaves(state.clients):
        assert np.all(leaf[1:] == 0)
