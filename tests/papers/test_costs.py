"""The FedGBO paper's costs by its formulas; test_claims_of_papers.py has its tables."""

import jax
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from paper_measures import costs
from paper_measures.costs import PUBLISHED_COSTS, paper_costs, paper_flops, paper_macs
from paper_measures.ghbm import OVERHEADS

from fedjax_algos.algorithms import algorithms
from fedjax_algos.models import classifier, models, nnx_classifier


@pytest.mark.parametrize(("size", "own"), [(1, "sgdm"), (2, "adam")])
def test_communication_and_memory(size, own):
    """Table I, in models: download, upload, memory, with |s| = size."""
    for algorithm, expected in {
        **dict.fromkeys(["fedavg", "fedmax", "fedadam"], (1, 1, 1)),
        "fedprox": (1, 1, 2),
        "mfl": (1 + size, 1 + size, 1 + size),
        **dict.fromkeys(["mimelite", "mimexlite"], (1 + size, 2, 2 + size)),
        "fedgbo": (1 + size, 1, 1 + size),
    }.items():
        optimizer = own if (algorithm, "sgdm") in PUBLISHED_COSTS else None
        assert paper_costs(algorithm, optimizer)[:3] == expected


def test_second_gradients_and_rounds_are_added_for_the_papers_synchronous_algorithms():
    sizes = {"steps": 3, "batch_size": 4, "num_examples": 7}
    mime = paper_flops(paper_costs("mime"), 100, 10, **sizes)
    assert mime == 3 * (2 * 4 * 300 + 4 * 10) + 7 * 300
    scaffold = paper_flops(paper_costs("scaffold"), 100, 10, **sizes)
    assert scaffold == 3 * (4 * 300 + 5 * 10) + 2 * 10
    named = {name for name, _ in PUBLISHED_COSTS | costs.DERIVED_COSTS}
    assert set(OVERHEADS) <= named <= set(algorithms)
    assert not PUBLISHED_COSTS.keys() & costs.DERIVED_COSTS.keys()


def macs(layers, shape):
    """Of a function of the input that uses layers of Linen."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return layers(x)

    return paper_macs(classifier(Net(), shape), {"x": jax.ShapeDtypeStruct(shape, np.float32)})


def strided_and_shared(x):
    x = nn.Conv(6, (3, 3), 2, feature_group_count=2, use_bias=False)(x)
    dense = nn.Dense(6)
    return nn.Dense(2)(dense(dense(x)).reshape(x.shape[0], -1))


@pytest.mark.parametrize("turned", [False, True])
def test_layers_of_other_kinds(turned):
    """Strides, groups, transposed kernels, an LSTM by hand; a shared layer counts twice."""
    expected = 4 * 4 * 6 * 9 * 2 + 2 * 4 * 4 * 6 * 6 + 96 * 2
    assert macs(strided_and_shared, (8, 8, 4)) == expected

    def transposed(x):  # each of the 5 * 7 inputs of 4 channels meets a kernel of 3 * 3 for 6
        return nn.ConvTranspose(6, (3, 3), (2, 2), transpose_kernel=turned)(x).mean((1, 2))

    assert macs(transposed, (5, 7, 4)) == 5 * 7 * 4 * 9 * 6 + 10 * 14 * 6
    text = {"x": jax.ShapeDtypeStruct((5,), np.int32)}
    lstm = models["lstm"]((5,), 11, embedding=3, hidden=4, layers=1)
    assert paper_macs(lstm, text) == 5 * (4 * (7 * 4 + 12) + 16) + 4 * 11


IMAGENET = (224, 224, 3)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "shape", "classes", "macs", "biases"),
    [
        # `torch.utils.flop_counter` of torch 2.13 for torchvision's networks, timm's ViT-S and
        # FLamby's U-Net, divided by 2; it leaves out biases, and torchvision's table has the same
        # numbers: .301, .386, 1.814, 4.089 and 17.564 billions
        ("mobilenet_v2", IMAGENET, 1000, 300_774_272, 0),
        # of squeeze-and-excitation, which has the same number of inputs as of outputs
        ("efficientnet_b0", IMAGENET, 1000, 385_814_752, 9340),
        ("resnet18_imagenet", IMAGENET, 1000, 1_814_073_344, 0),
        ("resnet50", IMAGENET, 1000, 4_089_184_256, 0),
        ("vit_b_16", IMAGENET, 1000, 17_563_828_224, 0),
        ("vit_small", IMAGENET, 1000, 4_598_882_304, 0),
        ("unet_3d", (48, 60, 48), 2, 6_782_607_360, 48 * 60 * 48 * 8),  # of the first layer
    ],
)
def test_known_networks(name, shape, classes, macs, biases):
    problem = models[name](shape, classes)
    found = paper_macs(problem, {"x": jax.ShapeDtypeStruct(shape, np.float32)})
    assert found - biases == macs


def test_what_has_no_rule_is_named():
    example = {"x": jax.ShapeDtypeStruct((3,), np.float32)}
    other = nnx_classifier(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
    for call, named in {
        lambda: macs(lambda x: nn.WeightNorm(nn.Dense(2))(x), (3,)): "WeightNorm",  # noqa: PLW0108
        lambda: paper_macs(other, example): "8 of the model's 8 parameters",
        lambda: paper_costs("fedgbo"): "optimizer=None; give optimizer=sgdm, rmsprop, adam",
        lambda: paper_flops(paper_costs("mime"), 1, 1, steps=1, batch_size=1): "num_examples=0",
    }.items():
        with pytest.raises(ValueError, match=named):
            call()
