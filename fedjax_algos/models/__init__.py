"""Models as problems: `models["mlp"](example_shape, num_classes)` returns a `Problem`."""

from fedjax_algos.models.classifiers import classifier, linear, mlp, models

__all__ = ["classifier", "linear", "mlp", "models"]
