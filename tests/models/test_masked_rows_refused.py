"""What would count the masked rows of short batches is refused, with the fix."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from masked_rows_helpers import (
    KEY,
    LinenPlain,
    batches,
    nnx_norm,
    only_real_rows,
    problem_of,
    rows,
)

import fedjax_algos as fa
from fedjax_algos.models import nnx_classifier


class NnxOfTexts(nnx.Module):
    """Normalises the positions of all texts together."""

    def __init__(self, rngs):
        self.norm = nnx_norm(rngs)

    def flat(self, x):
        return jnp.repeat(x, 5, axis=0)

    def __call__(self, x):
        return self.norm(self.flat(x))[::5]


class NnxOfTextsMask(NnxOfTexts):
    def __call__(self, x, mask=None):
        mask = None if mask is None else jnp.repeat(mask, 5)
        return self.norm(self.flat(x), mask=mask)[::5]


class NnxFrozen(NnxOfTexts):
    """Normalises by the running statistics in training, too."""

    def __call__(self, x):
        return self.norm(self.flat(x), True)[::5]


class NnxFeatures(nnx.Module):
    """Has the batch as the axis of features."""

    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(6, axis=0, rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


class LinenOfTexts(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        return nn.BatchNorm(not training, name="norm")(jnp.repeat(x, 5, axis=0))[::5]


@pytest.mark.parametrize("module", [NnxOfTexts, NnxFeatures, LinenOfTexts])
def test_inputs_whose_first_axis_is_not_the_batch_are_refused(module):
    problem = problem_of(module)
    model, (short, _) = problem.init(KEY), batches()
    shape = r"\[6, 3\]" if module is NnxFeatures else r"\[30, 3\]"
    with pytest.raises(ValueError, match=f"'norm' has inputs of shape {shape}.* 6 rows.*mask="):
        problem.apply(model, short, KEY, True)
    problem.apply(model, {"x": short["x"]}, KEY, False)


def test_a_mask_of_the_layer_s_own_inputs_is_taken():
    assert only_real_rows(problem_of(NnxOfTextsMask))
    problem = problem_of(NnxFrozen)
    _, statistics = problem.apply(problem.init(KEY), batches()[0], KEY, True)
    jax.tree.map(np.testing.assert_array_equal, statistics, problem.init(KEY).statistics)


class NnxOwn(nnx.Module):
    """Keeps a running mean of its own, and a statistic that nothing changes."""

    def __init__(self, rngs):
        self.norm = nnx_norm(rngs)
        self.middle = nnx.BatchStat(jnp.zeros(3))
        self.fixed = nnx.BatchStat(jnp.ones(3))

    def __call__(self, x):
        self.middle[...] = x.mean(0)
        return self.norm(x * self.fixed[...][None])


class NnxOwnMask(NnxOwn):
    def __call__(self, x, mask=None):
        if mask is not None:
            self.middle[...] = x.mean(0, where=rows(mask))
        return self.norm(x)


class NnxNorm(nnx.BatchNorm):
    """A subclass whose call has no mask."""

    def __call__(self, x):
        return super().__call__(x)


class LinenOwn(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        middle = self.variable("batch_stats", "middle", lambda: jnp.zeros(3))
        if training:
            middle.value = x.mean(0)
        return nn.BatchNorm(not training)(x - middle.value[None])


class LinenSpectral(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        return nn.SpectralNorm(nn.Dense(2))(x, update_stats=training)


class NnxSpectral(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.SpectralNorm(nnx.Linear(3, 2, rngs=rngs), rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


def test_statistics_of_a_module_s_own_need_its_mask():
    subclass = nnx_classifier(lambda rngs: NnxNorm(3, rngs=rngs))
    problems = [(problem_of(NnxOwn), "NnxOwn updates its statistic middle")]
    problems += [(problem_of(LinenOwn), "LinenOwn updates its statistic middle")]
    problems += [(subclass, "NnxNorm updates its statistic mean")]
    short, _ = batches()
    for problem, message in problems:
        model = problem.init(KEY)
        with pytest.raises(ValueError, match=f"{message} in.*__call__ an argument mask, bool"):
            problem.apply(model, short, KEY, True)
        problem.apply(model, {"x": short["x"]}, KEY, False)
    for module in (NnxOwnMask, LinenSpectral, NnxSpectral):
        assert only_real_rows(problem_of(module))


def test_examples_of_the_name_mask_are_refused():
    examples = batches()[0] | {"y": jnp.zeros(6, jnp.int32)}
    data = fa.federate(examples, fa.Partition.of([np.arange(6)]))
    engine = fa.make_engine(fa.algorithms.fedavg(problem_of(LinenPlain), fa.Local(4, 0.1, steps=1)))
    with pytest.raises(ValueError, match=r"an array of the name 'mask'.*another name"):
        fa.simulate(engine, data, cohort_size=1, rounds=1)
