"""Checkpoints: what a run needs to go on in another process, bit for bit, in one file each.

A checkpoint file is whole, or is refused before anything in it is used. Its first line has the
format, the number of bytes that follow it, and their SHA-256. The second line is JSON: `facts`, and
by name of each of `arrays` its dtype, shape and first byte after this line. The rest is the bytes
of the arrays, one after another, little-endian.
"""

import functools
import hashlib
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.core import Row
from fedjax_algos.core.files import DamagedError, open_regular, writing, written
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.runs.identity import check_identity
from fedjax_algos.runs.saving.arrays import fill_state, flat_arrays, open_rows
from fedjax_algos.runs.saving.interruption import Interrupted, interruption

Content = tuple[dict[str, Any], dict[str, Any]]  # a tree of arrays, and facts of JSON
Check = Callable[[str | Path, int, Mapping[str, np.ndarray]], None]
_FIRST_LINE = "fedjax_algos checkpoint 2, {:020d} bytes, sha256 {}\n"
_PATTERN = re.compile(rb"fedjax_algos checkpoint 2, ([0-9]{20}) bytes, sha256 ([0-9a-f]{64})\n")
_SUFFIX = ".checkpoint"
_VERSIONS = ("fedjax_algos", "jax", "jaxlib")  # other versions may round differently


class Checkpoints(NamedTuple):
    """Where and how often a run is saved.

    A run that is given a folder with a checkpoint of its own goes on from there.

    Args:
      folder: the folder of one run, which is created. Nothing else may be kept in it.
      every: seconds of real time between two checkpoints, which are written at the next evaluation;
        0 writes one at each evaluation.
      keep: the number of checkpoints that are kept, the last ones.
      last: whether the end of the run is always saved. The same call then returns it at once. If
        False, the end is saved if the run was saved before.
    """

    folder: str | Path
    every: float = 300.0
    keep: int = 2
    last: bool = True


def as_checkpoints(checkpoints: Checkpoints | str | Path | None) -> Checkpoints | None:
    """The checkpoints that a folder, or `Checkpoints`, or None mean."""
    if checkpoints is None or isinstance(checkpoints, Checkpoints):
        return checkpoints
    return Checkpoints(checkpoints)


class Saved(NamedTuple):
    """The content of a checkpoint."""

    position: int  # rounds or server steps that have been made
    arrays: Mapping[str, np.ndarray]  # by path
    facts: dict[str, Any]  # such as the rows so far


class RunSaver:
    """Saves runs at their evaluations, and ends them there if a signal asks for that.

    `identity` makes the facts by which a checkpoint of other runs is recognised, values of JSON by
    name; it is called when the first checkpoint is read or written.
    """

    def __init__(
        self, checkpoints: Checkpoints | str | Path | None, identity: Callable[[], dict[str, Any]]
    ):
        self.checkpoints = checkpoints = as_checkpoints(checkpoints)
        self.identity = functools.cache(identity)
        self.position: int | None = None  # of the checkpoint that was restored or saved last
        self.saved_at = time.perf_counter()
        if checkpoints is None:
            return
        if not checkpoints.every >= 0 or checkpoints.keep < 1:
            raise ValueError(
                f"every={checkpoints.every} and keep={checkpoints.keep} are out of range; give at "
                "least 0 seconds and at least 1 checkpoint"
            )
        if jax.process_count() > 1:
            raise ValueError(
                f"checkpoints={str(checkpoints.folder)!r} need all arrays in one process, but "
                f"there are {jax.process_count()}; leave checkpoints out"
            )

    @property
    def kept(self) -> list[int]:
        """The positions of the checkpoints that there are."""
        return [] if self.checkpoints is None else positions_in(Path(self.checkpoints.folder))

    def restore(self, check: Check = lambda folder, position, arrays: None) -> Saved | None:
        """The last checkpoint that is whole, or None if there is none at all.

        `check` raises DamagedError if other files that a checkpoint needs are damaged. Raises
        ValueError if no checkpoint is whole, and OtherRunError for one of another run.
        """
        if self.checkpoints is None or not self.kept:
            return None
        folder = self.checkpoints.folder
        saved = _last_whole(folder, check)
        self.position = saved.position
        check_identity(saved.facts.pop("identity"), self.identity(), saved.position, folder)
        versions = saved.facts.pop("versions")
        if versions != _versions():
            warnings.warn(
                f"the checkpoint in {folder} was saved with {versions} and goes on with "
                f"{_versions()}, which may round differently",
                stacklevel=3,
            )
        return saved

    def after_evaluation(
        self, position: int, content: Callable[[], Content], *, last: bool
    ) -> None:
        """Saves the run if it is time to, or if a signal asks the run to end.

        `last` says whether it has reached its end, and `content` makes the arrays, a tree, and the
        facts, values of JSON by name. Raises Interrupted, after saving, if a signal asks for it.
        """
        signal_number, checkpoints = interruption(), self.checkpoints
        if checkpoints is not None:
            due = time.perf_counter() - self.saved_at >= checkpoints.every
            at_end = last and (checkpoints.last or bool(self.kept))
            if due or signal_number is not None or at_end:
                self._save(checkpoints, position, content)
        if signal_number is not None:
            raise Interrupted(signal_number)

    def _save(self, checkpoints, position, content):
        folder = Path(checkpoints.folder)
        if position == self.position:
            return
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            remove_unfinished(folder)
        tree, facts = content()
        arrays = {name: np.asarray(leaf) for name, leaf in flat_arrays(tree).items()}
        facts = {"identity": self.identity(), "versions": _versions(), **facts}
        write_checkpoint(checkpoint_path(folder, position), arrays, facts)
        self.position, self.saved_at = position, time.perf_counter()
        # later ones were damaged, as `restore` has said, and the run went on from before them
        kept = [each for each in self.kept if each <= position][-checkpoints.keep :]
        with writing(folder):
            for each in {*self.kept}.difference(kept):
                checkpoint_path(folder, each).unlink()


def _last_whole(folder: str | Path, check: Check) -> Saved:
    """The last checkpoint that is whole; a warning names those after it."""
    damaged = []
    for position in reversed(positions_in(Path(folder))):
        path = checkpoint_path(Path(folder), position)
        try:
            arrays, facts = read_checkpoint(path)
            check(folder, position, arrays)
        except DamagedError as error:
            damaged.append(str(error))
            continue
        if damaged:
            warnings.warn(
                f"{'; '.join(damaged)}; the checkpoint before is used, {path.name}, which was "
                f"saved after {position} rounds or server steps",
                stacklevel=4,
            )
        return Saved(position, arrays, facts)
    raise ValueError(
        f"no checkpoint in {str(folder)!r} can be used: {'; '.join(damaged)}. Remove this folder, "
        "and the run starts again from its beginning"
    )


def _versions():
    return {name: metadata.version(name) for name in _VERSIONS}


def load_state(folder: str | Path, like: FederatedState) -> tuple[FederatedState, list[Row]]:
    """Reads the last checkpoint of a run of `simulate` or `simulate_async`.

    A damaged one is named in a warning, and the one before it is read.

    Args:
      folder: that was given as `checkpoints`.
      like: the initial state of the same run, as `engine.init` makes it. Rows on disk stay in the
        folder of its engine, and each is read when it is needed; that is an error once a run that
        goes on has replaced the row.

    Returns:
      The state, on the devices of `like`, and the rows of the evaluations until then.

    Raises:
      ValueError: for a folder without a checkpoint, or in which all are damaged, or a state of
        another algorithm, model or population.
    """
    if not positions_in(Path(folder)):
        raise ValueError(
            f"folder={str(folder)!r} holds no checkpoint; name the folder that was given as "
            "checkpoints"
        )
    saved = _last_whole(folder, partial(open_rows, like))
    state = fill_state(like, saved.arrays, folder)
    (rows,) = saved.facts["rows"]  # of one run, as the state is
    return state, rows


def checkpoint_path(folder: Path, position: int) -> Path:
    """The file of a checkpoint."""
    return folder / f"{position}{_SUFFIX}"


def positions_in(folder: Path) -> list[int]:
    """The positions of the checkpoints in a folder, which may be missing, ascending."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if any(name.isdecimal() for name in names):
        raise ValueError(
            f"the checkpoints in {str(folder)!r} were written by an earlier version of "
            "fedjax_algos, whose format cannot be read: remove this folder, and the run starts "
            "again from its beginning; or go on with that version"
        )
    stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def remove_unfinished(folder: Path) -> None:
    """Removes what processes that were killed have left half-written; no other one writes there."""
    for path in folder.glob(f".*-*{_SUFFIX}"):
        path.unlink()


def write_checkpoint(path: Path, arrays: Mapping[str, np.ndarray], facts: Any) -> None:
    """Writes arrays by name and facts of JSON as a checkpoint, whole or not at all."""
    table, end = {}, 0
    for name, array in arrays.items():
        table[name] = [array.dtype.name, array.shape, end]
        end += array.nbytes
    header = json.dumps({"facts": facts, "arrays": table}).encode() + b"\n"
    digest = hashlib.sha256()
    with written(path) as beside, beside.open("wb") as file:
        file.write(_FIRST_LINE.format(0, digest.hexdigest()).encode())  # it is replaced below
        for part in (header, *map(_bytes, arrays.values())):
            digest.update(part)
            file.write(part)
        file.seek(0)
        file.write(_FIRST_LINE.format(len(header) + end, digest.hexdigest()).encode())
        file.flush()
        os.fsync(file.fileno())


def read_checkpoint(path: Path) -> tuple[Mapping[str, np.ndarray], dict[str, Any]]:
    """The arrays, each of which is read when it is asked for, and the facts of a checkpoint.

    Raises DamagedError for a file that is not as it was written.
    """
    try:
        with open_regular(path) as file:
            match = _PATTERN.fullmatch(file.readline(200))
            if match is None:
                raise ValueError("its first line is not that of a checkpoint of this version")
            start = file.tell()
            size = os.fstat(file.fileno()).st_size - start
            if size != int(match[1]):
                raise ValueError(f"{size} bytes follow its first line, not {int(match[1])}")
            if hashlib.file_digest(file, "sha256").hexdigest() != match[2].decode():
                raise ValueError("its checksum is wrong")
            file.seek(start)
            header = json.loads(file.readline())
            return _Arrays(path, header["arrays"], file.tell()), header["facts"]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DamagedError(f"{str(path)!r} is damaged ({reason})") from None


class _Arrays(Mapping[str, np.ndarray]):
    """Arrays in a file that has been checked, so that memory holds one of them at a time."""

    def __init__(self, path: Path, table: dict[str, Any], start: int):
        self.path, self.table, self.start = path, table, start

    def __getitem__(self, name: str) -> np.ndarray:
        dtype, shape, first = self.table[name]
        array = np.empty(shape, np.dtype(dtype))
        with open_regular(self.path) as file:
            file.seek(self.start + first)
            if file.readinto(_bytes(array)) != array.nbytes:
                raise DamagedError(f"{str(self.path)!r} was cut off while it was read")
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


def _bytes(array):
    """An array as a buffer of its bytes; NumPy's own does not know all dtypes of jax."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
