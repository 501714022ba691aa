"""The layers of oneDNN, where the package in `native/` is installed, and their form on a GPU."""

import itertools
import math
from functools import partial
from importlib.util import find_spec

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_kinds import in_all

from fedjax_algos.analysis.flops import count
from fedjax_algos.core.local_steps import batch_gradient
from fedjax_algos.models import models
from fedjax_algos.models.layers import native

needs_native = pytest.mark.skipif(
    find_spec("fedjax_algos_native") is None,
    reason="fedjax_algos_native is not installed: pip install ./native",
)
LAYERS = {  # images, kernel, strides, sides, whole, groups
    "three channels": ((4, 9, 10, 3), (3, 3, 3, 8), (1, 1), ((1, 1), (1, 1)), None, 1),
    "strides": ((4, 9, 10, 16), (3, 3, 16, 32), (2, 2), ((1, 1), (0, 1)), None, 1),
    "whole pools": ((4, 9, 10, 16), (5, 5, 16, 8), (1, 1), ((0, 0), (0, 0)), (4, 4), 1),
    "one by one": ((4, 9, 10, 16), (1, 1, 16, 8), (2, 2), ((0, 0), (0, 0)), None, 1),
    "groups": ((4, 9, 10, 4), (5, 5, 2, 12), (2, 2), ((1, 2), (2, 2)), None, 2),
    "depthwise": ((4, 9, 10, 20), (3, 3, 1, 20), (2, 2), ((1, 1), (1, 1)), None, 20),
    "depthwise 5x5": ((4, 9, 10, 20), (5, 5, 1, 20), (2, 2), ((1, 2), (2, 2)), None, 20),
    "depthwise 5x5, 32": ((2, 7, 6, 32), (5, 5, 1, 32), (1, 1), ((2, 2), (2, 2)), None, 32),
    "volumes": ((2, 6, 5, 7, 4), (3, 3, 3, 4, 8), (1, 1, 1), ((1, 1),) * 3, None, 1),
    "sequences": ((3, 12, 4), (3, 4, 8), (2,), ((1, 1),), None, 1),
    "dense": ((5, 7), (7, 9), (), (), None, 1),
}


def by_lax(images, kernel, strides, sides, whole, groups):
    if not strides:
        return images @ kernel
    letters = "DHW"[3 - len(strides) :]
    axes = f"N{letters}C", f"{letters}IO", f"N{letters}C"
    options = {"dimension_numbers": axes, "feature_group_count": groups}
    outputs = jax.lax.conv_general_dilated(images, kernel, strides, sides, **options)
    return outputs if whole is None else outputs[:, : whole[0], : whole[1]]


def by_onednn(images, kernel, strides, **options):
    if strides:
        return native.convolve(images, kernel, strides, **options)
    return native.multiply(images, kernel)


def forms(name):
    *shapes, strides, sides, whole, groups = LAYERS[name]
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(0.3 * rng.normal(size=shape), jnp.float32) for shape in shapes]
    options = {"strides": strides, "sides": sides, "whole": whole}
    theirs = partial(by_lax, **options, groups=groups)
    options["whole"] = jax.eval_shape(theirs, *arrays).shape[1:-1]
    return partial(by_onednn, **options), theirs, arrays


def gradients(form):
    return jax.grad(lambda *arrays: jnp.sin(form(*arrays)).sum(), (0, 1))


def twice(form, x, w):
    squared = lambda *arrays: sum((leaf**2).sum() for leaf in gradients(form)(*arrays))  # noqa: E731
    return jax.grad(squared, (0, 1))(x, w)


def mapped(axes):
    """The gradients of two clients, with these axes of images and kernel."""
    return lambda form, x, w: jax.vmap(gradients(form), axes)(
        jnp.stack([x, 2 * x]) if axes[0] == 0 else x, jnp.stack([w, -w]) if axes[1] == 0 else w
    )


TRANSFORMS = {
    "gradients": lambda form, *arrays: gradients(form)(*arrays),
    "values": lambda form, *arrays: form(*arrays),
    "tangents": lambda form, *arrays: jax.jvp(form, arrays, tuple(map(jnp.cos, arrays))),
    "gradients of gradients": twice,
    "own kernels": mapped((0, 0)),
    "a shared kernel": mapped((0, None)),
    "shared images": mapped((None, 0)),
}
SOME = "strides", "depthwise 5x5", "dense"
CASES = [(name, "gradients") for name in LAYERS]
CASES += in_all(*itertools.product(SOME, [*TRANSFORMS][1:]))


@needs_native
@pytest.mark.parametrize(("name", "transform"), CASES)
def test_layers_are_those_of_lax(name, transform):
    *both, arrays = forms(name)
    found, expected = (TRANSFORMS[transform](form, *arrays) for form in both)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = float(jnp.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5 * scale)


@pytest.mark.parametrize("name", [*SOME, *in_all(*sorted(LAYERS.keys() - SOME))])
def test_a_gpu_has_the_forms_of_lax(name):
    ours, _, arrays = forms(name)
    traced = jax.jit(gradients(ours)).trace(*arrays)
    assert "custom_call" not in traced.lower(lowering_platforms=("cuda",)).as_text()


def operations(function, *arrays):
    traced = jax.make_jaxpr(function)(*arrays)
    return count(traced, [None] * len(traced.jaxpr.invars)).fixed


@pytest.mark.parametrize("name", LAYERS)
def test_operations_are_counted(name):
    """Two for each output and entry of its window, and the same for each of its gradients."""
    ours, _, (x, w) = forms(name)
    y = jax.eval_shape(ours, x, w)
    expected = 2 * y.size * math.prod(w.shape[:-1])
    assert operations(ours, x, w) == expected
    assert operations(lambda x, w, y: jax.vjp(ours, x, w)[1](y), x, w, y) == 2 * expected


@pytest.mark.parametrize(
    ("shape", "system", "found", "lines"),
    [
        ((3, 3, 1, 8), "linux", None, 1),
        ((3, 3, 1, 8), "linux", "a spec", 0),
        ((3, 3, 1, 8), "darwin", None, 0),
        ((20, 8), "linux", None, 0),  # a dense layer
    ],
)
def test_advice_is_for_convolutions_where_the_package_is_missing(
    shape, system, found, lines, monkeypatch
):
    monkeypatch.setattr(native.sys, "platform", system)
    monkeypatch.setattr(native.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(native.importlib.util, "find_spec", lambda name: found)
    params = {"kernel": jax.ShapeDtypeStruct(shape, jnp.float32), "bias": jnp.zeros(8)}
    assert len(native.advice(params)) == lines


@needs_native
@pytest.mark.all
def test_models_are_those_without_it_and_cost_the_same(monkeypatch):
    problem, rng = models.make("lenet", (16, 16, 3), 4), np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(5, 16, 16, 3)), jnp.float32)
    model = jax.jit(problem.init)(jax.random.key(0))
    given = model, {"x": x, "y": jnp.arange(5) % 4}, jnp.ones(5, bool)
    found, costs = [], []
    for installed in (False, True):
        monkeypatch.setattr(native, "INSTALLED", installed)
        gradient = jax.jit(partial(batch_gradient(problem), key=jax.random.key(0)))
        assert ("custom_call" in gradient.lower(*given).as_text()) == installed
        found.append(gradient(*given))
        costs.append(operations(gradient, *given))
    chex.assert_trees_all_close(*found, rtol=1e-4, atol=1e-5)
    assert costs[0] == costs[1]


@needs_native
def test_a_variable_switches_it_off(monkeypatch):
    assert not native.installed()  # conftest.py sets it for all tests
    monkeypatch.delenv("FEDJAX_ALGOS_NATIVE")
    assert native.installed()
