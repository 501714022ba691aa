"""Convolutions and pools agree with Flax's: values and gradients, mapped, in loops, in float64."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.models import (
    Conv,
    Conv3D,
    DepthwiseConv,
    convolve,
    convolve_3d,
    convolve_depthwise,
    max_pool,
    max_pool_3d,
    upsample_3d,
)
from fedjax_algos.models.layers.convolution import by_platform

pytestmark = pytest.mark.usefixtures("x64")


def images(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def value_and_gradients(function, *inputs):
    """The outputs, and the gradients of their sum with distinct weights."""

    def total(*inputs):
        outputs = function(*inputs)
        weights = jnp.cos(jnp.arange(outputs.size, dtype=outputs.dtype)).reshape(outputs.shape)
        return (outputs * weights).sum(), outputs

    gradients, outputs = jax.jit(jax.grad(total, range(len(inputs)), has_aux=True))(*inputs)
    return outputs, gradients


def assert_same(left, right, atol=1e-12):
    chex.assert_trees_all_close(left, right, rtol=0, atol=atol)


@pytest.mark.all
@pytest.mark.parametrize(
    ("kind", "features", "kernel", "strides", "padding", "implementation", "shape"),
    [
        (Conv, 16, (3, 3), 1, "SAME", "auto", (6, 6, 16)),  # winograd's form
        (Conv, 4, (5, 5), 2, "SAME", "patches", (8, 9, 3)),
        (Conv, 4, (3, 2), (2, 3), "VALID", "auto", (8, 9, 3)),
        (Conv, 4, (3, 3), 1, ((2, 0), (1, 3)), "patches", (6, 5, 3)),
        (Conv, 4, (1, 1), 2, 0, "patches", (6, 5, 3)),
        (Conv, 4, (4, 4), 1, (3, 1), "lax", (4, 4, 3)),
        (DepthwiseConv, 4, (5, 5), 2, "SAME", "shifts", (8, 7, 4)),
        (DepthwiseConv, 4, (2, 5), (1, 3), ((2, 0), (0, 1)), "auto", (8, 7, 4)),
        (DepthwiseConv, 4, (3, 2), 2, ((2, 0), (0, 1)), "lax", (8, 7, 4)),
        (Conv3D, 16, (3, 3, 3), (1, 1, 1), "SAME", "auto", (5, 6, 4, 16)),
        (Conv3D, 2, (2, 3, 3), (2, 1, 1), 1, "winograd", (5, 6, 4, 2)),
        (Conv3D, 2, (3, 2, 1), (1, 2, 2), ((0, 2), 1, (1, 0)), "patches", (5, 6, 4, 2)),
        (Conv3D, 2, (3, 2, 1), (1, 2, 2), ((0, 2), 1, (1, 0)), "lax", (5, 6, 4, 2)),
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
    assert_same(*runs, atol=1e-11)


@pytest.mark.all
@pytest.mark.parametrize(
    ("size", "padding", "implementation"),
    [((8, 6), ((2, 0), (1, 4)), "auto"), ((5, 7), "SAME", "winograd")],
)
def test_winograd_agrees_with_the_convolution(size, padding, implementation):
    """Even and odd sides; with 16 channels and features "auto" selects it on a CPU."""
    x, kernel = images(0, 2, *size, 16), images(1, 3, 3, 16, 18)
    expected, mine = (
        value_and_gradients(partial(convolve, padding=padding, implementation=name), x, kernel)
        for name in ("lax", implementation)
    )
    assert_same(mine, expected, atol=1e-10)


@pytest.mark.all
@pytest.mark.parametrize(
    ("size", "pool", "implementation"), [((7, 6), (2, 2), "auto"), ((9, 8), (3, 4), "lax")]
)
def test_outputs_are_cut_to_whole_pools(size, pool, implementation):
    x, kernel = images(0, 2, *size, 16), images(1, 3, 3, 16, 16)
    options = {"padding": "VALID", "implementation": implementation}
    rows, columns = (
        (length - 2) // extent * extent for length, extent in zip(size, pool, strict=True)
    )
    mine = value_and_gradients(partial(convolve, pool=pool, **options), x, kernel)
    expected = value_and_gradients(
        lambda *inputs: convolve(*inputs, **options)[:, :rows, :columns], x, kernel
    )
    assert_same(mine, expected)


def test_auto_selects_the_form_at_compile_time():
    x, kernel = images(0, 2, 8, 8, 16), images(1, 3, 3, 16, 16)
    few = images(0, 2, 8, 8, 15), images(1, 3, 3, 15, 16)
    narrow = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    gradients = jax.jit(jax.grad(lambda *inputs: jnp.sin(convolve(*inputs)).sum(), (0, 1)))
    assert "tensor<16x32x16xf64>" in gradients.lower(x, kernel).as_text()  # tiles of 2 x 4 x 4
    assert "tensor<16x32x" not in gradients.lower(*few).as_text()
    assert "tensor<16x32x" not in gradients.lower(*narrow).as_text()
    elsewhere = gradients.trace(x, kernel).lower(lowering_platforms=("cuda",)).as_text()
    assert "tensor<16x32x" not in elsewhere


@pytest.mark.parametrize(
    ("function", "shape", "kernel", "operation"),
    [
        (partial(convolve, pool=(2, 2)), (7, 7, 16), (3, 3, 16, 16), "convolution"),
        (partial(convolve, strides=(2, 2)), (7, 7, 16), (1, 1, 16, 4), "convolution"),
        (convolve_depthwise, (7, 7, 16), (3, 3, 1, 16), "convolution"),
        (convolve_3d, (4, 6, 6, 2), (3, 3, 3, 2, 2), "convolution"),
        (lambda x, _: max_pool(x, (2, 2), (2, 2)), (7, 7, 3), (), "select_and_scatter"),
        (lambda x, _: max_pool(x, (3, 3), (2, 2), 1), (7, 7, 3), (), "select_and_scatter"),
        (lambda x, _: max_pool_3d(x, (2, 2, 2)), (4, 6, 6, 2), (), "select_and_scatter"),
    ],
)
def test_accelerators_have_the_operations_of_lax(function, shape, kernel, operation):
    """Mapped over clients, without loops, patches, and what only a CPU has to be told."""
    mapped = jax.vmap(jax.grad(lambda *inputs: jnp.sin(function(*inputs)).sum()))
    traced = jax.jit(mapped).trace(images(0, 2, 2, *shape), images(1, 2, *kernel))
    for platform in ("cuda", "rocm", "tpu"):
        program = traced.lower(lowering_platforms=(platform,)).as_text()
        assert f"stablehlo.{operation}" in program
        for other in ("optimization_barrier", "while", "concatenate", "dot_general"):
            assert f"stablehlo.{other}" not in program
    assert f"stablehlo.{operation}" not in traced.lower(lowering_platforms=("cpu",)).as_text()


@pytest.mark.parametrize("cpu", [None, lambda x, y, power: x**power * y])
def test_each_platform_has_its_form(cpu):
    """Values and gradients of a CPU are those of its own form, or of the reference."""
    reference = lambda x, y, power: 3 * x**power * y  # noqa: E731
    form = by_platform(reference, lambda x, y, power: jnp.tanh(x) * y**power, cpu, power=2)
    x, y = jnp.asarray(5.0), jnp.arange(2.0)
    factor = 3 if cpu is None else 1
    outputs, back = jax.vjp(form, x, y)
    assert_same(outputs, factor * 25 * y)
    assert_same(back(jnp.ones(2)), (factor * 10.0, jnp.full(2, factor * 25.0)))
    assert "stablehlo.tanh" not in jax.jit(form).lower(x, y).as_text()
    elsewhere = jax.jit(form).trace(x, y).lower(lowering_platforms=("tpu",)).as_text()
    assert "stablehlo.tanh" in elsewhere


def test_rounding_errors_of_winograd_are_a_few_times_those_of_patches():
    rng = np.random.default_rng(2)
    x, kernel = rng.normal(size=(4, 16, 16, 32)), rng.normal(size=(3, 3, 32, 64))
    exact = value_and_gradients(partial(convolve, implementation="lax"), x, kernel)

    def errors(implementation):
        single = jnp.float32(x), jnp.float32(kernel)
        ours = value_and_gradients(partial(convolve, implementation=implementation), *single)
        return [
            float(jnp.sqrt(((a - b) ** 2).mean() / (b**2).mean()))
            for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True)
        ]

    patches, winograd = errors("patches"), errors("winograd")
    assert max(winograd) < 1e-6
    assert all(w < 4 * p for w, p in zip(winograd, patches, strict=True)), (patches, winograd)


def test_layers_without_bias_and_with_a_dtype():
    options = {"use_bias": False, "dtype": jnp.float32}
    for layer, shape in ((Conv, (2, 5, 5, 3)), (Conv3D, (2, 4, 5, 5, 3))):
        x, kernel = images(0, *shape), (3,) * (len(shape) - 2)
        theirs, mine = nn.Conv(4, kernel, **options), layer(4, kernel, **options)
        params = theirs.init(jax.random.key(0), x)
        assert mine.apply(params, x).dtype == jnp.float32
        assert_same(mine.apply(params, x), theirs.apply(params, x), atol=1e-5)


def test_the_dtype_of_16_bits_is_kept():
    x, kernel = (images(n, *shape) for n, shape in enumerate([(2, 6, 6, 3), (3, 3, 1, 3)]))

    def both(x, kernel):
        outputs, back = jax.vjp(convolve_depthwise, x, kernel)
        return outputs, *back(outputs)

    narrow = x.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    assert [leaf.dtype for leaf in jax.eval_shape(both, *narrow)] == [jnp.bfloat16] * 3


@pytest.mark.parametrize(
    ("function", "shape"), [(convolve, (3, 3, 3, 4)), (convolve_depthwise, (3, 3, 1, 3))]
)
def test_only_lax_has_forward_mode_derivatives(function, shape):
    x, kernel = images(0, 2, 6, 6, 3), images(1, *shape)
    _, forward = jax.jvp(lambda k: function(x, k, implementation="lax"), (kernel,), (kernel,))
    assert_same(forward, function(x, kernel))  # linear in the kernel
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda k: function(x, k), (kernel,), (kernel,))


def test_the_gradient_of_volumes_keeps_the_planes_and_not_the_patches():
    x, kernel = jnp.zeros((1, 8, 8, 8, 4)), jnp.zeros((3, 3, 3, 4, 4))
    kept = jax.eval_shape(lambda x, kernel: jax.vjp(convolve_3d, x, kernel)[1], x, kernel)
    assert sum(leaf.size for leaf in jax.tree.leaves(kept)) <= 3.1 * x.size + 2 * kernel.size


VALID = {"padding": "VALID"}


@pytest.mark.parametrize(
    ("function", "size", "kernel", "options", "message"),
    [
        (convolve, 9, (3, 3, 2, 2), {"implementation": "winograd", "strides": (2, 2)}, "no winogr"),
        (convolve, 9, (5, 5, 2, 2), {"implementation": "winograd"}, r"give a kernel of \(3, 3\)"),
        (convolve, 9, (3, 3, 2, 2), {"implementation": "fft"}, "'fft' is unknown; choose auto, pa"),
        (convolve, 9, (3, 3, 2, 2), {"padding": "same padding"}, "is unknown; give VALID, SAME, a"),
        (convolve, 9, (3, 3, 2, 2), {"padding": (1, 2, 3)}, "is unknown"),
        (convolve_depthwise, 4, (3, 3, 1, 5), {}, r"\(3, 3, 1, 5\), .* have 2 channels; give a"),
        (convolve_depthwise, 4, (5, 5, 1, 2), VALID, r"\(4, 4\) are too small: .* \(5, 5\) leaves"),
        (
            convolve_depthwise,
            4,
            (3, 3, 1, 2),
            {"implementation": "fft"},
            "choose auto, shifts or lax",
        ),
        (convolve_3d, 2, (3, 3, 3, 2, 2), VALID, r"\(2, 2, 2\) are too small: .* \[0, 0, 0\]"),
        (convolve_3d, 3, (3, 3, 3, 2, 2), {"padding": (1, 1)}, r"padding=\(1, 1\) is unknown"),
        (convolve_3d, 3, (3, 3, 3, 2, 2), {"implementation": "fft"}, "'fft' is unknown"),
    ],
)
def test_wrong_calls_are_rejected(function, size, kernel, options, message):
    x = np.zeros((1, *[size] * (len(kernel) - 2), 2))
    with pytest.raises(ValueError, match=message):
        function(x, np.zeros(kernel), **options)


POOLS = [
    ((6, 6), (2, 2), (2, 2), "SAME"),
    ((7, 9), (3, 2), (3, 2), "VALID"),
    ((6, 6), (3, 3), (2, 2), ((1, 1), (0, 1))),
    ((6, 6), (2, 2), None, "VALID"),
    ((7, 8), (2, 3), (3, 1), ((1, 0), (0, 2))),
]


@pytest.mark.parametrize(("size", "window", "strides", "padding"), POOLS)
def test_max_pool_agrees_with_flax(size, window, strides, padding):
    x = images(1, 2, *size, 3)
    expected = value_and_gradients(lambda x: nn.max_pool(x, window, strides, padding), x)
    mine = value_and_gradients(lambda x: max_pool(x, window, strides, padding), x)
    assert_same(mine, expected, atol=1e-14)  # overlapping windows add gradients in another order


@jax.jit
def pooled_by_both(x):
    return [
        [
            value_and_gradients(lambda x, pool=pool, of=options: pool(x, *of), x)
            for options in (((2, 2), (2, 2)), ((3, 3), (2, 2), ((1, 1), (1, 1))))
        ]
        for pool in (max_pool, nn.max_pool)
    ]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 2), min_size=35, max_size=35))
def test_ties_give_the_gradient_to_the_same_entry_as_flax(entries):
    mine, expected = pooled_by_both(jnp.asarray(entries, float).reshape(1, 7, 5, 1))
    assert_same(mine, expected, atol=1e-14)


@pytest.mark.all
def test_pooling_of_volumes_agrees_with_flax_also_for_equal_entries():
    window = (2, 3, 2)
    x = jnp.asarray(np.random.default_rng(0).integers(0, 3, (2, 5, 7, 4, 3)).astype(float))
    mine = value_and_gradients(lambda x: max_pool_3d(x, window), x)
    chex.assert_trees_all_equal(
        mine, value_and_gradients(lambda x: nn.max_pool(x, window, window), x)
    )


def test_interpolation_is_that_of_resized_images():
    x = images(0, 2, 3, 1, 4, 2)
    expected = jax.image.resize(x, (2, 6, 2, 8, 2), "linear")
    np.testing.assert_allclose(jax.jit(upsample_3d)(x), expected, rtol=0, atol=1e-12)


def test_infinities_pass_through_the_pool():
    x = jnp.asarray([[-jnp.inf, 1.0], [jnp.inf, -jnp.inf]]).reshape(1, 2, 2, 1)
    assert float(max_pool(x, (2, 2), (2, 2)).squeeze()) == np.inf
    assert float(max_pool(-jnp.abs(x) * jnp.inf, (2, 2), (2, 2)).squeeze()) == -np.inf
