"""Layers that are fast when each client has its own weights: convolution and pooling."""

from fedjax_algos.models.layers.convolution import Conv, convolve
from fedjax_algos.models.layers.pooling import max_pool

__all__ = ["Conv", "convolve", "max_pool"]
