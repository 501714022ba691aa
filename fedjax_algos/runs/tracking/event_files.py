"""Event files of TensorBoard, one for each run."""

import contextlib
import time
from collections.abc import Callable, Iterator

from fedjax_algos.core import Row
from fedjax_algos.core.files import writing
from fedjax_algos.core.options import NonNegative
from fedjax_algos.runs.tracking.registry import TrackedRun, Tracker, import_package, trackers

_NO_SCALARS = {"method", "seed", "round"}


@trackers.register
def tensorboard(*, flush_seconds: NonNegative = 5.0) -> Tracker:
    """TensorBoard's event files, in the folder `tensorboard` of the results.

    The file of a run is in `tensorboard/METHOD/seed-N`. Each column of the rows is a scalar, whose
    step is the round; on the virtual clock it is the server step, and `simulated_seconds` is one
    more scalar. The relative time is `wall_seconds`. The settings are hyper-parameters. A run that
    goes on after an interruption replaces its file by one with all its rows.

    Args:
      flush_seconds: the longest time for which rows stay in memory while others arrive.

    Raises:
      ValueError: if tensorboardX is not installed.
    """
    import_package("tensorboardX", "tensorboard")

    @contextlib.contextmanager
    def track(run: TrackedRun) -> Iterator[Callable[[Row], None]]:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import hparams

        folder = run.folder / "tensorboard" / run.name
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for earlier in folder.glob("events.out.tfevents.*"):
                earlier.unlink()
            file = EventsWriter(str(folder / "events"))  # has no thread, whose errors would be lost
        began, flushed = time.time(), time.monotonic()
        at_end: list[Summary] = []

        def write(*summaries: Summary, step: int = 0, seconds: float = 0.0) -> None:
            with writing(folder):
                for each in summaries:
                    file.write_event(Event(summary=each, step=step, wall_time=began + seconds))

        def add_row(row: Row) -> None:
            nonlocal flushed
            values = {name: value for name, value in row.items() if name not in _NO_SCALARS}
            if not at_end:  # the first row says what is measured
                measured = [name for name in values if name.startswith("test_")]
                experiment, start, end = hparams(dict(run.settings), dict.fromkeys(measured))
                write(experiment, start)
                at_end.append(end)
            scalars = [Summary.Value(tag=name, simple_value=v) for name, v in values.items()]
            seconds = row.get("wall_seconds", time.time() - began)
            write(Summary(value=scalars), step=row["round"], seconds=seconds)
            if time.monotonic() - flushed >= flush_seconds:
                with writing(folder):
                    file.flush()
                flushed = time.monotonic()

        try:
            yield add_row
            write(*at_end, seconds=time.time() - began)  # a run without it has not ended
        finally:
            with writing(folder):
                file.close()

    return track
