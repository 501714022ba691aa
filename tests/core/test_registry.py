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
        ({"brightness": math.nan}, "brightness=nan is not a number"),
        ({"brightness": math.inf}, "brightness=inf is not finite"),
        ({"brightness": np.float32(-1)}, "out of range; give a number of at least 0 and below 1"),
        ({"brightness": jnp.asarray(2.0)}, "is out of range"),
        ({"brightness": "much"}, "brightness='much' is not a number"),
        ({"bulbs": 0}, "bulbs=0 is out of range; give a whole number of at least 1"),
        ({"bulbs": 1.5}, "bulbs=1.5 is not a whole number"),
        ({"bulbs": True}, "bulbs=True is not a whole number"),
        ({"colour": "rod"}, "colour='rod' is unknown; choose red or blue"),
        ({"shade": 1}, "shade=1 is unknown; choose True or False"),
        ({"bright": 1}, "unknown option 'bright'; did you mean brightness?"),
        ("lump", "unknown thing 'lump'; did you mean lamp?"),
        ("lamp:bulbs=many", "lamp: bulbs='many' is not a whole number"),
        ("stone:3", "stone: unknown option ''; leave it out"),
        ("no_such.module:f", "'no_such.module:f' cannot be imported"),
    ],
)
def test_wrong_values_and_specs_are_told_with_the_fix(keywords, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        things.parse(keywords) if isinstance(keywords, str) else things["lamp"](**keywords)


def test_right_values_and_specs_pass():
    assert texts["plain"](word="a") == texts["plain"]("a") == "a"
    own = ("own",)
    assert things["lamp"](brightness=0, bulbs=np.int32(3), colour=own) == (0, 3, own, False)
    for spec, expected in (
        ("lamp", {}),
        ("lamp:0.25", {"brightness": 0.25}),
        ("lamp:bulbs=3,shade=true", {"bulbs": 3, "shade": True}),
        ("lamp:bulbs=3.0,colour=blue", {"bulbs": 3, "colour": "blue"}),
    ):
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
    assert required == {
        ("ghbm", "tau"),
        *((name, "head") for name in ("fedrep", "fedper", "lgfedavg", "fedbabu")),
    }
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

@functools.wraps(fedspeed)
def decorated(*args, **keywords):
    return fedspeed(*args, **keywords)

not_a_function = 3
partial = functools.partial(print)

def no_arguments(): pass
def two_more(first, second, third): pass
def a_tuple(first, size=1): return first, size
def no_type(first, *, n: Missing = 1): pass
class Kind: pass
"""


@pytest.fixture
def own(here, monkeypatch):
    """A file with an algorithm, in the current folder, which is also on the path of imports."""
    (here / "my_file.py").write_text(OWN)
    monkeypatch.syspath_prepend(here)
    yield here
    sys.modules.pop("my_file", None)


@pytest.mark.parametrize("place", ["my_file.py", "./my_file.py", "my_file"])
def test_a_factory_of_one_s_own_file(own, place):
    spec, name = f"{place}:fedspeed:rho=0.25,sam=true", f"{place}:fedspeed"
    assert algorithms.parse(spec) == (name, {"rho": 0.25, "sam": True})
    assert options(algorithms[name])["decay"].kind is float  # that of its default
    assert isinstance(algorithms.make(spec, None, fa.Local(1, 0.1, 1)), fa.Algorithm)
    with pytest.raises(ValueError, match="fedspeed: rho=-1 is out of range"):
        algorithms.parse(f"{name}:rho=-1")
    with pytest.raises(ValueError, match="fedspeed: rho=-1 is out of range"):
        algorithms[f"{place}:decorated"](None, fa.Local(1, 0.1, 1), rho=-1)


def test_a_factory_of_a_module(own):
    (own / "folder").mkdir()
    (own / "folder" / "double.py").write_text("def doubled(word): return 2 * word\n")
    assert texts.make("folder.double:doubled", "ab") == "abab"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_file.py:f", r"'no_file.py:f' .* \(FileNotFoundError"),
        ("broken.py:f", r"'broken.py:f' .* \(SyntaxError"),
        ("my_file.py", "give my_file.py:NAME"),
        ("my_file.py:fedspede", "'fedspede'; did you mean fedspeed"),
        ("my_file.py:not_a_function", "'not_a_function'"),
        ("my_file.py:partial", "it is not a function, or"),
        ("my_file.py:no_arguments", r"too many positional .* function \(word, \*, ...\) -> str"),
        ("my_file.py:two_more", "missing a required argument: 'second'"),
        ("my_file.py:a_tuple", r"returns a tuple; give a function .* -> str"),
        ("my_file.py:no_type", "name 'Missing' is not defined"),
        ("my_file.py:Kind", "it is not a function, or"),
        ("json.encoder:py_encode_basestring", r"cannot be the text \(.* or is a part of Python"),
    ],
)
def test_a_wrong_reference_or_factory(own, reference, message):
    (own / "broken.py").write_text("def f(:")
    with pytest.raises(ValueError, match=message):
        texts.make(reference, "abc")


def test_a_name_is_registered_once():
    def stone():
        """Another stone, of another module."""

    stone.__module__ = "elsewhere"
    with pytest.raises(ValueError, match=r"thing 'stone' is registered by .*; choose another name"):
        things.register(stone)
    assert things.make("stone") == "stone"
