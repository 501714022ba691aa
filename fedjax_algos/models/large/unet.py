"""The U-Net for volumes.

Çiçek et al., "3D U-Net: Learning Dense Volumetric Segmentation from Sparse Annotation", MICCAI
2016, https://arxiv.org/abs/1606.06650, in the variant of FLamby's Fed-IXI: Ogier du Terrail et al.,
"FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare
Settings", NeurIPS 2022, https://arxiv.org/abs/2210.04620. It takes the network from the package
`unet` 0.7.7 of Pérez-García, https://github.com/fepegar/unet.
"""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp

from fedjax_algos.core import Problem
from fedjax_algos.core.files import PathLike
from fedjax_algos.core.options import Count, Layers
from fedjax_algos.models.adapters import VOLUMES, model_of
from fedjax_algos.models.large.residual import Norm, Normalisation
from fedjax_algos.models.large.weights import Head, load_weights
from fedjax_algos.models.large.weights_of_torch import unet_3d_names, with_weights
from fedjax_algos.models.layers.convolution import Convolutions
from fedjax_algos.models.layers.initialisation import initialisers
from fedjax_algos.models.layers.volumes import Conv3D, max_pool_3d, upsample_3d
from fedjax_algos.models.segmentation import segmenter


class ConvolutionalLayer(nn.Module):
    """A 3x3x3 convolution, a normalisation, and a PReLU with one slope, which begins at 1/4."""

    features: int
    normalisation: type | None  # without one, the convolution has a bias
    convolutions: Convolutions

    @nn.compact
    def __call__(self, x):
        use_bias = self.normalisation is None
        initial = initialisers("torch", 27 * x.shape[-1])
        convolution = partial(Conv3D, implementation=self.convolutions, **initial)
        x = convolution(self.features, (3, 3, 3), use_bias=use_bias)(x)
        x = x if self.normalisation is None else self.normalisation()(x)
        return nn.PReLU(negative_slope_init=0.25)(x)


class UNet3D(nn.Module):
    """An encoder that halves the volume, a decoder that doubles it, and connections of both."""

    num_classes: int
    levels: int
    features: int  # of the first layer
    norm: Norm
    groups: int
    convolutions: Convolutions

    @nn.compact
    def __call__(self, x, training=False):
        self.check(x.shape[1:])
        x = x[..., None] if x.ndim == 4 else x
        normalisation = partial(Normalisation, self.norm, self.groups, training)
        layer = partial(
            ConvolutionalLayer, normalisation=normalisation, convolutions=self.convolutions
        )
        kept = []
        for level in range(self.levels):
            if level:
                kept.append(x)
                x = max_pool_3d(x, (2, 2, 2))
            features = self.features * 2**level
            first = layer(features) if level else layer(features, normalisation=None)
            x = layer(2 * features)(first(x))
        for encoded in reversed(kept):
            x = jnp.concatenate([encoded, upsample_3d(x)], -1)
            x = layer(encoded.shape[-1])(x)
            x = layer(encoded.shape[-1])(x)
        return nn.Dense(self.num_classes, **initialisers("torch", x.shape[-1]), name="head")(x)

    def check(self, shape):
        factor = 2 ** (self.levels - 1)
        if any(length % factor for length in shape[:3]):
            raise ValueError(
                f"volumes of {shape[:3]} cannot be halved {self.levels - 1} times; pad or crop the "
                f"examples to multiples of {factor}, or give fewer levels"
            )


@model_of(VOLUMES)
def unet_3d(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    levels: Layers = 3,
    features: Count = 8,
    norm: Norm = "batch",
    groups: Count = 8,
    convolutions: Convolutions = "auto",
    weights: PathLike | None = None,
    head: Head = "loaded",
) -> Problem:
    """FLamby's 3D U-Net for Fed-IXI, which labels each voxel of a volume.

    It has 246,156 parameters for one channel and two classes. Labels "y" are int32[batch, depth,
    height, width]. The loss is the cross-entropy of the voxels; FLamby's is
    `with_loss(problem, "dice")`. The metrics are the accuracy of the voxels and the Dice score of
    the mask. The `unet` package crops what the encoder passes on if a size is odd; here sizes that
    cannot be halved are refused.

    Args:
      levels: number of sizes of the volume, each half the one before.
      features: features of the first layer, at least 1; each level doubles them.
      weights: a file of the weights of FLamby's network or of `unet`; see `pretrained`.

    Raises:
      ValueError: when the model is initialised, for sizes that cannot be halved.
    """
    module = UNet3D(num_classes, levels, features, norm, groups, convolutions)
    problem = segmenter(module, example_shape)
    tensors = None
    if weights is not None:  # PyTorch has a second name for each tensor of these layers
        tensors = {name: t for name, t in load_weights(weights).items() if ".block." not in name}
    return with_weights(problem, tensors, head, [unet_3d_names(levels)])
