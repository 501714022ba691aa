import math
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import one_round, quadratics

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core.registry import Range, Registry, options
from fedjax_algos.schedules import Synchronous

things = Registry("thing")


@things
def lamp(
    *,
    brightness: Annotated[float, Range(0, 1, high_open=True)] = 0.5,
    bulbs: Annotated[int, Range(1)] | None = None,
    colour: Literal["red", "blue"] | object = "red",
    shade: bool = False,
):
    return brightness, bulbs, colour, shade


@things
def stone():
    return "stone"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            {"brightness": 1.0},
            "lamp: brightness=1.0 is out of range; give a number of at",
        ),
        ({"brightness": math.nan}, "lamp: brightness=nan is out of range"),
        ({"brightness": math.inf}, "lamp: brightness=inf is out of range"),
        (
            {"brightness": np.float32(-1)},
            "out of range; give a number of at least 0 and below 1",
        ),
        ({"brightness": jnp.asarray(2.0)}, "is out of range"),
        ({"brightness": "much"}, "lamp: brightness='much' is out of range"),
        ({"bulbs": 0}, "lamp: bulbs=0 is out of range; give a whole number of at least 1"),
        ({"bulbs": 1.5}, "lamp: bulbs=1.5 is out of range; give a whole number"),
        ({"bulbs": True}, "lamp: bulbs=True is out of range"),
        ({"colour": "rod"}, "lamp: colour='rod' is unknown; choose red or blue"),
        ({"shade": 1}, "lamp: shade=1 is unknown; choose True or False"),
        ({"bright": 1}, "lamp: unknown option 'bright'; did you mean brightness?"),
    ],
)
def test_wrong_values_are_told_with_the_fix(keywords, message):
    with pytest.raises(ValueError, match="^.*" + message.replace("?", r"\?")):
        things["lamp"](**keywords)


def test_right_values_pass():
    assert things["lamp"](brightness=0, bulbs=np.int32(3), colour=("own",)) == (
        0,
        3,
        ("own",),
        False,
    )
    assert things.make("stone") == "stone"
    with pytest.raises(ValueError, match="stone takes no options; leave 'size' out"):
        things["stone"](size=1)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("lamp", {}),
        ("lamp:0.25", {"brightness": 0.25}),
        ("lamp:bulbs=3,shade=true", {"bulbs": 3, "shade": True}),
        ("lamp:bulbs=3.0,colour=blue", {"bulbs": 3, "colour": "blue"}),
    ],
)
def test_specs(spec, expected):
    assert things.parse(spec) == ("lamp", expected)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lump", "unknown thing 'lump'; did you mean lamp?"),
        ("xyz", "unknown thing 'xyz'; choose lamp or stone"),
        ("lamp:bulbs=many", "lamp: bulbs='many' is out of range"),
        ("lamp:shade=maybe", "lamp: shade='maybe' is unknown; choose true or false"),
        ("stone:3", "stone takes no options"),
    ],
)
def test_wrong_specs(spec, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        things.parse(spec)


@pytest.mark.parametrize("name", algorithms)
def test_every_number_of_an_algorithm_declares_its_range(name):
    for option in options(algorithms[name]).values():
        assert not option.required or (name, option.name) == ("ghbm", "tau")
        if option.kind in (int, float):
            assert option.range is not None, option.name


@pytest.mark.parametrize("name", algorithms)
def test_docstrings_say_what_it_is_in_one_line(name):
    title = (algorithms[name].__doc__ or "").split("\n")[0]
    assert 20 < len(title) < 100


def test_a_sweep_builds_the_algorithm_inside_one_program():
    """Hyper-parameters may be tracers: three values of mu in one program, and one by one."""
    toy = quadratics([[1.0], [2.0], [0.5]], [[1.0], [-1.0], [3.0]])
    local = fa.Local(1, 0.1, steps=3)
    visits = one_round(Synchronous(toy.data.counts(), local, cohort_size=2, seed=0).visits(1), 0)

    def after_a_round(mu):
        engine = fa.make_engine(fa.algorithms.fedprox(toy.problem, local, mu=mu))
        state = engine.init(0, fa.Population(3, 2, 3))
        return engine.round(state, toy.data, visits)[0].server.params["x"]

    values = [0.0, 0.5, 3.0]
    together = jax.jit(jax.vmap(after_a_round))(jnp.asarray(values))
    np.testing.assert_allclose(together, [after_a_round(mu) for mu in values], rtol=1e-6)
    assert len(set(together.tolist())) == 3
