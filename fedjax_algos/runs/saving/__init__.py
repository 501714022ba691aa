"""What survives the end of a process: checkpoints, results folders, and what trackers are given.

`checkpoints.py` saves a run; `results_folder.py` locks a folder, says of which runs it is and
writes rows and what has ended; `model_file.py` has models, `trackers.py` TensorBoard and Weights &
Biases; `interruption.py` ends a run at an evaluation after a signal, and a command where it is.
"""
