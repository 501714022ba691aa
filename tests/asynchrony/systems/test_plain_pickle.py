"""Pickles of plain values are read as Python reads them, and nothing else is read or run."""

import collections
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.asynchrony.systems.plain_pickle import read_plain_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
SHARED = {"computation": 1.5}
VALUE = {str(i): [SHARED, [i - 700], -(2**200), None, True] for i in range(1500)}
VALUE |= {"": list(range(-2000, 2000)), "é\n'": "\\\u202e\ud800", "floats": [1e-300, float("inf")]}


def read(content):
    return json.loads(read_plain_pickle(content))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_are_read_as_python_reads_them(protocol):
    """Pickles are written in parts of 1,000 items, and refer to what they have already."""
    assert read(pickle.dumps(VALUE, protocol)) == VALUE
    assert read(pickle.dumps({7: (1, 2)}, protocol)) == {"7": [1, 2]}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_scalars_of_numpy_become_numbers(protocol):
    kinds = ["<f2", "<f4", "<f8", ">f8", "<i8", ">i4", "i2", "u1", "i1", "<u8"]
    value = [number for kind in kinds for number in np.array([0, 3, 77], kind)]
    found = read(pickle.dumps(value, protocol))
    assert found == [0, 3, 77] * len(kinds)
    assert [type(number) for number in found] == [type(number.item()) for number in value]


class Evil:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_other_values_are_refused_and_nothing_is_run(protocol, tmp_path):
    path = tmp_path / "made"
    others = [{2, 3}, np.ones(2), b"bytes", np.datetime64(3, "s"), collections.OrderedDict(a=1)]
    for value in (Evil(path), [Evil(path)], *others, {(1, 2): 3}, np.dtype("f8")):
        with pytest.raises(ValueError, match=r"^\w+: .*") as caught:
            read_plain_pickle(pickle.dumps(value, protocol))
        assert str(caught.value).isprintable()
    assert not path.exists()


def nested(end):
    """A pickle with a tuple that holds one tuple twice, and so on: 2^60 in all."""
    return b")q\x00" + b"".join(b"h%c\x86q%c" % (i, i + 1) for i in range(60)) + end


@pytest.mark.all
@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "EOFError: "),
        (b"}.}", "it does not end where its value ends"),
        (b"cos\nsystem\n(S'true'\ntR.", "names os.system; only plain values are read"),
        (b"Psome\n.", "UnpicklingError: refers to what is not"),
        (b"}r\xff\xff\xff\xff.", "MemoryError"),  # the last index of a memo
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x0f.", "UnpicklingError|MemoryError"),  # long bytes
        (b"]" * 10**6 + b"a" * (10**6 - 1) + b".", "RecursionError"),
        (nested(b"."), "MemoryError|time or memory"),
        (b"}" + nested(b"K\x01s."), "time or memory"),
        (b"cnumpy\ndtype\n(S'O8'\ntR.", "KeyError: 'O8'"),
    ],
)
def test_hostile_pickles_end_in_one_line(content, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_plain_pickle(content)
    assert str(caught.value).isprintable()


@settings(deadline=None, max_examples=20)
@given(st.binary(max_size=60), st.integers(0, 200), st.sampled_from(PROTOCOLS))
def test_any_bytes_give_a_value_or_one_error(some, cut, protocol):
    whole = pickle.dumps(VALUE, protocol)
    for content in (some, whole[:cut] + some + whole[cut:]):
        try:
            read_plain_pickle(content)
        except ValueError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017, it may also be read
