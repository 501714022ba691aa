"""A local step of a network in PyTorch, for `benchmarks/networks.py`, which gives the argument.

For each line that it reads, it prints the milliseconds of one step of SGD, with one thread, in the
faster of the two orders of axes.
"""

import itertools
import json
import statistics
import sys
import time

import torch
from torch import nn


class Block(nn.Module):
    """GHBM's: two convolutions with GroupNorm, and a shortcut that pads with zeros."""

    def __init__(self, channels, features, stride):
        super().__init__()
        self.stride, self.added = stride, features - channels
        convolution = {"kernel_size": 3, "padding": 1, "bias": False}
        self.first = nn.Conv2d(channels, features, stride=stride, **convolution)
        self.second = nn.Conv2d(features, features, **convolution)
        self.norms = nn.ModuleList(nn.GroupNorm(2, features) for _ in range(2))

    def forward(self, x):
        y = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        if self.added:
            sides = (0, 0, 0, 0, self.added // 2, self.added - self.added // 2)
            x = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], sides)
        return torch.relu(x + y)


def resnet20(classes):
    parts = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(2, 16), nn.ReLU()]
    channels = 16
    for stage, features in enumerate((16, 32, 64)):
        for block in range(3):
            parts.append(Block(channels, features, 2 if stage and not block else 1))
            channels = features
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def small(channels, features, kernel, hidden, classes, side):
    """Convolutions, each followed by a pool and a ReLU, and a perceptron."""
    parts = []
    for number in features:
        parts += [nn.Conv2d(channels, number, kernel), nn.MaxPool2d(2), nn.ReLU()]
        channels, side = number, (side - kernel + 1) // 2
    widths = [channels * side * side, *hidden, classes]
    parts.append(nn.Flatten())
    for number, width in itertools.pairwise(widths):
        parts += [nn.Linear(number, width), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


class Reader(nn.Module):
    """An embedding, two recurrent layers, and a dense layer on the last state."""

    def __init__(self, layer, width, symbols):
        super().__init__()
        self.embedding = nn.Embedding(symbols, 8)
        self.layers = layer(8, width, 2, batch_first=True)
        self.head = nn.Linear(width, symbols)

    def forward(self, x):
        return self.head(self.layers(self.embedding(x))[0][:, -1])


def network(name, shape, classes):
    own = {
        "cnn_fedgbo": lambda: small(1, (32, 64), 3, (512,), classes, 28),
        "cnn_fedcompass": lambda: small(1, (32, 64), 5, (512,), classes, 28),
        "lenet": lambda: small(3, (64, 64), 5, (384, 192), classes, 32),
        "resnet20": lambda: resnet20(classes),
        "gru": lambda: Reader(nn.GRU, 128, classes),
        "lstm": lambda: Reader(nn.LSTM, 100, classes),
    }
    if name in own:
        return own[name]()
    if name == "unet_3d":
        from unet import UNet

        return UNet(
            in_channels=1,
            out_classes=classes,
            dimensions=3,
            num_encoding_blocks=3,
            out_channels_first_layer=8,
            normalization="batch",
            upsampling_type="linear",
            padding=True,
            activation="PReLU",
        )
    if name == "vit_small":
        import timm

        options = {"img_size": shape[0], "num_classes": classes}
        return timm.create_model("vit_small_patch16_224", **options)
    import torchvision

    model = getattr(torchvision.models, name.removesuffix("_imagenet"))(num_classes=classes)
    if name == "resnet18":  # for small images
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return model


def prepare(name, shape, classes, batch, last):
    """A function that runs one step."""
    model = network(name, shape, classes).train()
    volumes, is_text = name == "unet_3d", len(shape) == 1
    x = torch.randn(batch, 1, *shape) if volumes else torch.randn(batch, *shape[-1:], *shape[:-1])
    x = torch.randint(classes, (batch, *shape)) if is_text else x
    y = torch.randint(classes, (batch, *shape) if volumes else (batch,))
    if last and not is_text:
        order = torch.channels_last_3d if volumes else torch.channels_last
        model, x = model.to(memory_format=order), x.contiguous(memory_format=order)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    loss = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return step


def milliseconds(step, steps, repeats):
    """Median milliseconds of a step."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        times.append(1e3 * (time.perf_counter() - start) / steps)
    return statistics.median(times)


def main():
    torch.set_num_threads(1)
    given = json.loads(sys.argv[1])
    counts = given.pop("steps"), given.pop("repeats")
    forms = [prepare(**given, last=last) for last in (False, True)]
    for step in forms:  # the first ones are slow
        milliseconds(step, *counts)
    fastest = min(forms, key=lambda step: milliseconds(step, *counts))
    print(milliseconds(fastest, *counts), flush=True)
    while sys.stdin.readline():
        print(milliseconds(fastest, *counts), flush=True)


if __name__ == "__main__":
    main()
