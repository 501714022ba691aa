"""Studies of many runs: settings, methods, data and results folder of an experiment.

`settings.py` and `method.py` define what is computed, and `experiment.py` prepares it. `sweeps.py`
and `tuning.py` try many settings. `opening.py` opens and locks a folder, `results_folder.py` writes
its configuration and rows, and `trackers.py` sends rows to TensorBoard and Weights & Biases.
"""
