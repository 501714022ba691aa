"""Execution of plans: waves of dispatches that train together, and the updates in flight.

`executor.py` compiles and runs plans, `waves.py` decides which dispatches train together and on
which device, `call_tables.py` and `in_flight.py` are the host's and the device's part of a call.
"""

from fedjax_algos.engine.asynchronous.call_tables import (
    merge_data,
    merge_plans,
    merge_states,
    state_of_run,
)
from fedjax_algos.engine.asynchronous.executor import Executor, InFlightMemory, make_executor
from fedjax_algos.engine.asynchronous.waves import Waves, choose_slots, make_waves

__all__ = [
    "Executor",
    "InFlightMemory",
    "Waves",
    "choose_slots",
    "make_executor",
    "make_waves",
    "merge_data",
    "merge_plans",
    "merge_states",
    "state_of_run",
]
