"""Losses and metrics of masks: against NumPy, known overlaps, and in local training."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_algos.models import losses, metrics, segmenter, with_loss
from fedjax_algos.models.outputs import Outputs, check_labels

pytestmark = pytest.mark.usefixtures("x64")


def voxels(space, classes=3, batch=4, seed=0):
    """Random logits and labels, of which the last class is absent from example 0."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, (batch, *space))
    labels[0] %= classes - 1
    return 2 * rng.normal(size=(batch, *space, classes)), labels


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def of_numpy(name, logits, labels):
    """One value for each example, by loops over examples, classes and counts."""
    p, values = softmax(logits), []
    for own, y in zip(p, labels, strict=True):
        if name == "accuracy":
            values.append((own.argmax(-1) == y).mean())
            continue
        scores = []
        for k in range(own.shape[-1]):
            g, q = (y == k).astype(float), own[..., k]
            if name == "dice":
                tp, fp, fn = (q * g).sum(), (q * (1 - g)).sum(), ((1 - q) * g).sum()
                scores.append(1 - 2 * tp / (2 * tp + fp + fn + 1e-9))
            elif name == "soft_dice_score":
                scores.append((q * g).sum() / ((q + g).sum() / 2 + 1e-7))
            elif k > 0:
                mask = own.argmax(-1) == k
                both, either = (mask & (g > 0)).sum(), mask.sum() + g.sum()
                scores.append(2 * both / either if either else 1.0)
        values.append(np.mean(scores))
    return values


@pytest.mark.all
@pytest.mark.parametrize("space", [(6,), (2, 3, 4)])
@pytest.mark.parametrize("name", ["accuracy", "dice", "soft_dice_score", "dice_score"])
def test_values_are_those_of_numpy(name, space):
    logits, labels = voxels(space)
    outputs, batch = Outputs(jnp.asarray(logits)), {"y": jnp.asarray(labels)}
    found = losses[name](outputs, batch) if name in losses else metrics[name](outputs, batch)[name]
    np.testing.assert_allclose(found, of_numpy(name, logits, labels), rtol=1e-12)


def masks(predicted, labels):
    """Outputs that are certain of a mask, and a batch of one example."""
    predicted, labels = np.array([predicted]), np.array([labels])
    logits = np.where(np.eye(2)[predicted] > 0, 400.0, -400.0)
    return Outputs(jnp.asarray(logits)), {"y": jnp.asarray(labels)}


@pytest.mark.parametrize(
    ("predicted", "labels", "hard", "soft"),
    [
        ([[1, 1], [0, 0]], [[1, 1], [0, 0]], 1.0, 1.0),
        ([[1, 1], [0, 0]], [[0, 0], [1, 1]], 0.0, 0.0),
        # foreground: 2 * 1 / (2 + 1); background: 2 * 2 / (2 + 3)
        ([[1, 1], [0, 0]], [[1, 0], [0, 0]], 2 / 3, (2 / 3 + 4 / 5) / 2),
        ([[0, 0], [0, 0]], [[0, 0], [0, 0]], 1.0, 1.0),  # nothing to find, nothing found
        ([[0, 0], [0, 1]], [[0, 0], [0, 0]], 0.0, (0 + 6 / 7) / 2),
    ],
)
def test_known_overlaps(predicted, labels, hard, soft):
    outputs, batch = masks(predicted, labels)
    np.testing.assert_allclose(metrics["dice_score"](outputs, batch)["dice_score"], [hard])
    found = metrics["soft_dice_score"](outputs, batch)["soft_dice_score"]
    np.testing.assert_allclose(found, [soft], rtol=1e-6)
    nothing = not np.any(predicted) and not np.any(labels)
    expected = [0.5] if nothing else [1 - soft]  # FLamby's loss has no case for an absent class
    np.testing.assert_allclose(losses["dice"](outputs, batch), expected, atol=1e-6)


def test_the_loss_of_several_labels_is_the_mean_of_theirs():
    """Each loss of one label for each example, at each voxel."""
    specs = ["brier", "cross_entropy", "cross_entropy:0.2", "focal", "hinge", "squared_error"]

    @jax.jit
    def values(logits, labels):
        parsed = map(losses.parse, specs)
        return [losses[name](Outputs(logits), {"y": labels}, **own) for name, own in parsed]

    logits, labels = voxels((2, 3))
    whole, each = values(logits, labels), values(logits.reshape(-1, 3), labels.reshape(-1))
    for of_example, of_voxel in zip(whole, each, strict=True):
        np.testing.assert_allclose(of_example, of_voxel.reshape(4, 6).mean(1), rtol=1e-12)


def test_masks_need_a_spatial_axis_and_a_class_beside_the_background():
    flat = Outputs(jnp.zeros((3, 2))), {"y": jnp.zeros(3, int)}
    for function in (losses["dice"], metrics["soft_dice_score"], metrics["dice_score"]):
        with pytest.raises(ValueError, match=r"labels y have shape \(3,\) and the logits \(3, 2\)"):
            function(*flat)
    single = Outputs(jnp.zeros((3, 4, 1))), {"y": jnp.zeros((3, 4), int)}
    with pytest.raises(ValueError, match=r"logits are of 1 class.*give logits of at least 2"):
        metrics["dice_score"](*single)


def test_the_labels_of_voxels_are_checked():
    problem = segmenter(nn.Dense(2), (3, 2, 2, 1))
    x = np.random.default_rng(3).normal(size=(6, 3, 2, 2, 1))
    examples = {"x": x, "y": (x[..., 0] > 0).astype(np.int32)}
    check_labels(problem, "the examples", examples)
    examples["y"][2, 1] = 2
    with pytest.raises(ValueError, match="have label 2; give whole numbers from 0 to 1"):
        check_labels(with_loss(problem, "dice"), "the examples", examples)
