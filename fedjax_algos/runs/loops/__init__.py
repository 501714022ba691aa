"""Loops: whole runs in rounds, on the virtual clock, or many in one compiled program.

`run.py` says what a run is. `recorder.py` follows all three loops and writes their rows;
`checkpoints.py` saves a run, and `interruption.py` ends it at an evaluation after a signal.
"""
