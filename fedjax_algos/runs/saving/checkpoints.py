"""Checkpoints: what a run needs to go on in another process, bit for bit."""

import contextlib
import errno
import functools
import logging
import os
import shutil
import time
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_algos.core import Row
from fedjax_algos.core.representation import describe
from fedjax_algos.core.writing import unwritable, writing
from fedjax_algos.engine.state import FederatedState
from fedjax_algos.runs.saving.arrays import fill_state, flat_arrays
from fedjax_algos.runs.saving.differences import check_identity
from fedjax_algos.runs.saving.interruption import Interrupted, interruption

Content = tuple[dict[str, Any], dict[str, Any]]  # a tree of arrays, and facts of JSON
_ROOM = 2**16  # bytes of a checkpoint besides its arrays, at most
_VERSIONS = ("fedjax_algos", "jax", "jaxlib")  # other versions may round differently


class Checkpoints(NamedTuple):
    """Where and how often a run is saved.

    A run that is given a folder with a checkpoint of its own goes on from there.

    Args:
      folder: of one run; it is created. Nothing else may be kept in it.
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
    """The checkpoints that a folder, or `Checkpoints`, or None mean.

    Args:
      checkpoints: as `simulate` takes them.
    """
    if checkpoints is None or isinstance(checkpoints, Checkpoints):
        return checkpoints
    return Checkpoints(checkpoints)


class Saved(NamedTuple):
    """The content of a checkpoint."""

    position: int  # rounds or server steps that have been made
    arrays: dict[str, np.ndarray]  # by path
    facts: dict[str, Any]  # such as the rows so far

    def __repr__(self) -> str:
        return describe(self, position=self.position, arrays=len(self.arrays))


class RunSaver:
    """Saves one run at its evaluations, and ends it there if a signal asks for that.

    Args:
      checkpoints: where and how often; None saves nothing.
      identity: makes the facts by which a checkpoint of another run is recognised: values of JSON
        by name. It is called when the first checkpoint is read or written.

    Raises:
      ValueError: for numbers out of range, or with several processes.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | str | Path | None,
        identity: Callable[[], dict[str, Any]],
    ):
        self.checkpoints = checkpoints = as_checkpoints(checkpoints)
        self.identity = functools.cache(identity)
        self.manager: Any = None
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
        if Path(checkpoints.folder).exists():
            self.manager = _open(checkpoints)

    @property
    def kept(self) -> list[int]:
        """The positions of the checkpoints that there are."""
        return [] if self.manager is None else list(self.manager.all_steps())

    def restore(self) -> Saved | None:
        """The last checkpoint, or None if there is none.

        Raises:
          OtherRunError: for a checkpoint of another run, which names the differences.
        """
        if self.manager is None or self.manager.latest_step() is None:
            return None
        saved = _read(self.manager)
        folder = self.checkpoints and self.checkpoints.folder
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

        Args:
          position: rounds or server steps that have been made.
          content: makes the arrays, a tree, and the facts, values of JSON by name.
          last: whether the run has reached its end.

        Raises:
          Interrupted: after saving, if a signal asks for it.
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
        import orbax.checkpoint as ocp

        with writing(Path(checkpoints.folder)):
            self.manager = self.manager or _open(checkpoints)
            if position == self.manager.latest_step():
                return
            tree, facts = content()
            arrays = {name: np.asarray(leaf) for name, leaf in flat_arrays(tree).items()}
            facts = {"identity": self.identity(), "versions": _versions(), **facts}
            _check_room(Path(checkpoints.folder), arrays)
            args = ocp.args.Composite(
                arrays=ocp.args.StandardSave(arrays), facts=ocp.args.JsonSave(facts)
            )
            try:
                with _quiet():
                    self.manager.save(position, args=args)
            except ValueError as error:  # as tensorstore reports a full disk
                raise unwritable(Path(checkpoints.folder), error) from error
        self.saved_at = time.perf_counter()


def _check_room(folder, arrays):
    """Raises OSError before a disk is full: threads of Orbax would print what they raise."""
    needed = sum(array.nbytes for array in arrays.values()) + _ROOM
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def _quiet():
    """Orbax logs an error before it raises it."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _versions():
    return {name: metadata.version(name) for name in _VERSIONS}


def _open(checkpoints):
    """Orbax's manager, which writes beside and renames, and removes what was left half-written."""
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(
        max_to_keep=checkpoints.keep, enable_async_checkpointing=False, create=True
    )
    return ocp.CheckpointManager(Path(checkpoints.folder).absolute(), options=options)


def _read(manager):
    import orbax.checkpoint as ocp

    position = manager.latest_step()
    content = manager.restore(
        position,
        args=ocp.args.Composite(arrays=ocp.args.StandardRestore(), facts=ocp.args.JsonRestore()),
    )
    return Saved(position, content.arrays, content.facts)


def load_state(folder: str | Path, like: FederatedState) -> tuple[FederatedState, list[Row]]:
    """Reads the last checkpoint of a run of `simulate` or `simulate_async`.

    Args:
      folder: that was given as `checkpoints`.
      like: the initial state of the same run, as `engine.init` makes it. Rows on disk stay in the
        folder of its engine, and each is read when it is needed; that is an error once a run that
        goes on has replaced the row.

    Returns:
      The state, on the devices of `like`, and the rows of the evaluations until then.

    Raises:
      ValueError: for a folder without a checkpoint, or a state of another algorithm, model or
        population.
    """
    manager = _open(Checkpoints(folder)) if Path(folder).is_dir() else None
    if manager is None or manager.latest_step() is None:
        raise ValueError(
            f"folder={str(folder)!r} holds no checkpoint; name the folder that was given as "
            "checkpoints"
        )
    saved = _read(manager)
    state = fill_state(like, saved.arrays, folder, saved.position)
    return state, saved.facts["rows"]
