"""Texts as ids, with the values of TensorFlow Federated's own tests and of slow transcriptions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.data.readers.client_files.texts import (
    CHARACTERS,
    Vocabulary,
    character_sequences,
    most_frequent_words,
    num_character_sequences,
    read_vocabulary,
    word_sequences,
)

ABC = Vocabulary.of([b"A", b"B", b"C"])
BEGIN, END, UNKNOWN = CHARACTERS.begin, CHARACTERS.end, CHARACTERS.unknown


def test_numbers_of_the_special_ids():
    assert (ABC.unknown, ABC.begin, ABC.end, ABC.num_classes) == (4, 5, 6, 7)
    assert (UNKNOWN, BEGIN, END, CHARACTERS.num_classes) == (87, 88, 89, 90)
    words = Vocabulary.of(str(i).encode() for i in range(10_000))
    assert words.num_classes == 10_004  # Reddi et al., Table 5


@pytest.mark.parametrize(
    ("vocabulary", "text", "length", "ids"),
    [  # TFF, baselines/stackoverflow/word_prediction_preprocessing_test.py
        (ABC, b"A B C", 1, [5, 1]),
        (ABC, b"A B C", 5, [5, 1, 2, 3, 6, 0]),
        (Vocabulary.of([b"one", b"must"]), b"one must imagine", 6, [4, 1, 2, 3, 5, 0, 0]),
        (ABC, b"A B C", 3, [5, 1, 2, 3]),  # no room for the end
        (ABC, b"", 2, [5, 4, 6]),  # as TensorFlow splits it
        (ABC, b"A  C", 4, [5, 1, 4, 3, 6]),
    ],
)
def test_words(vocabulary, text, length, ids):
    assert word_sequences([text], vocabulary, length).tolist() == [ids]


@pytest.mark.parametrize(
    ("texts", "length", "ids"),
    [  # TFF, baselines/shakespeare/char_prediction_preprocessing_test.py
        ([b"abc"], 4, [[BEGIN, 64, 42, 21, END]]),
        ([b"star wars"], 11, [[BEGIN, 25, 5, 64, 46, 14, 26, 64, 46, 25, END, 0]]),
        ([b"a\r~"], 4, [[BEGIN, 64, 86, UNKNOWN, END]]),
        (
            [b"a snippet", b"different snippet"],
            10,
            [
                [BEGIN, 64, 14, 25, 45, 66, 4, 4, 65, 5, END],
                [BEGIN, 1, 66, 43, 43, 65, 46, 65, 45, 5, 14],
                [25, 45, 66, 4, 4, 65, 5, END, 0, 0, 0],
            ],
        ),
    ],
)
def test_characters(texts, length, ids):
    assert character_sequences(texts, length).tolist() == ids


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=12), max_size=4), st.integers(1, 6))
def test_characters_against_a_transcription(texts, length):
    """Text by text, padded to a multiple, and cut."""
    expected = []
    for text in texts:
        known = [CHARACTERS.ids.get(bytes([octet]), UNKNOWN) for octet in text]
        ids = [BEGIN, *known, END]
        ids += [0] * (-len(ids) % (length + 1))
        expected += [ids[i : i + length + 1] for i in range(0, len(ids), length + 1)]
    found = character_sequences(texts, length)
    assert found.tolist() == expected
    lengths = np.array([len(text) for text in texts], np.int64)
    assert num_character_sequences(lengths, length).sum() == len(expected)


def test_the_most_frequent_words():
    vocabulary = most_frequent_words([b"b a c", b"c b\td", b"a e"], 3)
    assert vocabulary.ids == {b"b": 1, b"a": 2, b"c": 3}  # each twice, in the order of the text


def test_a_vocabulary_is_read(tmp_path):
    path = tmp_path / "stackoverflow.word_count"
    path.write_bytes(b"the 341408\nto 3\n. 2\n\xc3\xa9 1\n")
    assert read_vocabulary(path, 3).ids == {b"the": 1, b"to": 2, b".": 3}
    assert len(read_vocabulary(path, 9).ids) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"the 3\n\nto 2\n", "line 2 is no word"),
        (b"the 3\nto 2\nthe 1\n", "line 3 has the word 'the' a second time"),
        (b"BZh91AY&SY\0", "it is packed; unpack it: tar xf"),
        (b"\0\1\2\n", "line 1 is no word"),
        (b"a" * 10**6, "line 1 is no word"),
    ],
)
def test_damaged_vocabularies(tmp_path, content, message):
    path = tmp_path / "words"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_vocabulary(path, 10)
    assert str(error.value).startswith(str(path))
    assert str(error.value).isprintable()
