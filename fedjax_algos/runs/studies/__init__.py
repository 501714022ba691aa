"""Studies: many runs, from the settings of an experiment to its methods, its data and its folder.

`settings.py` and `method.py` say what is computed, and `experiment.py` prepares it. `sweeps.py` and
`tuning.py` try many settings. `results_folder.py` locks a folder, says of which runs it is, and
writes rows; `trackers.py` gives them to TensorBoard and Weights & Biases.
"""
