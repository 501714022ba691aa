"""The JSON files of LEAF, read as a stream with one client at a time, and checked."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedjax_algos.core.files import max_text_bytes, open_regular, reading
from fedjax_algos.core.limits import readable_bytes
from fedjax_algos.core.texts import printable

_FIX = "run LEAF's script again"
_MAX_DEPTH = 64  # of lists and objects within each other
# A string, up to its end or that of the chunk, where half an escape may stand.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+("|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


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


class _Object(dict):
    """An object of JSON, which remembers a key that it has twice.

    It does not raise, because ijson's parser in C does not survive that.
    """

    twice: str | None = None

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self:
            self.twice = key
        super().__setitem__(key, value)


def clients(folder: Path) -> Iterator[tuple[Path, str, list, list]]:
    """File, name, "x" and "y" of each client of all files, in the order of the files' names.

    Args:
      folder: with files of LEAF.

    Raises:
      ValueError: if ijson is not installed, if there are no files, or if one is damaged, too large
        or too deep, names a client twice, or contradicts its own `users` or `num_samples`.
    """
    try:
        import ijson
    except ImportError as error:
        raise ValueError("leaf needs the package ijson; run: pip install ijson") from error
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ValueError(f"{folder}: has no .json file; give the folder that holds train and test")
    seen: dict[str, Path] = {}
    for file in files:
        with reading(file, "a LEAF file", _FIX, ijson.JSONError), open_regular(file) as content:
            counts = _counts(content)
            stream = _Stream(content)
            entries = ijson.kvitems(stream, "user_data", use_float=True, map_type=_Object)
            for name, samples in entries:
                stream.size = 0
                if name in seen:
                    where = f", first in {seen[name]}" if seen[name] != file else ""
                    raise ValueError(f"client {name!r} is in it twice{where}")
                seen[name] = file
                x, y = _samples(samples, f"client {name!r}")
                said = f"says {printable(counts[name], 50)}" if name in counts else "has no entry"
                if counts.pop(name, None) != len(y):
                    raise ValueError(
                        f"client {name!r} has {len(y)} samples, but num_samples {said}"
                    )
                yield file, name, x, y
            if counts:
                raise ValueError(f'client {next(iter(counts))!r} of "users" has no "user_data"')


def _counts(content: BinaryIO) -> dict[str, Any]:
    """What a file says about the number of samples of each client, by name."""
    import ijson

    def entries(key: str) -> list:
        content.seek(0)
        found = next(ijson.items(_Stream(content), key), None)
        content.seek(0)
        if not isinstance(found, list) or not found:
            raise ValueError(f'it has no list "{key}" with an entry for each client')
        return found

    users, numbers = entries("users"), entries("num_samples")
    if len(users) != len(numbers):
        raise ValueError(f"it has {len(users)} users and {len(numbers)} num_samples")
    counts: dict[str, Any] = {}
    for user, number in zip(users, numbers, strict=True):
        if not isinstance(user, str):
            raise ValueError(f'"users" has {user!r}, which is not a name')
        if user in counts:
            raise ValueError(f'client {user!r} is in "users" twice')
        counts[user] = number
    return counts


def _samples(samples: Any, source: str) -> tuple[list, list]:
    x, y = (samples.get(k) if isinstance(samples, dict) else None for k in "xy")
    if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y)):
        raise ValueError(f'{source} has no lists "x" and "y" of one length')
    if samples.twice is not None:
        raise ValueError(f"{source} has the key {samples.twice!r} twice")
    return x, y
