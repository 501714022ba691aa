"""The adapters of Linen and NNX modules, and BatchNorm with masked rows."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import LAYOUTS, fixed

import fedjax_algos as fa
from fedjax_algos.models import classifier, models, nnx_classifier
from fedjax_algos.participation import Cohorts


def test_outputs_are_shown_in_one_line():
    problem, key = models["linear"]((4,), 3), jax.random.key(0)

    def evaluate():
        batch = {"x": jnp.zeros((5, 4), jnp.float32)}
        return problem.apply(problem.init(key), batch, key, False)[0]

    expected = "Outputs(logits=float32[5, 3], features=float32[5, 4])"
    assert repr(evaluate()) == repr(jax.eval_shape(evaluate)) == expected


class Small(nn.Module):
    @nn.compact
    def __call__(self, x, training=False, mask=None):
        x = nn.BatchNorm(not training, momentum=0.5)(
            x, mask=None if mask is None else mask[:, None]
        )
        return nn.Dense(2)(x)


def batch_of(x):
    return {"x": jnp.asarray(x), "y": jnp.zeros(len(x), jnp.int32)}


def test_batch_norm_excludes_masked_rows():
    problem = classifier(Small(), (3,))
    model = problem.init(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    padded = batch_of(np.concatenate([x, x[-1:] + 50]))
    padded["mask"] = jnp.arange(6) < 5
    outputs, statistics = problem.apply(model, padded, jax.random.key(0), True)
    expected, alone = problem.apply(model, batch_of(x), jax.random.key(0), True)
    np.testing.assert_allclose(outputs.logits[:5], expected.logits, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(statistics, alone, rtol=1e-5)
    mean = statistics["batch_stats"]["BatchNorm_0"]["mean"]
    np.testing.assert_allclose(mean, 0.5 * x.mean(0), rtol=1e-4, atol=1e-6)
    _, unchanged = problem.apply(model, batch_of(x), jax.random.key(0), False)
    chex.assert_trees_all_equal(unchanged, model.statistics)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_statistics_are_averaged_over_the_cohort_and_not_corrected(layout):
    """Three clients with one short or full batch each: the mean of their statistics."""
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(n, 3)).astype(np.float32) for n in (2, 4, 3)]
    examples = batch_of(np.concatenate(clients))
    data = fa.federate(examples, fa.Partition.of(np.split(np.arange(9), [2, 6])))
    local = fa.Local(4, 0.1, epochs=1)
    engine = fa.make_engine(fa.algorithms.fedgbo(classifier(Small(), (3,)), local), layout)
    cohorts = Cohorts(data.counts(), local, cohort_size=3, seed=0, sampler=fixed([(0, 1, 2)]))
    dispatches = jax.tree.map(lambda leaf: leaf[0], cohorts.dispatches(1))
    state = engine.init(0, fa.Population(3, 3, 9))
    state, _ = engine.round(state, data, dispatches)
    found = state.statistics["batch_stats"]["BatchNorm_0"]
    means = np.mean([0.5 * x.mean(0) for x in clients], axis=0)
    np.testing.assert_allclose(found["mean"], means, rtol=1e-4, atol=1e-6)
    variances = np.mean([0.5 + 0.5 * x.var(0) for x in clients], axis=0)
    np.testing.assert_allclose(found["var"], variances, rtol=1e-4)


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(3, momentum=0.5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.dense = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.dropout(self.norm(x)))


def test_nnx_modules():
    problem = nnx_classifier(NnxNet)
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    model = jax.jit(problem.init)(jax.random.key(0))
    apply = jax.jit(problem.apply, static_argnums=3)
    first, statistics = apply(model, batch_of(x), jax.random.key(1), True)
    again, _ = apply(model, batch_of(x), jax.random.key(1), True)
    other, _ = apply(model, batch_of(x), jax.random.key(2), True)
    assert (first.logits == again.logits).all()
    assert (first.logits != other.logits).any()  # dropout follows the key
    np.testing.assert_allclose(statistics["norm"]["mean"], 0.5 * x.mean(0), rtol=1e-5, atol=1e-6)
    still, same = apply(model, batch_of(x), jax.random.key(2), False)
    dense = jax.tree.map(np.asarray, model.params["dense"])
    expected = x / np.sqrt(1 + 1e-5) @ dense["kernel"] + dense["bias"]
    np.testing.assert_allclose(still.logits, expected, rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_equal(same, model.statistics)


@pytest.mark.slow
def test_nnx_and_linen_train_equally():
    """The same dense layer from the same params gives the same rounds."""
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    examples = {"x": x, "y": (x.sum(1) > 0).astype(np.int32)}
    data = fa.federate(examples, fa.Partition.of(np.array_split(np.arange(20), 4)))
    params = {"kernel": jnp.ones((3, 2)) * 0.1, "bias": jnp.zeros(2)}
    nnx_problem = nnx_classifier(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
    histories = []
    for problem in (classifier(nn.Dense(2), (3,)), nnx_problem):
        engine = fa.make_engine(fa.algorithms.fedavg(problem, fa.Local(2, 0.3, epochs=1)))
        _, history = fa.simulate(
            engine, data, cohort_size=2, rounds=5, params=params, test=examples, eval_every=1
        )
        histories.append([row["test_loss"] for row in history])
    np.testing.assert_allclose(histories[0], histories[1], rtol=1e-6)
    assert histories[0][-1] < 0.8 * histories[0][0]


class KeywordOnly(nnx.Module):
    def __init__(self, *, rngs):
        self.logits = nnx.Linear(3, 2, rngs=rngs)


@pytest.mark.parametrize(
    ("constructor", "given"),
    [
        (nnx.Linear(3, 2, rngs=nnx.Rngs(0)), r"a module, Linear\(...\)"),
        (lambda: nnx.Linear(3, 2, rngs=nnx.Rngs(0)), "<lambda>, which cannot be called with"),
        (KeywordOnly, "KeywordOnly, which cannot be called with"),
        (None, "NoneType, which cannot be called with"),
    ],
    ids=["module", "no argument", "keyword only", "none"],
)
def test_what_does_not_make_a_module_is_refused(constructor, given):
    with pytest.raises(ValueError, match=f"constructor is {given}.*lambda rngs: Net"):
        nnx_classifier(constructor)


class NeedsLengths(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x, lengths):
        return self.dense(x)


class NeedsTime(nn.Module):
    @nn.compact
    def __call__(self, x, training, mask, time):
        return nn.Dense(2)(x)


def test_a_module_that_needs_other_arguments_is_named_with_them():
    problem = nnx_classifier(NeedsLengths)
    with pytest.raises(
        ValueError, match=r"NeedsLengths\.__call__ needs 'lengths'.*only the inputs, mask; give"
    ):
        problem.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"NeedsTime\.__call__ needs 'time'"):
        classifier(NeedsTime(), (4,))


@pytest.mark.parametrize("names", [("x", "label"), ("image", "y"), ("a", "b")])
def test_examples_under_other_names_are_named(names):
    x, y = np.zeros((6, 4), np.float32), np.zeros(6, np.int32)
    data = fa.federate(dict(zip(names, (x, y), strict=True)), fa.Partition.of([[0, 1, 2], [3, 4]]))
    engine = fa.make_engine(
        fa.algorithms.fedavg(models["linear"]((4,), 3), fa.Local(2, 0.1, steps=1))
    )
    with pytest.raises(ValueError, match=f"{names[0]} .*reads x and y; name the inputs x and"):
        fa.simulate(engine, data, cohort_size=1, rounds=1)
