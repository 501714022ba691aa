"""Saves runs in checkpoints; another process goes on from a checkpoint, bit for bit.

A checkpoint is one sealed file, see `base.arrays`.
"""

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.base.arrays import read_sealed, write_sealed
from fedjax_algos.base.errors import DamagedError, require
from fedjax_algos.base.files import writing
from fedjax_algos.core import Row
from fedjax_algos.core.trees import is_key
from fedjax_algos.engine.placed.devices import put
from fedjax_algos.engine.placed.on_disk import DiskClientState
from fedjax_algos.engine.placed.processes import fetch, from_first, is_first, largest
from fedjax_algos.engine.state import FederatedState, HostClientState, RowTable
from fedjax_algos.runs.loops.identity import check_identity
from fedjax_algos.runs.loops.interruption import Interrupted, agreed_interruption

Arrays = Callable[[], Any]  # makes a tree of arrays
_SUFFIX = ".npz"
_VERSIONS = ("fedjax_algos", "jax", "jaxlib")  # other versions may round differently


class Checkpoints(NamedTuple):
    """The folder that a run is saved in and resumed from, and how often it is saved.

    Args:
      folder: the folder of one run. It is created, and nothing else may be kept in it.
      every: seconds of real time between checkpoints; a checkpoint is written at the next
        evaluation. 0 writes one at each evaluation.
      keep: the number of latest checkpoints to keep.
      last: whether to always save the end, so that the same call returns it at once. If False, the
        end is saved only if the run was saved before.
    """

    folder: str | Path
    every: float = 300.0
    keep: int = 2
    last: bool = True


def as_checkpoints(given: Checkpoints | str | Path | None, name: str = "") -> Checkpoints | None:
    """Normalises the `checkpoints` argument and appends the subfolder `name`."""
    if given is not None and not isinstance(given, Checkpoints):
        given = Checkpoints(given)
    return given if given is None or not name else given._replace(folder=Path(given.folder) / name)


class Saved(NamedTuple):
    """The content of a checkpoint."""

    path: Path
    arrays: Mapping[str, np.ndarray]  # by path, read one by one
    facts: dict[str, Any]  # such as the rows so far

    @property
    def position(self) -> int:
        """Returns the number of rounds or server steps that have been made."""
        return int(self.path.stem)


Check = Callable[[Saved], None]


class RunSaver:
    """Saves runs at evaluations, and ends them there after a signal; `identity` makes facts."""

    def __init__(
        self, checkpoints: Checkpoints | str | Path | None, identity: Callable[[], dict[str, Any]]
    ):
        self.checkpoints = checkpoints = as_checkpoints(checkpoints)
        self.identity = functools.cache(identity)
        self.position: int | None = None  # of the checkpoint that was restored or saved last
        self.saved_at = time.perf_counter()
        if checkpoints is None:
            return
        given = f"every={checkpoints.every} and keep={checkpoints.keep} are out of range"
        fits = checkpoints.every >= 0 and checkpoints.keep >= 1
        require(fits, f"{given}; give at least 0 seconds and 1 checkpoint")

    @property
    def kept(self) -> list[int]:
        """Returns the positions of the existing checkpoints."""
        if self.checkpoints is None:
            return []
        return from_first(positions_in)(Path(self.checkpoints.folder))

    def restore(self, check: Check = lambda saved: None) -> Saved | None:
        """Returns the last checkpoint that is whole and passes `check`; None without any."""
        if self.checkpoints is None or not self.kept:
            return None
        folder, identity = Path(self.checkpoints.folder), self.identity()
        saved: Saved | None = None

        @from_first
        def last_path() -> Path:
            nonlocal saved
            saved = _last_whole(folder, check)
            check_identity(saved.facts["identity"], identity, saved.position, folder)
            return saved.path

        path = last_path()
        saved = saved or _read_like_first(path, check)
        self.position = saved.position
        versions = saved.facts.pop("versions")
        if versions != _versions():
            what = f"was saved with {versions} and goes on with {_versions()}"
            told = f"the checkpoint in {folder} {what}, which may round differently"
            warnings.warn(told, stacklevel=3)
        return saved

    def after_evaluation(
        self, position: int, arrays: Arrays, facts: dict[str, Any], *, last: bool
    ) -> None:
        """Saves the run if it is time, at its end, or at a signal, and then raises Interrupted."""
        signal_number, checkpoints = agreed_interruption(), self.checkpoints
        if checkpoints is not None:
            due = largest(time.perf_counter() - self.saved_at >= checkpoints.every)
            at_end = last and (checkpoints.last or bool(self.kept))
            if due or signal_number is not None or at_end:
                self._save(checkpoints, position, arrays, facts)
        if signal_number is not None:
            raise Interrupted(signal_number)

    def _save(self, checkpoints, position, arrays, facts):
        folder = Path(checkpoints.folder)
        if position == self.position:
            return
        content = {}
        for name, leaf in flat_arrays(arrays()).items():
            array = np.asarray(fetch(jax.random.key_data(leaf) if is_key(leaf) else leaf))
            if is_first():
                content[name] = array
        facts = {"identity": self.identity(), "versions": _versions(), **facts}
        from_first(_write)(folder, position, content, facts, checkpoints.keep)
        self.position, self.saved_at = position, time.perf_counter()


def saved_identity(folder: Path) -> dict[str, Any] | None:
    """Returns the identity of the run in the last whole checkpoint; None without one."""
    with warnings.catch_warnings(), contextlib.suppress(ValueError):
        warnings.simplefilter("ignore")  # `restore` reports what is damaged
        return _last_whole(folder, lambda saved: None).facts["identity"]
    return None


def _write(folder, position, content, facts, keep):
    """Writes a checkpoint and removes the old ones."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
    write_sealed(checkpoint_path(folder, position), content, facts)
    # later ones were damaged, as `restore` has reported, and the run went on from before them
    there = positions_in(folder)
    kept = [each for each in there if each <= position][-keep:]
    with writing(folder):
        for each in {*there}.difference(kept):
            checkpoint_path(folder, each).unlink()


def _read_like_first(path, check):
    """Reads, in another process, the checkpoint that process 0 has read."""
    try:
        check(saved := read_checkpoint(path))
    except ValueError as error:
        why = f"process {jax.process_index()} cannot read what process 0 has read: {error}"
        raise ValueError(f"{why}; name a folder that all processes see") from None
    return saved


def _last_whole(folder: str | Path, check: Check) -> Saved:
    """Reads the last whole checkpoint; warns about the damaged ones after it."""
    damaged = []
    for position in reversed(positions_in(Path(folder))):
        try:
            check(saved := read_checkpoint(checkpoint_path(Path(folder), position)))
        except DamagedError as error:
            damaged.append(str(error))
            continue
        if damaged:
            used = f"{saved.path.name}, which was saved after {position} rounds or server steps"
            told = f"{'; '.join(damaged)}; the checkpoint before is used, {used}"
            warnings.warn(told, stacklevel=4)
        return saved
    fix = "Remove this folder, and the run starts again from its beginning"
    raise ValueError(f"no checkpoint in {str(folder)!r} can be used: {'; '.join(damaged)}. {fix}")


def _versions():
    return {name: metadata.version(name) for name in _VERSIONS}


def load_state(folder: str | Path, like: FederatedState) -> tuple[FederatedState, list[Row]]:
    """Reads the last whole checkpoint of a run of `simulate` or `simulate_async`.

    Args:
      folder: the folder that was given as `checkpoints`.
      like: the initial state of the same run, as `engine.init` makes it. Rows on disk stay in the
        folder of its engine, and each is read when it is needed. This fails once a run that goes on
        has replaced the row.

    Returns:
      The state, on the devices of `like`, and the rows of the evaluations until then.

    Raises:
      ValueError: for a folder without an undamaged checkpoint, or a state of another algorithm,
        model or population.
    """
    fix = "name the folder that was given as checkpoints"
    require(positions_in(Path(folder)), f"folder={str(folder)!r} holds no checkpoint; {fix}")
    saved = _last_whole(folder, partial(open_rows, like))
    state = fill_state(like, saved)
    (rows,) = saved.facts["rows"]  # of one run, like the state
    return state, rows


def checkpoint_path(folder: Path, position: int) -> Path:
    """Returns the file of a checkpoint."""
    return folder / f"{position}{_SUFFIX}"


def positions_in(folder: Path) -> list[int]:
    """Returns the positions of the checkpoints in a folder, ascending; it may be missing."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if any(name.isdecimal() or name.endswith(".checkpoint") for name in names):
        what = f"the checkpoints in {str(folder)!r} were written by an earlier version"
        raise ValueError(f"{what} and cannot be read: remove this folder, or use that version")
    stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def remove_unfinished(folder: Path) -> None:
    """Removes files that killed processes left half-written; no other process writes there."""
    for path in folder.glob(f".*-*{_SUFFIX}"):
        path.unlink()


def read_checkpoint(path: Path) -> Saved:
    """Reads a checkpoint, or raises DamagedError if it changed since it was written."""
    try:
        return Saved(path, *read_sealed(path, "a checkpoint", "remove it"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DamagedError(f"{str(path)!r} is damaged ({reason})") from None


def flat_arrays(tree: Any) -> dict[str, Any]:
    """Returns a tree's leaves by path, as "server/params/out/kernel", without empty ones."""
    arrays: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if (name := _name(path)) in arrays:
            raise ValueError(f"two arrays have the name {name!r}; give names without '/'")
        if np.size(leaf):
            arrays[name] = leaf
    return arrays


def _name(path):
    return jax.tree_util.keystr(path, simple=True, separator="/")


def fill(
    like: Any,
    arrays: Mapping[str, np.ndarray],
    prefix: str = "",
    places: tuple[str, str] = ("this run", "the checkpoint"),
    fix: str = "give the same algorithm, model and clients, or another folder",
) -> Any:
    """Fills a tree with the values of a file; ValueError if a shape or dtype differs."""

    def value(path, leaf):
        if is_key(leaf):
            data = value(path, jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        name = "/".join(filter(None, [prefix, _name(path)]))  # the path of a bare array is empty
        saved = arrays.get(name) if np.size(leaf) else np.zeros(leaf.shape, leaf.dtype)
        if saved is None or saved.shape != leaf.shape or saved.dtype != leaf.dtype:
            found = "missing" if saved is None else f"{saved.dtype}{list(saved.shape)}"
            own = f"{leaf.dtype}{list(leaf.shape)}"
            here, there = places
            raise ValueError(f"{name} is {own} in {here} and {found} in {there}; {fix}")
        return put(leaf.sharding, saved) if isinstance(leaf, jax.Array) else saved

    return jax.tree_util.tree_map_with_path(value, like)


def state_arrays(state: FederatedState) -> dict[str, Any]:
    """Returns a state as a tree of arrays; rows off the devices become tables of their clients."""
    tree = state._asdict()
    if isinstance(state.clients, RowTable):
        ids = np.array(sorted(state.clients), np.int32)
        rows = [state.clients[client] for client in ids.tolist()]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *rows) if rows else ()
        tree["clients"] = {"ids": ids, "rows": stacked}
    return tree


def saved_arrays(
    state: FederatedState, folder: str | Path, position: int, kept: Iterable[int]
) -> dict[str, Any]:
    """Returns `state_arrays`, but leaves rows on disk in process 0's file, with `kept` ones."""
    if not isinstance(state.clients, DiskClientState):
        return state_arrays(state)
    owner = str(Path(folder).absolute())
    tree = state._replace(clients=())._asdict()
    if not is_first():  # the others keep their rows in their scratch files
        return tree
    return tree | {"clients": state.clients.save(owner, position, kept)}


def fill_state(like: FederatedState, saved: Saved) -> FederatedState:
    """Returns a checkpoint's state; `like` is the initial state, after `open_rows` if on disk."""
    clients, arrays = like.clients, saved.arrays
    state = FederatedState(**fill(like._replace(clients=())._asdict(), arrays))
    if not isinstance(clients, RowTable):
        return state._replace(clients=fill(clients, arrays, "clients"))
    ids = arrays.get("clients/ids", np.zeros(0, np.int32))
    if not np.array_equal(ids, np.flatnonzero(state.dispatched)):
        there = f"{str(saved.path)!r} has rows of {len(ids)} clients off the devices"
        fix = "give the client_state that the run had"
        raise ValueError(f"{there}, but {np.sum(state.dispatched)} were dispatched; {fix}")
    if not isinstance(clients, HostClientState):
        fill(clients.blank, arrays, "clients/blank")  # raises if rows were kept elsewhere
        return state._replace(clients=clients)
    blank = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(ids), *leaf.shape)), clients.blank)
    rows = fill(blank, arrays, "clients/rows")
    each = (jax.tree.map(lambda leaf, i=i: leaf[i], rows) for i in range(len(ids)))
    return state._replace(clients=clients.write(zip(ids.tolist(), each, strict=True)))


def open_rows(like: FederatedState, saved: Saved) -> None:
    """Gives `like` the rows on disk of a checkpoint; changes nothing if it raises DamagedError."""
    arrays = saved.arrays
    if not isinstance(like.clients, DiskClientState) or "clients/file" not in arrays:
        return
    fill(like.clients.blank, arrays, "clients/blank")  # raises if rows have other shapes
    tables = {name: arrays[f"clients/{name}"] for name in ("ids", "places", "checksums", "file")}
    like.clients.files.open_saved(str(saved.path.parent.absolute()), saved.position, tables)
