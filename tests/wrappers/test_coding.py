"""How an update is cut into vectors: shapes, dtypes, random numbers, and what is not encoded."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, small_network
from wrapper_helpers import rounds_of, sends

import fedjax_algos as fa
from fedjax_algos.wrappers import Codec, compress, wrap
from fedjax_algos.wrappers.compression.coding import Coding

pytestmark = pytest.mark.usefixtures("x64")
LOCAL = fa.Local(batch_size=4, learning_rate=0.1, steps=2)
POPULATION = fa.Population(4, 2, 17)
ONE_EACH = {case.name: case for case in CASES}


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


@pytest.mark.parametrize(("scope", "sizes"), [("part", [7, 2]), ("leaf", [6, 1, 2])])
def test_an_update_is_cut_into_vectors_and_put_together(scope, sizes):
    """Each part, or each leaf, of at least one entry is a vector of float32."""
    coding = Coding(EXACT, scope, PARTS, tag=1)
    given = update()
    sent = coding.encode(jax.random.key(0), given)
    messages = [message for part in sent.parts[:3] for message in part]
    assert [message[0].shape for message in messages] == [(size,) for size in sizes]
    assert {message[0].dtype for message in messages} == {jnp.dtype("float32")}
    decoded = coding.decode(sent)
    expected = given._replace(moments=jnp.maximum(given.moments, 0))
    chex.assert_trees_all_equal(decoded, expected)
    chex.assert_trees_all_equal_shapes_and_dtypes(decoded, given)
    of_leaves = coding.sizes(given.delta)
    assert of_leaves == {
        "a": sizes[0],
        "b": sizes[-2 if scope == "leaf" else 0],
        "c": of_leaves["c"],
    }


def test_no_two_vectors_have_the_same_random_numbers():
    """Nor two wrappers, a vector and the algorithm itself, or two dispatches."""
    seen = []
    for tag in (1, 2):
        for key in jax.random.split(jax.random.key(0), 2):
            sent = Coding(EXACT, "leaf", PARTS, tag).encode(key, update())
            seen += [key, *(message[1] for part in sent.parts[:3] for message in part)]
    found = {tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in seen}
    assert len(found) == 2 + 2 * 2 * 3


@pytest.mark.parametrize("feedback", ["none", "ef", "ef21"])
def test_moments_stay_non_negative(feedback):
    """This codec changes signs; what the client remembers keeps its sign."""
    bare = sends(np.ones((1, 2, 3)))
    for kind, expected in (("moments", 0), ("vector", 1)):
        traits = fa.Traits({"x": kind}, like=lambda params: params["x"])
        algorithm = bare._replace(traits=traits)
        (state,) = rounds_of(compress("a", algorithm, NEGATIVE, feedback=feedback), [(0,)], 1)
        np.testing.assert_array_equal(state.server.params["x"], expected)


@pytest.mark.parametrize("spec", ["topk:feedback=ef", "topk:feedback=ef21"])
@pytest.mark.parametrize("name", ["ditto", "fedrep", "apfl"])
def test_personal_models_are_made_of_the_algorithms_own_rows(name, spec):
    toy = small_network()
    case = ONE_EACH[name]
    bare = case.build(toy.problem, LOCAL)
    wrapped = wrap(bare, spec)
    params, key = toy.problem.init(jax.random.key(0)).params, jax.random.key(1)
    models = [
        each.personal(each.init(params, POPULATION), each.client_init(params, key))
        for each in (bare, wrapped)
    ]
    chex.assert_trees_all_equal(*models)


def test_vectors_unlike_the_params_are_declared():
    """FedRep's are the shared leaves; without its `Traits.like` a memory would not fit."""
    toy = small_network()
    bare = ONE_EACH["fedrep"].build(toy.problem, LOCAL)
    algorithm = wrap(bare._replace(traits=fa.Traits()), "topk:feedback=ef")
    round_fn = fa.pure_round(algorithm)
    dispatches = fa.participation.Cohorts(toy.data.counts(), LOCAL, cohort_size=2, seed=0)
    one = jax.tree.map(lambda leaf: leaf[0], dispatches.dispatches(1))
    state = round_fn.init(0, POPULATION)
    with pytest.raises(ValueError, match=r"vectors of the update.*declare Traits\(like=\.\.\.\)"):
        jax.eval_shape(round_fn, state, toy.data, one)
