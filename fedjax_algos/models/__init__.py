"""Models: each factory makes a `Problem` from an example's shape and the number of classes."""

from typing import TYPE_CHECKING

from fedjax_algos.base.lazy import listed
from fedjax_algos.models.adapters import classifier as classifier
from fedjax_algos.models.adapters import models as models
from fedjax_algos.models.language import Recurrent as Recurrent
from fedjax_algos.models.language import gru as gru
from fedjax_algos.models.language import lstm as lstm
from fedjax_algos.models.language import lstm_words as lstm_words
from fedjax_algos.models.large.inverted_residual import efficientnet_b0 as efficientnet_b0
from fedjax_algos.models.large.inverted_residual import mobilenet_v2 as mobilenet_v2
from fedjax_algos.models.large.residual import resnet18 as resnet18
from fedjax_algos.models.large.residual import resnet18_imagenet as resnet18_imagenet
from fedjax_algos.models.large.residual import resnet20 as resnet20
from fedjax_algos.models.large.residual import resnet50 as resnet50
from fedjax_algos.models.large.vision_transformer import vit as vit
from fedjax_algos.models.large.vision_transformer import vit_b_16 as vit_b_16
from fedjax_algos.models.large.vision_transformer import vit_small as vit_small
from fedjax_algos.models.large.weights import convert_weights as convert_weights
from fedjax_algos.models.large.weights import load_config as load_config
from fedjax_algos.models.large.weights import load_weights as load_weights
from fedjax_algos.models.large.weights import pretrained as pretrained
from fedjax_algos.models.layers.common import shard as shard
from fedjax_algos.models.layers.convolution import Conv as Conv
from fedjax_algos.models.layers.convolution import convolve as convolve
from fedjax_algos.models.layers.shifted import DepthwiseConv as DepthwiseConv
from fedjax_algos.models.layers.shifted import convolve_depthwise as convolve_depthwise
from fedjax_algos.models.layers.shifted import max_pool as max_pool
from fedjax_algos.models.layers.volumes import Conv3D as Conv3D
from fedjax_algos.models.layers.volumes import convolve_3d as convolve_3d
from fedjax_algos.models.layers.volumes import max_pool_3d as max_pool_3d
from fedjax_algos.models.layers.volumes import upsample_3d as upsample_3d
from fedjax_algos.models.outputs import losses as losses
from fedjax_algos.models.outputs import metrics as metrics
from fedjax_algos.models.outputs import with_loss as with_loss
from fedjax_algos.models.outputs import with_metrics as with_metrics
from fedjax_algos.models.preprocessing import chain as chain
from fedjax_algos.models.preprocessing import normalise as normalise
from fedjax_algos.models.preprocessing import preprocessed as preprocessed
from fedjax_algos.models.preprocessing import random_crop as random_crop
from fedjax_algos.models.preprocessing import random_flip as random_flip
from fedjax_algos.models.preprocessing import random_resized_crop as random_resized_crop
from fedjax_algos.models.rematerialised import rematerialise as rematerialise
from fedjax_algos.models.segmentation import segmenter as segmenter
from fedjax_algos.models.segmentation import unet_3d as unet_3d
from fedjax_algos.models.small import cnn_fedcompass as cnn_fedcompass
from fedjax_algos.models.small import cnn_fedgbo as cnn_fedgbo
from fedjax_algos.models.small import lenet as lenet
from fedjax_algos.models.small import linear as linear
from fedjax_algos.models.small import mlp as mlp
from fedjax_algos.models.wrapped import ComputeDtype as ComputeDtype
from fedjax_algos.models.wrapped import compute_in as compute_in
from fedjax_algos.models.wrapped import freeze as freeze
from fedjax_algos.models.wrapped import freeze_model as freeze_model
from fedjax_algos.models.wrapped import lora as lora
from fedjax_algos.models.wrapped import store_frozen_in as store_frozen_in

if TYPE_CHECKING:
    from fedjax_algos.models.nnx_modules import nnx_classifier as nnx_classifier
else:
    __all__, __dir__, __getattr__ = listed(__name__)
