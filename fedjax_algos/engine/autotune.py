"""Autotuning: measures which layout, on how many devices, computes a round fastest."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax

from fedjax_algos.core import Algorithm, Dispatch, Population
from fedjax_algos.core.checks import check_dispatches, check_kind
from fedjax_algos.data.federated_data import FederatedData
from fedjax_algos.engine.devices import client_mesh, default_num_devices
from fedjax_algos.engine.disk_client_state import ClientStatePlace
from fedjax_algos.engine.engine import make_engine
from fedjax_algos.engine.placement import default_layout

# A candidate is timed until both minima are reached.
_MIN_TIMED_ROUNDS = 5
_MIN_TIMED_SECONDS = 0.3
_SLOW_RATIO = 1.2  # a candidate is slow if it takes more than this many times the best time
_MAX_SLOW_IN_A_ROW = 2  # the search stops after so many slow candidates


class LayoutTiming(NamedTuple):
    """The measurement of one candidate.

    Attributes:
      layout: as for `make_engine`.
      devices: the number of devices.
      seconds: median of a round; None if the memory was too small.
      compile_seconds: to place the data, compile, and run the first round.
    """

    layout: str | int
    devices: int
    seconds: float | None
    compile_seconds: float


class LayoutChoice(NamedTuple):
    """A layout and a number of devices for `make_engine`, and where they come from.

    Attributes:
      layout: as for `make_engine`.
      devices: the number of devices.
      timings: in the order of measurement; empty if nothing was timed.
      source: "rule" is what "auto" stands for.
    """

    layout: str | int
    devices: int
    timings: tuple[LayoutTiming, ...]
    source: Literal["rule", "given", "measured"]

    def __str__(self) -> str:
        name = f"chunks of {self.layout}" if str(self.layout).isdecimal() else self.layout
        text = f"{name} on {self.devices} device{'s' * (self.devices > 1)} ({self.source})"
        return f"{text}, {_seconds(_best(self.timings)):.3g} s a round" if self.timings else text

    def record(self) -> dict[str, Any]:
        """The choice as a dictionary that can be written to a JSON file."""
        return self._asdict() | {"timings": [timing._asdict() for timing in self.timings]}


def autotune_layout(
    algorithm: Algorithm,
    data: FederatedData,
    dispatches: Dispatch,
    *,
    devices: int | None = None,
    client_state: ClientStatePlace = "device",
    examples: Literal["replicated", "sharded"] = "replicated",
    seconds: float = 5.0,
    clock: Callable[[], float] = time.perf_counter,
) -> LayoutChoice:
    """Measures the layouts on one round and returns the fastest.

    The candidates are the default layout of the backend ("sequential" on a CPU, "vmapped"
    elsewhere) on all local devices and on one device; then, on the better number of devices, chunks
    of powers of two, until two candidates in a row take more than 1.2 times the best time. They are
    measured one after another, because two may not fit in memory together. The time of a candidate
    is the median of the rounds after its first one: at least 5 rounds, and at least 0.3 seconds.

    Layouts differ by rounding, and a measurement may choose differently on another day. Use a named
    layout, or the fixed rule "auto", where another run has to give the same digits.

    Args:
      algorithm: what a round computes. The choice can be used for other algorithms on the same
        model and data, so that methods are compared in one layout.
      data: all clients' examples, as `federate` returns them; not changed.
      dispatches: the dispatches of one round; leaves [cohort].
      devices: the number of devices. None compares `default_num_devices()` with one device if the
        examples are replicated, and takes `default_num_devices()` if they are sharded.
      client_state: where client state is kept, as in `make_engine`.
      examples: where examples are kept, as in `make_engine`.
      seconds: the budget in seconds, positive. A candidate that has started is finished, with at
        least one round after its first one. No candidate starts if the compilation of the one
        before took longer than the rest of the budget. So the budget is exceeded by at most two
        rounds and the difference between two compilations; or by more if the first candidate takes
        longer, or if no candidate has fitted in memory so far.
      clock: returns the time in seconds; tests replace it.

    Returns:
      The fastest candidate. With several processes, which could make different choices, or with a
      single candidate, nothing is measured: the result is the default layout on all devices.

    Raises:
      ValueError: if the budget is not positive, or if there are fewer devices than `devices`.
      MemoryError: if no candidate fits in memory.
    """
    if not seconds > 0:
        raise ValueError(f"seconds={seconds} is out of range; give more than 0, or name a layout")
    check_kind("data", data, FederatedData, "give what federate returned")
    check_dispatches(dispatches, data.num_clients, ("cohort",))
    client_mesh(devices)  # raises if there are fewer devices
    device_counts = [default_num_devices() if devices is None else devices]
    if devices is None and examples == "replicated":
        device_counts = list(dict.fromkeys([*device_counts, 1]))
    candidates = {count: _candidates(len(dispatches.client), count) for count in device_counts}
    if jax.process_count() > 1 or sum(map(len, candidates.values())) == 1:
        return LayoutChoice(default_layout(), device_counts[0], (), "rule")

    timings: list[LayoutTiming] = []
    inits: dict[int, Callable] = {}  # of the first engine on so many devices; compiled once
    deadline = clock() + seconds

    def measure(layout: str | int, count: int) -> bool:
        """Measures a candidate unless the budget is spent; whether it did."""
        fits = any(timing.seconds is not None for timing in timings)
        if fits and clock() + timings[-1].compile_seconds >= deadline:
            return False
        engine = make_engine(algorithm, layout, client_state, count, examples)
        engine = engine._replace(init=inits.setdefault(count, engine.init))
        measured = _time(engine, data, dispatches, deadline, clock)
        timings.append(LayoutTiming(layout, count, *measured))
        return True

    for count in device_counts:
        measure(candidates[count][0], count)
    slow_in_a_row, count = 0, _best(timings).devices
    for layout in candidates[count][1:]:
        if slow_in_a_row == _MAX_SLOW_IN_A_ROW or not measure(layout, count):
            break
        slow = _seconds(timings[-1]) > _SLOW_RATIO * _seconds(_best(timings))
        slow_in_a_row = slow_in_a_row + 1 if slow else 0
    best = _best(timings)
    if best.seconds is None:
        raise MemoryError(
            f"cohort_size={len(dispatches.client)} fits into the devices' memory in no layout; "
            "give a smaller batch_size, or client_state='host' if clients keep state"
        )
    return LayoutChoice(best.layout, best.devices, tuple(timings), "measured")


def _candidates(cohort_size: int, devices: int) -> list[str | int]:
    """All layouts of one device's part of the cohort, the backend's default first."""
    part = -(-cohort_size // devices)
    chunks = [2**power for power in range(1, (part - 1).bit_length())]
    layouts = ["sequential", *chunks, *["vmapped"] * (part > 1)]
    return layouts if default_layout() == "sequential" else layouts[::-1]


def _best(timings: Sequence[LayoutTiming]) -> LayoutTiming:
    return min(timings, key=_seconds)


def _seconds(timing: LayoutTiming) -> float:
    return math.inf if timing.seconds is None else timing.seconds


def _time(engine, data, dispatches, deadline, clock):
    """(median seconds of a round or None, seconds until the first round is done)."""
    started, rounds = clock(), []
    population = Population(data.num_clients, len(dispatches.client), int(data.counts().sum()))
    try:
        placed, state = engine.put_data(data), engine.init(0, population)
        state, _ = jax.block_until_ready(engine.round(state, placed, dispatches))
        ready = clock()
        while not rounds or (
            clock() < deadline
            and (len(rounds) < _MIN_TIMED_ROUNDS or sum(rounds) < _MIN_TIMED_SECONDS)
        ):
            before = clock()
            state, _ = jax.block_until_ready(engine.round(state, placed, dispatches))
            rounds.append(clock() - before)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None, clock() - started
    return statistics.median(rounds), ready - started
