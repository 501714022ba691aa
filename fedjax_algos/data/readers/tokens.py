"""Texts as sequences of ids of words or characters, numbered as TensorFlow Federated does."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_algos.core.files import PathLike, open_regular, reading
from fedjax_algos.core.texts import printable

PADDING = 0
_LONGEST_LINE = 2**16  # bytes of a line of a vocabulary
# The order of the characters gives their ids; it is that of TFF's baselines.shakespeare.
_TFF_CHARACTERS = (
    b"dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)


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
        """Numbers symbols in their order.

        Args:
          symbols: different ones.
        """
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
    """The first words of a file with a word in each line, the most frequent first.

    Args:
      path: a text such as `stackoverflow.word_count` of TFF; what follows a word in its line, such
        as its count, is not read.
      words: how many are read; all if there are fewer.

    Raises:
      ValueError: if the file is missing, is packed, or has a word twice or a line without one.
    """
    ids: dict[bytes, int] = {}
    with reading(path, "a vocabulary", "give a text with a word in each line"):
        with open_regular(path) as file:
            while len(ids) < words and (line := file.readline(_LONGEST_LINE)):
                number = len(ids) + 1
                if number == 1 and line[:3] == b"BZh":
                    raise ValueError(f"it is packed; unpack it: tar xf {os.fspath(path)}")
                if b"\0" in line or not line.split() or len(line) == _LONGEST_LINE:
                    raise ValueError(f"line {number} is no word")
                word = line.split()[0]
                if word in ids:
                    raise ValueError(f"line {number} has the word {shown(word)} a second time")
                ids[word] = number
        if not ids:
            raise ValueError("it is empty")
    return Vocabulary(ids)


def most_frequent_words(texts: Iterable[bytes], words: int) -> Vocabulary:
    """The most frequent words of texts; of equally frequent ones the first to occur.

    Args:
      texts: words that are separated by white space.
      words: the largest number of words.
    """
    counts = Counter(word for text in texts for word in text.split())
    return Vocabulary.of(word for word, _ in counts.most_common(words))


def word_sequences(texts: Sequence[bytes], vocabulary: Vocabulary, length: int) -> np.ndarray:
    """int32[texts, length + 1]: begin, the first `length` words, end if there is room, padding.

    Args:
      texts: words that are separated by one blank.
      vocabulary: of the words.
      length: the largest number of words of a text, at least 1.
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

    The last piece of a text is padded. There are `num_character_sequences` of them.

    Args:
      texts: each byte of them is a character.
      length: characters of a sequence, at least 1; the last id of a piece has none that follows.
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
    """int64[texts]: the number of sequences that `character_sequences` makes of each text.

    Args:
      lengths: int64[texts], in bytes.
      length: as there.
    """
    return -(-(lengths + 2) // (length + 1))


def shown(symbol: bytes) -> str:
    """A symbol for messages, on one line.

    Args:
      symbol: bytes from a file.
    """
    return repr(printable(symbol.decode(errors="backslashreplace"), 50))
