"""What survives the end of a process: checkpoints, and a results folder as it is written.

`checkpoints.py` saves a run, `arrays.py` its arrays by name; `results_folder.py` locks a folder and
writes what has ended, `configuration_file.py` says of which runs it is; `differences.py` says what
differs from the runs of now; `files.py` writes files whole or not at all; `interruption.py` ends a
run at an evaluation after a signal, and a command where it is.
"""
