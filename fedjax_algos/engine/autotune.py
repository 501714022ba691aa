"""The layout chooses itself: candidates are timed once, and the choice is remembered."""

import hashlib
import json
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from fedjax_algos.core import Algorithm, Population, Visit
from fedjax_algos.core.keys import model_key
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.devices import client_mesh, usual_devices
from fedjax_algos.engine.engine import make_engine
from fedjax_algos.engine.placement import chunk_size

_ROUNDS, _SPAN = 5, 0.3  # timed of each candidate after its first round: both at least
_CLEARLY = 1.2  # times the best is clearly slower


class Timing(NamedTuple):
    """What one candidate took."""

    layout: str | int
    devices: int
    seconds: float | None  # a round, the median; None where the memory was too small
    compile_seconds: float  # until its first round was done: data placed, compiled, run


class Choice(NamedTuple):
    """A layout and a number of devices for `make_engine`."""

    layout: str | int
    devices: int
    timings: tuple[Timing, ...]  # in the order in which they were taken
    source: Literal["measured", "remembered", "rule", "given"]

    def __str__(self) -> str:
        name = f"chunks of {self.layout}" if str(self.layout).isdecimal() else self.layout
        told = f"{name} on {self.devices} device{'s' * (self.devices > 1)} ({self.source})"
        return f"{told}, {_seconds(_best(self.timings)):.3g} s a round" if self.timings else told

    def record(self) -> dict[str, Any]:
        """The choice for a JSON file."""
        return self._asdict() | {"timings": [timing._asdict() for timing in self.timings]}

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Choice":
        """The choice of a `record`, as remembered.

        Raises:
          AttributeError, KeyError, TypeError or ValueError: for what is no record.
        """
        chunk_size(record["layout"], 1)
        timings = tuple(Timing(**timing) for timing in record["timings"])
        return cls(record["layout"], int(record["devices"]), timings, "remembered")


def user_file() -> Path:
    """Where choices are remembered: in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "fedjax_algos" / "layouts.json"


def choose_layout(
    algorithm: Algorithm,
    data: FederatedData,
    visits: Visit,
    *,
    devices: int | None = None,
    client_state: Literal["device", "host"] = "device",
    examples: Literal["replicated", "sharded"] = "replicated",
    seconds: float = 5.0,
    remembered: Path | Literal["user"] | None = "user",
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """Times layouts on a round like the run's first, and remembers the fastest.

    Candidates come one after another, as two may not fit in memory: first the backend's usual
    layout (sequential on a CPU, else vmapped) on all local devices and on one; then, on the better
    number, chunks of powers of two away from it, until two in a row take 1.2 times the best. A time
    is the median of the rounds after the first, at least 5 and for 0.3 seconds. With several
    processes, which could come to different choices, or with one candidate, nothing is timed and
    the usual layout takes all devices.

    A choice holds whatever the algorithm, so that methods are compared in one layout. Layouts
    differ by rounding: name one where another machine has to give the same bits.

    Args:
      algorithm: what is computed.
      data: the clients' examples, of `federate`; they stay as they are.
      visits: of one round, leaves [cohort].
      devices: None chooses between `usual_devices()` and one, where examples are replicated; a
        number keeps to it. A CPU has as many as jax was started with (`jax_num_cpu_devices`).
      client_state, examples: as in `make_engine`.
      seconds: the budget. A started candidate is finished, with fewer rounds but at least one after
        its first, and none is started if the one before compiled for longer than what is left. So
        the budget is overrun by two rounds and by what a compilation takes longer than the last;
        and by more where the first candidate takes longer, or none has fitted in memory so far.
      remembered: the JSON file of earlier choices, "user" for `user_file()`, or None. Removing it
        or an entry measures anew. A damaged file is replaced, with a warning; one that cannot be
        written is a warning.
      clock: seconds; tests give their own.

    Raises:
      ValueError: for a budget that is not positive, or more devices than there are.
      MemoryError: if no candidate fits.
    """
    if not seconds > 0:
        raise ValueError(f"seconds={seconds} is out of range; give more than 0, or name a layout")
    client_mesh(devices)  # refuses more than there are
    counts = [usual_devices() if devices is None else devices]
    if devices is None and examples == "replicated":
        counts = list(dict.fromkeys([*counts, 1]))
    layouts = {count: _layouts(len(visits.client), count) for count in counts}
    if jax.process_count() > 1 or sum(map(len, layouts.values())) == 1:
        return Choice(layouts[counts[0]][0], counts[0], (), "rule")
    file = user_file() if remembered == "user" else remembered
    known, key = _read(file), _key(algorithm, data, visits, counts, examples)
    if key in known:
        return Choice.of(known[key])

    timings: list[Timing] = []
    inits: dict[int, Callable] = {}  # one for each number of devices: it is compiled once
    deadline = clock() + seconds

    def attempt(layout, count):
        measured = any(timing.seconds is not None for timing in timings)
        if measured and clock() + timings[-1].compile_seconds >= deadline:
            return False
        engine = make_engine(algorithm, layout, client_state, count, examples)
        engine = engine._replace(init=inits.setdefault(count, engine.init))
        timings.append(Timing(layout, count, *_time(engine, data, visits, deadline, clock)))
        return True

    for count in counts:
        attempt(layouts[count][0], count)
    slow, count = 0, _best(timings).devices
    for layout in layouts[count][1:]:
        if slow == 2 or not attempt(layout, count):
            break
        slow = slow + 1 if _seconds(timings[-1]) > _CLEARLY * _seconds(_best(timings)) else 0
    best = _best(timings)
    if best.seconds is None:
        raise MemoryError(
            f"cohort_size={len(visits.client)} fits into the devices' memory in no layout; give a "
            "smaller batch_size, or client_state='host' where clients keep state"
        )
    choice = Choice(best.layout, best.devices, tuple(timings), "measured")
    _write(file, known | {key: choice.record()})
    return choice


def _layouts(cohort_size: int, devices: int) -> list[str | int]:
    """All layouts of a device's part of the cohort, the usual one first."""
    part = -(-cohort_size // devices)
    chunks = [2**power for power in range(1, (part - 1).bit_length())]
    layouts = ["sequential", *chunks, *["vmapped"] * (part > 1)]
    return layouts if jax.default_backend() == "cpu" else layouts[::-1]


def _best(timings: Sequence[Timing]) -> Timing:
    return min(timings, key=_seconds)


def _seconds(timing: Timing) -> float:
    return math.inf if timing.seconds is None else timing.seconds


def _time(engine, data, visits, deadline, clock):
    """(seconds of a round or None, seconds until the first was done)."""
    started, taken = clock(), []
    population = Population(data.num_clients, len(visits.client), int(data.counts().sum()))
    try:
        placed, state = engine.place(data), engine.init(0, population)
        state, _ = jax.block_until_ready(engine.round(state, placed, visits))
        ready = clock()
        while not taken or (clock() < deadline and (len(taken) < _ROUNDS or sum(taken) < _SPAN)):
            before = clock()
            state, _ = jax.block_until_ready(engine.round(state, placed, visits))
            taken.append(clock() - before)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None, clock() - started
    return statistics.median(taken), ready - started


def _key(algorithm, data, visits, counts, examples):
    """What a choice holds for, readable by people."""
    params = jax.tree.leaves(jax.eval_shape(algorithm.problem.init, model_key(0)).params)
    shapes = [(leaf.shape, str(leaf.dtype)) for leaf in params]
    shapes += [(leaf.shape[1:], str(leaf.dtype)) for leaf in jax.tree.leaves(data.examples)]
    kind = jax.local_devices()[0].device_kind
    cores = f" of {os.cpu_count()} cores" * (jax.default_backend() == "cpu")
    return (
        f"{jax.default_backend()}: {kind}{cores}, {' or '.join(map(str, counts))} devices"
        f"{', examples sharded' * (examples == 'sharded')}; "
        f"{sum(math.prod(leaf.shape) for leaf in params)} params, "
        f"shapes {hashlib.sha256(str(shapes).encode()).hexdigest()[:12]}; "
        f"{len(visits.client)} clients, {int(visits.num_steps.max())} steps "
        f"of {algorithm.local.batch_size}; jax {jax.__version__}"
    )


def _read(file):
    """The file's records by key; none, with a warning, where one of them is no record."""
    try:
        known = json.loads(file.read_text()) if file and file.exists() else {}
        for record in known.values():
            Choice.of(record)
        return known
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        warnings.warn(
            f"{file} holds no choices of layouts ({type(error).__name__}: {error}); it is replaced",
            stacklevel=3,
        )
        return {}


def _write(file, known):
    if file is None:
        return
    own = file.with_name(f"{file.name}.{os.getpid()}")  # then renamed: nobody reads half a file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(json.dumps(known, indent=1) + "\n")
        own.replace(file)
    except OSError as error:
        warnings.warn(
            f"{file} cannot be written, so the layout will be measured again ({error}); give "
            "remembered=FILE in another folder, or None",
            stacklevel=3,
        )
