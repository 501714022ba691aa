"""Vision transformers.

Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
ICLR 2021, https://arxiv.org/abs/2010.11929, as in torchvision's `vit_b_16`: layer norms precede
attention and perceptron, and a class token is classified.
"""

import math
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import PathLike
from fedjax_algos.core import Problem
from fedjax_algos.core.options import Count, Decay, Layers
from fedjax_algos.models.adapters import IMAGES, classifier, model_of
from fedjax_algos.models.large.weights import Head, Names, with_weights
from fedjax_algos.models.layers.common import symmetric_uniform
from fedjax_algos.models.layers.native import Dense
from fedjax_algos.models.preprocessing import Augmentation, augmented

_xavier = nn.initializers.xavier_uniform()


class SelfAttention(nn.Module):
    """`softmax(Q K^T / sqrt(d)) V` for each head of width d, and a dense layer of all heads."""

    heads: int

    @nn.compact
    def __call__(self, x):
        batch, tokens, width = x.shape
        x = Dense(3 * width, kernel_init=_xavier, name="query_key_value")(x)
        x = x.reshape(batch, tokens, 3, self.heads, width // self.heads)
        # [batch, heads, tokens, d] each, so that both products are batches of plain matrix products
        query, key, value = x.transpose(2, 0, 3, 1, 4)
        logits = query * query.shape[-1] ** -0.5 @ key.mT
        wide = jnp.promote_types(logits.dtype, jnp.float32)  # 16 bits are too few for the sum
        weights = jax.nn.softmax(logits.astype(wide)).astype(value.dtype)
        heads = (weights @ value).transpose(0, 2, 1, 3).reshape(batch, tokens, width)
        return Dense(width, kernel_init=symmetric_uniform(width**-0.5), name="projection")(heads)


class EncoderBlock(nn.Module):
    """Attention between the tokens, and a perceptron of four times the width for each of them."""

    heads: int
    dropout: float

    @nn.compact
    def __call__(self, x, training):
        width = x.shape[-1]
        drop = nn.Dropout(self.dropout, deterministic=not training)
        layer = {"kernel_init": _xavier, "bias_init": nn.initializers.normal(1e-6)}
        y = SelfAttention(self.heads)(nn.LayerNorm(epsilon=1e-6)(x))
        x = x + drop(y)
        y = Dense(4 * width, **layer)(nn.LayerNorm(epsilon=1e-6)(x))
        y = drop(nn.gelu(y, approximate=False))
        return x + drop(Dense(width, **layer)(y))


class VisionTransformer(nn.Module):
    """Patches as tokens with a learned position each, encoder blocks, and a dense layer."""

    num_classes: int
    patch_size: int
    width: int
    depth: int
    heads: int
    dropout: float

    @nn.compact
    def __call__(self, x, training=False):
        x = x[..., None] if x.ndim == 3 else x
        x = _patches(x, self.patch_size)
        embed = nn.initializers.normal(x.shape[-1] ** -0.5)
        x = Dense(self.width, kernel_init=embed, name="patch_embedding")(x)
        first = self.param("class_token", nn.initializers.zeros, (1, 1, self.width), jnp.float32)
        first = jnp.broadcast_to(first.astype(x.dtype), (x.shape[0], 1, self.width))
        x = jnp.concatenate([first, x], 1)
        normal = nn.initializers.normal(0.02)
        x = x + self.param("position_embedding", normal, (1, *x.shape[1:]), jnp.float32)
        x = nn.Dropout(self.dropout, deterministic=not training)(x)
        for _ in range(self.depth):
            x = EncoderBlock(self.heads, self.dropout)(x, training)
        x = nn.LayerNorm(epsilon=1e-6)(x[:, 0])
        self.sow("intermediates", "features", x)
        return Dense(self.num_classes, kernel_init=nn.initializers.zeros, name="head")(x)


def _patches(images, size):
    """Cuts images into patches, float[batch, patches, size * size * channels], row by row."""
    batch, height, width, channels = images.shape
    rows, columns = height // size, width // size
    split = images.reshape(batch, rows, size, columns, size, channels).swapaxes(2, 3)
    return split.reshape(batch, rows * columns, size * size * channels)


def torch_names(depth: int, grid: tuple[int, int]) -> list[Names]:
    """Returns torchvision's and timm's names of ViT; positions are resized to rows and columns."""
    positions = partial(resize_positions, grid=grid)
    packed = "SelfAttention_0/query_key_value"  # head by head in both libraries
    kernels = [(f"{name}.weight", _rows_of_patches) for name in ("conv_proj", "patch_embed.proj")]
    rows: list[Any] = [
        ("class_token", "class_token", "cls_token"),
        ("position_embedding", ("encoder.pos_embedding", positions), ("pos_embed", positions)),
        ("patch_embedding/kernel", *kernels),
        ("patch_embedding/bias", "conv_proj.bias", "patch_embed.proj.bias"),
        ("LayerNorm_0", "encoder.ln", "norm"),
        ("head", "heads.head", "head"),
    ]
    of_block = [
        ("LayerNorm_0", "ln_1", "norm1"),
        (f"{packed}/kernel", "self_attention.in_proj_weight", "attn.qkv.weight"),
        (f"{packed}/bias", "self_attention.in_proj_bias", "attn.qkv.bias"),
        ("SelfAttention_0/projection", "self_attention.out_proj", "attn.proj"),
        ("LayerNorm_1", "ln_2", "norm2"),
        ("Dense_0", "mlp.0", "mlp.fc1"),
        ("Dense_1", "mlp.3", "mlp.fc2"),
    ]
    for index in range(depth):
        of_torchvision, of_timm = f"encoder.layers.encoder_layer_{index}", f"blocks.{index}"
        rows += [
            (f"EncoderBlock_{index}/{ours}", f"{of_torchvision}.{first}", f"{of_timm}.{second}")
            for ours, first, second in of_block
        ]
    return [{ours: theirs[n] for ours, *theirs in rows} for n in (0, 1)]


def resize_positions(embedding: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Resizes a square of patches, float[1, 1 + patches, width], to a grid; keeps other arrays.

    As in timm: bicubic with a = -1/2 and antialiasing; the class token, the first one, stays.
    """
    patches = embedding.shape[1] - 1 if embedding.ndim == 3 else 0
    side = math.isqrt(max(patches, 0))
    if side * side != patches or (side, side) == grid or not patches:
        return embedding
    # timm interpolates in float32
    dtype = np.float32 if np.dtype(embedding.dtype).itemsize < 4 else embedding.dtype
    image = embedding[0, 1:].reshape(side, side, -1).astype(dtype)
    with jax.ensure_compile_time_eval():  # also where a model is made in a function that is traced
        resized = jax.image.resize(image, (*grid, image.shape[-1]), "bicubic")
    resized = np.asarray(resized, dtype).reshape(1, grid[0] * grid[1], -1)
    return np.concatenate([embedding[:, :1].astype(dtype), resized], 1)


def _rows_of_patches(weight):
    """Reshapes [width, channels, rows, columns] to [inputs, width], in the order of `_patches`."""
    return weight.transpose(2, 3, 1, 0).reshape(-1, weight.shape[0])


@model_of(IMAGES)
def vit(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    patch_size: Count = 4,
    width: Count = 128,
    depth: Layers = 6,
    heads: Count = 4,
    dropout: Decay = 0.0,
    augmentation: Augmentation = "none",
    weights: PathLike | None = None,
    head: Head = "loaded",
) -> Problem:
    """A vision transformer of any size; the defaults are for 32x32 images.

    The default has 1,205,898 parameters for CIFAR-10. Layers are as in torchvision: GELU with the
    error function, epsilon 1e-6, initial parameters, and no dropout of attention weights.

    Args:
      example_shape, num_classes, augmentation, head: as for `resnet18_imagenet`.
      patch_size: height and width of a patch in pixels; a divisor of the image's.
      width: width of a token; the perceptrons are four times as wide.
      depth: number of encoder blocks.
      heads: number of attention heads; a divisor of the width.
      dropout: share of the entries, from 0 to below 1, that training sets to 0 after the position
        embedding, the attention, and both layers of the perceptron.
      weights: a file of torchvision's or timm's weights; see `pretrained`. The positions of square
        images are resized to other images by bicubic interpolation, as in timm.

    Raises:
      ValueError: for a width or images that cannot be divided.
    """
    height, width_of_image = example_shape[:2]
    divided = width % heads == height % patch_size == width_of_image % patch_size == 0
    sizes = f"patch_size={patch_size} and heads={heads} do not divide images of {example_shape}"
    require(divided, f"{sizes} and width={width}; give divisors")
    module = VisionTransformer(num_classes, patch_size, width, depth, heads, dropout)
    names = torch_names(depth, (height // patch_size, width_of_image // patch_size))
    problem = with_weights(classifier(module, example_shape), weights, head, names)
    return augmented(problem, augmentation)


@model_of(IMAGES)
def vit_b_16(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    dropout: Decay = 0.0,
    augmentation: Augmentation = "none",
    weights: PathLike | None = None,
    head: Head = "loaded",
) -> Problem:
    """ViT-B/16: patches of 16x16, width 768, 12 blocks of 12 heads.

    It has 86,567,656 parameters for images of 224x224 and 1000 classes.

    Args:
      example_shape, num_classes, dropout, augmentation, weights, head: as for `vit`.
    """
    sizes: Any = {"patch_size": 16, "width": 768, "depth": 12, "heads": 12, "dropout": dropout}
    sizes |= {"augmentation": augmentation, "weights": weights, "head": head}
    return vit(example_shape, num_classes, **sizes)


@model_of(IMAGES)
def vit_small(
    example_shape: tuple[int, ...],
    num_classes: int,
    *,
    dropout: Decay = 0.0,
    augmentation: Augmentation = "none",
    weights: PathLike | None = None,
    head: Head = "loaded",
) -> Problem:
    """ViT-S/16: patches of 16x16, width 384, 12 blocks of 6 heads.

    It has 22,050,664 parameters for images of 224x224 and 1000 classes. Touvron et al., "Training
    data-efficient image transformers & distillation through attention", ICML 2021,
    https://arxiv.org/abs/2012.12877, without the distillation token; timm's vit_small_patch16_224.

    Args:
      example_shape, num_classes, dropout, augmentation, weights, head: as for `vit`.
    """
    sizes: Any = {"patch_size": 16, "width": 384, "depth": 12, "heads": 6, "dropout": dropout}
    sizes |= {"augmentation": augmentation, "weights": weights, "head": head}
    return vit(example_shape, num_classes, **sizes)
