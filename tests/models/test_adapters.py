"""Flax modules as problems, in which the masked rows of short batches change nothing.

What would count them is refused, with the fix, and so is what is no module.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_algos as fa
from fedjax_algos.core.local_training import batch_gradient
from fedjax_algos.models import classifier, compute_in, nnx_classifier, preprocessed

KEY = jax.random.key(0)
REAL = 4  # of six rows


def rows(mask):
    return None if mask is None else mask[:, None]


def nnx_norm(rngs):
    return nnx.BatchNorm(3, momentum=0.5, rngs=rngs)


class NnxPlain(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx_norm(rngs)
        self.dense = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.norm(x))


class LinenPlain(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        return nn.Dense(2)(nn.BatchNorm(not training, momentum=0.5)(x))


def problem_of(module):
    return nnx_classifier(module) if issubclass(module, nnx.Module) else classifier(module(), (3,))


def batches():
    """A batch with two masked rows, and its real rows alone."""
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    x[REAL:] += 50
    short = {"x": jnp.asarray(x), "mask": jnp.arange(6) < REAL}
    return short, {"x": short["x"][:REAL], "mask": jnp.ones(REAL, bool)}


def only_real_rows(problem):
    """Whether the statistics are the same whatever the masked rows are."""
    model = problem.init(KEY)
    (short, _), found = batches(), []
    for x in (short["x"], short["x"].at[REAL:].set(7.0)):
        found.append(problem.apply(model, short | {"x": x}, KEY, True)[1])
    return jax.tree.all(jax.tree.map(lambda one, other: bool((one == other).all()), *found))


class NnxMask(NnxPlain):
    """Passes the mask on as one of its inputs, and as it is."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.second = nnx_norm(rngs)

    def __call__(self, x, mask=None):
        return self.dense(self.norm(self.second(x, mask=mask), mask=rows(mask)))


class NnxForgets(NnxPlain):
    """Takes the mask and does not give it to its layer."""

    def __call__(self, x, mask=None):
        return self.dense(self.norm(x))


class NnxDeep(nnx.Module):
    """The layer in a list of a module that is shared by two attributes."""

    def __init__(self, rngs):
        self.second = nnx.Sequential(NnxPlain(rngs), nnx.relu, nnx.BatchNorm(2, rngs=rngs))
        self.first = self.second

    def __call__(self, x):
        return self.first(x)


class NnxBlock(NnxPlain):
    def __init__(self, rngs):
        super().__init__(rngs)
        self.dense = nnx.Linear(3, 3, rngs=rngs)


class NnxScan(nnx.Module):
    """As many blocks as a batch has rows, in a loop."""

    def __init__(self, rngs):
        split = nnx.split_rngs(splits=6)(nnx.vmap(NnxBlock, in_axes=0, out_axes=0))
        self.blocks = split(rngs)

    def __call__(self, x):
        return nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(
            x, self.blocks
        )


class NnxAxes(NnxPlain):
    """Channels before the height and the width."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.norm = nnx.BatchNorm(3, axis=1, momentum=0.5, rngs=rngs)

    def __call__(self, x):
        return self.norm(x[:, :, None, None]).mean((2, 3))


class LinenMask(nn.Module):
    """Passes the mask on as one of its inputs, as it is, and not, with a keyword."""

    @nn.compact
    def __call__(self, x, training, mask=None):
        x = nn.BatchNorm(not training, momentum=0.5)(x, mask=rows(mask))
        x = nn.BatchNorm(momentum=0.5)(x, not training, mask=mask)
        return nn.Dense(2)(nn.BatchNorm(momentum=0.5)(x=x, use_running_average=not training))


class LinenNorm(nn.BatchNorm):
    """A subclass whose call has no mask."""

    @nn.compact
    def __call__(self, x):
        return super().__call__(x, use_running_average=False)


class LinenStep(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return nn.Dense(3)(LinenNorm(momentum=0.5)(x)), None


class LinenScan(nn.Module):
    @nn.compact
    def __call__(self, x):
        axes = {"params": 0, "batch_stats": 0}
        step = nn.scan(LinenStep, variable_axes=axes, split_rngs={"params": True}, length=6)
        return step()(x, None)[0]


def close(actual, expected):
    compare = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-5)
    jax.tree.map(compare, actual, expected)


NORMALISING = [NnxMask, NnxForgets, NnxDeep, NnxScan, NnxAxes, LinenMask, LinenScan]


@pytest.mark.parametrize("module", NORMALISING)
def test_masked_rows_change_neither_outputs_nor_statistics(module):
    problem = problem_of(module)
    model = jax.jit(problem.init)(KEY)
    short, real = batches()

    def apply(batch):  # compiled each time, so that nothing may be kept from the first one
        return jax.jit(lambda batch: problem.apply(model, batch, KEY, True))(batch)

    _, (outputs, statistics), (alone, expected) = map(apply, (short, short, real))
    close(outputs.logits[:REAL], alone.logits)
    close(statistics, expected)
    leaves = [jax.tree.leaves(each) for each in (statistics, model.statistics)]
    assert all((new != old).any() for new, old in zip(*leaves, strict=True))


@pytest.mark.parametrize("module", [NnxMask, NnxDeep, LinenMask])
def test_evaluation_reads_the_running_statistics(module):
    problem = problem_of(module)
    model = problem.init(KEY)
    x = batches()[0]["x"]
    whole, statistics = problem.apply(model, {"x": x}, KEY, False)
    first, _ = problem.apply(model, {"x": x[:1]}, KEY, False)
    close(whole.logits[:1], first.logits)
    jax.tree.map(np.testing.assert_array_equal, statistics, model.statistics)


def test_wrapped_problems_have_the_mask():
    problem = preprocessed(problem_of(NnxPlain), lambda images, key, training: 2 * images)
    problem = fa.models.with_metrics(fa.models.with_loss(problem, "brier"), "balanced_accuracy")
    assert only_real_rows(fa.models.freeze(compute_in(problem), "*"))


@pytest.mark.parametrize("module", [NnxMask, LinenMask])
def test_a_batch_without_real_rows_has_gradient_zero_and_finite_statistics(module):
    problem = problem_of(module)
    batch = {"x": batches()[1]["x"], "y": jnp.zeros(REAL, jnp.int32)}
    gradient = jax.jit(batch_gradient(problem))
    found, statistics, _ = gradient(problem.init(KEY), batch, jnp.zeros(REAL, bool), KEY)
    assert jax.tree.all(jax.tree.map(lambda leaf: bool((leaf == 0).all()), found))
    assert jax.tree.all(jax.tree.map(lambda leaf: bool(jnp.isfinite(leaf).all()), statistics))


def flat(x):
    """The positions of all texts together."""
    return jnp.repeat(x, 5, axis=0)


class NnxOfTexts(NnxPlain):
    def __call__(self, x):
        return self.norm(flat(x))[::5]


class NnxOfTextsMask(NnxPlain):
    def __call__(self, x, mask=None):
        return self.norm(flat(x), mask=None if mask is None else flat(mask))[::5]


class NnxFrozen(NnxPlain):
    """Normalises by the running statistics in training, too."""

    def __call__(self, x):
        return self.norm(flat(x), True)[::5]


class LinenOfTexts(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        return nn.BatchNorm(not training, name="norm")(flat(x))[::5]


@pytest.mark.parametrize("module", [NnxOfTexts, LinenOfTexts])
def test_inputs_whose_first_axis_is_not_the_batch_are_refused(module):
    problem = problem_of(module)
    model, (short, _) = problem.init(KEY), batches()
    with pytest.raises(ValueError, match=r"'norm' has inputs of shape \[30, 3\].* 6 rows.*mask="):
        problem.apply(model, short, KEY, True)
    problem.apply(model, {"x": short["x"]}, KEY, False)


def test_a_mask_of_the_layer_s_own_inputs_is_taken():
    assert only_real_rows(problem_of(NnxOfTextsMask))
    problem = problem_of(NnxFrozen)
    _, statistics = problem.apply(problem.init(KEY), batches()[0], KEY, True)
    jax.tree.map(np.testing.assert_array_equal, statistics, problem.init(KEY).statistics)


class NnxOwn(NnxPlain):
    """Keeps a running mean of its own, and a statistic that nothing changes."""

    def __init__(self, rngs):
        super().__init__(rngs)
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


class NnxSpectral(NnxPlain):
    def __init__(self, rngs):
        super().__init__(rngs)
        self.norm = nnx.SpectralNorm(nnx.Linear(3, 3, rngs=rngs), rngs=rngs)


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


def test_outputs_are_shown_in_one_line():
    problem, key = fa.models.linear((4,), 3), jax.random.key(0)

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


class NeedsLengths(NnxPlain):
    def __call__(self, x, lengths):
        return self.dense(x)


class NeedsTime(nn.Module):
    @nn.compact
    def __call__(self, x, training, mask, time):
        return nn.Dense(2)(x)


def test_a_module_that_needs_other_arguments_is_named_with_them():
    message = r"NeedsLengths\.__call__ needs 'lengths'.*only the inputs, mask; give"
    with pytest.raises(ValueError, match=message):
        nnx_classifier(NeedsLengths).init(KEY)
    with pytest.raises(ValueError, match=r"NeedsTime\.__call__ needs 'time'"):
        classifier(NeedsTime(), (4,))
