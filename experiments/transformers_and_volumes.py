"""Whether torchvision's and timm's ViT and FLamby's 3D U-Net give the same outputs here.

COMMAND   python experiments/transformers_and_volumes.py --write FOLDER
          python experiments/transformers_and_volumes.py --check FOLDER
EXPECTED  relative errors below 1e-4 in all lines
TIME      two minutes on one CPU core; FOLDER needs 440 MB

The first command runs in an environment with the packages of `transformers_and_volumes.txt`, the
second one in that of this package. As in `torchvision_models.py`, weights are made by a formula,
outputs are those of the evaluation mode, and `--golden` prints, with the packages of the first
command, what `tests/models/large/test_weights_of_transformers.py` compares with. The U-Net is that
of the package `unet`, from which FLamby has its own.
"""

import argparse
from pathlib import Path

import numpy as np
from torchvision_models import fill, numbers, tensor

VOLUME = (48, 60, 48)


def images(shape):
    """float32[shape] in [-1, 1); the channels come last."""
    return (2 * numbers("images", shape) - 1).astype(np.float32)


def channels_first(x):
    import torch

    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1)))


def unet(levels, features):
    """The network with the formula's weights, and these by name.

    Each tensor has two names, of which only the one without "block" counts.
    """
    import torch
    from unet import UNet

    model = UNet(
        in_channels=1,
        out_classes=2,
        dimensions=3,
        num_encoding_blocks=levels,
        out_channels_first_layer=features,
        normalization="batch",
        upsampling_type="linear",
        padding=True,
        activation="PReLU",
    )
    kept = {
        name: torch.from_numpy(tensor(name, tuple(value.shape)))
        for name, value in model.state_dict().items()
        if ".block." not in name and not name.endswith("num_batches_tracked")
    }
    model.load_state_dict(kept, strict=False)
    return model.eval(), kept


def write(folder):
    import timm
    import torch
    import torchvision
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    makers = {
        "vit_b_16": torchvision.models.vit_b_16,
        "vit_small": lambda: timm.create_model("vit_small_patch16_224"),
    }
    for name, make in makers.items():
        model, _ = fill(make())
        save_file(model.state_dict(), folder / f"{name}.safetensors")
        with torch.inference_mode():
            y = model(channels_first(images((2, 224, 224, 3))))
        np.save(folder / f"{name}.npy", y.numpy())
    model, tensors = unet(3, 8)
    save_file(tensors, folder / "unet_3d.safetensors")
    with torch.inference_mode():
        y = model(channels_first(images((2, *VOLUME, 1))))
    np.save(folder / "unet_3d.npy", np.moveaxis(y.numpy(), 1, -1))


def print_golden():
    import timm
    import torch
    import torchvision

    small = {"num_classes": 10, "patch_size": 4}
    models = {
        "torchvision": torchvision.models.VisionTransformer(
            image_size=8, num_layers=2, num_heads=3, hidden_dim=12, mlp_dim=48, **small
        ),
        "timm": timm.models.VisionTransformer(
            img_size=8, depth=2, num_heads=3, embed_dim=12, **small
        ),
    }
    other = timm.models.VisionTransformer(
        img_size=(12, 20), depth=2, num_heads=3, embed_dim=12, **small
    )
    with torch.inference_mode():
        for name, made in models.items():
            model, shapes = fill(made)
            y = model(channels_first(images((1, 8, 8, 3))))
            print(name, len(shapes), [float(f"{value:.6g}") for value in y[0]])
        # the last model's weights, for images of 12 x 20
        weights = timm.models.vision_transformer.checkpoint_filter_fn(model.state_dict(), other)
        other.load_state_dict(weights)
        y = other.eval()(channels_first(images((1, 12, 20, 3))))
        print("timm, other images", [float(f"{value:.6g}") for value in y[0]])
        model, tensors = unet(2, 2)
        y = model(channels_first(images((1, 2, 4, 6, 1))))
        first = np.moveaxis(y.numpy(), 1, -1).reshape(-1)[:10]
        print("unet", len(tensors), [float(f"{value:.6g}") for value in first])


def check(folder):
    import jax

    import fedjax_algos as fa

    errors = {}
    for name in ("vit_b_16", "vit_small", "unet_3d"):
        shape, classes = ((*VOLUME, 1), 2) if name == "unet_3d" else ((224, 224, 3), 1000)
        problem = fa.models.models[name](shape, classes, weights=folder / f"{name}.safetensors")
        model = jax.jit(problem.init)(jax.random.key(0))
        apply = jax.jit(problem.apply, static_argnums=3)
        batch = {"x": images((2, *shape))}
        ours = np.asarray(apply(model, batch, jax.random.key(0), False)[0].logits)
        theirs = np.load(folder / f"{name}.npy")
        errors[name] = np.abs(ours - theirs).max() / np.abs(theirs).max()
        print(f"{name}: relative error {errors[name]:.1e}", flush=True)
    if not max(errors.values()) < 1e-4:
        raise SystemExit(f"the largest relative error is {max(errors.values()):.1e}, above 1e-4")


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
