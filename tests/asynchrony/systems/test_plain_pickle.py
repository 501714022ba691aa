"""Pickles of plain values are read as Python reads them, and nothing else is read or run."""

import collections
import json
import pickle

import numpy as np
import pytest

from fedjax_algos.asynchrony.systems.plain_pickle import read_plain_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
SHARED = {"computation": 1.5}
# pickles are written in parts of 1,000 items, and refer to what they have already
VALUE = {str(i): [SHARED, [i - 700], -(2**200), None, True] for i in range(1500)}
VALUE |= {"": list(range(-2000, 2000)), "é\n'": "\\\u202e\ud800", "floats": [1e-300, float("inf")]}
TYPES = ["<f2", "<f4", "<f8", ">f8", "<i8", ">i4", "i2", "u1", "i1", "<u8"]
SCALARS = [number for kind in TYPES for number in np.array([0, 3, 77], kind)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_are_read_as_python_reads_them(protocol):
    written = VALUE | {7: (1, 2), "numbers": SCALARS}
    found = json.loads(read_plain_pickle(pickle.dumps(written, protocol)))
    assert found == VALUE | {"7": [1, 2], "numbers": [0, 3, 77] * len(TYPES)}
    assert [type(each) for each in found["numbers"]] == [type(each.item()) for each in SCALARS]


class Evil:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


OTHERS = [{2, 3}, np.ones(2), b"bytes", np.datetime64(3, "s"), collections.OrderedDict(a=1)]
OTHERS += [{(1, 2): 3}, np.dtype("f8")]


def test_other_values_are_refused_and_nothing_is_run(tmp_path):
    path = tmp_path / "made"
    written = [pickle.dumps([Evil(path)], protocol) for protocol in PROTOCOLS]
    written += [b"}.}", b"}r\xff\xff\xff\xff."]  # more than one value; the last index of a memo
    for content in written + [pickle.dumps(value) for value in OTHERS]:
        with pytest.raises(ValueError, match=r"^\w+:") as caught:
            read_plain_pickle(content)
        assert str(caught.value).isprintable()
    assert not path.exists()


def nested(end):
    """A pickle with a tuple that holds one tuple twice, and so on: 2^60 in all."""
    return b")q\x00" + b"".join(b"h%c\x86q%c" % (i, i + 1) for i in range(60)) + end


@pytest.mark.nightly
@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "EOFError: "),
        (b"}.}", "it does not end where its value ends"),
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
