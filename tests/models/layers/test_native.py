"""The layers of oneDNN, where the package in `native/` is installed."""

from functools import partial
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import fedjax_algos as fa
from fedjax_algos.analysis.costs import count_flops
from fedjax_algos.models import models
from fedjax_algos.models.layers import native
from fedjax_algos.participation import Cohorts

pytestmark = pytest.mark.skipif(
    find_spec("fedjax_algos_native") is None,
    reason="fedjax_algos_native is not installed: pip install ./native",
)


@pytest.fixture(autouse=True)
def _switched_on(monkeypatch):
    monkeypatch.setattr(native, "INSTALLED", True)


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


def by_onednn(images, kernel, strides, sides, whole, groups):
    if not strides:
        return native.multiply(images, kernel)
    return native.convolve(images, kernel, strides, sides, whole, groups)


def forms(name):
    *shapes, strides, sides, whole, groups = LAYERS[name]
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(0.3 * rng.normal(size=shape), jnp.float32) for shape in shapes]
    options = {"strides": strides, "sides": sides, "whole": whole, "groups": groups}
    return partial(by_onednn, **options), partial(by_lax, **options), arrays


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
    "values": lambda form, *arrays: form(*arrays),
    "tangents": lambda form, *arrays: jax.jvp(form, arrays, tuple(map(jnp.cos, arrays))),
    "gradients of gradients": twice,
    "own kernels": mapped((0, 0)),
    "a shared kernel": mapped((0, None)),
    "shared images": mapped((None, 0)),
}


def check(name, transform):
    ours, theirs, arrays = forms(name)
    found, expected = transform(ours, *arrays), transform(theirs, *arrays)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = float(jnp.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5 * scale)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_layers_are_those_of_lax(name):
    check(name, lambda form, *arrays: gradients(form)(*arrays))


@pytest.mark.all
@pytest.mark.parametrize("name", ["strides", "depthwise 5x5", "dense"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_layers_are_those_of_lax(name, transform):
    check(name, TRANSFORMS[transform])


@pytest.mark.all
def test_a_gpu_has_the_forms_of_lax():
    for name in LAYERS:
        ours, _, arrays = forms(name)
        traced = jax.jit(gradients(ours)).trace(*arrays)
        assert "custom_call" not in traced.lower(lowering_platforms=("cuda",)).as_text(), name


@pytest.mark.all
def test_several_devices_have_their_own_clients():
    mesh, clients = Mesh(np.array(jax.devices()[:2]), ("clients",)), P("clients")
    specs = {"mesh": mesh, "in_specs": clients, "out_specs": clients, "check_vma": False}
    ours, theirs, (x, w) = forms("strides")
    given = jnp.stack([x, 2 * x]), jnp.stack([w, -w])
    found = jax.jit(jax.shard_map(jax.vmap(gradients(ours)), **specs))(*given)
    compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(compare, found, jax.vmap(gradients(theirs))(*given))


def small_round(layout):
    """The params after a round of two clients, and the FLOPs of their local updates."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 16, 16, 3)).astype(np.float32)
    examples = {"x": x, "y": rng.integers(0, 4, 24).astype(np.int32)}
    data = fa.federate(examples, fa.Partition.of(np.split(np.arange(24), [9])))
    local = fa.Local(batch_size=4, learning_rate=0.05, epochs=1)
    algorithm = fa.algorithms.scaffold(models.make("lenet", (16, 16, 3), 4), local)
    engine = fa.make_engine(algorithm, layout)
    dispatches = Cohorts(data.counts(), local, cohort_size=2, seed=0).dispatches(1)
    state = engine.init(0, fa.Population(2, 2, 24))
    flops = count_flops(algorithm, state, data).of(dispatches)
    return engine.rounds(state, data, dispatches)[0].server.params, flops


@pytest.mark.all
def test_rounds_are_those_without_it_and_cost_the_same(monkeypatch):
    found = [small_round(layout) for layout in ("sequential", "vmapped")]
    monkeypatch.setattr(native, "INSTALLED", False)
    expected, flops = small_round("sequential")
    for params, own_flops in found:
        assert (own_flops == flops).all()
        compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
        jax.tree.map(compare, params, expected)


def test_a_variable_switches_it_off(monkeypatch):
    assert not native.installed()  # conftest.py sets it for all tests
    monkeypatch.delenv("FEDJAX_ALGOS_NATIVE")
    assert native.installed()
