"""What survives the end of a process: checkpoints, results folders, and what trackers are given.

`checkpoints.py` saves a run, `arrays.py` its arrays by name; `results_folder.py` locks a folder,
says of which runs it is and writes what has ended; `files.py` has tables of rows, `model_file.py`
models, `trackers.py` TensorBoard and Weights & Biases; `interruption.py` ends a run at an
evaluation after a signal, and a command where it is.
"""
