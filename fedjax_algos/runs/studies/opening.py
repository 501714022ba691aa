"""Finds or makes a results folder, and locks it while it is written."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import unwritable, writing
from fedjax_algos.core.options import Count, NonNegative
from fedjax_algos.engine.placed.processes import from_first
from fedjax_algos.runs.studies.results_folder import LOCK, ResultsFolder, read_configuration
from fedjax_algos.runs.studies.shares import Share


@contextlib.contextmanager
def open_folder(
    out: str | None,
    default: str,
    *,
    resume: bool = False,
    every: NonNegative = 300.0,
    keep: Count = 2,
    share: str | None = None,
) -> Iterator[ResultsFolder]:
    """Makes and locks a results folder, by default `results/DEFAULT-N`, or opens one to `resume`.

    `every` and `keep` are as in `Checkpoints`. An empty folder is removed at the end. Processes
    with different shares ("1/4") may open one folder at once, and each resumes its own share.
    """
    part = None if share is None else Share.parse(share)
    fix = "needs a folder for all parts; give --out FOLDER"
    require(part is None or out is not None, f"share={share!r} {fix}")
    with contextlib.ExitStack() as opened:
        locked = _locked(out, default, resume, part)
        path = from_first(lambda: opened.enter_context(locked))()
        yield ResultsFolder(path, every, keep, part)


@contextlib.contextmanager
def _locked(out: str | None, default: str, resume: bool, part: Share | None) -> Iterator[Path]:
    """Opens the folder of `open_folder`, in process 0."""
    import filelock

    if resume and out is None:
        raise ValueError("resume needs the folder of a run that stopped; give --out FOLDER")
    with writing(Path(out or "results")):
        wanted = Path("results", default) if out is None else Path(out)
        made = {each for each in (wanted, *wanted.parents) if not each.exists()}
        path = _new_path(default) if out is None else wanted
        path.mkdir(parents=True, exist_ok=True)
    file = path / (LOCK if part is None else f"{LOCK}-{part.number}-of-{part.parts}")
    had_lock = file.exists()
    lock = filelock.FileLock(file)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        what = f"out={str(path)!r}" if part is None else f"share='{part}' of out={str(path)!r}"
        fix = "wait for its end, or name another folder"
        raise ValueError(f"{what} is in use by another run; {fix}") from None
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        if not (
            ((resume or part) and read_configuration(path))
            # another share may be about to write config.json
            or all(each.name == LOCK or (part and each.name[0] == ".") for each in path.iterdir())
        ):
            hint = "" if resume else " or, if it holds a run that stopped, go on with --resume"
            fix = f"name another folder or remove it{hint}"
            raise ValueError(f"out={str(path)!r} is not empty; {fix}")
        yield path
    finally:
        _unlock(lock, file, made | ({path} if out is None else set()), had_lock)


def _new_path(default):
    """Makes the first of `results/DEFAULT`, `results/DEFAULT-2`, ... that does not exist."""
    for number in itertools.count(1):
        path = Path("results", default if number == 1 else f"{default}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path


def _unlock(lock, file, made, had_lock):
    """Releases the lock; removes its file unless a run can go on, and our own empty folders."""
    path = file.parent
    with contextlib.suppress(OSError):
        empty = not any(entry.name != file.name for entry in path.iterdir())
        try:
            content = read_configuration(path)
            stays = content is not None and not content["complete"] and "shares" not in content
        except ValueError:  # nothing of an unreadable folder is changed
            stays = had_lock
        if not stays:
            file.unlink(missing_ok=True)
        for folder in sorted(made, reverse=True) if empty else ():
            folder.rmdir()
    lock.release()
