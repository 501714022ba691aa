"""Reader of the files that the scripts of LEAF write."""

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from fedjax_algos.core.files import (
    FileError,
    PathLike,
    check_array_bytes,
    max_text_bytes,
    open_regular,
    reading,
)
from fedjax_algos.core.limits import readable_bytes
from fedjax_algos.core.options import Count
from fedjax_algos.core.reprs import printable
from fedjax_algos.data.dataset import Dataset, checked_labels, from_arrays
from fedjax_algos.data.readers.client_files.texts import SYMBOLS, encode
from fedjax_algos.data.registry import datasets

WINDOW = 80  # characters of a shakespeare sample
TEXT_FIELD = 4  # index of the text in a sample of sent140
Columns = tuple[np.ndarray, ...]  # the samples of one client or of all; the labels [n] are last
Convert = Callable[[list, list, str], Columns]  # a client's "x", "y" and its name for messages

_FIX = "run LEAF's script again"
_MAX_DEPTH = 64  # of lists and objects within each other
# A string, up to its end or that of the chunk, where half an escape may stand.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+("|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


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

    The files are parsed as a stream, one client at a time, and only arrays are kept. "x" is

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

    Raises:
      ValueError: if ijson is not installed, or a file is missing, damaged, not of the task or too
        large for the memory; if a client is in the files twice.

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
    train, users = _collect(Path(path, "train"), convert, numbers, max_clients)
    test_numbers = numbers.copy() if max_clients else {}
    test, _ = _collect(Path(path, "test"), convert, test_numbers, max_clients)
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
    folder: Path, convert: Convert, numbers: dict[str, int], max_clients: int | None
) -> tuple[Columns, np.ndarray]:
    """The columns of all clients, concatenated, and the client number of each row, int32[n].

    New names receive the next numbers, and are left out if there are `max_clients` already.
    """
    parts, users = [], []
    for file, name, x, y in _clients(folder):
        full = max_clients is not None and len(numbers) >= max_clients
        if not y or (full and name not in numbers):  # LEAF also lists clients without samples
            continue
        parts.append(convert(x, y, printable(f"{file}: client {name!r}")))
        users.append(np.full(len(y), numbers.setdefault(name, len(numbers)), np.int32))
    if not parts:
        raise ValueError(f"{folder}: none of the clients has a sample; run LEAF's script again")
    return tuple(map(np.concatenate, zip(*parts, strict=True))), np.concatenate(users)


def _pixels(x: list, y: list, source: str, invert: bool) -> Columns:
    pixels = 255.0 * _numbers(x, source)
    if pixels.shape != (len(x), 28 * 28):
        raise ValueError(f"{source} has images {list(pixels.shape[1:])}; femnist has [784] pixels")
    whole = np.rint(pixels)
    valid = (whole >= 0) & (whole <= 255) & (np.abs(pixels - whole) <= 0.01)
    if not valid.all():
        raise ValueError(
            f"{source}, sample {valid.all(axis=1).argmin()} has pixels that are not k/255 for "
            "k = 0..255; is it femnist?"
        )
    whole = 255 - whole if invert else whole
    return whole.astype(np.uint8).reshape(-1, 28, 28), checked_labels(
        _numbers(y, source), len(x), 62, source
    )


def _codes(x: list, y: list, source: str, symbols: str) -> Columns:
    for sample, texts in enumerate(zip(x, y, strict=True)):
        if not all(isinstance(text, str) for text in texts) or [*map(len, texts)] != [WINDOW, 1]:
            raise ValueError(
                f"{source}, sample {sample} is not a text of {WINDOW} characters and the next one; "
                "is it shakespeare?"
            )
    codes, next_codes = (encode("".join(part), symbols, source) for part in (x, y))
    return codes.reshape(-1, WINDOW), next_codes


def _tokens(x: list, y: list, source: str, vocabulary: dict[str, int]) -> Columns:
    """Word ids, int32[words of all samples]; number of words of each sample, int32[n]; labels.

    New words are added to the vocabulary.
    """
    tokens, counts = [], []
    for sample, row in enumerate(x):
        if not (isinstance(row, list) and len(row) > TEXT_FIELD and isinstance(row[4], str)):
            raise ValueError(
                f"{source}, sample {sample} has no text as field {TEXT_FIELD}; is it sent140?"
            )
        words = list(filter(None, row[TEXT_FIELD].split(" ")))
        counts.append(len(words))
        tokens += [vocabulary.setdefault(word, len(vocabulary)) for word in words]
    return (
        np.array(tokens, np.int32),
        np.array(counts, np.int32),
        _labels(y, 2, source),
    )


def _numbers(values: list, source: str) -> np.ndarray:
    """The values as an array, of which the first axis is that of the samples."""
    try:
        numbers = np.array(values)
    except (ValueError, TypeError, OverflowError):  # samples of several lengths, or too deep
        numbers = np.array([None])
    if numbers.dtype.kind not in "iuf":
        raise FileError(f"{source} has samples that are no numbers, or of several lengths; {_FIX}")
    return numbers


def _labels(y: list, num_classes: int, source: str) -> np.ndarray:
    return checked_labels(_numbers(y, source), len(y), num_classes, source)


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


class _Stream:
    """A file of JSON that bounds what is parsed as a whole: its bytes, and its depth.

    The time of ijson grows with the square of the depth.
    """

    def __init__(self, file: BinaryIO):
        self._file, self._limit = file, max_text_bytes()
        self.size = 0  # bytes since the last client
        self._depth, self._open = 0, b""  # the beginning of a string that goes on

    def read(self, size: int = -1) -> bytes:
        """Reads on; raises ValueError for what is too deep or too large."""
        chunk = self._file.read(size)
        self.size += len(chunk)
        if self.size > self._limit:
            raise ValueError(
                f"a client, or what stands before the clients, has more than "
                f"{readable_bytes(self._limit)}"
            )
        outside = _STRING.sub(rb'"\1', self._open + chunk)  # "" for a string, " if it has no end
        is_open = outside.count(b'"') % 2
        self._open = b'"' * is_open + b"\\" * (is_open and outside.endswith(b"\\"))
        brackets = np.frombuffer(outside.translate(None, _NO_BRACKETS), np.uint8)
        opens = (brackets == ord("[")) | (brackets == ord("{"))
        depths = self._depth + np.cumsum(np.where(opens, 1, -1))
        if depths.max(initial=0) > _MAX_DEPTH:
            raise ValueError(f"it has more than {_MAX_DEPTH} lists or objects within each other")
        self._depth = int(depths[-1]) if len(depths) else self._depth
        return chunk


def _clients(folder: Path) -> Iterator[tuple[Path, str, list, list]]:
    """File, name, "x" and "y" of each client of all files, in the order of the files."""
    try:
        import ijson
    except ImportError as error:
        raise ValueError("leaf needs the package ijson; run: pip install ijson") from error
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ValueError(f"{folder}: has no .json file; give the folder that holds train and test")
    seen: set[str] = set()
    for file in files:
        with reading(file, "a LEAF file", _FIX, ijson.JSONError), open_regular(file) as content:
            stream, before = _Stream(content), len(seen)
            for name, samples in ijson.kvitems(stream, "user_data", use_float=True):
                stream.size = 0
                x, y = (samples.get(k) if isinstance(samples, dict) else None for k in "xy")
                if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y)):
                    raise ValueError(f'client {name!r} has no lists "x" and "y" of one length')
                if name in seen:
                    raise ValueError(f"client {name!r} is there twice")
                seen.add(name)
                yield file, name, x, y
            if len(seen) == before:
                raise ValueError('it has no client in "user_data"')
