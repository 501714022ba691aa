"""The registered models: numbers of params, shapes, initialisations, and what they take."""

import functools
import re

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_algos as fa
from fedjax_algos.models import Conv, DepthwiseConv, adapters, models
from fedjax_algos.models.large.inverted_residual import Blocks, InvertedResidual
from fedjax_algos.models.layers.common import Normalisation
from fedjax_algos.models.small import ConvolutionalNetwork
from fedjax_algos.runs.studies.settings import Settings

KEY = jax.eval_shape(jax.random.key, 0)
GREY, COLOUR, TEXT = (28, 28), (32, 32, 3), (80,)
PHOTO, LARGE = (64, 96, 3), (224, 224, 3)
COUNTS = [  # of params, and for some who prints the number; lax is traced faster
    ("linear", (5000,), 2, 10_002),
    ("mlp:hidden=400", GREY, 10, 318_010),
    ("cnn_fedgbo:convolutions=lax", COLOUR, 100, 1_250_852),
    ("cnn_fedgbo:convolutions=lax", GREY, 62, 870_334),
    ("lenet:convolutions=lax", COLOUR, 10, 797_962),
    ("cnn_fedcompass:convolutions=lax", GREY, 10, 582_026),  # FedCompass
    ("gru", TEXT, 79, 162_887),
    ("gru:biases=flax", TEXT, 79, 162_375),
    ("lstm", TEXT, 80, 133_520),
    ("lstm_words", (20,), 10_004, 4_053_428),
    ("lstm_words:biases=flax", (20,), 10_004, 4_050_748),  # TensorFlow Federated
    ("resnet20:convolutions=lax", COLOUR, 10, 269_722),  # He et al., table 6: .27 million
    ("vit", COLOUR, 10, 1_205_898),
    ("resnet18:convolutions=lax", COLOUR, 10, 11_173_962),
    # torchvision, and timm for ViT-S; images of any size
    ("mobilenet_v2:convolutions=lax", (33, 70, 3), 1000, 3_504_872),
    ("efficientnet_b0:convolutions=lax", PHOTO, 1000, 5_288_548),
    ("resnet18_imagenet:convolutions=lax", (1, 1, 3), 1000, 11_689_512),
    ("resnet50:convolutions=lax", PHOTO, 1000, 25_557_032),
    ("vit_b_16", LARGE, 1000, 86_567_656),
    ("vit_small", LARGE, 1000, 22_050_664),
    ("unet_3d:norm=group,convolutions=lax", (48, 60, 48), 2, 246_156),
]


@pytest.mark.parametrize(("spec", "shape", "classes", "expected"), COUNTS)
def test_numbers_of_params(spec, shape, classes, expected):
    problem = models.make(spec, shape, classes)
    model = jax.eval_shape(problem.init, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(model.params)) == expected
    if shape == TEXT:  # the params are float32 with x64, too
        with jax.enable_x64(True):
            assert jax.eval_shape(problem.init, KEY) == model


def by_flax(params, x):
    for name in ("Conv_0", "Conv_1"):
        x = nn.Conv(16, (3, 3), padding="VALID").apply({"params": params[name]}, x)
        x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
    x = nn.Dense(5).apply({"params": params["Perceptron_0"]["Dense_0"]}, x.reshape(len(x), -1))
    return nn.Dense(10).apply({"params": params["Perceptron_0"]["Dense_1"]}, nn.relu(x))


@pytest.mark.all
@pytest.mark.usefixtures("x64")
def test_networks_agree_with_flax_if_pools_ignore_rows():
    """Values and gradients of the params; "auto" is Winograd's form in the second layer."""
    modules = [ConvolutionalNetwork((16, 16), 3, (5, 10), "flax", n) for n in ("auto", "lax")]
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 13, 10, 1)))
    params = jax.jit(modules[0].init)(jax.random.key(0), x)["params"]
    params = jax.tree.map(lambda leaf: leaf.astype(float), params)

    def sine(logits_of):
        return jax.jit(jax.value_and_grad(lambda params: jnp.sin(logits_of(params)).sum()))(params)

    expected = sine(lambda params: by_flax(params, x))
    for module in modules:
        found = sine(lambda params, module=module: module.apply({"params": params}, x))
        chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.all
@pytest.mark.parametrize("spec", ["cnn_fedgbo", "gru"])
def test_torch_initialisation_is_uniform_within_the_bound(spec):
    shape = TEXT if spec == "gru" else GREY
    model = jax.jit(models.make(f"{spec}:initialisation=torch", shape, 62).init)(jax.random.key(1))
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.params):
        name = jax.tree_util.keystr(path)
        if "embedding" in name:
            assert float(leaf.std()) == pytest.approx(1, rel=0.1)
        elif leaf.size > 5000:
            fan_in = 128 if "ecurrent" in name or "input_" in name else np.prod(leaf.shape[:-1])
            bound = fan_in**-0.5
            assert 0.99 * bound < float(jnp.abs(leaf).max()) <= bound, name
            assert float(leaf.std()) == pytest.approx(bound / 3**0.5, rel=0.03)


@pytest.mark.all
def test_stochastic_depth_leaves_out_whole_branches_of_single_examples():
    """The others are divided by the probability of staying, so that the mean is the same."""
    rate, rows, key = 0.3, 400, jax.random.key(0)
    depthwise = functools.partial(DepthwiseConv, use_bias=False)
    norm = functools.partial(Normalisation, "group", 2, True)
    block = InvertedResidual(Blocks(2, 4, 1, 1), 1, nn.silu, True, rate, Conv, depthwise, norm)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(rows, 2, 2, 4)), jnp.float32)
    variables = jax.jit(functools.partial(block.init, training=False))(key, x[:1])
    apply = jax.jit(functools.partial(block.apply, rngs={"dropout": key}), static_argnums=2)
    whole, some = (np.asarray(apply(variables, x, training)) for training in (False, True))
    out = np.isclose(some, x, atol=1e-6).all((1, 2, 3))
    assert out.mean() == pytest.approx(rate, abs=4 * (rate * (1 - rate) / rows) ** 0.5)
    expected = np.where(out[:, None, None, None], x, x + (whole - x) / (1 - rate))
    np.testing.assert_allclose(some, expected, atol=1e-5)


KINDS = {  # shape and type
    "digits": ((64,), "float32"),
    "text": ((80,), "int32"),
    "small": ((8, 8), "float32"),
    "grey": ((28, 28), "uint8"),
    "colour": ((32, 32, 3), "uint8"),
    "volume": ((16, 8, 16), "float32"),  # an image with 16 channels, too
    "channels": ((16, 8, 16, 2), "float32"),
}
IMAGES = frozenset({"small", "grey", "colour", "volume"})
LARGER = frozenset({"grey", "colour"})  # than the pools and the patches
TAKEN = {
    **dict.fromkeys(("linear", "mlp"), frozenset(KINDS)),
    **dict.fromkeys(("gru", "lstm", "lstm_words"), frozenset({"text"})),
    **dict.fromkeys(("cnn_fedgbo", "cnn_fedcompass", "lenet"), LARGER),
    **dict.fromkeys(("resnet20", "resnet18", "resnet18_imagenet", "resnet50"), IMAGES),
    **dict.fromkeys(("mobilenet_v2", "efficientnet_b0", "vit"), IMAGES),
    **dict.fromkeys(("vit_b_16", "vit_small"), frozenset({"colour"})),
    "unet_3d": frozenset({"volume", "channels"}),
}
KIND_OF = dict.fromkeys(("gru", "lstm", "lstm_words"), "texts") | {"unet_3d": "volumes"}


def shapes_of(name, shape, dtype):
    """What the model and its loss make of three examples; nothing is computed."""
    problem = models[name](shape, 10)
    labels = (3, *shape[:3]) if name == "unet_3d" else (3,)
    batch = {"x": np.zeros((3, *shape), dtype), "y": np.zeros(labels, np.int32)}

    def evaluate(key, batch):
        model = problem.init(key)
        outputs, statistics = problem.apply(model, batch, key, True)
        return model.statistics, statistics, outputs, problem.loss(outputs, batch)

    return labels, jax.eval_shape(evaluate, KEY, batch)


def test_the_tables_have_every_model():
    assert {case[0].partition(":")[0] for case in COUNTS} == set(TAKEN) == set(models)


@pytest.mark.all
@pytest.mark.parametrize("name", TAKEN)
def test_a_model_takes_examples(name):
    for kind in ["colour"] if TAKEN[name] is IMAGES else TAKEN[name]:  # one for deep networks
        labels, (before, statistics, outputs, loss) = shapes_of(name, *KINDS[kind])
        assert outputs.logits.shape == (*labels, 10)
        assert name == "unet_3d" or outputs.features.shape[0] == 3
        assert loss.shape == (3,)
        same = functools.partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
        assert same(statistics) == same(before)


@pytest.mark.parametrize("name", TAKEN)
def test_a_model_names_examples_that_it_does_not_take_and_the_fix(name):
    taken = KIND_OF.get(name, "images")
    axes = {"texts": (), "images": (2, 3), "volumes": (3, 4)}[taken]
    for shape, dtype in (KINDS[kind] for kind in KINDS.keys() - TAKEN[name]):
        wrong = rf"^{name} takes {taken} \[.*{re.escape(str([*shape]))}.* give "
        with pytest.raises(ValueError, match="give |pad or crop" if len(shape) in axes else wrong):
            shapes_of(name, shape, dtype)


def test_wrong_shapes_and_types_are_refused():
    for shape in (64, (8, 0), "88"):
        with pytest.raises(ValueError, match=r"mlp: example_shape=.* is not a shape; give"):
            models["mlp"](shape, 10)
    for model in ("gru", "resnet18_imagenet:weights=x.pth"):
        name = model.partition(":")[0]
        with pytest.raises(ValueError, match=rf"^{name} takes .*, but an example is float32\[64\]"):
            Settings(model=model).problem(fa.data.datasets["digits"]())
    adapters.check_examples("my_file.py:net", (3, 3, 3, 3, 3), jnp.float32)  # takes anything
