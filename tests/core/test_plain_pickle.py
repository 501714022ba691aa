"""Pickles of plain values: equal to Python's own reader, and nothing else is read or run."""

import collections
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_algos.core.plain_pickle import read_plain_pickle

NUMBERS = st.integers(-(2**200), 2**200) | st.floats(allow_nan=False) | st.booleans()
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PLAIN = st.recursive(
    st.none() | NUMBERS | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(inner, inner)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(TEXTS | st.integers(), inner, max_size=5)
    ),
    max_leaves=30,
)
PROTOCOLS = st.integers(0, pickle.HIGHEST_PROTOCOL)


@given(PLAIN, PROTOCOLS)
def test_plain_values_are_read_as_python_reads_them(value, protocol):
    actual = read_plain_pickle(pickle.dumps(value, protocol))
    assert actual == value
    assert repr(actual) == repr(value)  # types, too


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_long_and_shared_values(protocol):
    """Pickles are written in parts of 1,000 items, and refer to what they have already."""
    shared = {"computation": 1.5}
    value = {i: [shared, [i - 700]] for i in range(1500)} | {-1: list(range(-2000, 2000))}
    actual = read_plain_pickle(pickle.dumps(value, protocol))
    assert actual == value
    assert actual[0][0] is actual[1499][0]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", ["<f4", "<f8", ">f8", "<i8", ">i4", "u1"])
def test_scalars_of_numpy_become_numbers(protocol, kind):
    value = np.array([0, 3, 77], kind)
    actual = read_plain_pickle(pickle.dumps({"a": list(value)}, protocol))
    assert actual == {"a": [0, 3, 77]}
    assert {type(number) for number in actual["a"]} == {type(value[0].item())}


RUN = []


class Evil:
    def __reduce__(self):
        return RUN.append, ("it was run",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "value",
    [
        Evil(),
        {1: Evil()},
        {1: {2, 3}},
        {1: np.ones(2)},
        np.float16(1).dtype,
        {1: [np.dtype("f8")]},
        {1: b"bytes"},
        np.datetime64(3, "s"),
        np.str_("text"),
        collections.OrderedDict(a=1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused_and_nothing_is_run(value, protocol):
    content = pickle.dumps(value, protocol)
    with pytest.raises(ValueError, match=r"^byte \d+: the (opcode|pickle) ") as caught:
        read_plain_pickle(content)
    position = int(re.match(r"byte (\d+)", str(caught.value))[1])
    assert position < len(content)
    assert not RUN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "byte 0: the pickle ends without STOP"),
        (b"}", "byte 1: the pickle ends without STOP"),
        (b".", "byte 0: the pickle ends with 0 values"),
        (b"}}.", "byte 2: the pickle ends with 2 values"),
        (b"(}.", "byte 2: the pickle ends with 2 values"),
        (b"}.}", "byte 1: the pickle ends before the file does"),
        (b"]]s.", "byte 2: the opcode SETITEM lacks what it needs"),
        (b"}K\x01K\x02a.", "byte 5: the opcode APPEND needs a list before it"),
        (b"}K\x01s.", "byte 3: the opcode SETITEM lacks what it needs"),
        (b"}(K\x01u.", "byte 4: the opcode SETITEMS has a key without a value"),
        (b"}]K\x01s.", "byte 4: the opcode SETITEM unhashable type: 'list'"),
        (b"}K\x01K\x02sK\x01K\x03s.", "byte 10: the opcode SETITEM has the key 1 twice"),
        (b"Ione\n.", "byte 0: the opcode INT invalid literal"),
        (b"K\x01b.", "byte 2: the opcode BUILD lacks what it needs"),
        (b"cos\nsystem\n.", "byte 0: the opcode GLOBAL names os.system, which is refused"),
        (b"}r\xff\xff\xff\xff.", "LONG_BINPUT has the number 4294967295, but 0 come before it"),
        (b"X\xff\xff\xff\xffabc.", "byte 0: the opcode BINUNICODE has 4294967295 bytes, but 4 are"),
        (b"\xff.", "which is no opcode, is refused"),
        (b"P1\n.", "byte 0: the opcode PERSID is refused; only plain values are read"),
        (b"}" * (2**20 + 2), "byte 1048576: the opcode EMPTY_DICT has more than 1048576 values"),
    ],
)
def test_broken_pickles(content, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read_plain_pickle(content)


def nested(end, levels=60):
    """A pickle with a tuple that holds one tuple twice, and so on: 2^levels in all."""
    content = b")q\x00" + b"".join(b"h%c\x86q%c" % (i, i + 1) for i in range(levels))
    return content + end


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (nested(b"K\x01s."), "SETITEM lacks what it needs"),
        (b"}" + nested(b"K\x01s."), "SETITEM has a tuple as a key"),
        (nested(b"h\x05\x93."), "STACK_GLOBAL needs a text before it"),
        (b"cnumpy\ndtype\n" + nested(b"\x85R."), "REDUCE needs a text before it"),
        (b"c_codecs\nencode\n" + nested(b"K\x01\x86R."), "REDUCE needs a text before it"),
    ],
)
def test_a_short_pickle_of_a_huge_value_is_refused_at_once(content, message):
    with pytest.raises(ValueError, match=message):
        read_plain_pickle(content)


@given(st.binary(max_size=60), st.integers(0, 200), PLAIN, PROTOCOLS)
def test_any_bytes_give_a_value_or_one_error(some, cut, value, protocol):
    whole = pickle.dumps(value, protocol)
    for content in (some, whole[:cut] + some, whole[:cut] + some + whole[cut:]):
        try:
            read_plain_pickle(content)
        except ValueError as error:
            assert re.match(r"byte \d+: ", str(error))  # noqa: PT017
