"""A local step of a network in PyTorch, for `benchmarks/large_models.py`, which gives the argument.

It prints the milliseconds of the processor for one step of SGD, with one thread, in the faster of
the two orders of axes.
"""

import json
import statistics
import sys
import time

import torch


def network(name, shape, classes):
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

    return getattr(torchvision.models, name.removesuffix("_imagenet"))(num_classes=classes)


def measure(name, shape, classes, batch, steps, repeats, last):
    model = network(name, shape, classes).train()
    volumes = name == "unet_3d"
    x = torch.randn(batch, 1, *shape) if volumes else torch.randn(batch, shape[2], *shape[:2])
    y = torch.randint(classes, (batch, *shape) if volumes else (batch,))
    if last:
        order = torch.channels_last_3d if volumes else torch.channels_last
        model, x = model.to(memory_format=order), x.contiguous(memory_format=order)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    loss = torch.nn.CrossEntropyLoss()

    def run():
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()

    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(1e3 * (time.process_time() - start) / steps)
    return statistics.median(times)


def main():
    torch.set_num_threads(1)
    given = json.loads(sys.argv[1])
    print(min(measure(**given, last=last) for last in (False, True)))


if __name__ == "__main__":
    main()
