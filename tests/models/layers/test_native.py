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
    """Both forms of a layer, and its arrays."""
    *shapes, strides, sides, whole, groups = LAYERS[name]
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(0.3 * rng.normal(size=shape), jnp.float32) for shape in shapes]
    options = {"strides": strides, "sides": sides, "whole": whole, "groups": groups}
    return partial(by_onednn, **options), partial(by_lax, **options), arrays


def loss_of(form):
    return lambda *arrays: jnp.sin(form(*arrays)).sum()


def gradients(form):
    return jax.grad(loss_of(form), (0, 1))


def squared(form):
    return lambda *arrays: sum((leaf**2).sum() for leaf in gradients(form)(*arrays))


TRANSFORMS = {
    "values": lambda form, *arrays: form(*arrays),
    "gradients": lambda form, *arrays: gradients(form)(*arrays),
    "tangents": lambda form, *arrays: jax.jvp(form, arrays, tuple(map(jnp.cos, arrays))),
    "gradients of gradients": lambda form, *arrays: jax.grad(squared(form), (0, 1))(*arrays),
    "own kernels": lambda form, x, w: jax.vmap(gradients(form))(
        jnp.stack([x, 2 * x]), jnp.stack([w, -w])
    ),
    "a shared kernel": lambda form, x, w: jax.vmap(gradients(form), (0, None))(
        jnp.stack([x, 2 * x]), w
    ),
    "shared images": lambda form, x, w: jax.vmap(gradients(form), (None, 0))(
        x, jnp.stack([w, -w])
    ),
}  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=list(TRANSFORMS))
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_those_of_lax(name, transform):
    ours, theirs, arrays = forms(name)
    found, expected = transform(ours, *arrays), transform(theirs, *arrays)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = float(jnp.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5 * scale)


def test_a_gpu_has_the_forms_of_lax():
    for name in LAYERS:
        ours, _, arrays = forms(name)
        traced = jax.jit(TRANSFORMS["gradients"], static_argnums=0).trace(ours, *arrays)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        assert "custom_call" not in text, name


def test_several_devices_have_their_own_clients():
    ours, theirs, (x, w) = forms("strides")
    mesh, clients = Mesh(np.array(jax.devices()[:2]), ("clients",)), P("clients")
    each = jax.vmap(gradients(ours))
    specs = {"in_specs": clients, "out_specs": clients, "check_vma": False}
    mapped = jax.shard_map(each, mesh=mesh, **specs)
    found = jax.jit(mapped)(jnp.stack([x, 2 * x]), jnp.stack([w, -w]))
    expected = jax.vmap(gradients(theirs))(jnp.stack([x, 2 * x]), jnp.stack([w, -w]))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), found, expected)


def small_round(layout):
    """The model after two rounds of two clients, and the FLOPs of one client's local update."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 16, 16, 3)).astype(np.float32)
    examples = {"x": x, "y": rng.integers(0, 4, 24).astype(np.int32)}
    data = fa.federate(examples, fa.Partition.of(np.split(np.arange(24), [9])))
    local = fa.Local(batch_size=4, learning_rate=0.05, epochs=1)
    problem = models.make("lenet", (16, 16, 3), 4)
    algorithm = fa.algorithms.scaffold(problem, local)
    engine = fa.make_engine(algorithm, layout)
    dispatches = Cohorts(data.counts(), local, cohort_size=2, seed=0).dispatches(2)
    state = engine.init(0, fa.Population(2, 2, 24))
    flops = count_flops(algorithm, state, data).of(dispatches)
    state, _ = engine.rounds(state, data, dispatches)
    return state.server.params, flops


def test_rounds_are_those_without_it_and_cost_the_same(monkeypatch):
    found = {layout: small_round(layout) for layout in ("sequential", "vmapped")}
    monkeypatch.setattr(native, "INSTALLED", False)
    expected, flops = small_round("sequential")
    for params, own_flops in found.values():
        assert (own_flops == flops).all()
        compare = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
        jax.tree.map(compare, params, expected)


def test_a_checkpoint_is_not_resumed_without_it(monkeypatch, tmp_path):
    examples = {"x": np.ones((6, 5), np.float32), "y": np.arange(6, dtype=np.int32) % 3}
    data = fa.federate(examples, fa.Partition.of(np.split(np.arange(6), 2)))

    def run(rounds):
        algorithm = fa.algorithms.fedavg(models.make("linear", (5,), 3), fa.Local(2, 0.1, steps=1))
        options = {"cohort_size": 2, "checkpoints": tmp_path}
        return fa.simulate(fa.make_engine(algorithm), data, rounds=rounds, **options)

    run(1)
    monkeypatch.setattr(native, "INSTALLED", False)
    with pytest.raises(ValueError, match="the algorithm, its options or the model"):
        run(2)


def test_a_variable_switches_it_off(monkeypatch):
    assert not native.installed()  # conftest.py sets it for all tests
    monkeypatch.delenv("FEDJAX_ALGOS_NATIVE")
    assert native.installed()
