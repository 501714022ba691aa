"""Whether the networks of torchvision and timm give the same outputs here, with the same weights.

COMMAND   python experiments/torchvision_models.py --write FOLDER
          python experiments/torchvision_models.py --check FOLDER
EXPECTED  relative errors below 1e-4 in all lines
TIME      two minutes on one CPU core; FOLDER needs 375 MB

The first command runs in an environment with the packages of `torchvision_models.txt`, the second
one in that of this package. The first one makes torchvision's and timm's networks with weights of a
fixed formula, also for BatchNorm's statistics, and saves the weights and the outputs in evaluation
mode; the second one loads the weights and compares. A file .pth is compared if torch is there, too.
`--golden` prints, with the packages of the first command, what `tests/models/large/test_weights.py`
compares with: the checksum of all names and shapes of each network, and ten outputs for an image of
32x32.
"""

import argparse
import importlib.util
import json
import math
import zlib
from pathlib import Path

import numpy as np

# of this package: (of torchvision, of timm)
NETWORKS = {
    "mobilenet_v2": ("mobilenet_v2", "mobilenetv2_100"),
    "efficientnet_b0": ("efficientnet_b0", "efficientnet_b0"),
    "resnet18_imagenet": ("resnet18", "resnet18"),
    "resnet50": ("resnet50", "resnet50"),
}
SIZES = (64, 224)


def numbers(name, shape):
    """float64 in [0, 1), by a hash of the name and of the index: the same on every machine."""
    k = np.arange(math.prod(shape), dtype=np.uint64) + (np.uint64(zlib.crc32(name.encode())) << 32)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        k = (k ^ (k >> np.uint64(33))) * np.uint64(factor)
    return ((k >> np.uint64(40)) / 2**24).reshape(shape)


def tensor(name, shape):
    """float32: kernels U(-b, b) with b^2 = 6 / fan in; the rest is neither 0 nor 1."""
    uniform = numbers(name, shape)
    if len(shape) > 1:
        value = (2 * uniform - 1) * (6 / math.prod(shape[1:])) ** 0.5
    elif name.endswith(("weight", "running_var")):
        value = 0.5 + uniform
    else:
        value = uniform - 0.5
    return value.astype(np.float32)


def images(size):
    """float32[2, size, size, 3] in [-1, 1)."""
    return (2 * numbers("images", (2, size, size, 3)) - 1).astype(np.float32)


def fill(model):
    """The network in evaluation mode with the formula's weights, and these by name."""
    import torch

    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    counters = [name for name in shapes if name.endswith("num_batches_tracked")]
    weights = {name: tensor(name, shape) for name, shape in shapes.items() if name not in counters}
    state = {name: torch.from_numpy(value) for name, value in weights.items()}
    model.load_state_dict(state | {name: torch.tensor(0) for name in counters})
    return model.eval(), shapes


def outputs(model, size):
    import torch

    with torch.inference_mode():
        return model(torch.from_numpy(images(size)).permute(0, 3, 1, 2)).numpy()


def makers(name, num_classes):
    """torchvision's network and timm's."""
    import timm
    import torchvision

    of_torchvision, of_timm = NETWORKS[name]
    yield (
        "torchvision",
        lambda: getattr(torchvision.models, of_torchvision)(num_classes=num_classes),
    )
    yield "timm", lambda: timm.create_model(of_timm, num_classes=num_classes)


def write(folder):
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for name in NETWORKS:
        for source, make in makers(name, 1000):
            model, _ = fill(make())
            save_file(model.state_dict(), folder / f"{name}_{source}.safetensors")
            if (name, source) == ("mobilenet_v2", "torchvision"):
                torch.save(model.state_dict(), folder / f"{name}_{source}.pth")
            for size in SIZES:
                np.save(folder / f"{name}_{source}_{size}.npy", outputs(model, size))


def print_golden():
    for name in NETWORKS:
        model, shapes = fill(next(makers(name, 10))[1]())
        listed = json.dumps(sorted((key, list(shape)) for key, shape in shapes.items()))
        values = ", ".join(f"{value:.5g}" for value in outputs(model, 32)[0])
        print(f"{name}: {zlib.crc32(listed.encode())}, [{values}]")


def check(folder):
    import jax

    import fedjax_algos as fa

    worst, files = 0.0, sorted(folder.glob("*.safetensors"))
    if importlib.util.find_spec("torch"):
        files += folder.glob("*.pth")
    else:
        print("torch is not installed here, so the file .pth is left out")
    for path in files:
        name, source = path.stem.rsplit("_", 1)
        for size in SIZES:
            problem = fa.models.models[name]((size, size, 3), 1000, weights=path)
            model = jax.jit(problem.init)(jax.random.key(0))
            apply = jax.jit(problem.apply, static_argnums=3)
            batch = {"x": images(size)}
            ours = np.asarray(apply(model, batch, jax.random.key(0), False)[0].logits)
            theirs = np.load(folder / f"{name}_{source}_{size}.npy")
            error = np.abs(ours - theirs).max() / np.abs(theirs).max()
            worst = max(worst, error)
            print(f"{path.name} {size}x{size}: relative error {error:.1e}", flush=True)
    if not worst < 1e-4:
        raise SystemExit(f"the largest relative error is {worst:.1e}, not below 1e-4")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    parser.add_argument("--check", type=Path, metavar="FOLDER")
    parser.add_argument("--golden", action="store_true")
    given = parser.parse_args()
    if given.write:
        write(given.write)
    if given.golden:
        print_golden()
    if given.check:
        check(given.check)


if __name__ == "__main__":
    main()
