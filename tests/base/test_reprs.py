"""One readable line for each public object; texts from outside are printable and bounded."""

import unicodedata

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import small_network
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.base.reprs import describe_tree, printable, si_prefix

LOCAL = fa.Local(batch_size=3, learning_rate=0.05, steps=4)
UNCHANGED = "plain, naïve, 漢字, \N{GRINNING FACE} and [red]$x$ \\n"


@pytest.mark.parametrize(
    ("shown", "value", "expected"),
    [
        (describe_tree, {"x": np.zeros((3, 4)), "y": np.zeros(3)}, "x float64[3, 4], y float64[3]"),
        (describe_tree, {"a": {"b": jnp.zeros((), jnp.int32)}}, "a.b int32[]"),
        (describe_tree, [jax.ShapeDtypeStruct((2,), jnp.float32)], "0 float32[2]"),
        (describe_tree, {"rate": 0.5}, "rate 0.5"),
        (describe_tree, [np.zeros((100, 10))] * 5, "5 arrays of 5,000 entries"),
        (describe_tree, (), "nothing"),
        (printable, UNCHANGED, UNCHANGED),
        (printable, "\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        (printable, "a\rb\nc\td\x07\x9b", r"a\rb\nc\td\x07\x9b"),
        (printable, "txt.\u202eexe\u2066", r"txt.\u202eexe\u2066"),
        (printable, "caf\udce9", r"caf\udce9"),
        (printable, 3, "3"),
        (si_prefix, 0, (1, "")),
        (si_prefix, 999.9, (1, "")),
        (si_prefix, 1000, (1e3, "k")),
        (si_prefix, 1e15, (1e15, "P")),
        (si_prefix, 1e30, (1e18, "E")),
    ],
)
def test_by_hand(shown, value, expected):
    assert shown(value) == expected


def test_one_line_for_each_object():
    problem = fa.models.linear((64,), 10)
    params = "Dense_0.bias float32[10], Dense_0.kernel float32[64, 10]"
    assert repr(problem) == f"Problem(params={params})"
    assert repr(problem.init(jax.random.key(0))) == f"Model(params={params})"
    assert repr(problem._replace(init=None)) == "Problem(params=unknown)"
    assert repr(LOCAL) == "Local(batch_size=3, learning_rate=0.05, steps=4)"
    own = LOCAL._replace(learning_rate=lambda t: 0.1, transform=optax.clip(1.0), batches="full")
    told = "learning_rate=a function, steps=4, transform=an optax transformation, batches=full"
    assert repr(own) == f"Local(batch_size=3, {told})"
    told = repr(algorithms["fedavg"](small_network().problem, LOCAL))
    assert told.startswith("Algorithm(client_update=fedavg, server_update=fedavg, problem=Problem(")
    assert repr(algorithms).startswith(f"{len(algorithms)} algorithms: ace, ")


HOSTILE = st.text(st.characters() | st.sampled_from("\x00\x07\x1b\r\n\t\x7f\x9b\u202e\u2066\ud800"))


@settings(deadline=None)
@given(HOSTILE)
def test_a_printable_text_is_plain(text):
    shown = printable(text)
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert shown.encode("utf-8", "strict").decode() == shown
    assert printable(shown) == shown  # so it may be applied twice
    assert (shown == text) == text.isprintable()


@settings(deadline=None)
@given(st.text(st.characters(categories=["L", "N"])), st.integers(20, 100))
def test_a_long_text_keeps_its_beginning_and_its_end(text, longest):
    half = (longest - 5) // 2
    kept = text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"
    assert printable(text, longest) == kept
    assert len(kept) <= longest
