"""Flax modules as problems, in which the masked rows of short batches change nothing."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from model_kinds import in_all

import fedjax_algos as fa
from fedjax_algos.core.local_steps import batch_gradient
from fedjax_algos.models import classifier, compute_in, nnx_classifier, preprocessed
from fedjax_algos.models.layers.common import BatchNorm

KEY = jax.random.key(0)
REAL = 4  # of six rows
X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
X[REAL:] += 50
SHORT = {"x": jnp.asarray(X), "mask": jnp.arange(6) < REAL}
ALONE = {"x": SHORT["x"][:REAL], "mask": jnp.ones(REAL, bool)}


def rows(mask):
    return None if mask is None else mask[:, None]


class NnxPlain(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(3, momentum=0.5, rngs=rngs)
        self.dense = nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.norm(x))


def nnx_module(name, call=NnxPlain.__call__, **layers):
    """A subclass of NnxPlain with another call, and with layers that are made of `rngs`."""

    def init(self, rngs):
        NnxPlain.__init__(self, rngs)
        for attribute, layer in layers.items():
            setattr(self, attribute, layer(rngs=rngs))

    return type(name, (NnxPlain,), {"__init__": init, "__call__": call})


def linen_module(name, call):
    return type(name, (nn.Module,), {"__call__": nn.compact(call)})


# passes the mask on as one of its inputs, and as it is
NnxMask = nnx_module(
    "NnxMask",
    lambda self, x, mask=None: self.dense(self.norm(self.second(x, mask=mask), mask=rows(mask))),
    second=functools.partial(nnx.BatchNorm, 3, momentum=0.5),
)
# takes the mask and does not give it to its layer
NnxForgets = nnx_module("NnxForgets", lambda self, x, mask=None: self.dense(self.norm(x)))
# channels before the height and the width
NnxAxes = nnx_module(
    "NnxAxes",
    lambda self, x: self.norm(x[:, :, None, None]).mean((2, 3)),
    norm=functools.partial(nnx.BatchNorm, 3, momentum=0.5, axis=1),
)


class NnxDeep(nnx.Module):
    """The layer in a list of a module that is shared by two attributes."""

    def __init__(self, rngs):
        self.second = nnx.Sequential(NnxPlain(rngs), nnx.relu, nnx.BatchNorm(3, rngs=rngs))
        self.first = self.second

    def __call__(self, x):
        return self.first(x)


class NnxScan(nnx.Module):
    """As many blocks as a batch has rows, in a loop."""

    def __init__(self, rngs):
        self.blocks = nnx.split_rngs(splits=6)(nnx.vmap(NnxPlain))(rngs)

    def __call__(self, x):
        axes = {"in_axes": (nnx.Carry, 0), "out_axes": nnx.Carry}
        return nnx.scan(lambda x, block: block(x), **axes)(x, self.blocks)


class LinenMask(nn.Module):
    """Passes the mask on as one of its inputs, as it is, and not, with a keyword."""

    @nn.compact
    def __call__(self, x, training, mask=None):
        x = nn.BatchNorm(not training, momentum=0.5)(x, mask=rows(mask))
        x = nn.BatchNorm(momentum=0.5)(x, not training, mask=mask)
        return nn.Dense(2)(nn.BatchNorm(momentum=0.5)(x=x, use_running_average=not training))


class LinenNorm(nn.BatchNorm):
    @nn.compact
    def __call__(self, x):  # which has no mask
        return super().__call__(x, use_running_average=False)


def scanned(self, x):
    """Six blocks, as many as a batch has rows."""
    options = {"variable_axes": {"params": 0, "batch_stats": 0}, "split_rngs": {"params": True}}
    step = lambda module, x, _: (nn.Dense(3)(LinenNorm(momentum=0.5)(x)), None)  # noqa: E731
    return nn.scan(step, **options, length=6)(self, x, None)[0]


LinenScan = linen_module("LinenScan", scanned)


def flat(x):
    """The positions of all texts together."""
    return jnp.repeat(x, 5, axis=0)


def with_texts_mask(self, x, mask=None):
    return self.norm(flat(x), mask=None if mask is None else flat(mask))[::5]


NnxOfTexts = nnx_module("NnxOfTexts", lambda self, x: self.norm(flat(x))[::5])
NnxOfTextsMask = nnx_module("NnxOfTextsMask", with_texts_mask)
# normalises by the running statistics in training, too
NnxFrozen = nnx_module("NnxFrozen", lambda self, x: self.norm(flat(x), True)[::5])
LinenOfTexts = linen_module(
    "LinenOfTexts", lambda _, x, train=False: nn.BatchNorm(not train, name="norm")(flat(x))[::5]
)
LinenOurs = linen_module("LinenOurs", lambda _, x, training: BatchNorm(not training)(x))
LinenSpectral = linen_module(
    "LinenSpectral",
    lambda _, x, is_training=False: nn.SpectralNorm(nn.Dense(2))(x, update_stats=is_training),
)
NnxSpectral = nnx_module(
    "NnxSpectral", norm=lambda rngs: nnx.SpectralNorm(nnx.Linear(3, 3, rngs=rngs), rngs=rngs)
)


class NnxOwnMask(NnxPlain):
    """Keeps a running mean of its own, and a statistic that nothing changes."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.middle, self.fixed = nnx.BatchStat(jnp.zeros(3)), nnx.BatchStat(jnp.ones(3))

    def __call__(self, x, mask=None):
        self.middle[...] = x.mean(0, where=rows(mask))
        return self.norm(x * self.fixed[...][None])


class NnxOwn(NnxOwnMask):
    def __call__(self, x):  # which has no mask
        return super().__call__(x)


class NnxNorm(nnx.BatchNorm):
    def __call__(self, x):  # which has no mask
        return super().__call__(x)


class LinenOwn(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        middle = self.variable("batch_stats", "middle", lambda: jnp.zeros(3))
        if training:
            middle.value = x.mean(0)
        return nn.BatchNorm(not training)(x - middle.value[None])


def problem_of(module):
    is_nnx = not isinstance(module, type) or issubclass(module, nnx.Module)
    return nnx_classifier(module) if is_nnx else classifier(module(), (3,))


close = functools.partial(chex.assert_trees_all_close, rtol=2e-4, atol=2e-5)
MASKED = [NnxMask, LinenMask, NnxOwnMask, NnxOfTextsMask]
MASKED += in_all(NnxForgets, NnxDeep, NnxScan, NnxAxes, LinenScan, LinenOurs)
MASKED += in_all(NnxFrozen, LinenSpectral, NnxSpectral)
UNCHANGED = {NnxOwnMask: 1, NnxFrozen: 2}  # numbers of statistics that are only read


@pytest.mark.parametrize("module", MASKED)
def test_masked_rows_change_neither_outputs_nor_statistics(module):
    """In evaluation the running statistics are read, so that no row depends on the others."""
    problem = problem_of(module)
    model = jax.jit(problem.init)(KEY)

    def apply(batch, training=True):
        return jax.jit(lambda batch: problem.apply(model, batch, KEY, training))(batch)

    (outputs, statistics), (alone, expected) = map(apply, (SHORT, ALONE))
    close(outputs.logits[:REAL], alone.logits)
    close(statistics, expected)
    same = jax.tree.map(np.array_equal, statistics, model.statistics)
    assert sum(jax.tree.leaves(same)) == UNCHANGED.get(module, 0)
    if module in (NnxMask, LinenMask):
        whole, same = apply({"x": SHORT["x"]}, training=False)
        close(whole.logits[:1], apply({"x": SHORT["x"][:1]}, training=False)[0].logits)
        chex.assert_trees_all_equal(same, model.statistics)


@pytest.mark.all
@pytest.mark.parametrize("module", [LinenMask, NnxMask])
def test_a_batch_without_real_rows_has_gradient_zero_and_finite_statistics(module):
    problem = problem_of(module)
    batch = {"x": ALONE["x"], "y": jnp.zeros(REAL, jnp.int32)}
    gradient = jax.jit(lambda *given: batch_gradient(problem)(problem.init(KEY), *given))
    found, statistics, _ = gradient(batch, jnp.zeros(REAL, bool), KEY)
    chex.assert_trees_all_equal(found, jax.tree.map(jnp.zeros_like, found))
    chex.assert_tree_all_finite(statistics)


def test_what_counts_masked_rows_is_refused():
    shape = r"'norm' has inputs of shape \[30, 3\].* 6 rows.*mask="
    for module, message in (
        (NnxOfTexts, shape),
        (LinenOfTexts, shape),
        (NnxOwn, "NnxOwn updates its statistic middle in.* an argument mask"),
        (LinenOwn, "LinenOwn updates its statistic middle in.* an argument mask"),
        (lambda rngs: NnxNorm(3, rngs=rngs), "NnxNorm updates its statistic mean in"),
    ):
        problem = problem_of(module)

        def shapes(batch, training, problem=problem):
            return jax.eval_shape(lambda: problem.apply(problem.init(KEY), batch, KEY, training))

        with pytest.raises(ValueError, match=message):
            shapes(SHORT, True)
        shapes({"x": SHORT["x"]}, False)


def test_masked_rows_change_no_statistics_of_wrapped_problems():
    problem = preprocessed(problem_of(NnxPlain), lambda images, key, training: 2 * images)
    problem = fa.models.with_metrics(fa.models.with_loss(problem, "brier"), "balanced_accuracy")
    problem = fa.models.freeze(compute_in(problem), "*")
    model = jax.jit(problem.init)(KEY)
    apply = jax.jit(lambda x: problem.apply(model, SHORT | {"x": x}, KEY, True)[1])
    chex.assert_trees_all_equal(apply(SHORT["x"]), apply(SHORT["x"].at[REAL:].set(7.0)))


def test_examples_of_the_name_mask_are_refused():
    examples = SHORT | {"y": jnp.zeros(6, jnp.int32)}
    data = fa.federate(examples, fa.Partition.of([np.arange(6)]))
    engine = fa.make_engine(fa.algorithms.fedavg(problem_of(NnxPlain), fa.Local(4, 0.1, steps=1)))
    with pytest.raises(ValueError, match=r"an array of the name 'mask'"):
        fa.simulate(engine, data, cohort_size=1, rounds=1)


def test_what_does_not_make_a_module_or_needs_other_arguments_is_refused():
    needs_lengths = nnx_module("NeedsLengths", lambda self, x, lengths: x)
    needs_time = linen_module("NeedsTime", lambda _, x, training, mask, time: x)
    made = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    for constructor in (made, lambda: made, 3):
        with pytest.raises(ValueError, match=r"constructor.*; give lambda rngs: Net"):
            nnx_classifier(constructor)
    for problem, message in (
        (nnx_classifier(nnx.Linear), None),
        (nnx_classifier(needs_lengths), "missing 1 required positional argument: 'lengths'"),
        (classifier(needs_time(), (3,)), "missing 1 required positional argument: 'time'"),
    ):
        with pytest.raises(TypeError, match=message):
            outputs_of(problem, X)
    for module, shape, message in (
        (nn.Dense, (4,), "module=Dense is not of type Module; give an object"),
        (
            nn.Dense(2),
            (8, 0),
            r"example_shape=\(8, 0\) is not a shape; give the shape",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            classifier(module, shape)


def outputs_of(problem, x):
    return problem.apply(problem.init(KEY), {"x": jnp.asarray(x)}, KEY, False)[0].logits


@pytest.mark.parametrize(
    "dtype", [np.uint16, *(pytest.param(d, marks=pytest.mark.all) for d in (np.int8, np.int32))]
)
def test_only_pixels_of_8_bits_are_scaled(dtype):
    """Tables of counts are used as they are, codes reach an embedding, and images are refused."""
    counts = np.random.default_rng(0).integers(0, 9, (5, 6))
    problem = fa.models.linear((6,), 3)
    found = outputs_of(problem, counts.astype(dtype))
    np.testing.assert_array_equal(found, outputs_of(problem, counts.astype(np.float32)))
    with pytest.raises(
        ValueError, match=r"uint8\[6\], which may be pixels or numbers; divide them"
    ):
        outputs_of(problem, counts.astype(np.uint8))
    module = linen_module("Codes", lambda self, x: nn.Embed(9, 3)(x).mean(1))
    assert outputs_of(classifier(module(), (6,), dtype=dtype), counts.astype(dtype)).shape == (5, 3)
    problem, images = fa.models.lenet((28, 28), 3), np.zeros((2, 28, 28), dtype)
    message = rf"examples are {np.dtype(dtype)}\[28, 28\].*; divide them by their largest value"
    with pytest.raises(ValueError, match=message):
        outputs_of(problem, images)
    jax.eval_shape(lambda: outputs_of(problem, np.float32(images / np.iinfo(dtype).max)))
    problem, pixels = fa.models.linear((5, 6), 3), np.arange(250, 280).reshape(1, 5, 6).clip(0, 255)
    scaled = [outputs_of(problem, x) for x in (pixels.astype(np.uint8), np.float32(pixels / 255))]
    np.testing.assert_allclose(*scaled, rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "shape"), [("lenet", (1, 28, 28)), ("vit", (4, 32, 32)), ("unet_3d", (3, 8, 8, 8))]
)
def test_channels_are_last(model, shape):
    with pytest.raises(ValueError, match=r"but an example is .*; give np.moveaxis\(x, 1, -1\)"):
        fa.models.models[model](shape, 10)
    fa.models.models[model]((*shape[1:], shape[0]), 10)
