"""Reader of the files that the scripts of LEAF write."""

import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_algos.core.files import (
    PathLike,
    check_array_bytes,
    once,
    read_file,
    reading,
    require,
)
from fedjax_algos.core.limits import host_memory
from fedjax_algos.core.options import Count
from fedjax_algos.data.dataset import Dataset, checked_labels, from_arrays
from fedjax_algos.data.readers.client_files.texts import SYMBOLS, encode
from fedjax_algos.data.registry import datasets

WINDOW = 80  # characters of a shakespeare sample
TEXT_FIELD = 4  # index of the text in a sample of sent140
Columns = tuple[np.ndarray, ...]  # the samples of one client or of all; the labels [n] are last
Convert = Callable[[list, list], Columns]  # of a client's "x" and "y"

_FIX = "run LEAF's script again"
_BLANKS = re.compile(r"[ \t\n\r]*")


@datasets.register
def leaf(
    *,
    path: PathLike,
    task: Literal["femnist", "shakespeare", "sent140"],
    max_clients: Count | None = None,
    invert: bool = False,
    alphabet: Literal["leaf", "no_newline"] = "leaf",
    words: Count = 5000,
) -> Dataset:
    """A LEAF data set: a folder with train/*.json and test/*.json; users are the natural clients.

    The files are parsed one client at a time, and only arrays are kept; a file may be a quarter as
    large as the memory. "x" is

    - femnist: uint8[n, 28, 28], the pixels times 255, which is exact; 62 classes;
    - shakespeare: uint8[n, 80], the indices of the characters in LEAF's 80 symbols; the label is
      the index of the next character;
    - sent140: float32[n, words], counts of the most frequent words of the training texts, divided
      by their sum; 2 classes. Samples without any of the words are left out and counted in `notes`.
      Words are separated by blanks; among equally frequent words the first to occur come first. An
      example takes 4 bytes for each word of the vocabulary.

    The test set contains the test samples of all clients. Natural clients are numbered in the order
    of the file names and of their position in the file.

    Args:
      path: the folder.
      task: which data set it is.
      max_clients: use only this number of clients, the first of the training files, at least 1;
        None for all.
      invert: femnist: store 255 minus the pixels, so that the background is 0.
      alphabet: shakespeare: "no_newline" omits the line break, which no window contains.
      words: sent140: the size of the vocabulary, at least 1.

    Source: LEAF (https://github.com/TalwalkarLab/leaf); the words as in FedGBO's code
    (https://github.com/JedMills/FedGBO), but the empty text between two blanks is not a word.
    """
    for owner, name, is_set in (
        ("femnist", "invert", invert),
        ("shakespeare", "alphabet", alphabet != "leaf"),
        ("sent140", "words", words != 5000),
    ):
        if is_set and task != owner:
            raise ValueError(f"leaf: {name} is for task={owner}, not {task}; leave it out")
    symbols, vocabulary = SYMBOLS[alphabet], dict[str, int]()
    converters: dict[str, tuple[Convert, int]] = {
        "femnist": (functools.partial(_pixels, invert=invert), 62),
        "shakespeare": (functools.partial(_codes, symbols=symbols), len(symbols)),
        "sent140": (functools.partial(_tokens, vocabulary=vocabulary), 2),
    }
    convert, num_classes = converters[task]
    numbers: dict[str, int] = {}
    kind = f"samples of {task}"
    train, users = _collect(Path(path, "train"), kind, convert, numbers, max_clients)
    test_numbers = numbers.copy() if max_clients else {}
    test, _ = _collect(Path(path, "test"), kind, convert, test_numbers, max_clients)
    notes: tuple[str, ...] = ()
    if task == "sent140":
        ranks = _ranks(train[0], len(vocabulary), words)
        train, in_train = _bags_of_words(train, ranks)
        test, in_test = _bags_of_words(test, ranks)
        users = users[in_train]
        lost, lost_test = (len(rows) - int(rows.sum()) for rows in (in_train, in_test))
        if lost or lost_test:
            notes = (
                f"{lost} training and {lost_test} test samples contain none of the "
                f"{ranks.max(initial=-1) + 1} words and are left out",
            )
    (x, y), (x_test, y_test) = train, test
    return from_arrays(
        x, y, x_test, y_test, users, num_classes=num_classes, notes=notes, source=path
    )


def _collect(
    folder: Path, kind: str, convert: Convert, numbers: dict[str, int], max_clients: int | None
) -> tuple[Columns, np.ndarray]:
    """The columns of all clients, concatenated, and the client number of each row, int32[n].

    New names receive the next numbers, and are left out if there are `max_clients` already.
    """
    parts: list[Columns] = []
    users: list[np.ndarray] = []
    seen: set[str] = set()
    with reading(folder, "a folder of LEAF", _FIX):
        files = sorted(folder.glob("*.json"))
        require(files, "it has no .json file, as the folders train and test have")
        for file in files:
            with reading(file, "a LEAF file", _FIX):
                before = len(seen)
                for name, x, y in _clients(_Text(read_file(file, host_memory() // 4))):
                    require(name not in seen, f"client {name!r} is there twice")
                    seen.add(name)
                    full = max_clients is not None and len(numbers) >= max_clients
                    if not y or (full and name not in numbers):  # LEAF lists empty clients, too
                        continue
                    with reading(f"{file}: client {name!r}", kind, _FIX):
                        parts.append(convert(x, y))
                    users.append(np.full(len(y), numbers.setdefault(name, len(numbers)), np.int32))
                require(len(seen) > before, 'it has no client in "user_data"')
        require(parts, "none of the clients has a sample")
    return tuple(map(np.concatenate, zip(*parts, strict=True))), np.concatenate(users)


class _Text:
    """A text of JSON that is parsed value by value; ValueError for what is not JSON."""

    def __init__(self, content: bytes):
        self._text, self._at = content.decode("utf-8-sig"), 0
        self._decoder = json.JSONDecoder(object_pairs_hook=once)

    def value(self) -> Any:
        """The next value; an object with a key twice is a ValueError."""
        self._next()
        value, self._at = self._decoder.raw_decode(self._text, self._at)
        return value

    def members(self) -> Iterator[str]:
        """The keys of the next object, of which the caller takes each value; none is compared."""
        self._take("{")
        more = self._next() != "}"
        while more:
            key = self.value()
            require(isinstance(key, str), f"it has the key {key!r}, which is no text")
            self._take(":")
            yield key
            more = self._next() == ","
            self._at += more
        self._take("}")

    def end(self) -> None:
        """Raises ValueError if more follows."""
        require(not self._next(), "more follows where it ends")

    def _next(self) -> str:
        """The next character that is no blank; nothing at the end."""
        blanks = _BLANKS.match(self._text, self._at)
        self._at = blanks.end() if blanks else self._at
        return self._text[self._at : self._at + 1]

    def _take(self, character: str) -> None:
        found = self._next()
        require(found == character, f"it has {found!r} where {character!r} should be")
        self._at += 1


def _clients(text: _Text) -> Iterator[tuple[str, list, list]]:
    """Name, "x" and "y" of each client of a file."""
    for key in text.members():
        if key != "user_data":
            text.value()
            continue
        for name in text.members():
            samples: Any = text.value()
            samples = samples if isinstance(samples, dict) else {}
            x, y = samples.get("x"), samples.get("y")
            lists = isinstance(x, list) and isinstance(y, list) and len(x) == len(y)
            require(lists, f'client {name!r} has no lists "x" and "y" of one length')
            yield name, x, y
    text.end()


def _pixels(x: list, y: list, invert: bool) -> Columns:
    pixels = 255.0 * _numbers(x)
    require(pixels.shape[1:] == (28 * 28,), f"images are {list(pixels.shape[1:])}, not [784]")
    whole = np.rint(pixels)
    valid = (whole >= 0) & (whole <= 255) & (np.abs(pixels - whole) <= 0.01)
    bad = valid.all(axis=1).argmin()
    require(valid.all(), f"sample {bad} has pixels that are not k/255 for k = 0..255")
    whole = 255 - whole if invert else whole
    return whole.astype(np.uint8).reshape(-1, 28, 28), _labels(y, 62)


def _codes(x: list, y: list, symbols: str) -> Columns:
    for sample, texts in enumerate(zip(x, y, strict=True)):
        fits = all(isinstance(text, str) for text in texts) and [*map(len, texts)] == [WINDOW, 1]
        require(fits, f"sample {sample} is not a text of {WINDOW} characters and the next one")
    codes, next_codes = (encode("".join(part), symbols) for part in (x, y))
    return codes.reshape(-1, WINDOW), next_codes


def _tokens(x: list, y: list, vocabulary: dict[str, int]) -> Columns:
    """Word ids, int32[words of all samples]; number of words of each sample, int32[n]; labels.

    New words are added to the vocabulary.
    """
    tokens, counts = [], []
    for sample, row in enumerate(x):
        fits = isinstance(row, list) and len(row) > TEXT_FIELD and isinstance(row[TEXT_FIELD], str)
        require(fits, f"sample {sample} has no text as field {TEXT_FIELD}")
        words = list(filter(None, row[TEXT_FIELD].split(" ")))
        counts.append(len(words))
        tokens += [vocabulary.setdefault(word, len(vocabulary)) for word in words]
    return np.array(tokens, np.int32), np.array(counts, np.int32), _labels(y, 2)


def _numbers(values: list) -> np.ndarray:
    """The values as an array, of which the first axis is that of the samples."""
    try:
        numbers = np.array(values)
    except (ValueError, TypeError, OverflowError):  # samples of several lengths, or too deep
        numbers = np.array([None])
    require(numbers.dtype.kind in "iuf", "samples are no numbers, or of several lengths")
    return numbers


def _labels(y: list, num_classes: int) -> np.ndarray:
    return checked_labels(_numbers(y), len(y), num_classes, "y")


def _ranks(tokens: np.ndarray, distinct: int, words: int) -> np.ndarray:
    """int32[distinct]: the rank of each word among the most frequent tokens, -1 for all others."""
    counts = np.bincount(tokens, minlength=distinct)
    most_frequent = np.argsort(-counts, kind="stable")[: min(words, np.count_nonzero(counts))]
    ranks = np.full(distinct, -1, np.int32)
    ranks[most_frequent] = np.arange(len(most_frequent))
    return ranks


def _bags_of_words(columns: Columns, ranks: np.ndarray) -> tuple[Columns, np.ndarray]:
    """Normalised counts and labels of the samples with a ranked word; bool[n]: which these are."""
    tokens, counts, labels = columns
    rows, words = np.repeat(np.arange(len(counts)), counts), ranks[tokens]
    rows, words = rows[words >= 0], words[words >= 0]
    totals = np.bincount(rows, minlength=len(counts))
    has_word = totals > 0
    shape = int(has_word.sum()), int(ranks.max(initial=-1)) + 1
    check_array_bytes(
        f"{shape[0]} samples of {shape[1]} words", 4 * shape[0] * shape[1], "give fewer words"
    )
    x = np.zeros(shape, np.float32)
    np.add.at(x, ((np.cumsum(has_word) - 1)[rows], words), 1)
    x /= totals[has_word, None].astype(np.float32)
    return (x, labels[has_word]), has_word
