"""The adapters of Linen and NNX modules, and BatchNorm with masked rows."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

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
    ("constructor", "name"),
    [
        (nnx.Linear(3, 2, rngs=nnx.Rngs(0)), "Linear"),
        (lambda: nnx.Linear(3, 2, rngs=nnx.Rngs(0)), "<lambda>"),
        (KeywordOnly, "KeywordOnly"),
        (None, "NoneType"),
    ],
    ids=["module", "no argument", "keyword only", "none"],
)
def test_what_does_not_make_a_module_is_refused(constructor, name):
    with pytest.raises(ValueError, match=f"constructor is {name}, not .*lambda rngs: Net"):
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
