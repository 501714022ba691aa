"""Registries: options, specs and factories of one's own."""

import math
import re
import sys
from typing import Annotated, Literal

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core.options import Range, options, unknown
from fedjax_algos.core.registry import Registry

things = Registry("thing")
texts = Registry("text", str)


@texts.register
def plain(word):
    return word


@things.register
def lamp(
    *,
    brightness: Annotated[float, Range(0, 1, high_open=True)] = 0.5,
    bulbs: Annotated[int, Range(1)] | None = None,
    colour: Literal["red", "blue"] | object = "red",
    shade: bool = False,
):
    return brightness, bulbs, colour, shade


@things.register
def stone():
    return "stone"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"brightness": 1.0}, "lamp: brightness=1.0 is out of range; give a number of at"),
        ({"brightness": math.nan}, "brightness=nan is no number"),
        ({"brightness": math.inf}, "brightness=inf is not finite"),
        ({"brightness": np.float32(-1)}, "out of range; give a number of at least 0 and below 1"),
        ({"brightness": jnp.asarray(2.0)}, "is out of range"),
        ({"brightness": "much"}, "brightness='much' is no number"),
        ({"bulbs": 0}, "bulbs=0 is out of range; give a whole number of at least 1"),
        ({"bulbs": 1.5}, "bulbs=1.5 is no whole number"),
        ({"bulbs": True}, "bulbs=True is no whole number"),
        ({"colour": "rod"}, "colour='rod' is unknown; choose red or blue"),
        ({"shade": 1}, "shade=1 is unknown; choose True or False"),
        ({"bright": 1}, "unknown option 'bright'; did you mean brightness?"),
        ("lump", "unknown thing 'lump'; did you mean lamp?"),
        ("xyz", "unknown thing 'xyz'; choose lamp or stone"),
        ("lamp:bulbs=many", "lamp: bulbs='many' is no whole number"),
        ("stone:3", "stone takes no options; leave"),
        ("no_such.module:f", "'no_such.module:f' cannot be imported"),
    ],
)
def test_wrong_values_and_specs_are_told_with_the_fix(keywords, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        things.parse(keywords) if isinstance(keywords, str) else things["lamp"](**keywords)


def test_right_values_and_specs_pass():
    assert texts["plain"](word="a") == texts["plain"]("a") == "a"
    values = {"brightness": 0, "bulbs": np.int32(3), "colour": ("own",)}
    assert things["lamp"](**values) == (0, 3, ("own",), False)
    assert things.make("stone") == "stone"
    specs = {
        "lamp": {},
        "lamp:0.25": {"brightness": 0.25},
        "lamp:bulbs=3,shade=true": {"bulbs": 3, "shade": True},
        "lamp:bulbs=3.0,colour=blue": {"bulbs": 3, "colour": "blue"},
    }
    for spec, expected in specs.items():
        assert things.parse(spec) == ("lamp", expected)
    assert fa.models.models["mlp"] is fa.models.mlp  # a registry has the factories of its folder


def test_of_many_names_the_nearest_are_shown():
    names = [f"--{letter}{letter}-steps" for letter in "abcdefghijklmnop"] + ["--mu-first"]
    message = unknown("option", "--mu", names)
    assert message.startswith("unknown option '--mu'; choose --mu-first, ")
    assert message.endswith(" or one of 12 others")
    assert message.count("--") == 1 + 5
    assert unknown("option", "x", names[:15]).count("--") == 15


def test_every_number_of_an_algorithm_declares_its_range():
    known = {(name, option) for name in algorithms for option in options(algorithms[name]).values()}
    required = {(name, option.name) for name, option in known if option.required}
    assert required == {("ghbm", "tau"), ("fedrep", "head")}
    assert [each for each in known if each[1].kind in (int, float) and not each[1].range] == []


OWN = """
from __future__ import annotations

import dataclasses
import functools
from typing import Annotated

import fedjax_algos as fa
from fedjax_algos.core.options import Range


def fedspeed(problem, local, *, rho: Annotated[float, Range(0)] = 0.1, decay=0.5, sam=False):
    assert (rho, decay, sam) == (0.25, 0.5, True)
    return fa.algorithms.fedavg(problem, local)


@dataclasses.dataclass
class Settings:  # looks for its module, as Flax's modules do
    rho: float = 0.1


def logged(factory):
    @functools.wraps(factory)
    def call(*args, **keywords):
        return factory(*args, **keywords)

    return call


@logged
def decorated(problem, local, *, rho: Annotated[float, Range(0)] = 0.1):
    return fa.algorithms.fedavg(problem, local)


not_a_function = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file with an algorithm, in the current folder, which is also on the path of imports."""
    (tmp_path / "my_file.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_file", None)


@pytest.mark.parametrize("place", ["my_file.py", "./my_file.py", "my_file"])
def test_a_factory_of_one_s_own_file(own, place):
    name, values = algorithms.parse(f"{place}:fedspeed:rho=0.25,sam=true")
    assert (name, values) == (f"{place}:fedspeed", {"rho": 0.25, "sam": True})
    assert options(algorithms[name])["decay"].kind is float  # that of its default
    algorithm = algorithms.make(f"{place}:fedspeed:rho=0.25,sam=true", None, fa.Local(1, 0.1, 1))
    assert isinstance(algorithm, fa.Algorithm)
    with pytest.raises(ValueError, match=r"fedspeed: rho=-1 is out of range; give a number of at"):
        algorithms.parse(f"{place}:fedspeed:rho=-1")
    with pytest.raises(ValueError, match="decorated: rho=-1 is out of range"):
        algorithms[f"{place}:decorated"](None, fa.Local(1, 0.1, 1), rho=-1)


def test_a_factory_of_a_module(own, tmp_path):
    (tmp_path / "quotes").mkdir()
    (tmp_path / "quotes" / "double.py").write_text("def quoted(word): return f'\"{word}\"'\n")
    assert texts.make("quotes.double:quoted", "abc") == '"abc"'
    with pytest.raises(ValueError, match=r"is no text \(it is a part of Python"):
        texts.make("json.encoder:py_encode_basestring", "abc")


WRONG = {
    "def no_arguments(): pass": r"too many positional arguments",
    "def three(first, second, third): pass": r"missing a required argument: 'second'",
    "def positional(first, size=1): return first, size": "returns a tuple",
    "def no_type(first, *, n: 'Missing' = 1): pass": r"name 'Missing' is not defined",
    "import functools; partial = functools.partial(print)": r"it is an object of type",
    "class Kind: pass": r"it is a class, whose objects are no str",
}


@pytest.mark.parametrize("source", WRONG)
def test_a_factory_with_a_wrong_signature_or_result(here, source):
    name = re.search(r"(?:def|class|;) (\w+)", source)[1]
    (here / "wrong.py").write_text(source)
    message = rf"{WRONG[source]}.*; give a function \(word, \*, \.\.\.\) -> str"
    with pytest.raises(ValueError, match=message):
        texts.make(f"wrong.py:{name}", "abc")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_file.py:f", r"'no_file.py:f' .* \(FileNotFoundError"),
        ("my_file.py:fedspede", r"'fedspede'; did you mean fedspeed"),
        ("my_file.py:not_a_function", r"'not_a_function'"),
        ("my_file.py", r"give my_file.py:NAME"),
        ("broken.py:f", r"'broken.py:f' .* \(SyntaxError"),
    ],
)
def test_a_wrong_reference(own, tmp_path, spec, message):
    (tmp_path / "broken.py").write_text("def f(:")
    with pytest.raises(ValueError, match=message):
        algorithms.parse(spec)


def test_a_name_is_registered_once():
    def stone(*, size: Annotated[int, Range(1)] = 1):
        """Another stone."""

    stone.__module__ = "elsewhere"
    with pytest.raises(ValueError, match=r"thing 'stone' is registered by .*; choose another name"):
        things.register(stone)
    assert things.make("stone") == "stone"
