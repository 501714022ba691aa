"""Studies of many runs: settings, methods, data and results folder of an experiment.

`settings.py` and `method.py` define what is computed, and `experiment.py` prepares it. `sweeps.py`
and `tuning.py` try many settings, which `search_space.py` lists. `results_folder.py` opens and
writes a folder, `folder_content.py` reads its files, and `trackers.py` sends rows to TensorBoard
and Weights & Biases.
"""
