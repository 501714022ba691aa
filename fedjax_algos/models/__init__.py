"""Models: each factory makes a `Problem` from the shape of an example and the classes."""

from fedjax_algos.models import language, segmentation
from fedjax_algos.models.adapters import classifier, nnx_classifier
from fedjax_algos.models.convolutional import cnn_fedcompass, cnn_fedgbo, lenet
from fedjax_algos.models.dense import linear, mlp
from fedjax_algos.models.frozen import freeze, freeze_model
from fedjax_algos.models.layers.convolution import Conv, convolve
from fedjax_algos.models.layers.pooling import max_pool
from fedjax_algos.models.loss_functions import with_loss
from fedjax_algos.models.metric_functions import with_metrics
from fedjax_algos.models.precision import ComputeDtype, compute_in
from fedjax_algos.models.preprocessing import (
    chain,
    normalise,
    preprocessed,
    random_crop,
    random_flip,
)
from fedjax_algos.models.recurrent import Recurrent, gru, lstm, lstm_words
from fedjax_algos.models.registry import losses, metrics, models
from fedjax_algos.models.residual import resnet18, resnet20

__all__ = [
    "ComputeDtype",
    "Conv",
    "Recurrent",
    "chain",
    "classifier",
    "cnn_fedcompass",
    "cnn_fedgbo",
    "compute_in",
    "convolve",
    "freeze",
    "freeze_model",
    "gru",
    "language",
    "lenet",
    "linear",
    "losses",
    "lstm",
    "lstm_words",
    "max_pool",
    "metrics",
    "mlp",
    "models",
    "nnx_classifier",
    "normalise",
    "preprocessed",
    "random_crop",
    "random_flip",
    "resnet18",
    "resnet20",
    "segmentation",
    "with_loss",
    "with_metrics",
]
