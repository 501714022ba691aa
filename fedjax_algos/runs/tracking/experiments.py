"""The rows of a comparison or a sweep, given to the trackers of their runs."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedjax_algos.core import Row
from fedjax_algos.runs.experiment import Experiment
from fedjax_algos.runs.saving.results_folder import ResultsFolder
from fedjax_algos.runs.tracking.registry import TrackedRun, Tracker


@contextlib.contextmanager
def track_experiment(
    trackers: Sequence[Tracker],
    folder: ResultsFolder,
    experiment: Experiment,
    on_evaluation: Callable[[Row], None] = lambda row: None,
    points: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[Callable[[Row], None]]:
    """Begins a run of each tracker for each method and seed, at its first row.

    A run ends at its last row, or else at the end of the block.

    Args:
      trackers: made by the registry `trackers`.
      folder: of the results, after its `begin`.
      experiment: whose rows they are.
      on_evaluation: is called with each row, too.
      points: by label, the settings of a grid.

    Yields:
      The function that takes the rows, each with `method` and `seed`, of all runs.
    """
    settings = experiment.settings
    shared = {name: value for name, value in vars(settings).items() if name != "seeds"}
    own = {m.label: shared | m.configuration() for m in experiment.methods}

    with contextlib.ExitStack() as begun:
        runs: dict[tuple[str, int], tuple[contextlib.ExitStack, list[Callable]]] = {}

        def add_row(row: Row) -> None:
            on_evaluation(row)
            label, seed = row["method"], row["seed"]
            if (label, seed) not in runs:
                name = f"{folder.names[label]}/seed-{seed}"
                values = own[label] | dict((points or {}).get(label, {}))
                run = TrackedRun(folder.path, name, label, seed, values)
                end = begun.enter_context(contextlib.ExitStack())
                runs[label, seed] = end, [end.enter_context(track(run)) for track in trackers]
            end, add = runs[label, seed]
            for each in add:
                each(row)
            if _is_last(row):
                end.close()

        def _is_last(row: Row) -> bool:
            if settings.seconds is None:
                return row["round"] == settings.rounds
            return row["simulated_seconds"] >= settings.seconds

        yield add_row
