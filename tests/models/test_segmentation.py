"""Losses and metrics of masks: against NumPy, known overlaps; the U-Net."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from fedjax_algos.models import losses, metrics, segmenter, unet_3d, with_loss
from fedjax_algos.models.outputs import Outputs, check_labels

pytestmark = pytest.mark.usefixtures("x64")


def voxels(space, classes=3, batch=4, seed=0):
    """Random logits and labels, of which the last class is absent from example 0."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, (batch, *space))
    labels[0] %= classes - 1
    return 2 * rng.normal(size=(batch, *space, classes)), labels


NAMES = ["accuracy", "dice_score", "soft_dice_score", "dice"]


def of_numpy(logits, labels):
    """The values of NAMES, one for each example, by loops over examples and classes."""
    found = []
    for p, y in zip(softmax(logits, -1), labels, strict=True):
        hard, soft, loss = [], [], []
        for k in range(p.shape[-1]):
            g, q, mask = (y == k).astype(float), p[..., k], p.argmax(-1) == k
            either = mask.sum() + g.sum()
            hard.append(2 * (mask & (g > 0)).sum() / either if either else 1.0)
            soft.append((q * g).sum() / ((q + g).sum() / 2 + 1e-7))
            tp, fp, fn = (q * g).sum(), (q * (1 - g)).sum(), ((1 - q) * g).sum()
            loss.append(1 - 2 * tp / (2 * tp + fp + fn + 1e-9))
        found.append([(p.argmax(-1) == y).mean(), np.mean(hard[1:]), np.mean(soft), np.mean(loss)])
    return np.transpose(found)


@jax.jit
def values(logits, labels):
    given = Outputs(logits), {"y": labels}
    return [losses[n](*given) if n in losses else metrics[n](*given)[n] for n in NAMES]


@pytest.mark.parametrize("space", [(6,), (2, 3, 4)])
def test_values_are_those_of_numpy(space):
    given = voxels(space)
    np.testing.assert_allclose(values(*given), of_numpy(*given), rtol=1e-12)


OVERLAPS = [  # predicted, labels, hard and soft score
    ([[1, 1], [0, 0]], [[1, 1], [0, 0]], 1.0, 1.0),
    ([[1, 1], [0, 0]], [[0, 0], [1, 1]], 0.0, 0.0),
    # foreground: 2 * 1 / (2 + 1); background: 2 * 2 / (2 + 3)
    ([[1, 1], [0, 0]], [[1, 0], [0, 0]], 2 / 3, (2 / 3 + 4 / 5) / 2),
    ([[0, 0], [0, 0]], [[0, 0], [0, 0]], 1.0, 1.0),  # nothing to find, nothing found
    ([[0, 0], [0, 1]], [[0, 0], [0, 0]], 0.0, (0 + 6 / 7) / 2),
]


def test_known_overlaps():
    """Of outputs that are certain of a mask."""
    predicted, labels, hard, soft = map(np.array, zip(*OVERLAPS, strict=True))
    logits = np.where(np.eye(2)[predicted] > 0, 400.0, -400.0)
    _, own_hard, own_soft, loss = values(logits, labels)
    np.testing.assert_allclose(own_hard, hard)
    np.testing.assert_allclose(own_soft, soft, rtol=1e-6)
    # FLamby's loss has no case for an absent class
    np.testing.assert_allclose(loss, [0, 1, 1 - soft[2], 0.5, 1 - soft[4]], atol=1e-6)


def test_masks_need_a_spatial_axis_and_a_class_beside_the_background():
    flat, single = (Outputs(jnp.zeros(shape)) for shape in ((3, 2), (3, 4, 1)))
    for function in (losses["dice"], metrics["soft_dice_score"], metrics["dice_score"]):
        with pytest.raises(ValueError, match=r"labels y have shape \(3,\) and the logits \(3, 2\)"):
            function(flat, {"y": jnp.zeros(3, int)})
    with pytest.raises(ValueError, match="logits are of 1 class"):
        metrics["dice_score"](single, {"y": jnp.zeros((3, 4), int)})


def test_a_segmenter_takes_a_loss_and_checks_the_labels_of_voxels():
    assert with_loss(unet_3d((2, 4, 6, 1), 3), "dice").loss is losses["dice"]
    problem = segmenter(nn.Dense(2), (3, 2, 2, 1), loss=losses["dice"])
    assert problem.loss is losses["dice"]
    x = np.random.default_rng(3).normal(size=(6, 3, 2, 2, 1))
    examples = {"x": x, "y": (x[..., 0] > 0).astype(np.int32)}
    check_labels(problem, "the examples", examples)
    examples["y"][2, 1] = 2
    with pytest.raises(ValueError, match="have label 2"):
        check_labels(problem, "the examples", examples)
