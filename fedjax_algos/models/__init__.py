"""Models: each factory makes a `Problem` from the shape of an example and the classes."""

from fedjax_algos.models.adapters import classifier, models, nnx_classifier
from fedjax_algos.models.language import Recurrent, gru, lstm, lstm_words
from fedjax_algos.models.large.inverted_residual import efficientnet_b0, mobilenet_v2
from fedjax_algos.models.large.residual import resnet18, resnet18_imagenet, resnet20, resnet50
from fedjax_algos.models.large.vision_transformer import vit, vit_b_16, vit_small
from fedjax_algos.models.large.weights import convert_weights, load_config, load_weights, pretrained
from fedjax_algos.models.layers.convolution import Conv, convolve
from fedjax_algos.models.layers.sharded import shard
from fedjax_algos.models.layers.shifted import DepthwiseConv, convolve_depthwise, max_pool
from fedjax_algos.models.layers.volumes import Conv3D, convolve_3d, max_pool_3d, upsample_3d
from fedjax_algos.models.outputs import losses, metrics, with_loss, with_metrics
from fedjax_algos.models.preprocessing import (
    chain,
    normalise,
    preprocessed,
    random_crop,
    random_flip,
    random_resized_crop,
)
from fedjax_algos.models.rematerialised import rematerialise
from fedjax_algos.models.segmentation import segmenter, unet_3d
from fedjax_algos.models.small import cnn_fedcompass, cnn_fedgbo, lenet, linear, mlp
from fedjax_algos.models.wrapped import (
    ComputeDtype,
    compute_in,
    freeze,
    freeze_model,
    lora,
    store_frozen_in,
)

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
    "lenet",
    "linear",
    "load_config",
    "load_weights",
    "lora",
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
    "rematerialise",
    "resnet18",
    "resnet18_imagenet",
    "resnet20",
    "resnet50",
    "segmenter",
    "shard",
    "store_frozen_in",
    "unet_3d",
    "upsample_3d",
    "vit",
    "vit_b_16",
    "vit_small",
    "with_loss",
    "with_metrics",
]
