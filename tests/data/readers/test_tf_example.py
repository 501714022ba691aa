"""The parser of `tf.train.Example`: golden bytes, an encoder of its own, and damaged records."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tf_records import example, field

from fedjax_algos.data.readers.client_files.sqlite import parse_example

INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9)
FLOATS = st.lists(st.floats(width=32), min_size=1, max_size=9)
TEXTS = st.lists(st.binary(max_size=9), min_size=1, max_size=4)


def test_golden_bytes():
    """Written from the description of protocol buffers, by hand."""
    content = bytes.fromhex(
        "0a1f"  # features, 31 bytes
        "0a0b" + "0a0161" + "1206" + "1a04" + "0a02" + "ac02"  # a: integers, 300
        "0a10" + "0a0162" + "120b" + "0a09" + "0a0278790a03" + "000102"  # b: xy and 3 bytes
    )
    assert len(content) == 2 + 31
    found = parse_example(content)
    assert found["a"].tolist() == [300]
    assert found["b"] == [b"xy", b"\0\1\2"]
    assert parse_example(b"") == {}


@settings(deadline=None, max_examples=50)
@given(INTEGERS, FLOATS, TEXTS, st.booleans())
def test_any_values_are_read_exactly(integers, floats, texts, packed):
    found = parse_example(example(packed, i=integers, f=floats, t=texts))
    assert found["i"].dtype == np.int64
    assert found["i"].tolist() == integers
    np.testing.assert_array_equal(found["f"], np.array(floats, np.float32))
    assert found["t"] == texts


def test_against_protobuf():
    records = pytest.importorskip(
        "tensorflow_datasets.proto.tf_example_generated_pb2",
        reason="tensorflow-datasets, whose protobufs are compared, is not installed",
    )
    pixels, large = [k % 251 for k in range(3072)], [2**40, -1, 0, 2**63 - 1]
    message = records.Example()
    message.features.feature["image"].int64_list.value.extend(pixels)
    message.features.feature["large"].int64_list.value.extend(large)
    message.features.feature["pixels"].float_list.value.extend([0.25, 1e-3])
    message.features.feature["text"].bytes_list.value.append(b"\xff\0text")
    message.features.feature["none"].SetInParent()
    found = parse_example(message.SerializeToString())
    assert found["image"].tolist() == pixels
    assert found["large"].tolist() == large
    np.testing.assert_array_equal(found["pixels"], np.float32([0.25, 1e-3]))
    assert found["text"] == [b"\xff\0text"]
    assert found["none"] == []


GOOD = example(label=[7], pixels=[0.5, 1.0])


@pytest.mark.parametrize(
    "content",
    [
        GOOD[:-1],
        b"\xff" * 12,
        b"\x0b",
        field(1, field(1, field(1, b"a") + field(2, field(3, field(1, b"\xff"))))),
        field(1, field(1, field(2, field(2, field(1, b"\0\0\0"))))),
        field(1, field(1, field(1, b"\xff"))),
    ],
)
def test_damaged_records(content):
    with pytest.raises(ValueError, match=r"an example is no tf\.train\.Example"):
        parse_example(content)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 255)), max_size=5), st.integers(0, 40))
def test_any_damage_is_an_error_or_another_record(changes, cut):
    damaged = bytearray(GOOD)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    try:
        parse_example(bytes(damaged[: len(damaged) - cut]))
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017, it may also be read
