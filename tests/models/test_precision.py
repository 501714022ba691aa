"""Models that are applied in bfloat16, with float32 params."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core.local_training import batch_gradient
from fedjax_algos.models import compute_in, models

IMAGES = {"lenet": (32, 32, 3), "cnn_fedcompass": (28, 28, 1), "cnn_fedgbo": (28, 28, 1)}
IMAGES |= {"resnet18": (32, 32, 3), "resnet20": (32, 32, 3), "linear": (8, 8, 1), "mlp": (64,)}
IMAGES |= {"vit": (8, 8, 3), "vit_b_16": (16, 16, 3), "vit_small": (16, 16, 3)}
IMAGES |= {"unet_3d": (4, 8, 4)}
IMAGES |= dict.fromkeys(
    ("mobilenet_v2", "efficientnet_b0", "resnet18_imagenet", "resnet50"), (32, 32, 3)
)


def products(jaxpr):
    """The matrix products and convolutions of a trace, as dtypes of their operands."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("dot_general", "conv_general_dilated"):
            yield tuple(var.aval.dtype.name for var in eqn.invars)
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                if isinstance(inner, ClosedJaxpr | Jaxpr):
                    yield from products(getattr(inner, "jaxpr", inner))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [np.uint8, np.float32], ids=["pixels", "floats"])
@pytest.mark.parametrize("name", sorted(models))
def test_every_model_multiplies_in_bfloat16(name, dtype):
    """All products of the gradient; the gradient itself and the statistics are float32."""
    if name in IMAGES:
        problem, x = models[name](IMAGES[name], 10), np.zeros((2, *IMAGES[name]), dtype)
    else:
        problem, x = models[name]((5,), 10), np.zeros((2, 5), np.int32)  # codes of a text
    narrow = compute_in(problem)
    model = jax.eval_shape(narrow.init, jax.random.key(0))
    batch = {"x": x, "y": np.zeros(problem_labels(problem, model, x), np.int32)}
    given = model, batch, np.ones(2, bool), jax.random.key(0)
    jaxpr, shapes = jax.make_jaxpr(batch_gradient(narrow), return_shape=True)(*given)
    found = list(products(jaxpr.jaxpr))
    assert len(found) >= 2
    assert set(found) == {("bfloat16", "bfloat16")}
    assert shapes[0] == model.params
    assert shapes[1] == model.statistics
    assert shapes[2].total.dtype == jnp.float32


def problem_labels(problem, model, x):
    """The shape of the labels: one for each example, or one for each position of a text."""
    apply = partial(problem.apply, training=False)
    outputs, _ = jax.eval_shape(apply, model, {"x": x}, jax.random.key(0))
    return outputs.logits.shape[:-1]


def digits():
    dataset = fa.data.datasets["digits"]()
    rows = np.array_split(np.arange(len(dataset.train["y"])), 10)
    return dataset, fa.federate(dataset.train, fa.Partition.of(rows))


@pytest.mark.slow
def test_it_learns_as_float32_does():
    """The test loss after 20 rounds of FedAvg is within 2% of that in float32."""
    dataset, data = digits()
    problem = models["mlp"](dataset.example_shape, 10)
    local, losses = fa.Local(10, 0.1, steps=5), []
    for each in (problem, compute_in(problem)):
        engine = fa.make_engine(algorithms["fedavg"](each, local))
        settings = {"cohort_size": 5, "rounds": 20, "eval_every": 20, "test": dataset.test}
        state, history = fa.simulate(engine, data, **settings)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.server))
        losses.append(history[-1]["test_loss"])
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[0] < 0.5 * history[0]["test_loss"]


def test_params_move_under_small_rates():
    """50 steps at rate 1e-4 move the float32 params; params of bfloat16 would all stay."""
    dataset, data = digits()
    problem = compute_in(models["linear"](dataset.example_shape, 10))
    engine = fa.make_engine(algorithms["fedavg"](problem, fa.Local(10, 1e-4, steps=50)))
    state = engine.init(0, fa.Population(10, 1, len(data.indices)))
    before = jax.tree.map(np.asarray, state.server.params)
    state, _ = fa.simulate(engine, data, cohort_size=1, rounds=1)
    before, after = (
        np.asarray(jax.tree.leaves(tree)[-1]) for tree in (before, state.server.params)
    )
    seen = dataset.train["x"].any(0)  # some pixels at the border are always 0
    assert (after != before)[seen].mean() > 0.9
    kernel = jnp.asarray(before, jnp.bfloat16)
    step = jnp.asarray((after - before) / 50, jnp.bfloat16)
    assert (np.asarray(kernel + step) == kernel).mean() > 0.9


def test_another_dtype():
    with pytest.raises(ValueError, match="dtype='float16' is unknown; choose bfloat16"):
        compute_in(models["linear"]((4,), 2), "float16")
