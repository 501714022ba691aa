"""Texts as ids of words or characters, as TensorFlow Federated numbers them; text by speaker."""

import gzip
import io
import os
import re
import string
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from fedjax_algos.core.files import (
    PathLike,
    check_array_bytes,
    max_text_bytes,
    open_regular,
    parse_json,
    read_bounded,
    read_file,
    reading,
    require,
)
from fedjax_algos.core.options import Count, Proportion
from fedjax_algos.core.reprs import printable
from fedjax_algos.data.dataset import Dataset, from_arrays
from fedjax_algos.data.registry import datasets

PADDING = 0
_LONGEST_LINE = 2**16  # bytes of a line of a vocabulary
_FIX = 'write an object {"ROLE": "line\\nline"} as UTF-8, or choose other options'
# The order of the characters gives their ids; it is that of TFF's baselines.shakespeare.
_TFF_CHARACTERS = (
    b"dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
# The 80 symbols of LEAF's Shakespeare, in the order of their code points.
LEAF_SYMBOLS = (
    "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]"
) + f"{string.ascii_lowercase}}}"
SYMBOLS = {"leaf": LEAF_SYMBOLS, "no_newline": LEAF_SYMBOLS[1:]}

Alphabet: TypeAlias = Literal["leaf", "no_newline", "found"]


class Vocabulary(NamedTuple):
    """The ids of V symbols, from 1 to V; 0 is padding, and three ids follow.

    These are V + 1 for any symbol that is out of the vocabulary, V + 2 for the begin of a text,
    and V + 3 for its end.

    Attributes:
      ids: the id of each symbol, which is a word or a character as bytes.
    """

    ids: Mapping[bytes, int]

    @classmethod
    def of(cls, symbols: Iterable[bytes]) -> "Vocabulary":
        """Numbers different symbols in their order."""
        return cls({symbol: number for number, symbol in enumerate(symbols, start=1)})

    @property
    def unknown(self) -> int:
        """The id of symbols that are out of the vocabulary."""
        return len(self.ids) + 1

    @property
    def begin(self) -> int:
        """The id of the begin of a text."""
        return len(self.ids) + 2

    @property
    def end(self) -> int:
        """The id of the end of a text."""
        return len(self.ids) + 3

    @property
    def num_classes(self) -> int:
        """All ids: V + 4."""
        return len(self.ids) + 4


CHARACTERS = Vocabulary.of(bytes([code]) for code in _TFF_CHARACTERS)
_CODES = np.full(256, CHARACTERS.unknown, np.int32)  # the id of each byte
_CODES[np.frombuffer(_TFF_CHARACTERS, np.uint8)] = np.arange(1, len(_TFF_CHARACTERS) + 1)


def read_vocabulary(path: PathLike, words: int) -> Vocabulary:
    """The first words of a file with a word in each line, such as TFF's `stackoverflow.word_count`.

    What follows a word in its line, such as its count, is not read.
    """
    ids: dict[bytes, int] = {}
    with reading(path, "a vocabulary", "give a text with a word in each line"):
        with open_regular(path) as file:
            while len(ids) < words and (line := file.readline(_LONGEST_LINE)):
                number = len(ids) + 1
                packed = number == 1 and line[:3] == b"BZh"
                require(not packed, f"it is packed; unpack it: tar xf {os.fspath(path)}")
                word, whole = line.split()[:1], len(line) < _LONGEST_LINE
                require(word and whole and b"\0" not in line, f"line {number} is no word")
                require(word[0] not in ids, f"line {number} has the word {shown(word[0])} again")
                ids[word[0]] = number
        require(ids, "it is empty")
    return Vocabulary(ids)


def most_frequent_words(texts: Iterable[bytes], words: int) -> Vocabulary:
    """The most frequent words, between white space; of equally frequent ones the first to occur."""
    counts = Counter(word for text in texts for word in text.split())
    return Vocabulary.of(word for word, _ in counts.most_common(words))


def word_sequences(texts: Sequence[bytes], vocabulary: Vocabulary, length: int) -> np.ndarray:
    """int32[texts, length + 1]: begin, the first `length` words, end if there is room, padding.

    Words are separated by one blank.
    """
    sequences = np.full((len(texts), length + 1), PADDING, np.int32)
    for row, text in zip(sequences, texts, strict=True):
        words = text.split(b" ", maxsplit=length)[:length]
        ids = [vocabulary.ids.get(word, vocabulary.unknown) for word in words]
        tokens = [vocabulary.begin, *ids, vocabulary.end][: length + 1]
        row[: len(tokens)] = tokens
    return sequences


def character_sequences(texts: Sequence[bytes], length: int) -> np.ndarray:
    """int32[sequences, length + 1]: each text as begin, its bytes, end, in pieces of length + 1.

    The last piece of a text is padded, and the last id of a piece has none that follows.
    """
    counts = num_character_sequences(np.array([len(text) for text in texts], np.int64), length)
    sequences = np.full((int(counts.sum()), length + 1), PADDING, np.int32)
    starts = np.cumsum(counts) - counts
    flat = sequences.reshape(-1)
    for start, text in zip(starts * (length + 1), texts, strict=True):
        flat[start] = CHARACTERS.begin
        flat[start + 1 : start + 1 + len(text)] = _CODES[np.frombuffer(text, np.uint8)]
        flat[start + 1 + len(text)] = CHARACTERS.end
    return sequences


def num_character_sequences(lengths: np.ndarray, length: int) -> np.ndarray:
    """int64[texts]: how many sequences `character_sequences` makes of texts of these bytes."""
    return -(-(lengths + 2) // (length + 1))


def shown(symbol: bytes) -> str:
    """A symbol from a file for messages, on one line."""
    return repr(printable(symbol.decode(errors="backslashreplace"), 50))


@datasets.register
def roles(
    *,
    path: PathLike,
    window: Count = 80,
    stride: Count = 1,
    train_fraction: Proportion = 0.8,
    min_lines: Count = 3,
    max_examples_per_role: Count | None = None,
    alphabet: Alphabet = "leaf",
) -> Dataset:
    """Text by speaker, as windows and the character that follows; roles are the natural clients.

    The file is JSON, gzipped or not: an object with the lines of each role, "line\\nline". Line
    breaks in a role's text are replaced by blanks, and runs of blanks by one. Its windows start
    every `stride` characters. The first max(1, floor(train_fraction * n)) of its n windows are
    training examples; test examples are the windows that start after the text of the last training
    window. The test set contains those of all roles. "x" is uint8[n, window], the codes of the
    characters, and "y" the code of the next one. Natural clients are numbered in the order of the
    file.

    Args:
      path: the file.
      window: characters of an example, at least 1.
      stride: characters between the starts of windows, at least 1.
      train_fraction: share of a role's windows used for training, between 0 and 1.
      min_lines: roles with fewer lines are left out, as are those with fewer than 2 windows; at
        least 1.
      max_examples_per_role: use only this number of windows of a role, the first ones, training and
        test together; at least 1, or None for all.
      alphabet: "leaf" is LEAF's table of 80 symbols, "no_newline" the same without the line break,
        which no window contains, and "found" the characters of this file in the order of their
        code points.

    Source: LEAF (https://github.com/TalwalkarLab/leaf), data/shakespeare and data/utils. As in
    LEAF, at stride 1 the last training label is the first character of the first test window. LEAF
    has no stride, no maximum number of examples, and no choice of alphabet.
    """
    with reading(path, "a JSON file of roles", _FIX, zlib.error):
        content = _roles_of(path)
        long = {r: text for r, text in content.items() if text.count("\n") + 1 >= min_lines}
        texts = [re.sub(" {2,}", " ", text.replace("\n", " ")) for text in long.values()]
        counts = [max(0, 1 + (len(text) - 1 - window) // stride) for text in texts]
        counts = [min(count, max_examples_per_role or count) for count in counts]
        chosen = [(text, count) for text, count in zip(texts, counts, strict=True) if count >= 2]
        require(chosen, f"no role has {min_lines} lines and 2 windows of {window} characters")
        found = "".join(sorted(set().union(*(text for text, _ in chosen))))
        symbols = SYMBOLS.get(alphabet, found)
        spans = [_split(count, train_fraction, window, stride) for _, count in chosen]
        require(any(stop > start for _, start, stop in spans), "no role has a window for the test")
        windows = sum(stop + count - start for stop, start, count in spans)
        what = f"{windows} windows of {window} characters"
        check_array_bytes(what, windows * window, "raise stride")
        codes = [encode(text, symbols) for text, _ in chosen]
    train = _cut(codes, [(0, stop) for stop, _, _ in spans], window, stride)
    test = _cut(codes, [(start, stop) for _, start, stop in spans], window, stride)
    users = np.repeat(np.arange(len(chosen), dtype=np.int32), [stop for stop, _, _ in spans])
    left_out = len(content) - len(chosen)
    notes = (f"{left_out} of {len(content)} roles are too short and left out",) * (left_out > 0)
    return from_arrays(*train, *test, users, num_classes=len(symbols), notes=notes, source=path)


def encode(text: str, symbols: str) -> np.ndarray:
    """uint8[characters]: the index of each character in `symbols`, which are in ascending order."""
    require(len(symbols) <= 256, f"it has {len(symbols)} symbols, more than 256")
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    table = np.array([ord(symbol) for symbol in symbols], np.uint32)
    codes = np.minimum(np.searchsorted(table, points), len(table) - 1)
    unknown = "".join(text[at] for at in np.flatnonzero(table[codes] != points)[:1])
    require(not unknown, f"the character {unknown!r} is not among the {len(symbols)} symbols")
    return codes.astype(np.uint8)


def _roles_of(path: PathLike) -> dict[str, str]:
    content = read_file(path)
    if content[:2] == b"\x1f\x8b":
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacked:
            content = read_bounded(unpacked, max_text_bytes())
    texts = parse_json(content)
    strings = isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values())
    require(strings, "it is not an object of strings")
    return texts


def _split(count: int, train_fraction: float, window: int, stride: int) -> tuple[int, int, int]:
    """The ends of the training windows, and the starts and ends of the test windows."""
    train = max(1, int(train_fraction * count))
    return train, min(count, train - 1 + -(-window // stride)), count


def _cut(
    codes: list[np.ndarray], spans: list[tuple[int, int]], window: int, stride: int
) -> tuple[np.ndarray, np.ndarray]:
    """Windows uint8[n, window] and their next codes uint8[n]; each window is copied once."""
    total = sum(stop - start for start, stop in spans)
    x, y = np.empty((total, window), np.uint8), np.empty(total, np.uint8)
    row = 0
    for text, (start, stop) in zip(codes, spans, strict=True):
        rows = slice(row, row := row + stop - start)
        windows = np.lib.stride_tricks.sliding_window_view(text, window)
        x[rows] = windows[::stride][start:stop]
        y[rows] = text[window::stride][start:stop]
    return x, y
