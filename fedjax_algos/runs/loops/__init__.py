"""Runs in rounds, on the virtual clock, or many in one compiled program.

`run.py` defines a run. `recorder.py` follows all three loops and makes their rows. `checkpoints.py`
saves a run, and `interruption.py` ends it at an evaluation after a signal.
"""
