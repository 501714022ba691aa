"""Reader of text by speaker, and the alphabets of texts."""

import gzip
import io
import os
import re
import string
import zlib
from typing import Literal, TypeAlias

import numpy as np

from fedjax_algos.core.files import (
    PathLike,
    check_array_bytes,
    max_text_bytes,
    parse_json,
    read_bounded,
    read_file,
    reading,
)
from fedjax_algos.core.options import Count, Proportion
from fedjax_algos.data.dataset import Dataset, from_arrays
from fedjax_algos.data.registry import datasets

# The 80 symbols of LEAF's Shakespeare, in the order of their code points.
LEAF_SYMBOLS = (
    "\n !\"&'(),-." + string.digits + ":;>?" + string.ascii_uppercase + "[]"
) + f"{string.ascii_lowercase}}}"
SYMBOLS = {"leaf": LEAF_SYMBOLS, "no_newline": LEAF_SYMBOLS[1:]}

Alphabet: TypeAlias = Literal["leaf", "no_newline", "found"]


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

    Raises:
      ValueError: if the file is missing, damaged or too large, if it has a role twice or characters
        outside of the alphabet, or if the windows do not fit into memory.

    Source: LEAF (https://github.com/TalwalkarLab/leaf), data/shakespeare and data/utils. As in
    LEAF, at stride 1 the last training label is the first character of the first test window. LEAF
    has no stride, no maximum number of examples, and no choice of alphabet.
    """
    name = os.fspath(path)
    content = _roles_of(path)
    long = {r: text for r, text in content.items() if text.count("\n") + 1 >= min_lines}
    texts = [re.sub(" {2,}", " ", text.replace("\n", " ")) for text in long.values()]
    counts = [max(0, 1 + (len(text) - 1 - window) // stride) for text in texts]
    counts = [min(count, max_examples_per_role or count) for count in counts]
    chosen = [(text, count) for text, count in zip(texts, counts, strict=True) if count >= 2]
    if not chosen:
        raise ValueError(
            f"{name}: no role has {min_lines} lines and 2 windows of {window} characters; lower "
            "min_lines, window or stride"
        )
    symbols = SYMBOLS.get(alphabet) or "".join(sorted(set().union(*(text for text, _ in chosen))))
    spans = [_split(count, train_fraction, window, stride) for _, count in chosen]
    if not any(stop > start for _, start, stop in spans):
        raise ValueError(
            f"{name}: no role is long enough for a test window; lower train_fraction or raise "
            "max_examples_per_role"
        )
    windows = sum(stop + count - start for stop, start, count in spans)
    check_array_bytes(
        f"{name}: {windows} windows of {window} characters", windows * window, "raise stride"
    )
    codes = [encode(text, symbols, name) for text, _ in chosen]
    train = _cut(codes, [(0, stop) for stop, _, _ in spans], window, stride)
    test = _cut(codes, [(start, stop) for _, start, stop in spans], window, stride)
    users = np.repeat(np.arange(len(chosen), dtype=np.int32), [stop for stop, _, _ in spans])
    left_out = len(content) - len(chosen)
    notes = (f"{left_out} of {len(content)} roles are too short and left out",) * (left_out > 0)
    return from_arrays(*train, *test, users, num_classes=len(symbols), notes=notes, source=name)


def encode(text: str, symbols: str, source: str) -> np.ndarray:
    """uint8[characters]: the index of each character in `symbols`.

    Args:
      text: the characters.
      symbols: at most 256 symbols, in the order of their code points.
      source: the name of the text in error messages.

    Raises:
      ValueError: for a character that is not in `symbols`, or more than 256 symbols.
    """
    if len(symbols) > 256:
        raise ValueError(f"{source}: has {len(symbols)} symbols; give a text of at most 256")
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    table = np.array([ord(symbol) for symbol in symbols], np.uint32)
    codes = np.minimum(np.searchsorted(table, points), len(table) - 1)
    unknown = np.flatnonzero(table[codes] != points)
    if len(unknown):
        raise ValueError(
            f"{source}: the character {text[unknown[0]]!r} is not among the {len(symbols)} "
            "symbols; replace it or choose another alphabet"
        )
    return codes.astype(np.uint8)


def _roles_of(path: PathLike) -> dict[str, str]:
    fix = 'write an object {"ROLE": "line\\nline"} as UTF-8, or fetch the file again'
    with reading(path, "a JSON file of roles", fix, zlib.error):
        content = read_file(path)
        if content[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacked:
                content = read_bounded(unpacked, max_text_bytes())
        texts = parse_json(content)
        if not isinstance(texts, dict) or not all(isinstance(v, str) for v in texts.values()):
            raise ValueError("it is not an object of strings")
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
