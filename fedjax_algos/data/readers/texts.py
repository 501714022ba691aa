"""Encodes texts by TensorFlow Federated's ids of words or characters; reads text by speaker."""

import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedjax_algos.base import files
from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, reading
from fedjax_algos.base.reprs import printable
from fedjax_algos.core.options import Count, Proportion
from fedjax_algos.data.dataset import Dataset, from_arrays
from fedjax_algos.data.federated_data import datasets

PADDING = 0
_LONGEST_LINE = 2**16  # bytes of a line of a vocabulary
_FIX = 'write an object {"ROLE": "line\\nline"} as UTF-8, or choose other options'
# The order of the characters gives their ids; TFF's baselines.shakespeare has the same order.
_TFF_CHARACTERS = (
    b"dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
# The 80 symbols of LEAF's Shakespeare, in the order of their code points
LEAF_SYMBOLS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"


class Vocabulary(NamedTuple):
    """The ids of V symbols, words or characters as bytes: from 1 to V; 0 is padding."""

    ids: Mapping[bytes, int]

    @classmethod
    def of(cls, symbols: Iterable[bytes]) -> "Vocabulary":
        """Numbers distinct symbols in the order given."""
        return cls({symbol: number for number, symbol in enumerate(symbols, start=1)})

    @property
    def special(self) -> tuple[int, int, int]:
        """The ids of an unknown symbol, and of the beginning and the end of a text."""
        return len(self.ids) + 1, len(self.ids) + 2, len(self.ids) + 3

    @property
    def num_classes(self) -> int:
        """The number of all ids, V + 4."""
        return len(self.ids) + 4

    def sequences(self, texts: Sequence[bytes], length: int) -> np.ndarray:
        """Makes int32[texts, length + 1]: begin, up to `length` words, end if it fits, padding."""
        sequences = np.full((len(texts), length + 1), PADDING, np.int32)
        unknown, begin, end = self.special
        for row, text in zip(sequences, texts, strict=True):
            ids = [self.ids.get(word, unknown) for word in text.split(b" ", length)[:length]]
            tokens = [begin, *ids, end][: length + 1]
            row[: len(tokens)] = tokens
        return sequences


CHARACTERS = Vocabulary.of(bytes([code]) for code in _TFF_CHARACTERS)
_UNKNOWN, _BEGIN, _END = CHARACTERS.special
_CODES = np.full(256, _UNKNOWN, np.int32)  # the id of each byte
_CODES[np.frombuffer(_TFF_CHARACTERS, np.uint8)] = np.arange(1, len(_TFF_CHARACTERS) + 1)


def read_vocabulary(path: PathLike, words: int) -> Vocabulary:
    """Reads the first word of each line of a file such as TFF's `stackoverflow.word_count`."""
    ids: dict[bytes, int] = {}
    fix = "unpack it with tar xf, or give a text with a different word in each line"
    with reading(path, "a vocabulary", fix), files.open_regular(path) as file:
        while len(ids) < words and (line := file.readline(_LONGEST_LINE)):
            number, word = len(ids) + 1, next(iter(line.split()), b"")
            packed = not ids and line.startswith(b"BZh")
            plain = len(line) < _LONGEST_LINE and b"\0" not in line and not packed
            text = printable(word.decode(errors="backslashreplace"), 50)
            found = f"line {number} has {text!r}, which is not a new word"
            require(word and plain and word not in ids, found)
            ids[word] = number
        require(ids, "it is empty")
    return Vocabulary(ids)


def most_frequent_words(texts: Iterable[bytes], words: int) -> Vocabulary:
    """Finds the most frequent words, split at white space; the first to occur wins a tie."""
    counts = Counter(word for text in texts for word in text.split())
    return Vocabulary.of(word for word, _ in counts.most_common(words))


def character_sequences(texts: Sequence[bytes], length: int) -> np.ndarray:
    """Cuts texts (begin, bytes, end, padding) into int32[sequences, length + 1]."""
    counts = num_character_sequences(texts, length)
    sequences = np.full((int(counts.sum()), length + 1), PADDING, np.int32)
    starts = np.cumsum(counts) - counts
    flat = sequences.reshape(-1)
    for start, text in zip(starts * (length + 1), texts, strict=True):
        flat[start] = _BEGIN
        flat[start + 1 : start + 1 + len(text)] = _CODES[np.frombuffer(text, np.uint8)]
        flat[start + 1 + len(text)] = _END
    return sequences


def num_character_sequences(texts: Sequence[bytes], length: int) -> np.ndarray:
    """Counts the sequences that `character_sequences` makes of each text, int64[texts]."""
    lengths = np.array([len(text) for text in texts], np.int64)
    return -(-(lengths + 2) // (length + 1))


@datasets.register
def roles(
    *,
    path: PathLike,
    window: Count = 80,
    stride: Count = 1,
    train_fraction: Proportion = 0.8,
    min_lines: Count = 3,
    max_examples_per_role: Count | None = None,
    alphabet: Literal["leaf", "found"] = "leaf",
) -> Dataset:
    """Text by speaker, as windows and the character that follows; roles are the natural clients.

    The file is JSON, gzipped or not: an object with the lines of each role, "line\\nline". Line
    breaks in a text become blanks, and runs of blanks become one. A text's windows start every
    `stride` characters. The first max(1, floor(train_fraction * n)) of its n windows are training
    examples; windows that start after the text of the last training window are test examples, for
    all roles. "x" is uint8[n, window], the codes of the characters, and "y" the code of the next
    character. Natural clients are numbered in the order of the file.

    Args:
      path: the file.
      window: the characters in an example, at least 1.
      stride: the characters between the starts of windows, at least 1.
      train_fraction: the share of a role's windows used for training, between 0 and 1.
      min_lines: roles with fewer lines, at least 1, or fewer than 2 windows are left out.
      max_examples_per_role: use only the first windows of each role, training and test together; at
        least 1, or None for all.
      alphabet: "leaf" is LEAF's table of 80 symbols; "found" is the file's own characters, ordered
        by code point.

    Source: LEAF (https://github.com/TalwalkarLab/leaf), data/shakespeare and data/utils. As in
    LEAF, at stride 1 the last training label is the first character of the first test window. LEAF
    has no stride, no maximum number of examples, and no choice of alphabet.
    """
    with reading(path, "a JSON file of roles", _FIX, zlib.error):
        packed = files.read_file(path)
        if packed[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as unpacked:
                packed = files.read_bounded(unpacked, files.max_text_bytes())
        content = files.parse_json(packed)
        strings = isinstance(content, dict) and all(isinstance(t, str) for t in content.values())
        require(strings, "it is not an object of strings")
        long = {r: text for r, text in content.items() if text.count("\n") + 1 >= min_lines}
        texts = [re.sub(" {2,}", " ", text.replace("\n", " ")) for text in long.values()]
        counts = [max(0, 1 + (len(text) - 1 - window) // stride) for text in texts]
        counts = [min(count, max_examples_per_role or count) for count in counts]
        chosen = [(text, count) for text, count in zip(texts, counts, strict=True) if count >= 2]
        characters = "".join(sorted(set().union(*(text for text, _ in chosen))))
        symbols = LEAF_SYMBOLS if alphabet == "leaf" else characters
        sizes = np.array([count for _, count in chosen], int)
        trains = np.maximum(1, (train_fraction * sizes).astype(int))
        tests = np.minimum(sizes, trains - 1 + -(-window // stride))  # where they start
        found = f"no role has {min_lines} lines and windows of {window} characters for both parts"
        require((tests < sizes).any(), found)
        n = int((trains + sizes - tests).sum())
        files.check_array_bytes(f"{n} windows of {window} characters", n * window, "raise stride")
        codes = [encode(text, symbols) for text, _ in chosen]
    train = _cut(codes, np.zeros_like(trains), trains, window, stride)
    test = _cut(codes, tests, sizes, window, stride)
    users = np.repeat(np.arange(len(chosen), dtype=np.int32), trains)
    left_out = len(content) - len(chosen)
    notes = (f"{left_out} of {len(content)} roles are too short and left out",) * (left_out > 0)
    return from_arrays(*train, *test, users, num_classes=len(symbols), notes=notes, source=path)


def encode(text: str, symbols: str) -> np.ndarray:
    """Returns the index of each character in the ascending `symbols`, uint8[characters]."""
    require(len(symbols) <= 256, f"it has {len(symbols)} symbols, more than 256")
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    table = np.array([ord(symbol) for symbol in symbols], np.uint32)
    codes = np.minimum(np.searchsorted(table, points), len(table) - 1)
    unknown = "".join(text[at] for at in np.flatnonzero(table[codes] != points)[:1])
    require(not unknown, f"the character {unknown!r} is not among the {len(symbols)} symbols")
    return codes.astype(np.uint8)


def _cut(
    codes: list[np.ndarray], starts: np.ndarray, stops: np.ndarray, window: int, stride: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cuts out windows uint8[n, window] and their next codes uint8[n]."""
    x, y = [], []
    for text, start, stop in zip(codes, starts, stops, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(text, window)  # views, not copies
        x.append(windows[::stride][start:stop])
        y.append(text[window::stride][start:stop])
    return np.concatenate(x), np.concatenate(y)
