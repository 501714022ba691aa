"""Layers that are fast when each client has its own weights: convolution and pooling."""

from fedjax_algos.models.layers.convolution import Conv, convolve
from fedjax_algos.models.layers.pooling import max_pool
from fedjax_algos.models.layers.volumes import Conv3D, convolve_3d, max_pool_3d, upsample_3d

__all__ = ["Conv", "Conv3D", "convolve", "convolve_3d", "max_pool", "max_pool_3d", "upsample_3d"]
