"""What survives the end of a process: checkpoints, and a results folder as it is written.

`checkpoints.py` saves a run, `arrays.py` its arrays by name; `results_folder.py` locks a folder,
says of which runs it is and writes what has ended; `files.py` has tables of rows, `model_file.py`
models; `interruption.py` ends a run at an evaluation after a signal, and a command where it is.
"""
