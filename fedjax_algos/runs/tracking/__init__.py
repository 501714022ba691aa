"""Trackers: each run's rows go to TensorBoard, Weights & Biases or one's own as they are measured.

`registry.py` has the protocol; a tracker is a file of its own. `experiments.py` gives each row of a
comparison or a sweep to the trackers of its run.
"""

from fedjax_algos.runs.tracking.event_files import tensorboard
from fedjax_algos.runs.tracking.experiments import track_experiment
from fedjax_algos.runs.tracking.registry import TrackedRun, Tracker, trackers
from fedjax_algos.runs.tracking.weights_and_biases import wandb

__all__ = ["TrackedRun", "Tracker", "tensorboard", "track_experiment", "trackers", "wandb"]
