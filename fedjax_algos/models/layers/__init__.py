"""Layers that stay fast when each client has weights of its own: convolution and pooling."""

from fedjax_algos.models.layers.convolution import Conv, convolve
from fedjax_algos.models.layers.pooling import max_pool

__all__ = ["Conv", "convolve", "max_pool"]
