"""One readable line for each public object, also where its leaves are tracers or shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import small_network

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core.representation import describe_tree

LOCAL = fa.Local(batch_size=3, learning_rate=0.05, steps=4)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (
            {"x": np.zeros((3, 4), np.float32), "y": np.zeros(3, np.int32)},
            "x float32[3, 4], y int32[3]",
        ),
        (np.zeros(3), "float64[3]"),
        ({"a": {"b": jnp.zeros((), jnp.int32)}}, "a.b int32[]"),
        ([jax.ShapeDtypeStruct((2,), jnp.float32)], "0 float32[2]"),
        ({"rate": 0.5}, "rate 0.5"),
        ([np.zeros((100, 10))] * 5, "5 arrays of 5,000 entries"),
        ((), "nothing"),
    ],
)
def test_trees(tree, expected):
    assert describe_tree(tree) == expected


def test_problems_models_and_local_training():
    problem = fa.models.linear((64,), 10)
    params = "Dense_0.bias float32[10], Dense_0.kernel float32[64, 10]"
    assert repr(problem) == f"Problem(params={params})"
    assert repr(problem.init(jax.random.key(0))) == f"Model(params={params})"
    assert repr(problem._replace(init=None)) == "Problem(params=unknown)"
    assert repr(LOCAL) == "Local(batch_size=3, learning_rate=0.05, steps=4)"
    own = LOCAL._replace(learning_rate=lambda t: 0.1, transform=optax.clip(1.0), batches="full")
    assert repr(own) == (
        "Local(batch_size=3, learning_rate=a function, steps=4, "
        "transform=an optax transformation, batches=full)"
    )


@pytest.mark.parametrize("name", algorithms)
def test_an_algorithm_is_one_line(name):
    required = {"ghbm": {"tau": 2}, "fedrep": {"head": "out"}, "fedbn": {"norm": "out"}}
    told = repr(algorithms[name](small_network().problem, LOCAL, **required.get(name, {})))
    assert told.startswith("Algorithm(client_update=")
    assert "\n" not in told
    assert "<" not in told  # no function's address
    assert len(told) < 300


def test_what_is_traced_has_a_representation():
    told = []

    @jax.jit
    def look(x):
        told.append(repr(fa.Model({"w": x})))
        return x

    look(jnp.zeros((2, 3), jnp.float32))
    assert told == ["Model(params=w float32[2, 3])"]


def test_registries():
    assert repr(fa.algorithms.algorithms).startswith(f"{len(algorithms)} algorithms: adabest, ")
