"""The adapters of Linen and NNX modules, and BatchNorm with masked rows."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_algos as fa
from fedjax_algos.models import classifier, models, nnx_classifier


def test_outputs_are_shown_in_one_line():
    problem, key = models["linear"]((4,), 3), jax.random.key(0)

    def evaluate():
        batch = {"x": jnp.zeros((5, 4), jnp.float32)}
        return problem.apply(problem.init(key), batch, key, False)[0]

    expected = "Outputs(logits=float32[5, 3], features=float32[5, 4])"
    assert repr(evaluate()) == repr(jax.eval_shape(evaluate)) == expected


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
