"""Conv and max_pool agree with Flax's: values and gradients, mapped and in loops, in float64."""

from functools import partial

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.models import Conv, convolve, max_pool

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


@pytest.mark.sampled
@pytest.mark.parametrize("implementation", ["auto", "patches", "lax"])
@pytest.mark.parametrize(
    ("size", "kernel", "strides", "padding"),
    [
        ((7, 6), (3, 3), 1, "SAME"),
        ((7, 6), (3, 3), 1, "VALID"),
        ((8, 9), (5, 5), 2, "SAME"),
        ((8, 9), (3, 2), (2, 3), "VALID"),
        ((6, 6), (3, 3), 2, 1),
        ((6, 5), (3, 3), 1, ((2, 0), (1, 3))),
        ((6, 5), (1, 1), 2, 0),
        ((4, 4), (4, 4), 1, (3, 1)),
    ],
)
def test_conv_agrees_with_flax(size, kernel, strides, padding, implementation):
    x = images(0, 2, *size, 3)
    theirs = nn.Conv(4, kernel, strides, padding, bias_init=nn.initializers.normal())
    mine = Conv(
        4, kernel, strides, padding, bias_init=nn.initializers.normal(),
        implementation=implementation,
    )  # fmt: skip
    params = theirs.init(jax.random.key(0), x)
    same_start = mine.init(jax.random.key(0), x)
    assert_same(params, same_start, atol=0)
    expected = value_and_gradients(theirs.apply, params, x)
    assert_same(value_and_gradients(mine.apply, params, x), expected)


@pytest.mark.sampled
@pytest.mark.parametrize("implementation", ["auto", "winograd"])
@pytest.mark.parametrize("padding", ["SAME", ((2, 0), (1, 4))])
@pytest.mark.parametrize("size", [(8, 6), (7, 6), (5, 7)])
def test_winograd_agrees_with_the_convolution(size, padding, implementation):
    """Even and odd sides; with 16 channels and features "auto" selects it on a CPU."""
    x, kernel = images(0, 2, *size, 16), images(1, 3, 3, 16, 18)
    expected, mine = (
        value_and_gradients(partial(convolve, padding=padding, implementation=name), x, kernel)
        for name in ("lax", implementation)
    )
    assert_same(mine, expected, atol=1e-10)


@pytest.mark.sampled
@pytest.mark.parametrize("implementation", ["auto", "patches", "winograd", "lax"])
@pytest.mark.parametrize(("size", "pool"), [((7, 6), (2, 2)), ((9, 8), (3, 4)), ((6, 6), (2, 2))])
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


def test_conv_without_bias_and_with_a_dtype():
    x = images(0, 2, 5, 5, 3)
    options = {"use_bias": False, "dtype": jnp.float32}
    theirs, mine = nn.Conv(4, (3, 3), **options), Conv(4, (3, 3), **options)
    params = theirs.init(jax.random.key(0), x)
    assert mine.apply(params, x).dtype == jnp.float32
    assert_same(mine.apply(params, x), theirs.apply(params, x), atol=1e-5)


@pytest.mark.parametrize(("channels", "features"), [(3, 4), (16, 16)])  # patches, winograd
def test_mapped_and_looped_convolutions_are_the_same(channels, features):
    """Weights for each client and gradients inside a scan, for which the layer is made."""
    x = images(0, 3, 4, 2, 6, 6, channels)  # clients, steps, batch, ...
    theirs, mine = nn.Conv(features, (3, 3)), Conv(features, (3, 3))
    params = jax.vmap(theirs.init)(jax.random.split(jax.random.key(0), 3), x[:, 0])

    def train(layer):
        def client(params, batches):
            def step(params, batch):
                gradient = jax.grad(lambda p: jnp.tanh(layer.apply(p, batch)).sum())(params)
                return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), None

            return jax.lax.scan(step, params, batches)[0]

        return jax.jit(jax.vmap(client))(params, x)

    assert_same(train(mine), train(theirs), atol=1e-11)


def test_only_lax_has_forward_mode_derivatives():
    x, kernel = images(0, 2, 6, 6, 3), images(1, 3, 3, 3, 4)
    _, forward = jax.jvp(lambda k: convolve(x, k, implementation="lax"), (kernel,), (kernel,))
    assert_same(forward, convolve(x, kernel))  # linear in the kernel
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda k: convolve(x, k), (kernel,), (kernel,))


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        ((3, 3), {"implementation": "winograd", "strides": (2, 2)}, "has no winograd form"),
        ((5, 5), {"implementation": "winograd"}, r"give a kernel of \(3, 3\)"),
        ((3, 3), {"implementation": "fft"}, "'fft' is unknown; choose auto, patches, winograd"),
        ((3, 3), {"padding": "same padding"}, "is unknown; give VALID, SAME, a number, or one for"),
        ((3, 3), {"padding": (1, 2, 3)}, "is unknown"),
        ((3, 3), {"padding": "CIRCULAR"}, "is unknown"),
    ],
)
def test_wrong_calls_are_rejected(kernel, options, message):
    with pytest.raises(ValueError, match=message):
        convolve(images(0, 1, 9, 9, 2), images(1, *kernel, 2, 2), **options)


POOLS = [
    ((6, 6), (2, 2), (2, 2), "VALID"),
    ((7, 5), (2, 2), (2, 2), "VALID"),
    ((7, 9), (3, 2), (3, 2), "VALID"),
    ((7, 5), (2, 2), (2, 2), "SAME"),
    ((6, 6), (2, 2), (2, 2), "SAME"),
    ((6, 6), (3, 3), (2, 2), "VALID"),
    ((6, 6), (3, 3), (2, 2), ((1, 1), (0, 1))),
    ((6, 6), (2, 2), None, "VALID"),
    ((7, 8), (2, 3), (3, 1), ((1, 0), (0, 2))),
    ((5, 9), (1, 2), (2, 3), "VALID"),
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


def test_infinities_pass_through_the_pool():
    x = jnp.asarray([[-jnp.inf, 1.0], [jnp.inf, -jnp.inf]]).reshape(1, 2, 2, 1)
    assert float(max_pool(x, (2, 2), (2, 2)).squeeze()) == np.inf
    assert float(max_pool(-jnp.abs(x) * jnp.inf, (2, 2), (2, 2)).squeeze()) == -np.inf
