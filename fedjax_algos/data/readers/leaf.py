"""Reader of the files that the scripts of LEAF write."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike, check_array_bytes, once, read_file, reading
from fedjax_algos.base.limits import host_memory
from fedjax_algos.core.options import Count
from fedjax_algos.data.dataset import MAX_CLASSES, Dataset, checked_labels, from_arrays
from fedjax_algos.data.federated_data import datasets
from fedjax_algos.data.readers.texts import LEAF_SYMBOLS, encode

Columns = tuple[np.ndarray, ...]  # the samples of one client or of all; the labels [n] are last
Convert = Callable[[list, list], Columns]  # of one client's "x" and "y"

_FIX = "run LEAF's script again"


@datasets.register
def leaf(
    *,
    path: PathLike,
    task: Literal["femnist", "shakespeare", "sent140", "vectors"],
    max_clients: Count | None = None,
    words: Count = 5000,
) -> Dataset:
    """A LEAF data set: a folder with train/*.json and test/*.json; users are the natural clients.

    The files are parsed one client at a time, and only arrays are kept. A file may be as large as a
    quarter of the memory. "x" is

    - femnist: uint8[n, 28, 28], the pixels times 255, which is exact; 62 classes;
    - shakespeare: uint8[n, 80], indices in LEAF's 80 symbols; the label is the next character's;
    - sent140: float32[n, words], counts of the most frequent words of the training texts, divided
      by their sum; 2 classes. Samples without any of the words are left out and counted in `notes`.
      Words are separated by blanks; among equally frequent words the first to occur come first. An
      example takes 4 bytes for each word of the vocabulary;
    - vectors: float32[n, length], as in FedProx's synthetic data; one class for each label found.

    The test set contains the test samples of all clients. Natural clients are numbered by the order
    of the file names, then by their position in the file. Notes count clients without samples and
    name files where "users" or "num_samples" disagrees with "user_data"; the latter is used.

    Args:
      path: the folder.
      task: the data set, or "vectors" for any vectors of numbers.
      max_clients: use only the first clients of the training files, at least 1; None for all.
      words: sent140: the size of the vocabulary, at least 1.

    Source: LEAF (https://github.com/TalwalkarLab/leaf). Words are found as in FedGBO's code
    (https://github.com/JedMills/FedGBO), but the empty text between two blanks is not a word.
    """
    message = f"leaf: words={words} is for task=sent140, not {task}; leave it out"
    require(task == "sent140" or words == 5000, message)
    vocabulary = dict[str, int]()
    converters: dict[str, tuple[Convert, int | None]] = {
        "femnist": (_pixels, 62),
        "shakespeare": (_codes, len(LEAF_SYMBOLS)),
        "sent140": (functools.partial(_tokens, vocabulary=vocabulary), 2),
        "vectors": (lambda x, y: (_vectors(x).astype(np.float32), _labels(y, MAX_CLASSES)), None),
    }
    convert, num_classes = converters[task]
    kind, numbers = f"samples of {task}", dict[str, int]()
    train, users, notes = _collect(Path(path, "train"), kind, convert, numbers, max_clients)
    test_numbers = numbers.copy() if max_clients else {}
    test, _, of_test = _collect(Path(path, "test"), kind, convert, test_numbers, max_clients)
    alone = len(test_numbers.keys() - numbers.keys())
    notes += of_test + (f"{alone} clients have test samples alone",) * bool(alone)
    if task == "sent140":
        counts = np.bincount(train[0], minlength=len(vocabulary))
        frequent = np.argsort(-counts, kind="stable")[: min(words, np.count_nonzero(counts))]
        ranks = np.full(len(vocabulary), -1, np.int32)  # of the most frequent words
        ranks[frequent] = np.arange(len(frequent))
        train, in_train = _bags_of_words(train, ranks)
        test, in_test = _bags_of_words(test, ranks)
        users = users[in_train]
        lost, lost_test = (len(rows) - int(rows.sum()) for rows in (in_train, in_test))
        note = f"{lost} training and {lost_test} test samples lack all {len(frequent)} words"
        notes += (f"{note} and are left out",) * bool(lost or lost_test)
    arrays: Any = *train, *test, users
    return from_arrays(*arrays, num_classes=num_classes, notes=notes, source=path)


def _collect(
    folder: Path, kind: str, convert: Convert, numbers: dict[str, int], max_clients: int | None
) -> tuple[Columns, np.ndarray, tuple[str, ...]]:
    """Concatenates the clients' columns; also returns each row's client, int32[n], and notes."""
    parts, users, seen, notes, empty = list[Columns](), list[np.ndarray](), set[str](), [], 0
    converted = functools.partial(_converted, convert)
    with reading(folder, "a folder of LEAF", _FIX):
        for file in sorted(folder.glob("*.json")):
            with reading(file, "a LEAF file", _FIX):
                text = read_file(file, host_memory() // 4).decode("utf-8-sig")
                content = json.loads(text, object_pairs_hook=converted)
                clients: Any = content.get("user_data") if isinstance(content, dict) else None
                require(clients and isinstance(clients, dict), 'it has no client in "user_data"')
                for name, columns in clients.items():
                    require(name not in seen, f"client {name!r} is there twice")
                    seen.add(name)
                    empty += columns == ()
                    full = max_clients is not None and len(numbers) >= max_clients
                    if columns == () or (full and name not in numbers):
                        continue
                    with reading(f"{file}: client {name!r}", kind, _FIX, TypeError, OverflowError):
                        if isinstance(columns, Exception):
                            raise columns
                        require(isinstance(columns, tuple), 'it has no lists "x" and "y"')
                    number, rows = numbers.setdefault(name, len(numbers)), len(columns[-1])
                    parts.append(columns)
                    users.append(np.full(rows, number, np.int32))
                sizes = {name: len(each[-1]) if each else 0 for name, each in clients.items()}
                listed = {"users": [*sizes], "num_samples": [*sizes.values()]}
                other = [key for key, value in listed.items() if content.get(key, value) != value]
                note = f"{folder.name}/{file.name}: {' and '.join(other)} and user_data differ"
                notes += [note] * bool(other)
        require(parts, "none of the clients in its .json files has a sample")
        columns = tuple(map(np.concatenate, zip(*parts, strict=True)))
    notes += [f"{empty} clients of {folder.name} have no samples"] * bool(empty)
    return columns, np.concatenate(users), tuple(notes)


def _converted(convert: Convert, pairs: list[tuple[str, Any]]) -> Any:
    """Converts a client's JSON object to columns (() if empty) or an error; keeps other objects."""
    values = once(pairs)
    x, y = values.get("x"), values.get("y")
    if not (isinstance(x, list) and isinstance(y, list)):
        return values
    try:
        require(len(x) == len(y), 'its lists "x" and "y" have different lengths')
        return convert(x, y) if y else ()  # LEAF also lists empty clients
    except (ValueError, TypeError, OverflowError) as error:  # the last two are NumPy's
        return error


def _pixels(x: list, y: list) -> Columns:
    pixels = 255.0 * _vectors(x)
    whole = np.rint(pixels)
    valid = (whole >= 0) & (whole <= 255) & (np.abs(pixels - whole) <= 0.01)
    bad = valid.all(axis=1).argmin()
    require(valid.all(), f"sample {bad} has pixels that are not k/255 for k = 0..255")
    return whole.astype(np.uint8).reshape(len(y), 28, 28), _labels(y, 62)


def _codes(x: list, y: list) -> Columns:
    for sample, texts in enumerate(zip(x, y, strict=True)):
        fits = all(isinstance(text, str) for text in texts) and [*map(len, texts)] == [80, 1]
        require(fits, f"sample {sample} is not a text of 80 characters and the next one")
    codes, next_codes = (encode("".join(part), LEAF_SYMBOLS) for part in (x, y))
    return codes.reshape(-1, 80), next_codes


def _tokens(x: list, y: list, vocabulary: dict[str, int]) -> Columns:
    """Returns int32[words of all samples] ids, each sample's words int32[n], and labels."""
    tokens, counts = [], []
    for sample, row in enumerate(x):
        fits = isinstance(row, list) and len(row) > 4 and isinstance(row[4], str)
        require(fits, f"sample {sample} has no text as field 4")
        words = list(filter(None, row[4].split(" ")))
        counts.append(len(words))
        tokens += [vocabulary.setdefault(word, len(vocabulary)) for word in words]
    return np.array(tokens, np.int32), np.array(counts, np.int32), _labels(y, 2)


def _vectors(values: list) -> np.ndarray:
    """Returns the values as an array [samples, length]."""
    vectors = np.array(values)
    fits = vectors.ndim == 2 and vectors.dtype.kind in "iuf"
    require(fits, f"samples are {vectors.dtype}{list(vectors.shape)}, not vectors of numbers")
    return vectors


def _labels(y: list, num_classes: int) -> np.ndarray:
    return checked_labels(np.array(y), len(y), num_classes, "y")


def _bags_of_words(columns: Columns, ranks: np.ndarray) -> tuple[Columns, np.ndarray]:
    """Normalises word counts; returns the samples with a ranked word and bool[n], their mask."""
    tokens, counts, labels = columns
    rows, words = np.repeat(np.arange(len(counts)), counts), ranks[tokens]
    rows, words = rows[words >= 0], words[words >= 0]
    totals = np.bincount(rows, minlength=len(counts))
    has_word = totals > 0
    shape = int(has_word.sum()), int(ranks.max(initial=-1)) + 1
    what = f"{shape[0]} samples of {shape[1]} words"
    check_array_bytes(what, 4 * shape[0] * shape[1], "give fewer words")
    x = np.zeros(shape, np.float32)
    np.add.at(x, ((np.cumsum(has_word) - 1)[rows], words), 1)
    x /= totals[has_word, None].astype(np.float32)
    return (x, labels[has_word]), has_word
