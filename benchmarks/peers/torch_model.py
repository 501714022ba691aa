"""The models of the PyTorch rivals, and the conversion from and to the layers of `work.py`.

Channels come first in PyTorch: kernels are transposed, and the first dense layer behind a
convolution reads its inputs in another order.
"""

import numpy as np
import torch
import work
from torch import nn


class Network(nn.Module):
    """The model. The pool comes before the ReLU: the same numbers at a quarter of the work."""

    def __init__(self, name):
        super().__init__()
        shapes = work.kernel_shapes(work.WORKS[name])
        self.convolutions = nn.ModuleList(
            nn.Conv2d(shape[2], shape[3], 3) for shape in shapes if len(shape) == 4
        )
        self.dense = nn.ModuleList(nn.Linear(*shape) for shape in shapes if len(shape) == 2)

    def forward(self, x):
        for layer in self.convolutions:
            x = torch.relu(torch.max_pool2d(layer(x), 2))
        x = x.flatten(1)
        for layer in self.dense[:-1]:
            x = torch.relu(layer(x))
        return self.dense[-1](x)


def make_model(name):
    """The model with the initial params."""
    model = Network(name)
    layers = work.first_params(work.WORKS[name])
    with torch.no_grad():
        for module, (kernel, bias) in zip(modules_of(model), layers, strict=True):
            weight = kernel.T
            if kernel.ndim == 4:
                weight = kernel.transpose(3, 2, 0, 1)
            elif module is model.dense[0] and model.convolutions:
                image = kernel.reshape(*image_before(model), -1)
                weight = image.transpose(3, 2, 0, 1).reshape(-1, len(kernel))
            module.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight)))
            module.bias.copy_(torch.from_numpy(bias))
    return model


def layers_of(model):
    """The model's params as layers for `work.report`."""
    layers = []
    for module in modules_of(model):
        weight = module.weight.detach().numpy()
        kernel = weight.T
        if weight.ndim == 4:
            kernel = weight.transpose(2, 3, 1, 0)
        elif module is model.dense[0] and model.convolutions:
            side, _, channels = image_before(model)
            image = weight.reshape(-1, channels, side, side)
            kernel = image.transpose(2, 3, 1, 0).reshape(kernel.shape)
        layers.append((kernel, module.bias.detach().numpy()))
    return layers


def modules_of(model):
    return [*model.convolutions, *model.dense]


def image_before(model):
    """Height, width and channels of the first dense layer's input."""
    channels = model.convolutions[-1].out_channels
    side = int(np.sqrt(model.dense[0].in_features / channels))
    return side, side, channels


def client_tensors(given):
    """A pair (images, labels) for each client, channels first."""
    images, labels = work.client_examples(given)
    if images.ndim == 5:
        images = np.ascontiguousarray(np.moveaxis(images, -1, 2))
    images, labels = torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))
    return list(zip(images, labels, strict=True))


def batch_loss(model, x, y):
    """The mean loss. A batch of another size would not be the same work, so it is an error."""
    assert len(x) == work.BATCH, f"a batch of {len(x)}"
    return nn.functional.cross_entropy(model(x), y)
