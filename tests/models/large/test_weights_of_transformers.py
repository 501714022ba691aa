"""The weights of torchvision's and timm's ViT and of FLamby's U-Net give their outputs.

The numbers are what PyTorch computes; `experiments/transformers_and_volumes.py --golden` prints
them.
"""

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file
from weight_helpers import numbers, tensor, torch_shapes

from fedjax_algos.models import unet_3d, vit
from fedjax_algos.models.large.weights import (
    resize_positions,
    unet_3d_names,
    vision_transformer_names,
)

KEY = jax.random.key(0)
SMALL = {"patch_size": 4, "width": 12, "depth": 2, "heads": 3}
SHAPE, OF_UNET = (8, 8, 3), (2, 4, 6, 1)
# tensors that are converted, by the end of their name
RESHAPED = {"conv_proj.weight": (12, 3, 4, 4), "patch_embed.proj.weight": (12, 3, 4, 4)}
RESHAPED |= {"classifier.conv_layer.weight": (2, 4, 1, 1, 1), "activation_layer.weight": (1,)}


def transformer(**options):
    return vit(SHAPE, 10, **SMALL, **options)


def unet(**options):
    return unet_3d(OF_UNET, 2, levels=2, features=2, **options)


def of_torchvision():
    return torch_shapes(transformer(), vision_transformer_names(2, (2, 2))[0], RESHAPED)


def of_timm():
    return torch_shapes(transformer(), vision_transformer_names(2, (2, 2))[1], RESHAPED)


def of_unet():
    """Without PyTorch's counters of batches, which `load_weights` leaves out."""
    found = torch_shapes(unet(), unet_3d_names(2), RESHAPED)
    return {name: shape for name, shape in found.items() if "num_batches" not in name}


CASES = {
    "torchvision": (
        of_torchvision,
        transformer,
        SHAPE,
        [-1.97873, -1.77735, 1.74903, 1.20189, 1.4816, -1.946, -3.50958, 0.803124, -1.96452,
         0.59653],
    ),
    "timm": (
        of_timm,
        transformer,
        SHAPE,
        [-1.11198, -1.16456, -2.5403, 0.226574, 0.891182, -0.702386, 0.597758, 1.83615, 0.587922,
         -1.15003],
    ),
    "unet": (
        of_unet,
        unet,
        OF_UNET,
        [-0.0598974, -0.38565, -1.1238, -0.216595, -0.36977, -0.784682, -0.591675, -0.316347,
         -0.0283278, -0.418141],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_those_of_pytorch(case, tmp_path):
    shapes, make, shape, expected = CASES[case]
    save_file({n: tensor(n, s) for n, s in shapes().items()}, tmp_path / "weights.safetensors")
    problem = make(weights=tmp_path / "weights.safetensors")
    x = (2 * numbers("images", (1, *shape)) - 1).astype(np.float32)

    def evaluate(key):
        return problem.apply(problem.init(key), {"x": x}, key, False)[0].logits

    logits = np.asarray(jax.jit(evaluate)(KEY)).ravel()[:10]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.all
def test_positions_of_other_images():
    """The weights of images of 8x8 for images of 12x20; the outputs are timm's."""
    tensors = {name: tensor(name, shape) for name, shape in of_timm().items()}
    x = (2 * numbers("images", (1, 12, 20, 3)) - 1).astype(np.float32)

    def evaluate(key):
        problem = vit((12, 20, 3), 10, **SMALL, weights=tensors)
        return problem.apply(problem.init(key), {"x": x}, key, False)[0].logits

    expected = [0.430909, 1.26149, 2.90457, 0.765437, 2.18577, 2.33704, -3.70185, -3.19268]
    np.testing.assert_allclose(np.asarray(jax.jit(evaluate)(KEY))[0, :8], expected, rtol=2e-5)
    tensors["pos_embed"] = tensor("pos_embed", (1, 4, 12))
    with pytest.raises(ValueError, match=r"'pos_embed' becomes \[1, 4, 12\], but position_embed"):
        vit((12, 20, 3), 10, **SMALL, weights=tensors)


@pytest.mark.all
def test_a_new_head_is_drawn_and_the_rest_is_loaded(tmp_path):
    path = tmp_path / "weights.safetensors"
    tensors = {name: tensor(name, shape) for name, shape in of_timm().items()}
    save_file(tensors, path)
    with pytest.raises(ValueError, match=r"safetensors: 'head.bias' becomes \[10\], but"):
        vit(SHAPE, 7, **SMALL, weights=path)
    problems = vit(SHAPE, 7, **SMALL, weights=path, head="new"), vit(SHAPE, 7, **SMALL)
    loaded, drawn = (jax.jit(problem.init)(KEY).params for problem in problems)
    bias = loaded["patch_embedding"]["bias"]
    np.testing.assert_array_equal(bias, tensors["patch_embed.proj.bias"])
    np.testing.assert_array_equal(loaded["head"]["kernel"], drawn["head"]["kernel"])
    with pytest.raises(ValueError, match=r"head='new' has no effect without weights; give weights"):
        vit(SHAPE, 7, **SMALL, head="new")


def test_second_names_of_the_same_tensors_are_left_out(tmp_path):
    """PyTorch's state dict has the layers of FLamby's network also as entries of a sequence."""
    tensors = {name: tensor(name, shape) for name, shape in of_unet().items()}
    second = {"bottom_block.conv1.block.0.weight": tensors["bottom_block.conv1.conv_layer.weight"]}
    save_file(tensors | second, tmp_path / "weights.safetensors")
    unet(weights=tmp_path / "weights.safetensors")


@pytest.mark.all
@pytest.mark.parametrize(
    ("side", "grid", "dtype", "printed"),
    [
        # `timm.layers.resample_abs_pos_embed` of k**2 % 11 by torch 2.13; first the token's
        (2, (3, 3), np.float16, [0, .24602, 2.203948, 4.161877, 5.032895, 4.75, 4.467105, 9.819771,
                                 7.296053, 4.772334]),
        (3, (2, 4), np.float64, [0, 5.866066, 4.449078, 2.848407, 2.067535, 9.5695, 4.678286,
                                 2.159489, 3.592175]),
    ],
)  # fmt: skip
def test_positions_are_those_of_timm(side, grid, dtype, printed):
    width = 2 if side == 3 else 1
    values = np.arange((side**2 + 1) * width) ** 2 % 11
    embedding = values.reshape(1, -1, width).astype(dtype)
    resized = resize_positions(embedding, grid)
    assert resized.shape == (1, grid[0] * grid[1] + 1, width)
    assert resized.dtype == (np.float64 if dtype == np.float64 else np.float32)
    np.testing.assert_allclose(resized[0, :, 0], printed, rtol=1e-5)
    assert resize_positions(embedding, (side, side)) is embedding
