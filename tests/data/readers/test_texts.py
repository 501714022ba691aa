"""Texts as ids by TFF's rules, and text by speaker: against TFF's values, and windows by hand."""

import json

import numpy as np
from data_forms import FORMS, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.data.readers.texts import (
    CHARACTERS,
    LEAF_SYMBOLS,
    Vocabulary,
    character_sequences,
    most_frequent_words,
    num_character_sequences,
    read_vocabulary,
)

FORM = FORMS["roles"]
ABC = Vocabulary.of([b"A", b"B", b"C"])
UNKNOWN, BEGIN, END = CHARACTERS.special
SNIPPETS = [
    [BEGIN, 64, 14, 25, 45, 66, 4, 4, 65, 5, END],
    [BEGIN, 1, 66, 43, 43, 65, 46, 65, 45, 5, 14],
    [25, 45, 66, 4, 4, 65, 5, END, 0, 0, 0],
]


def test_numbers_of_the_special_ids():
    assert (*ABC.special, ABC.num_classes) == (4, 5, 6, 7)
    assert (*CHARACTERS.special, CHARACTERS.num_classes) == (87, 88, 89, 90)
    assert len(LEAF_SYMBOLS) == 80
    assert sorted(LEAF_SYMBOLS) == list(LEAF_SYMBOLS)


def test_words():
    """As in TFF, baselines/stackoverflow/word_prediction_preprocessing_test.py."""
    for vocabulary, text, length, ids in (
        (ABC, b"A B C", 1, [5, 1]),
        (ABC, b"A B C", 5, [5, 1, 2, 3, 6, 0]),
        (Vocabulary.of([b"one", b"must"]), b"one must imagine", 6, [4, 1, 2, 3, 5, 0, 0]),
        (ABC, b"A B C", 3, [5, 1, 2, 3]),  # no room for the end
        (ABC, b"", 2, [5, 4, 6]),  # as TensorFlow splits it
        (ABC, b"A  C", 4, [5, 1, 4, 3, 6]),
    ):
        assert vocabulary.sequences([text], length).tolist() == [ids]


def test_characters():
    """As in TFF, baselines/shakespeare/char_prediction_preprocessing_test.py."""
    for texts, length, ids in (
        ([b"abc"], 4, [[BEGIN, 64, 42, 21, END]]),
        ([b"star wars"], 11, [[BEGIN, 25, 5, 64, 46, 14, 26, 64, 46, 25, END, 0]]),
        ([b"a\r~"], 4, [[BEGIN, 64, 86, UNKNOWN, END]]),
        ([b"a snippet", b"different snippet"], 10, SNIPPETS),
    ):
        assert character_sequences(texts, length).tolist() == ids


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=12), max_size=4), st.integers(1, 6))
def test_characters_against_a_transcription(texts, length):
    """Text by text, padded to a multiple, and cut."""
    expected = []
    for text in texts:
        ids = [BEGIN, *(CHARACTERS.ids.get(bytes([octet]), UNKNOWN) for octet in text), END]
        ids += [0] * (-len(ids) % (length + 1))
        expected += [ids[i : i + length + 1] for i in range(0, len(ids), length + 1)]
    found = character_sequences(texts, length)
    assert found.tolist() == expected
    assert num_character_sequences(texts, length).sum() == len(expected)


def test_vocabularies(tmp_path):
    vocabulary = most_frequent_words([b"b a c", b"c b\td", b"a e"], 3)
    assert vocabulary.ids == {b"b": 1, b"a": 2, b"c": 3}  # each twice, in the order of the text
    path = tmp_path / "stackoverflow.word_count"
    path.write_bytes(b"the 341408\nto 3\n. 2\n\xc3\xa9 1\n")
    assert read_vocabulary(path, 3).ids == {b"the": 1, b"to": 2, b".": 3}
    assert len(read_vocabulary(path, 9).ids) == 4
    for content, named in (
        (b"", "empty"),
        (b"BZh91AY&SY\0", "tar xf"),
        (b"a\n\nb 2\n", "line 2 has '', which is not a new word"),
        (b"a 3\nb 2\na 1\n", "line 3 has 'a', which is not a new word"),
        (b"\0\1\2\n", "line 1 .* is not a new word"),
        (b"a" * 10**6, "line 1 .* is not a new word"),
    ):
        path.write_bytes(content)
        with refused(path, named):
            read_vocabulary(path, 10)


def read(folder, content, **options):
    FORM.write(folder, json.dumps(content))
    return FORM.read(folder, **options)


def texts(part, symbols=LEAF_SYMBOLS):
    windows = ["".join(symbols[code] for code in window) for window in part["x"]]
    return [*zip(windows, (symbols[label] for label in part["y"]), strict=True)]


def test_windows_by_hand(tmp_path):
    """Windows of 3: "ab cdefghi" has 7; 4 train, and the test starts after 4 - 1 + 3 = 6."""
    content = {"A": "ab\ncd  \n  efghi", "SHORT": "ab\ncdefgh", "B": "x\n\nyzab"}
    data = read(tmp_path, content, train_fraction=0.6)
    a = [("ab ", "c"), ("b c", "d"), (" cd", " "), ("cd ", "e")]
    b = [("x y", "z")]  # "x yzab" has 3 windows, of which 1 trains: none starts after it
    assert texts(data.train) == [*a, *b]
    assert data.users.tolist() == [0, 0, 0, 0, 1]
    assert texts(data.test) == [("efg", "h"), ("fgh", "i")]
    assert data.num_classes == 80
    assert (data.train["x"].dtype, data.train["y"].dtype) == (np.uint8, np.int32)
    assert data.notes == ("1 of 3 roles are too short and left out",)


def test_stride_bound_and_split(tmp_path):
    """No character of a test window was in the text of a training window, for any stride."""
    text = "".join(chr(97 + i % 26) + "AEIOU"[i // 26 % 5] for i in range(1000))
    options = {"window": 10, "min_lines": 1, "max_examples_per_role": 300}
    for stride in (1, 2, 3, 7, 50):
        data = read(tmp_path, {"A": text, "B": text[::-1]}, stride=stride, **options)
        count = min(300, -(-(2000 - 10) // stride))
        train = int(0.8 * count)
        np.testing.assert_array_equal(np.bincount(data.users), [train, train])
        starts = [i * stride for i in range(count)]
        kept = [start for start in starts if start >= starts[train - 1] + 10]
        assert (len(data.train["x"]), len(data.test["x"])) == (2 * train, 2 * len(kept))
        assert texts(data.test)[0] == (text[kept[0] : kept[0] + 10], text[kept[0] + 10])
        assert texts(data.train)[1] == (text[stride : stride + 10], text[stride + 10])


def test_alphabets(tmp_path):
    content = {"A": "na\u00efve\nna\u00efve\nna\u00efve na\u00efve"}
    data = read(tmp_path, content, window=2, alphabet="found")
    assert data.num_classes == 6
    assert texts(data.train, " aenvï")[:2] == [("na", "ï"), ("aï", "v")]
