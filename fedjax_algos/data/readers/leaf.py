"""Reader of the files that LEAF's scripts write."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_algos.data.dataset import Count, Dataset, PathLike, datasets, from_arrays, reading
from fedjax_algos.data.readers.text import SYMBOLS, encode

WINDOW = 80
TEXT_FIELD = 4  # of a sample of sent140
Columns = tuple[np.ndarray, ...]  # one client's or all clients' samples; the labels [n] are last
Convert = Callable[[list, list, str], Columns]  # a client's "x", "y" and how messages name them


@datasets
def leaf(
    *,
    path: PathLike,
    task: Literal["femnist", "shakespeare", "sent140"],
    max_clients: Count | None = None,
    invert: bool = False,
    alphabet: Literal["leaf", "no_newline"] = "leaf",
    words: Count = 5000,
) -> Dataset:
    """A LEAF data set: a folder with train/*.json and test/*.json, where each user is a client.

    The files are parsed as a stream, one client at a time, and kept as arrays only. "x" is

    - femnist: uint8[n, 28, 28], the pixels times 255, which loses nothing; 62 classes;
    - shakespeare: uint8[n, 80], the characters' places in LEAF's 80 symbols; the label is the next
      character's;
    - sent140: float32[n, words], counts of the most frequent words of the training texts, divided
      by their sum; 2 classes. Samples without any of the words are left out, as `notes` says.
      Words are what blanks separate; of equally frequent ones the first to occur go first. An
      example takes 4 bytes a word.

    The test set is that of all clients. Users are numbered in the order of the files' names and,
    inside, of the file.

    Args:
      path: the folder.
      task: which data set it is.
      max_clients: only the first so many clients of the training files, and their test samples.
      invert: femnist: 255 minus the pixels, so that the background is 0.
      alphabet: shakespeare: "no_newline" leaves the line break out, which no window has.
      words: sent140: the size of the vocabulary.

    Raises:
      ValueError: if ijson is not installed, or a file is missing, damaged or not of the task.

    Source: LEAF (https://github.com/TalwalkarLab/leaf); the words as in FedGBO's code
    (https://github.com/JedMills/FedGBO), except that nothing between two blanks is no word.
    """
    for owner, name, foreign in (
        ("femnist", "invert", invert),
        ("shakespeare", "alphabet", alphabet != "leaf"),
        ("sent140", "words", words != 5000),
    ):
        if foreign and task != owner:
            raise ValueError(f"leaf: {name} is for task={owner}, not {task}; leave it out")
    vocabulary: dict[str, int] = {}
    symbols = SYMBOLS[alphabet]
    convert: Convert = _pixels
    convert_test: Convert = _pixels
    num_classes = 62
    if task == "shakespeare":
        convert = convert_test = functools.partial(_codes, symbols=symbols)
        num_classes = len(symbols)
    elif task == "sent140":
        convert = functools.partial(_tokens, vocabulary=vocabulary, learn=True)
        convert_test = functools.partial(_tokens, vocabulary=vocabulary, learn=False)
        num_classes = 2
    numbers: dict[str, int] = {}
    train, users = _collect(Path(path, "train"), convert, numbers, max_clients)
    known = numbers.copy() if max_clients else {}
    test, _ = _collect(Path(path, "test"), convert_test, known, max_clients)
    notes: tuple[str, ...] = ()
    if task == "sent140":
        places = _places(train[0], len(vocabulary), words)
        train, kept = _bags(train, places)
        test, kept_test = _bags(test, places)
        users = users[kept]
        lost, lost_test = (len(k) - int(k.sum()) for k in (kept, kept_test))
        if lost or lost_test:
            notes = (
                f"{lost} training and {lost_test} test samples hold none of the {places.max() + 1} "
                "words and are left out",
            )
    for pixels in (train[0], test[0]) if invert else ():
        np.subtract(255, pixels, out=pixels)
    (x, y), (x_test, y_test) = train, test
    return from_arrays(
        x, y, x_test, y_test, users, num_classes=num_classes, notes=notes, source=path
    )


def _collect(
    folder: Path, convert: Convert, numbers: dict[str, int], max_clients: int | None
) -> tuple[Columns, np.ndarray]:
    """All clients' columns, joined, and int32[n] of their numbers.

    Gives new names the next numbers, and leaves them out where there are `max_clients` already.
    """
    parts, users = [], []
    for file, name, x, y in _clients(folder):
        full = max_clients is not None and len(numbers) >= max_clients
        if not y or (full and name not in numbers):  # LEAF names clients without samples too
            continue
        parts.append(convert(x, y, f"{file}: client {name!r}"))
        users.append(np.full(len(y), numbers.setdefault(name, len(numbers)), np.int32))
    if not parts:
        raise ValueError(f"{folder}: none of the clients has a sample; run LEAF's script again")
    return tuple(map(np.concatenate, zip(*parts, strict=True))), np.concatenate(users)


def _clients(folder: Path) -> Iterator[tuple[Path, str, list, list]]:
    """File, name, "x" and "y" of each client, with only one of them in memory."""
    try:
        import ijson
    except ImportError as error:
        raise ValueError("leaf needs the package ijson; run: pip install ijson") from error
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ValueError(f"{folder}: has no .json file; give the folder that holds train and test")
    fix = "run LEAF's script again"
    for file in files:
        entries = 0
        with reading(file, fix, ijson.JSONError), open(file, "rb") as content:
            for name, samples in ijson.kvitems(content, "user_data", use_float=True):
                entries += 1
                yield (file, name, *_samples(samples, f"client {name!r}"))
            if not entries:
                raise ValueError('it has no clients in "user_data"')


def _samples(samples: Any, source: str) -> tuple[list, list]:
    x, y = (samples.get(k) if isinstance(samples, dict) else None for k in "xy")
    if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y)):
        raise ValueError(f'{source} has no lists "x" and "y" of one length')
    return x, y


def _pixels(x: list, y: list, source: str) -> Columns:
    pixels = 255 * _numbers(x, source)
    if pixels.shape != (len(x), 28 * 28):
        raise ValueError(f"{source} has images {list(pixels.shape[1:])}; femnist has [784] pixels")
    whole = np.rint(pixels)
    if whole.min() < 0 or whole.max() > 255 or np.abs(pixels - whole).max() > 0.01:
        raise ValueError(f"{source} has pixels that are no 255ths of 0 to 1; is it femnist?")
    return whole.astype(np.uint8).reshape(-1, 28, 28), _numbers(y, source)


def _codes(x: list, y: list, source: str, symbols: str) -> Columns:
    windows = all(isinstance(text, str) and len(text) == WINDOW for text in x)
    if not (windows and all(isinstance(text, str) and len(text) == 1 for text in y)):
        raise ValueError(
            f"{source} has other samples than texts of {WINDOW} characters with the next one; is "
            "it shakespeare?"
        )
    codes, next_codes = (encode("".join(part), symbols, source) for part in (x, y))
    return codes.reshape(-1, WINDOW), next_codes


def _tokens(
    x: list, y: list, source: str, vocabulary: dict[str, int], learn: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Words' numbers, int32[words of all samples]; words of each sample, int32[n]; labels."""
    tokens, counts = [], []
    for row in x:
        if not (isinstance(row, list) and len(row) > TEXT_FIELD and isinstance(row[4], str)):
            raise ValueError(
                f"{source} has a sample without a text as field {TEXT_FIELD}; is it sent140?"
            )
        found = list(filter(None, row[TEXT_FIELD].split(" ")))
        counts.append(len(found))
        if learn:
            tokens += [vocabulary.setdefault(word, len(vocabulary)) for word in found]
        else:
            tokens += [vocabulary.get(word, len(vocabulary)) for word in found]
    return np.array(tokens, np.int32), np.array(counts, np.int32), _numbers(y, source)


def _numbers(values: list, source: str) -> np.ndarray:
    try:
        return np.array(values, np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{source} has other values than numbers, or rows of unequal length; "
            "run LEAF's script again"
        ) from error


def _places(tokens: np.ndarray, distinct: int, words: int) -> np.ndarray:
    """int32[distinct + 1]: each word's place among the most frequent, -1 for the others and, last,
    for those that the training texts do not have."""
    counts = np.bincount(tokens, minlength=distinct)
    most = np.argsort(-counts, kind="stable")[:words]
    places = np.full(distinct + 1, -1, np.int32)
    places[most] = np.arange(len(most))
    return places


def _bags(columns: Columns, places: np.ndarray) -> tuple[Columns, np.ndarray]:
    """Normalised counts and labels of the samples that hold a word, and which do, bool[n]."""
    tokens, counts, labels = columns
    rows, words = np.repeat(np.arange(len(counts)), counts), places[tokens]
    rows, words = rows[words >= 0], words[words >= 0]
    totals = np.bincount(rows, minlength=len(counts))
    kept = totals > 0
    x = np.zeros((kept.sum(), places.max() + 1), np.float32)
    np.add.at(x, ((np.cumsum(kept) - 1)[rows], words), 1)
    x /= totals[kept, None].astype(np.float32)
    return (x, labels[kept]), kept
