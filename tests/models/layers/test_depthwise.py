"""Depthwise convolution agrees with Flax's: values and gradients, mapped and in loops."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_algos.models import DepthwiseConv, convolve_depthwise

pytestmark = pytest.mark.usefixtures("x64")


def array(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kernel", "strides", "padding"),
    [
        ((3, 3), 1, "SAME"),
        ((3, 3), 2, 1),
        ((5, 5), 2, 2),
        ((3, 2), (1, 2), "VALID"),
        ((2, 5), (1, 3), ((2, 0), (0, 1))),
        ((3, 1), (3, 1), ((0, 0), (0, 2))),
    ],
)
def test_clients_in_loops_agree_with_flax(kernel, strides, padding):
    """Weights of each client and gradients inside a loop, and the layer's params and bias."""
    x = array(0, 2, 3, 2, 8, 7, 4)  # clients, steps, batch, ...
    options = {"bias_init": nn.initializers.normal()}
    theirs = nn.Conv(4, kernel, strides, padding, feature_group_count=4, **options)
    layers = [DepthwiseConv(kernel, strides, padding, **options), theirs]
    layers.append(DepthwiseConv(kernel, strides, padding, implementation="lax", **options))
    keys = jax.random.split(jax.random.key(0), 2)

    def client(layer, key, batches):
        start = layer.init(key, batches[0])

        def step(index, params):
            def loss(params):
                return jnp.tanh(layer.apply(params, batches[index])).sum()

            return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

        return start, jax.lax.fori_loop(0, len(batches), step, start)

    runs = jax.jit(
        lambda keys, x: [
            jax.vmap(lambda key, batches, of=layer: client(of, key, batches))(keys, x)
            for layer in layers
        ]
    )(keys, x)
    for ours in (runs[0], runs[2]):
        for leaf, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(runs[1]), strict=True):
            np.testing.assert_allclose(leaf, expected, rtol=0, atol=1e-11)


def test_the_dtype_of_16_bits_is_kept():
    x, kernel = (jnp.asarray(a, jnp.bfloat16) for a in (array(0, 2, 6, 6, 3), array(1, 3, 3, 1, 3)))

    def both(x, kernel):
        outputs, back = jax.vjp(convolve_depthwise, x, kernel)
        return outputs, *back(outputs)

    assert [leaf.dtype for leaf in jax.eval_shape(both, x, kernel)] == [jnp.bfloat16] * 3
    layer = DepthwiseConv((3, 3), dtype=jnp.float32, use_bias=False)
    outputs = jax.eval_shape(layer.apply, {"params": {"kernel": kernel}}, x)
    assert outputs.dtype == jnp.float32


def test_only_lax_has_forward_mode_derivatives():
    x, kernel = array(0, 1, 4, 4, 2), array(1, 3, 3, 1, 2)

    def by(implementation):
        return lambda k: convolve_depthwise(x, k, implementation=implementation)

    _, forward = jax.jvp(by("lax"), (kernel,), (kernel,))
    np.testing.assert_allclose(forward, by("shifts")(kernel), atol=1e-12)  # linear in the kernel
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(by("shifts"), (kernel,), (kernel,))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        (
            (3, 3, 1, 5),
            {},
            r"kernel has shape \(3, 3, 1, 5\), and the images have 2 channels; give",
        ),
        ((3, 3, 2, 2), {}, r"give a kernel \[height, width, 1, 2\]"),
        ((5, 5, 1, 2), {"padding": "VALID"}, r"\(4, 4\) are too small for a window of \(5, 5\)"),
        ((3, 3, 1, 2), {"implementation": "fft"}, "'fft' is unknown; choose shifts or lax"),
        ((3, 3, 1, 2), {"padding": "CIRCULAR"}, "is unknown; give VALID, SAME, a number"),
    ],
)
def test_wrong_calls_are_rejected(shape, options, message):
    with pytest.raises(ValueError, match=message):
        convolve_depthwise(np.zeros((1, 4, 4, 2)), np.zeros(shape), **options)
