"""The registered models: parameter counts, shapes, initialisations, and the examples they take."""

import functools
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_algos as fa
from fedjax_algos.core import Model
from fedjax_algos.models import adapters, models
from fedjax_algos.runs.settings import Settings

GREY, COLOUR, PHOTO, TEXT = (28, 28), (32, 32, 3), (64, 96, 3), (80,)
LARGE, VOLUME = (224, 224, 3), (48, 60, 48)
COUNTS = [
    ("linear", (5000,), 2, 10_002),
    ("mlp:hidden=400", GREY, 10, 318_010),
    ("cnn_fedgbo", COLOUR, 100, 1_250_852),
    ("cnn_fedgbo", GREY, 62, 870_334),
    ("lenet", COLOUR, 10, 797_962),
    ("lenet", COLOUR, 100, 815_332),
    ("resnet20", COLOUR, 10, 269_722),
    ("resnet20", COLOUR, 100, 275_572),
    ("resnet18", COLOUR, 10, 11_173_962),
    ("resnet18:norm=group", COLOUR, 10, 11_173_962),
    ("mobilenet_v2", PHOTO, 1000, 3_504_872),
    ("mobilenet_v2:norm=group", GREY, 10, 2_236_106),
    ("efficientnet_b0", PHOTO, 1000, 5_288_548),
    ("efficientnet_b0:norm=group", PHOTO, 1000, 5_288_548),
    ("resnet18_imagenet", PHOTO, 1000, 11_689_512),
    ("resnet50", PHOTO, 1000, 25_557_032),
    ("resnet50:norm=group", PHOTO, 1000, 25_557_032),
    ("cnn_fedcompass", GREY, 10, 582_026),
    ("gru", TEXT, 79, 162_887),
    ("gru:biases=flax", TEXT, 79, 162_375),
    ("lstm", TEXT, 80, 133_520),
    ("lstm_words", (20,), 10_004, 4_053_428),
    ("vit", COLOUR, 10, 1_205_898),
    ("vit_b_16", LARGE, 1000, 86_567_656),
    ("vit_small", LARGE, 1000, 22_050_664),
    ("unet_3d", VOLUME, 2, 246_156),
    ("unet_3d:norm=group", VOLUME, 2, 246_156),
    ("lstm_words:biases=flax", (20,), 10_004, 4_050_748),  # TensorFlow Federated's
]


def test_every_model_has_a_case():
    assert {spec.partition(":")[0] for spec, *_ in COUNTS} == set(models)


@pytest.mark.sampled
@pytest.mark.parametrize(("spec", "shape", "classes", "expected"), COUNTS)
def test_parameter_counts_and_shapes_of_outputs(spec, shape, classes, expected):
    problem = models.make(spec, shape, classes)
    labels = (3, *shape) if shape == VOLUME else (3,)
    batch = {"x": jnp.zeros((3, *shape), jnp.uint8), "y": jnp.zeros(labels, jnp.int32)}

    def evaluate(key):
        model = problem.init(key)
        outputs, statistics = problem.apply(model, batch, key, True)
        return model, outputs, statistics, problem.loss(outputs, batch)

    model, outputs, statistics, loss = jax.eval_shape(evaluate, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(model.params)) == expected
    assert outputs.logits.shape == (*labels, classes)
    if shape != VOLUME:
        assert outputs.features.shape[0] == 3
    assert loss.shape == (3,)
    same = functools.partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
    assert same(statistics) == same(model.statistics)


def by_flax(params, x):
    """A small convolutional network made of Flax's layers."""
    for index in range(2):
        layer = params[f"Conv_{index}"]
        size = layer["kernel"].shape[:2]
        x = nn.Conv(layer["bias"].size, size, padding="VALID").apply({"params": layer}, x)
        x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
    x = x.reshape(len(x), -1)
    for index in range(len(params["Perceptron_0"])):
        layer = params["Perceptron_0"][f"Dense_{index}"]
        x = (nn.relu(x) if index else x) @ layer["kernel"] + layer["bias"][None]
    return x


@pytest.mark.sampled
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "size"),
    [("cnn_fedgbo", (12, 15)), ("cnn_fedgbo", (13, 10)), ("lenet", (17, 18)), ("lenet", (16, 19))],
)
def test_networks_agree_with_flax_if_pools_ignore_rows(name, size):
    """Values and gradients of the params, with rows and columns that pools ignore and without."""
    problem, key = models[name]((*size, 1), 10), jax.random.key(0)
    params = jax.tree.map(lambda leaf: leaf.astype(float), problem.init(key).params)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, *size, 1)))

    def loss(predict, params):
        outputs = predict(params)
        return jnp.sin(outputs).sum(), outputs

    actual, expected = (
        jax.jit(jax.grad(functools.partial(loss, predict), has_aux=True))(params)
        for predict in (
            lambda params: problem.apply(Model(params), {"x": x}, key, False)[0].logits,
            lambda params: by_flax(params, x),
        )
    )
    chex.assert_trees_all_close(actual, expected, rtol=0, atol=1e-10)


def test_images_too_small_for_the_pools_are_rejected():
    jax.eval_shape(models["cnn_fedgbo"]((10, 10), 10).init, jax.random.key(0))
    with pytest.raises(ValueError, match=r"\(4, 3\) are too small: .* leaves \[2, 1\], .* larger"):
        models["cnn_fedgbo"]((10, 9), 10).init(jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["mlp", "cnn_fedgbo", "gru"])
def test_torch_initialisation_is_uniform_within_the_bound(spec):
    shape = TEXT if spec == "gru" else GREY
    model = models.make(f"{spec}:initialisation=torch", shape, 62).init(jax.random.key(1))
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.params):
        name = jax.tree_util.keystr(path)
        if "embedding" in name:
            assert float(leaf.std()) == pytest.approx(1, rel=0.1)
        elif leaf.size > 5000:
            fan_in = 128 if "ecurrent" in name or "input_" in name else np.prod(leaf.shape[:-1])
            bound = fan_in**-0.5
            assert 0.99 * bound < float(jnp.abs(leaf).max()) <= bound, name
            assert float(leaf.std()) == pytest.approx(bound / 3**0.5, rel=0.03)


def test_integer_pixels_are_scaled():
    problem = models["linear"]((4,), 3)
    model = problem.init(jax.random.key(0))
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4))
    logits = [
        problem.apply(model, {"x": x}, jax.random.key(0), False)[0].logits
        for x in (jnp.asarray(pixels, jnp.uint8), jnp.asarray(pixels / 255, jnp.float32))
    ]
    np.testing.assert_allclose(logits[0], logits[1], rtol=1e-5, atol=1e-6)


KEY = jax.eval_shape(jax.random.key, 0)


class Kind(NamedTuple):
    shape: tuple[int, ...]
    dtype: str


KINDS = {
    "digits": Kind((64,), "float32"),
    "vector": Kind((5000,), "float32"),
    "text": Kind((80,), "int32"),
    "small": Kind((8, 8), "float32"),
    "grey": Kind((28, 28), "uint8"),
    "colour": Kind((32, 32, 3), "uint8"),
    "volume": Kind((16, 8, 16), "float32"),  # an image with 16 channels, too
    "channels": Kind((16, 8, 16, 2), "float32"),
    "film": Kind((2, 8, 8, 8, 3), "float32"),
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
KIND_OF = {"gru": "texts", "lstm": "texts", "lstm_words": "texts", "unet_3d": "volumes"}


def train(name, kind):
    """The shapes of the loss of a blank batch of three examples; nothing is computed."""
    problem = models[name](kind.shape, 10)
    labels = (3, *kind.shape[:3]) if name == "unet_3d" else (3,)
    x, y = jax.ShapeDtypeStruct((3, *kind.shape), kind.dtype), jax.ShapeDtypeStruct(labels, "int32")

    def loss(key, batch):
        outputs, _ = problem.apply(problem.init(key), batch, key, True)
        return problem.loss(outputs, batch)

    return jax.eval_shape(loss, KEY, {"x": x, "y": y}).shape


def test_the_table_has_every_model():
    assert set(TAKEN) == set(models)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TAKEN)
def test_a_model_takes_examples_or_names_them_and_the_fix(name, kind):
    if kind in TAKEN[name]:
        assert train(name, KINDS[kind]) == (3,)
        return
    with pytest.raises(ValueError, match=r"give |pad or crop") as error:
        train(name, KINDS[kind])
    text = str(error.value)
    axes = {"texts": (1,), "images": (2, 3), "volumes": (3, 4)}[KIND_OF.get(name, "images")]
    has_axes = len(KINDS[kind].shape) in axes
    if not has_axes:
        with pytest.raises(ValueError, match=f"^{name} takes "):
            models[name](KINDS[kind].shape, 10)
    if not has_axes or "texts" in text:
        lengths = ", ".join(map(str, KINDS[kind].shape))
        assert text.startswith(f"{name} takes {KIND_OF.get(name, 'images')} [")
        assert f"[{lengths}]" in text
        suggested = text.partition("such as ")[2].partition(", or other")[0]
        # some models of images are too deep for the smallest ones
        for other in suggested.replace(" or ", ", ").split(", "):
            assert kind in TAKEN[other] or kind in {"small", "volume"}


@pytest.mark.parametrize("shape", [64, (8, 0), (8, 2.5), "88", None])
def test_what_is_no_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"mlp: example_shape=.* is no shape; give"):
        models["mlp"](shape, 10)


def test_floats_are_no_texts():
    """Also where only the examples say it, in Python."""
    problem = fa.models.gru((64,), 10, hidden=4)
    data = fa.data.datasets["digits"]()
    with pytest.raises(ValueError, match=r"gru takes texts \[length\].*float32\[64\].*linear or"):
        jax.eval_shape(problem.apply, problem.init(jax.random.key(0)), data.test, KEY, False)
    clients = fa.federate(data.train, fa.Partition.of([np.arange(9)]))
    engine = fa.make_engine(fa.algorithms.fedavg(problem, fa.Local(2, 0.1, steps=1)))
    with pytest.raises(ValueError, match=r"gru takes texts \[length\] of integer codes"):
        fa.simulate(engine, clients, cohort_size=1, rounds=1)


@pytest.mark.parametrize(
    "model", ["gru", "lstm_words", "lenet", "mobilenet_v2", "resnet18_imagenet:weights=x.pth"]
)
def test_settings_refuse_a_model_of_other_data(model):
    dataset = fa.data.datasets["digits"]()
    name = model.partition(":")[0]
    with pytest.raises(ValueError, match=rf"^{name} takes .*, but an example is float32\[64\]; "):
        Settings(model=model).problem(dataset)


def test_a_model_of_one_s_own_takes_anything():
    adapters.check_examples("my_file.py:net", (3, 3, 3, 3, 3), jnp.float32)
