"""Saves runs in checkpoints, and resumes them bit for bit, also in another process.

A checkpoint is one sealed file, see `base.arrays`.
"""

import contextlib
import functools
import re
import time
import warnings
from collections.abc import Callable, Mapping
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
from fedjax_algos.core.trees import is_key, take
from fedjax_algos.engine.placed.devices import put
from fedjax_algos.engine.placed.on_disk import DiskClientState
from fedjax_algos.engine.placed.processes import fetch, from_first, is_first, largest
from fedjax_algos.engine.state import FederatedState, HostClientState, RowTable
from fedjax_algos.runs.loops.interruption import check_interruption
from fedjax_algos.runs.loops.run import check_identity

_NAME = re.compile(r"[0-9]+(\.npz|\.checkpoint)?")  # of earlier versions, which are not readable
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


def as_checkpoints(folder: Checkpoints | str | Path | None) -> Checkpoints | None:
    """Returns the argument `checkpoints` of a run as `Checkpoints`; None stays None."""
    return folder if folder is None or isinstance(folder, Checkpoints) else Checkpoints(folder)


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
    """Saves runs at evaluations, and ends them there after a signal.

    `identity` returns what a checkpoint must match; `name` is a subfolder of `checkpoints`.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | str | Path | None,
        identity: Callable[[], dict[str, Any]],
        name: str = "",
    ):
        self.checkpoints = checkpoints = as_checkpoints(checkpoints)
        self.identity = functools.cache(identity)
        self.position: int | None = None  # of the checkpoint that was restored or saved last
        self.saved_at = time.perf_counter()
        if checkpoints is None:
            return
        self.folder = Path(checkpoints.folder) / name
        found = f"every={checkpoints.every} and keep={checkpoints.keep} are out of range"
        fits = checkpoints.every >= 0 and checkpoints.keep >= 1
        require(fits, f"{found}; give at least 0 seconds and 1 checkpoint")

    def _positions(self) -> list[int]:
        """Returns the positions of the existing checkpoints."""
        return [*from_first(checkpoints_in)(self.folder)]

    def restore(self, check: Check = lambda saved: None) -> Saved | None:
        """Returns the last whole checkpoint that passes `check`; None if there are none."""
        if self.checkpoints is None or not self._positions():
            return None
        identity, saved = self.identity(), None

        @from_first
        def last_path() -> Path:
            nonlocal saved
            saved = _last_whole(self.folder, check)
            check_identity(saved.facts["identity"], identity, saved.position, self.folder)
            return saved.path

        path = last_path()
        if saved is None:  # process 0 has read it
            check(saved := read_checkpoint(path))
        self.position = saved.position
        if (versions := saved.facts.pop("versions")) != _versions():
            change = f"was saved with {versions} and goes on with {_versions()}"
            message = f"the checkpoint in {self.folder} {change}, which may round differently"
            warnings.warn(message, stacklevel=3)
        return saved

    def after_evaluation(
        self, position: int, arrays: Callable[[], Any] | None, facts: dict[str, Any], last: bool
    ) -> None:
        """Saves the run if a checkpoint is due or it ends; after a signal, raises Interrupted.

        Without `arrays` it saves nothing.
        """
        save = partial(self._save, position, arrays, facts)
        if self.checkpoints is not None:
            due = largest(time.perf_counter() - self.saved_at >= self.checkpoints.every)
            if due or (last and (self.checkpoints.last or self._positions())):
                save()
        check_interruption(save)

    def _save(self, position, arrays, facts):
        """Saves the run unless it is saved at this position."""
        if self.checkpoints is None or arrays is None or position == self.position:
            return
        tree = arrays()
        if isinstance(clients := tree.get("clients"), HostClientState):
            tree["clients"] = row_arrays(clients)
        elif isinstance(clients, DiskClientState):  # the rows of process 0 alone are saved
            owner, kept = str(self.folder.absolute()), self._positions()
            tree["clients"] = clients.save(owner, position, kept) if is_first() else ()
        content = {}
        for name, leaf in flat_arrays(tree).items():
            array = np.asarray(fetch(jax.random.key_data(leaf) if is_key(leaf) else leaf))
            if is_first():
                content[name] = array
        facts = {"identity": self.identity(), "versions": _versions(), **facts}
        from_first(_write)(self.folder, position, content, facts, self.checkpoints.keep)
        self.position, self.saved_at = position, time.perf_counter()


@from_first
def saved_seeds(checkpoints: Checkpoints | str | Path | None) -> dict[str, list[int]]:
    """Returns the seeds of merged runs that have a checkpoint, by subfolder; "" is the folder."""
    if (checkpoints := as_checkpoints(checkpoints)) is None:
        return {}
    folder, found = Path(checkpoints.folder), {}
    for path in (folder, *folder.glob("seeds-from-*")):
        with warnings.catch_warnings(), contextlib.suppress(ValueError):
            warnings.simplefilter("ignore")  # `restore` reports what is damaged
            identity = _last_whole(path, lambda saved: None).facts["identity"]
            found["" if path is folder else path.name] = identity.get("seeds", [])
    return found


def _write(folder, position, content, facts, keep):
    """Writes a checkpoint; removes old ones, and half-written files of killed processes."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(".*-*.npz"):
            path.unlink()
        write_sealed(folder / f"{position}.npz", content, facts)
        # later ones were damaged, as `restore` has reported, and the run went on from before them
        paths = checkpoints_in(folder)
        for old in paths.keys() - [n for n in paths if n <= position][-keep:]:
            paths[old].unlink()


def _last_whole(folder: Path, check: Check) -> Saved:
    """Reads the last whole checkpoint; warns about the damaged ones after it."""
    damaged = []
    for position, path in reversed(checkpoints_in(folder).items()):
        try:
            check(saved := read_checkpoint(path))
        except DamagedError as error:
            damaged.append(str(error))
            continue
        if damaged:
            used = f"{path.name}, which was saved after {position} rounds or server steps"
            message = f"{'; '.join(damaged)}; the checkpoint before is used, {used}"
            warnings.warn(message, stacklevel=4)
        return saved
    found = "; ".join(damaged) or "there is none"
    fix = "Name the folder that a run was given, or remove this one, and the run starts again"
    raise ValueError(f"no checkpoint in {str(folder)!r} can be used: {found}. {fix}")


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
    saved = _last_whole(Path(folder), partial(open_rows, like))
    (rows,) = saved.facts["rows"]  # of one run, like the state
    return fill_state(like, saved), rows


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """Returns the checkpoints in a folder by position, ascending; the folder may be missing."""
    paths = [path for path in folder.glob("*") if _NAME.fullmatch(path.name)]
    return dict(sorted((int(path.stem), path) for path in paths))


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
    places: tuple[str, str] = ("this run", "the checkpoint"),
    fix: str = "give the same algorithm, model, clients and client_state, or another folder",
) -> Any:
    """Fills a tree with the values of a file; ValueError if a shape or dtype differs."""

    def value(path, leaf):
        if is_key(leaf):
            data = value(path, jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        name = _name(path)
        saved = arrays.get(name) if np.size(leaf) else np.zeros(leaf.shape, leaf.dtype)
        if saved is None or saved.shape != leaf.shape or saved.dtype != leaf.dtype:
            found = "missing" if saved is None else f"{saved.dtype}{list(saved.shape)}"
            expected = f"{leaf.dtype}{list(leaf.shape)}"
            here, there = places
            raise ValueError(f"{name} is {expected} in {here} and {found} in {there}; {fix}")
        return put(leaf.sharding, saved) if isinstance(leaf, jax.Array) else saved

    return jax.tree_util.tree_map_with_path(value, like)


def row_arrays(clients: RowTable) -> dict[str, Any]:
    """Returns the ids of the clients that have rows, and these rows, leaves [ids, ...]."""
    ids = np.array(sorted(clients), np.int32)
    rows = [clients[client] for client in ids.tolist()]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *rows) if rows else ()
    return {"ids": ids, "rows": stacked}


def fill_state(like: FederatedState, saved: Saved) -> FederatedState:
    """Returns a checkpoint's state; `like` is the initial state, after `open_rows` if on disk."""
    clients = like.clients
    state = FederatedState(**fill(like._replace(clients=())._asdict(), saved.arrays))
    if not isinstance(clients, RowTable):
        return state._replace(clients=fill({"clients": clients}, saved.arrays)["clients"])
    ids = np.flatnonzero(state.dispatched).astype(np.int32)
    if isinstance(clients, DiskClientState):
        fill({"clients": {"ids": ids, "blank": clients.blank}}, saved.arrays)  # only compares
        return state._replace(clients=clients)
    rows = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(ids), *leaf.shape)), clients.blank)
    rows = fill({"clients": {"ids": ids, "rows": rows}}, saved.arrays)["clients"]["rows"]
    pairs = ((client, take(rows, place)) for place, client in enumerate(ids.tolist()))
    return state._replace(clients=clients.write(pairs))


def open_rows(like: FederatedState, saved: Saved) -> None:
    """Opens a checkpoint's rows on disk in `like`; changes nothing if it raises DamagedError."""
    arrays = saved.arrays
    if not isinstance(like.clients, DiskClientState) or "clients/file" not in arrays:
        return
    fill({"clients": {"blank": like.clients.blank}}, arrays)  # raises if rows have other shapes
    tables = {name: arrays[f"clients/{name}"] for name in ("ids", "places", "checksums", "file")}
    like.clients.files.open_saved(str(saved.path.parent.absolute()), saved.position, tables)
