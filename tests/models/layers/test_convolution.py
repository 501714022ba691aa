"""Convolutions and pools agree with Flax's: values and gradients, mapped, in loops, in float64."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_kinds import in_all

from fedjax_algos.models.layers.convolution import Conv, convolve
from fedjax_algos.models.layers.shifted import DepthwiseConv, convolve_depthwise, max_pool
from fedjax_algos.models.layers.volumes import Conv3D, convolve_3d, max_pool_3d, upsample_3d

pytestmark = pytest.mark.usefixtures("x64")


def images(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


@pytest.mark.parametrize(
    ("kind", "features", "kernel", "strides", "padding", "implementation", "shape"),
    [
        (Conv, 16, (3, 3), 1, ((2, 0), (1, 4)), "auto", (5, 6, 16)),  # winograd's form
        (DepthwiseConv, 4, (2, 5), (1, 3), ((2, 0), (0, 1)), "auto", (8, 7, 4)),
        *in_all(
            (Conv, 2, (3, 3), 1, "SAME", "winograd", (6, 8, 3)),
            (Conv, 4, (3, 2), (2, 3), "VALID", "auto", (8, 9, 3)),
            (Conv, 4, (5, 5), 2, "SAME", "patches", (8, 9, 3)),
            (Conv, 4, (1, 1), 2, 0, "patches", (6, 5, 3)),
            (Conv, 4, (4, 4), 1, (3, 1), "lax", (4, 4, 3)),
            (DepthwiseConv, 4, (5, 5), 2, "SAME", "shifts", (8, 7, 4)),
            (DepthwiseConv, 4, (3, 2), 2, ((2, 0), (0, 1)), "lax", (8, 7, 4)),
            (Conv3D, 16, (3, 3, 3), (1, 1, 1), "SAME", "auto", (5, 4, 2, 16)),
            (Conv3D, 2, (2, 3, 3), (2, 1, 1), 1, "winograd", (5, 6, 4, 2)),
            (Conv3D, 2, (3, 2, 1), (1, 2, 2), ((0, 2), 1, (1, 0)), "patches", (5, 6, 4, 2)),
            (Conv3D, 2, (3, 2, 1), (1, 2, 2), ((0, 2), 1, (1, 0)), "lax", (5, 6, 4, 2)),
        ),
    ],
)
def test_clients_in_loops_agree_with_flax(
    kind, features, kernel, strides, padding, implementation, shape
):
    """Two clients with their own params take two steps on these and on their inputs."""
    groups = {"feature_group_count": features} if kind is DepthwiseConv else {}
    own = (kernel,) if kind is DepthwiseConv else (features, kernel)
    options = {"strides": strides, "padding": padding, "param_dtype": float}
    options["bias_init"] = nn.initializers.normal()
    mine = kind(*own, implementation=implementation, **options)
    theirs = nn.Conv(features, kernel, **groups, **options)

    def client(layer, key, x):
        start = layer.init(key, x), x

        def step(_, state):
            loss = lambda params, x: jnp.tanh(layer.apply(params, x)).sum()  # noqa: E731
            return jax.tree.map(lambda a, g: a - 0.1 * g, state, jax.grad(loss, (0, 1))(*state))

        return layer.apply(*start), jax.lax.fori_loop(0, 2, step, start)

    inputs = jax.random.split(jax.random.key(0), 2), images(0, 2, 2, *shape)
    runs = [jax.jit(jax.vmap(partial(client, layer)))(*inputs) for layer in (mine, theirs)]
    chex.assert_trees_all_close(*runs, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("function", "shape", "kernel"),
    [
        (convolve_depthwise, (7, 7, 16), (3, 3, 1, 16)),
        (lambda x, _: max_pool(x, (2, 2), (2, 2)), (7, 7, 3), ()),
        *in_all(
            (partial(convolve, pool=(2, 2)), (7, 7, 16), (3, 3, 16, 16)),
            (partial(convolve, strides=(2, 2)), (7, 7, 16), (1, 1, 16, 4)),
            (convolve_3d, (4, 6, 6, 2), (3, 3, 3, 2, 2)),
            (lambda x, _: max_pool(x, (3, 3), (2, 2), 1), (7, 7, 3), ()),
            (lambda x, _: max_pool_3d(x, (2, 2, 2)), (4, 6, 6, 2), ()),
        ),
    ],
)
def test_accelerators_have_the_operations_of_lax(function, shape, kernel):
    """Mapped over clients, without loops, patches, and what only a CPU has to be told."""
    operation = "convolution" if kernel else "select_and_scatter"
    mapped = jax.vmap(jax.grad(lambda *inputs: jnp.sin(function(*inputs)).sum()))
    traced = jax.jit(mapped).trace(images(0, 2, 2, *shape), images(1, 2, *kernel))
    for platform in ("cuda", "rocm", "tpu"):
        program = traced.lower(lowering_platforms=(platform,)).as_text()
        assert f"stablehlo.{operation}" in program
        for other in ("optimization_barrier", "while", "concatenate", "dot_general"):
            assert f"stablehlo.{other}" not in program
    assert f"stablehlo.{operation}" not in traced.lower(lowering_platforms=("cpu",)).as_text()


def test_only_lax_has_forward_mode_derivatives():
    x, kernel = images(0, 2, 6, 6, 3), images(1, 3, 3, 3, 4)
    _, forward = jax.jvp(lambda k: convolve(x, k, implementation="lax"), (kernel,), (kernel,))
    np.testing.assert_allclose(forward, convolve(x, kernel), rtol=0, atol=1e-12)  # it is linear
    for function, own in ((convolve, kernel), (convolve_depthwise, kernel[:, :, :1, :3])):
        with pytest.raises(TypeError, match="forward-mode"):
            jax.jvp(partial(function, x), (own,), (own,))


def test_the_gradient_of_volumes_keeps_the_planes_and_not_the_patches():
    x, kernel = jnp.zeros((1, 8, 8, 8, 4)), jnp.zeros((3, 3, 3, 4, 4))
    kept = jax.eval_shape(lambda x, kernel: jax.vjp(convolve_3d, x, kernel)[1], x, kernel)
    assert sum(leaf.size for leaf in jax.tree.leaves(kept)) <= 3.1 * x.size + 2 * kernel.size


def test_wrong_calls_are_rejected():
    kernel, across, deep = (3, 3, 2, 2), (3, 3, 1, 2), (3, 3, 3, 2, 2)
    for function, size, shape, options, message in (
        (convolve, 9, kernel, {"implementation": "winograd", "strides": (2, 2)}, "patches or"),
        (convolve, 9, (5, 5, 2, 2), {"implementation": "winograd"}, "choose auto, patches or"),
        (convolve, 9, kernel, {"implementation": "fft"}, "'fft'"),
        (convolve, 9, kernel, {"padding": "same padding"}, "'same padding'"),
        (convolve, 9, kernel, {"padding": (1, 2, 3)}, r"\(1, 2, 3\)"),
        (convolve_depthwise, 4, (3, 3, 1, 5), {}, r"\(3, 3, 1, 5\), .* have 2 channels"),
        (convolve_depthwise, 4, (5, 5, 1, 2), {"padding": "VALID"}, r"\(4, 4\) .* \(5, 5\)"),
        (convolve_depthwise, 4, across, {"implementation": "fft"}, "'fft'"),
        (convolve_3d, 2, deep, {"padding": "VALID"}, r"\(2, 2, 2\) are too small: .* \[0, 0, 0\]"),
        (convolve_3d, 3, deep, {"padding": (1, 1)}, r"padding=\(1, 1\)"),
        (convolve_3d, 3, deep, {"implementation": "fft"}, "'fft'"),
    ):
        with pytest.raises(ValueError, match=message):
            function(np.zeros((1, *[size] * (len(shape) - 2), 2)), np.zeros(shape), **options)


@pytest.mark.parametrize(
    ("pool", "size", "window", "strides", "padding"),
    [
        (max_pool, (7, 5), (3, 3), (2, 2), ((1, 1), (0, 1))),
        (max_pool, (6, 6), (2, 2), (2, 2), "SAME"),
        *in_all(
            (max_pool, (7, 9), (3, 2), None, "VALID"),
            (max_pool, (7, 8), (2, 3), (3, 1), ((1, 0), (0, 2))),
            (lambda x, window, *_: max_pool_3d(x, window), (5, 7, 4), *[(2, 3, 2)] * 2, "VALID"),
        ),
    ],
)
def test_pools_agree_with_flax(pool, size, window, strides, padding):
    """Also for equal entries, of which the first one receives the gradient."""
    x = jnp.asarray(np.random.default_rng(0).integers(0, 3, (9, *size, 3)).astype(float))

    def value_and_gradient(pool):
        outputs, pull_back = jax.vjp(lambda x: pool(x, window, strides, padding), x)
        return outputs, pull_back(jnp.cos(jnp.arange(float(outputs.size))).reshape(outputs.shape))

    found, expected = (jax.jit(partial(value_and_gradient, each))() for each in (pool, nn.max_pool))
    # overlapping windows add gradients in another order
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-14)


def test_interpolation_is_that_of_resized_images():
    x = images(0, 2, 3, 1, 4, 2)
    expected = jax.image.resize(x, (2, 6, 2, 8, 2), "linear")
    np.testing.assert_allclose(jax.jit(upsample_3d)(x), expected, rtol=0, atol=1e-12)


def test_infinities_pass_through_the_pool():
    x = jnp.asarray([[-jnp.inf, 1.0], [jnp.inf, -jnp.inf]]).reshape(1, 2, 2, 1)
    assert float(max_pool(x, (2, 2), (2, 2)).squeeze()) == np.inf
    assert float(max_pool(-jnp.abs(x) * jnp.inf, (2, 2), (2, 2)).squeeze()) == -np.inf
