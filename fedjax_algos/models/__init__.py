"""Models: each factory makes a `Problem` from the shape of an example and the classes."""

from fedjax_algos.models import language, segmentation
from fedjax_algos.models.adapters import classifier, nnx_classifier
from fedjax_algos.models.convolutional import cnn_fedcompass, cnn_fedgbo, lenet
from fedjax_algos.models.dense import linear, mlp
from fedjax_algos.models.frozen import freeze, freeze_model
from fedjax_algos.models.inverted_residual import efficientnet_b0, mobilenet_v2
from fedjax_algos.models.layers.convolution import Conv, convolve
from fedjax_algos.models.layers.depthwise import DepthwiseConv, convolve_depthwise
from fedjax_algos.models.layers.pooling import max_pool
from fedjax_algos.models.layers.volumes import Conv3D, convolve_3d, max_pool_3d, upsample_3d
from fedjax_algos.models.loss_functions import with_loss
from fedjax_algos.models.metric_functions import with_metrics
from fedjax_algos.models.precision import ComputeDtype, compute_in
from fedjax_algos.models.preprocessing import (
    chain,
    normalise,
    preprocessed,
    random_crop,
    random_flip,
    random_resized_crop,
)
from fedjax_algos.models.recurrent import Recurrent, gru, lstm, lstm_words
from fedjax_algos.models.registry import losses, metrics, models
from fedjax_algos.models.residual import resnet18, resnet18_imagenet, resnet20, resnet50
from fedjax_algos.models.segmentation import segmenter
from fedjax_algos.models.unet import unet_3d
from fedjax_algos.models.vision_transformer import vit, vit_b_16, vit_small
from fedjax_algos.models.weights import convert_weights, load_weights, pretrained

__all__ = [
    "ComputeDtype",
    "Conv",
    "Conv3D",
    "DepthwiseConv",
    "Recurrent",
    "chain",
    "classifier",
    "cnn_fedcompass",
    "cnn_fedgbo",
    "compute_in",
    "convert_weights",
    "convolve",
    "convolve_3d",
    "convolve_depthwise",
    "efficientnet_b0",
    "freeze",
    "freeze_model",
    "gru",
    "language",
    "lenet",
    "linear",
    "load_weights",
    "losses",
    "lstm",
    "lstm_words",
    "max_pool",
    "max_pool_3d",
    "metrics",
    "mlp",
    "mobilenet_v2",
    "models",
    "nnx_classifier",
    "normalise",
    "preprocessed",
    "pretrained",
    "random_crop",
    "random_flip",
    "random_resized_crop",
    "resnet18",
    "resnet18_imagenet",
    "resnet20",
    "resnet50",
    "segmentation",
    "segmenter",
    "unet_3d",
    "upsample_3d",
    "vit",
    "vit_b_16",
    "vit_small",
    "with_loss",
    "with_metrics",
]
