"""What a tracker is, and the registry of trackers."""

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fedjax_algos.core import Row
from fedjax_algos.core.registry import Registry


class TrackedRun(NamedTuple):
    """What a tracker knows of a run before its first row.

    Attributes:
      folder: of the results; a tracker writes its files there, and nowhere else.
      name: of the run within the folder, such as "01-fedavg/seed-0".
      method: its label.
      seed: of the run.
      settings: by name, the settings and the method's options.
    """

    folder: Path
    name: str
    method: str
    seed: int
    settings: Mapping[str, Any]


@runtime_checkable
class Tracker(Protocol):
    """Shows or stores the rows of runs as they are measured."""

    def __call__(self, run: TrackedRun) -> AbstractContextManager[Callable[[Row], object]]:
        """Begins a run: returns a context manager, whose value is called with each row.

        A run that goes on from a checkpoint begins again, with all its rows from the first one. So
        a tracker removes or recognises what it wrote of this run before. The end of the `with`
        block is the end of the run, with an exception if it has not reached its end.

        Args:
          run: what is known of it.
        """


trackers = Registry[Tracker]("tracker", Tracker)


def import_package(name: str, tracker: str) -> ModuleType:
    """An optional package, which is imported when its tracker is made.

    Args:
      name: of the package.
      tracker: which needs it; also the name of the extra that installs it.

    Raises:
      ValueError: if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"track={tracker!r} needs the package {name} ({error}); run: pip install "
            f"'fedjax_algos[{tracker}]'"
        ) from error
