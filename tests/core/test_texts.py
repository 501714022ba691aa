"""Texts from outside: what reaches the terminal is printable, on one line, and bounded."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.core.texts import printable, si_prefix

HOSTILE = st.text(st.characters() | st.sampled_from("\x00\x07\x1b\r\n\t\x7f\x9b\u202e\u2066\ud800"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, naïve, 漢字 and \N{GRINNING FACE}", "plain, naïve, 漢字 and \N{GRINNING FACE}"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\rb\nc\td\x07\x9b", r"a\rb\nc\td\x07\x9b"),
        ("txt.\u202eexe\u2066", r"txt.\u202eexe\u2066"),
        ("caf\udce9", r"caf\udce9"),
        ("[red]$x$ \\n", "[red]$x$ \\n"),
        (3, "3"),
    ],
)
def test_what_is_not_printable_is_an_escape(text, shown):
    assert printable(text) == shown


@settings(deadline=None)
@given(HOSTILE)
def test_a_printable_text_is_plain(text):
    shown = printable(text)
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert shown.encode("utf-8", "strict").decode() == shown
    assert printable(shown) == shown  # so it may be applied twice
    if all(c.isprintable() for c in text):
        assert shown == text
    else:  # the escapes are Python's own, so the text can be read back
        escaped = text.replace("\\", "\\\\")
        assert (
            printable(escaped).encode("latin-1", "backslashreplace").decode("unicode_escape")
            == text
        )


@settings(deadline=None)
@given(st.text(st.characters(categories=["L", "N"])), st.integers(20, 100))
def test_a_long_text_keeps_its_beginning_and_its_end(text, longest):
    shown = printable(text, longest)
    assert len(shown) <= longest
    if len(text) <= longest:
        assert shown == text
    else:
        first, last = shown.split(" ... ")
        assert text.startswith(first)
        assert text.endswith(last)
        assert len(first) == len(last) == (longest - 5) // 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, (1, "")),
        (999.9, (1, "")),
        (1000, (1e3, "k")),
        (999999, (1e3, "k")),
        (1e15, (1e15, "P")),
        (1e30, (1e18, "E")),
    ],
)
def test_the_largest_prefix(value, expected):
    assert si_prefix(value) == expected
