"""The registered models: parameter counts, shapes, initialisations, and the examples they take."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_kinds import in_all, nightly

import fedjax_algos as fa
from fedjax_algos.core import Model
from fedjax_algos.models import adapters, classifier, models
from fedjax_algos.models.small import ConvolutionalNetwork
from fedjax_algos.runs.settings import Settings

KEY = jax.eval_shape(jax.random.key, 0)
GREY, COLOUR, PHOTO, TEXT = (28, 28), (32, 32, 3), (64, 96, 3), (80,)
LARGE, VOLUME = (224, 224, 3), (48, 60, 48)
COUNTS = [
    ("linear", (5000,), 2, 10_002),
    ("mlp:hidden=400", GREY, 10, 318_010),
    ("cnn_fedgbo", COLOUR, 100, 1_250_852),
    *in_all(("cnn_fedgbo", GREY, 62, 870_334)),
    ("lenet", COLOUR, 10, 797_962),
    ("cnn_fedcompass", GREY, 10, 582_026),
    ("gru", TEXT, 79, 162_887),
    ("gru:biases=flax", TEXT, 79, 162_375),
    ("lstm", TEXT, 80, 133_520),
    ("lstm_words", (20,), 10_004, 4_053_428),
    ("lstm_words:biases=flax", (20,), 10_004, 4_050_748),  # TensorFlow Federated's
    *in_all(("resnet20", COLOUR, 10, 269_722)),
    ("vit", COLOUR, 10, 1_205_898),
    *in_all(("resnet18", COLOUR, 10, 11_173_962)),
    *in_all(("mobilenet_v2", (33, 70, 3), 1000, 3_504_872)),  # any size
    *in_all(("efficientnet_b0", PHOTO, 1000, 5_288_548)),
    *in_all(("resnet18_imagenet", (1, 1, 3), 1000, 11_689_512)),
    *in_all(("resnet50", PHOTO, 1000, 25_557_032)),
    *in_all(("vit_b_16", LARGE, 1000, 86_567_656)),
    *in_all(("vit_small", LARGE, 1000, 22_050_664)),
    *in_all(("unet_3d:norm=group", VOLUME, 2, 246_156)),
]


@pytest.mark.parametrize(("spec", "shape", "classes", "expected"), COUNTS)
def test_parameter_counts_and_shapes_of_outputs(spec, shape, classes, expected):
    problem = models.make(spec, shape, classes)
    labels = (3, *shape) if shape == VOLUME else (3,)
    batch = {"x": jnp.zeros((3, *shape), jnp.uint8), "y": jnp.zeros(labels, jnp.int32)}

    def evaluate(key):
        model = problem.init(key)
        outputs, statistics = problem.apply(model, batch, key, True)
        return model, outputs, statistics, problem.loss(outputs, batch)

    model, outputs, statistics, loss = jax.eval_shape(evaluate, KEY)
    assert sum(leaf.size for leaf in jax.tree.leaves(model.params)) == expected
    assert outputs.logits.shape == (*labels, classes)
    if shape != VOLUME:
        assert outputs.features.shape[0] == 3
    assert loss.shape == (3,)
    same = functools.partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
    assert same(statistics) == same(model.statistics)
    if shape == TEXT:  # the params are float32 with x64, too
        with jax.enable_x64(True):
            assert jax.eval_shape(problem.init, KEY) == model


def by_flax(params, x):
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


@pytest.mark.all
@pytest.mark.usefixtures("x64")
def test_networks_agree_with_flax_if_pools_ignore_rows():
    """Values and gradients of the params, with rows that pools ignore."""
    problem = classifier(ConvolutionalNetwork((3, 4), 3, (5, 10)), (13, 10, 1))
    key = jax.random.key(0)
    params = jax.tree.map(lambda leaf: leaf.astype(float), problem.init(key).params)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 13, 10, 1)))
    forms = (
        lambda params: problem.apply(Model(params), {"x": x}, key, False)[0].logits,
        lambda params: by_flax(params, x),
    )
    found, expected = (
        jax.jit(jax.value_and_grad(lambda params, form=form: jnp.sin(form(params)).sum()))(params)
        for form in forms
    )
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


def test_integer_pixels_are_scaled():
    problem, key = models["linear"]((4,), 3), jax.random.key(0)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4))
    given = jnp.asarray(pixels, jnp.uint8), jnp.asarray(pixels / 255, jnp.float32)
    found = [problem.apply(problem.init(key), {"x": x}, key, False)[0].logits for x in given]
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


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
KIND_OF = {"gru": "texts", "lstm": "texts", "lstm_words": "texts", "unet_3d": "volumes"}


def check_taken(name, shape, dtype):
    """Makes a model for examples of a kind; nothing is computed."""
    problem = models[name](shape, 10)
    model = jax.eval_shape(problem.init, KEY)
    if name in {"gru", "lstm", "lstm_words"}:  # a batch has the type
        batch = {"x": jax.ShapeDtypeStruct((3, *shape), dtype)}
        jax.eval_shape(functools.partial(problem.apply, training=True), model, batch, KEY)


def test_the_tables_have_every_model():
    named = {getattr(case, "values", case)[0].partition(":")[0] for case in COUNTS}
    assert named == set(TAKEN) == set(models)


DEEP = {"resnet18", "resnet18_imagenet", "resnet50", "mobilenet_v2", "efficientnet_b0"}


@pytest.mark.parametrize("name", [*in_all(*sorted(TAKEN.keys() - DEEP)), *nightly(*sorted(DEEP))])
def test_a_model_takes_examples(name):
    for kind in TAKEN[name]:
        check_taken(name, *KINDS[kind])


@pytest.mark.parametrize("name", TAKEN)
def test_a_model_names_examples_that_it_does_not_take_and_the_fix(name):
    taken = KIND_OF.get(name, "images")
    axes = {"texts": (1,), "images": (2, 3), "volumes": (3, 4)}[taken]
    for kind in KINDS.keys() - TAKEN[name]:
        with pytest.raises(ValueError, match=r"give |pad or crop") as error:
            check_taken(name, *KINDS[kind])
        text, shape = str(error.value), KINDS[kind][0]
        if len(shape) not in axes or taken == "texts":
            assert text.startswith(f"{name} takes {taken} [")
            assert str([*shape]) in text


def test_wrong_shapes_and_types_are_refused():
    for shape in (64, (8, 0), "88", None):
        with pytest.raises(ValueError, match=r"mlp: example_shape=.* is no shape"):
            models["mlp"](shape, 10)
    dataset = fa.data.datasets["digits"]()
    for model in ("gru", "resnet18_imagenet:weights=x.pth"):
        name = model.partition(":")[0]
        with pytest.raises(ValueError, match=rf"^{name} takes .*, but an example is float32\[64\]"):
            Settings(model=model).problem(dataset)
    adapters.check_examples("my_file.py:net", (3, 3, 3, 3, 3), jnp.float32)  # takes anything
