"""Execution of plans: waves of dispatches that train together, and the updates in flight.

`executor.py` compiles and runs plans, `protocols.py` documents an executor's functions, `waves.py`
and `slots.py` decide which dispatches train together and on which device, `call_tables.py` and
`in_flight.py` are the host's and the device's part of a call, `merged_plans.py` joins several runs.
"""

from fedjax_algos.engine.asynchronous.executor import Executor, make_executor
from fedjax_algos.engine.asynchronous.merged_plans import (
    merge_data,
    merge_plans,
    merge_states,
    state_of_run,
)
from fedjax_algos.engine.asynchronous.protocols import (
    InFlightMemory,
    InFlightMemoryFn,
    MakeWavesFn,
    RunPlanFn,
)
from fedjax_algos.engine.asynchronous.slots import choose_slots
from fedjax_algos.engine.asynchronous.waves import Waves, make_waves

__all__ = [
    "Executor",
    "InFlightMemory",
    "InFlightMemoryFn",
    "MakeWavesFn",
    "RunPlanFn",
    "Waves",
    "choose_slots",
    "make_executor",
    "make_waves",
    "merge_data",
    "merge_plans",
    "merge_states",
    "state_of_run",
]
