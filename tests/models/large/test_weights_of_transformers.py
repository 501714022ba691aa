"""The weights of torchvision's and timm's ViT and of FLamby's U-Net give PyTorch's outputs.

`experiments/transformers_and_volumes.py --golden` prints the numbers.
"""

import functools

import jax
import numpy as np
import pytest
from model_kinds import in_all
from safetensors.numpy import save_file
from weight_helpers import numbers, tensor, torch_shapes

from fedjax_algos.models import segmentation, unet_3d, vit
from fedjax_algos.models.large import vision_transformer

KEY = jax.random.key(0)
SMALL = {"patch_size": 4, "width": 12, "depth": 2, "heads": 3}
SHAPE, OF_UNET = (8, 8, 3), (2, 4, 6, 1)
# tensors that are converted, by the end of their name
RESHAPED = {"conv_proj.weight": (12, 3, 4, 4), "patch_embed.proj.weight": (12, 3, 4, 4)}
RESHAPED |= {"classifier.conv_layer.weight": (2, 4, 1, 1, 1), "activation_layer.weight": (1,)}

transformer = functools.partial(vit, SHAPE, 10, **SMALL)
unet = functools.partial(unet_3d, OF_UNET, 2, levels=2, features=2)
OF_TORCHVISION, OF_TIMM = vision_transformer.torch_names(2, (2, 2))
CASES = {
    "torchvision": (
        transformer, OF_TORCHVISION, SHAPE,
        [-1.97873, -1.77735, 1.74903, 1.20189, 1.4816, -1.946, -3.50958, .803124, -1.96452, .59653],
    ),
    "timm": (
        transformer, OF_TIMM, SHAPE,
        [-1.11198, -1.16456, -2.5403, .226574, .891182, -.702386, .597758, 1.83615, .587922,
         -1.15003],
    ),
    "unet": (
        unet, segmentation.torch_names(2), OF_UNET,
        [-.0598974, -.38565, -1.1238, -.216595, -.36977, -.784682, -.591675, -.316347, -.0283278,
         -.418141],
    ),
}  # fmt: skip


@functools.cache
def tensors_of(case):
    """Without PyTorch's counters of batches, which are scalars; `load_weights` leaves them out."""
    make, names, _, _ = CASES[case]
    shapes = torch_shapes(make(), names, RESHAPED)
    return {name: tensor(name, shape) for name, shape in shapes.items() if shape}


def logits_of(problem, shape):
    x = (2 * numbers("images", (1, *shape)) - 1).astype(np.float32)
    evaluate = jax.jit(lambda: problem.apply(problem.init(KEY), {"x": x}, KEY, False)[0].logits)
    return np.asarray(evaluate()).ravel()


@pytest.mark.parametrize("case", ["torchvision", *in_all("timm", "unet")])
def test_outputs_are_those_of_pytorch(case, tmp_path):
    make, _, shape, expected = CASES[case]
    path = tmp_path / "weights.safetensors"
    save_file(tensors_of(case), path)
    logits = logits_of(make(weights=path), shape)[:10]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.all
def test_positions_of_other_images():
    """The weights of images of 8x8 for images of 12x20; the outputs are timm's."""
    make = functools.partial(vit, (12, 20, 3), 10, **SMALL)
    expected = [0.430909, 1.26149, 2.90457, 0.765437, 2.18577, 2.33704, -3.70185, -3.19268]
    logits = logits_of(make(weights=tensors_of("timm")), (12, 20, 3))
    np.testing.assert_allclose(logits[:8], expected, rtol=2e-5)
    wrong = {"pos_embed": tensor("pos_embed", (1, 4, 12))}
    with pytest.raises(ValueError, match=r"'pos_embed' becomes float32\[1, 4, 12\], but position"):
        make(weights=tensors_of("timm") | wrong)


@pytest.mark.all
def test_a_new_head_is_drawn_and_the_rest_is_loaded():
    make, tensors = functools.partial(vit, SHAPE, 7, **SMALL), tensors_of("timm")
    with pytest.raises(ValueError, match=r"'head.bias' becomes float32\[10\], but .*head='new'"):
        make(weights=tensors)
    problems = make(weights=tensors, head="new"), make()
    loaded, drawn = (jax.jit(problem.init)(KEY).params for problem in problems)
    bias = loaded["patch_embedding"]["bias"]
    np.testing.assert_array_equal(bias, tensors["patch_embed.proj.bias"])
    np.testing.assert_array_equal(loaded["head"]["kernel"], drawn["head"]["kernel"])
    with pytest.raises(ValueError, match=r"head='new' has no effect without weights"):
        make(head="new")


def test_second_names_of_the_same_tensors_are_left_out(tmp_path):
    """PyTorch's state dict has the layers of FLamby's network also as entries of a sequence."""
    tensors, path = tensors_of("unet"), tmp_path / "weights.safetensors"
    second = {"bottom_block.conv1.block.0.weight": tensors["bottom_block.conv1.conv_layer.weight"]}
    save_file(tensors | second, path)
    unet(weights=path)


@pytest.mark.all
def test_dropout_depends_on_the_key_and_only_in_training():
    problem = transformer(dropout=0.5, weights=tensors_of("timm"))
    np.testing.assert_allclose(logits_of(problem, SHAPE), CASES["timm"][-1], rtol=1e-5, atol=1e-5)
    model, batch = jax.jit(problem.init)(KEY), {"x": np.ones((1, *SHAPE))}
    apply = jax.jit(lambda key: problem.apply(model, batch, key, True)[0].logits)
    assert np.abs(apply(KEY) - apply(jax.random.key(1))).max() > 0.01


def test_sizes_that_cannot_be_divided_are_rejected():
    for shape, options, message in (
        ((6, 8, 2), {}, r"patch_size=4 and .* do not divide images of \(6, 8, 2\)"),
        (SHAPE, {"heads": 5}, "heads=5 do not divide .* width=12; give divisors"),
    ):
        with pytest.raises(ValueError, match=message):
            vit(shape, 5, **SMALL | options)
