"""Which examples each registered model takes: all models on all kinds of data."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_algos as fa
from fedjax_algos.models import models, registry
from fedjax_algos.runs.settings import Settings

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
    registry.check_examples("my_file.py:net", (3, 3, 3, 3, 3), jnp.float32)
