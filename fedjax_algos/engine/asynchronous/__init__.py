"""Execution of plans: waves of dispatches that train together, and the updates in flight.

`executor.py` compiles and runs plans, `waves.py` decides which dispatches train together and on
which device, `call_tables.py` and `in_flight.py` are the host's and the device's part of a call.
"""
