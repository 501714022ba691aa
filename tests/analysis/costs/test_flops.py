"""Operations counted from traces, against hand counts."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cost_helpers import dispatches_of, operations, shape

import fedjax_algos as fa
from fedjax_algos.analysis import UncountedError
from fedjax_algos.analysis.costs.flops import count
from fedjax_algos.models import convolve


def test_a_dense_layer():
    batch, inputs, outputs = 4, 3, 5
    shapes = shape(inputs, outputs), shape(outputs), shape(batch, inputs)

    def layer(w, b, x):
        return nn.relu(x @ w + b[None])

    product = 2 * batch * inputs * outputs
    assert operations(layer, *shapes) == product + 2 * batch * outputs

    def backward(w, b, x, cotangent):
        return jax.vjp(lambda w, b, x: x @ w + b[None], w, b, x)[1](cotangent)

    # two products and the sum over the batch; the forward product is not used
    found = operations(backward, *shapes, shape(batch, outputs))
    assert found == 2 * product + batch * outputs


def test_a_qr_decomposition():
    """Of a square matrix LAPACK's 4/3 n^3 for R and as many for Q; of a column, twice 2 m."""
    assert operations(jnp.linalg.qr, shape(30, 30)) == pytest.approx(8 / 3 * 30**3)
    assert operations(jnp.linalg.qr, shape(1000, 1)) == pytest.approx(4 * 1000, rel=1e-3)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_recurrent_layer(cell):
    batch, times, inputs, width = 2, 7, 3, 5
    layer = fa.models.Recurrent(cell, width)
    x = shape(batch, times, inputs)
    params = jax.eval_shape(layer.init, jax.random.key(0), x)
    gates, elementwise = {"gru": (3, 2 + 2 + 3 + 4), "lstm": (4, 4 + 3 + 1 + 3 + 1 + 1)}[cell]
    products = gates * 2 * width * (inputs + width)
    biases = gates * 2 * width
    expected = batch * times * (products + biases + elementwise * width)
    assert operations(layer.apply, params, x) == expected


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_a_convolution(strides):
    """Forward, and the gradients of kernel and images: the same products of real entries."""
    images, kernel = shape(2, 9, 11, 3), shape(3, 4, 3, 5)
    across, down = (9 - 3) // strides[0] + 1, (11 - 4) // strides[1] + 1
    expected = 2 * (2 * across * down * 5) * (3 * 4 * 3)

    def run(images, kernel):
        return convolve(images, kernel, strides=strides, padding="VALID", implementation="lax")

    assert operations(run, images, kernel) == expected
    outputs = jax.eval_shape(run, images, kernel)
    for wanted in (0, 1):
        pull = lambda i, k, c, wanted=wanted: jax.vjp(run, i, k)[1](c)[wanted]  # noqa: E731
        assert operations(pull, images, kernel, outputs) == expected
    patches = functools.partial(convolve, strides=strides, padding="VALID")
    assert operations(patches, images, kernel) == expected


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
def test_winograd_counts_as_a_plain_convolution(wanted):
    """A count does not depend on the backend: the most expensive branch of a conditional counts."""
    images, kernel = shape(2, 9, 8, 16), shape(3, 3, 16, 20)

    def loss(implementation, *inputs):
        return jnp.square(convolve(*inputs, implementation=implementation)).sum()

    auto, patches, winograd = (
        operations(jax.grad(functools.partial(loss, name), wanted), images, kernel)
        for name in ("auto", "patches", "winograd")
    )
    assert auto == patches > winograd


def test_padding_and_groups():
    same = functools.partial(convolve, implementation="lax")
    found = operations(same, shape(1, 5, 5, 2), shape(3, 3, 2, 4))
    assert found == 2 * 13 * 13 * 2 * 4  # on a row of 5 the kernel meets 2 + 3 + 3 + 3 + 2 entries
    grouped = nn.Conv(6, (3,), feature_group_count=2, padding="VALID", use_bias=False)
    x = shape(2, 7, 4)
    params = jax.eval_shape(grouped.init, jax.random.key(0), x)
    assert operations(grouped.apply, params, x) == 2 * (2 * 5 * 6) * (3 * 2)


def test_what_is_counted_and_what_is_not():
    x = shape(6, 4)
    assert operations(lambda x: jnp.where(x > 0, x, 0).T.reshape(-1)[::2], x) == 0
    assert operations(lambda x: x.astype(int) * 3 + 1, x) == 0
    assert operations(lambda x: jnp.exp(x) + x**2, x) == 3 * 24
    assert operations(lambda x: x**1, x) == 0
    assert operations(lambda x: x.sum(0), x) == 24
    assert operations(lambda x: x[None].sum(0), x) == 0
    assert operations(lambda x: jnp.cumsum(x, 1), x) == 24
    assert operations(lambda x: x.at[jnp.array([0, 0])].add(1.0), x) == 2 * 4
    assert operations(lambda x: nn.avg_pool(x[None, :, :, None], (2, 2), (2, 2)), x) == 6 * (4 + 1)
    assert operations(lambda x: (jnp.tanh(x), x + 1)[1], x) == 24  # tanh is not used
    assert operations(jax.checkpoint(jnp.sin), x) == 24
    loop = lambda x: jax.lax.fori_loop(0, 5, lambda i, y: jax.jit(jnp.sin)(y), x)  # noqa: E731
    assert operations(loop, x) == 5 * 24
    branches = lambda x, which: jax.lax.cond(which, jnp.sin, lambda x: x * x + x, x)  # noqa: E731
    assert operations(branches, x, shape(dtype=bool)) == 2 * 24
    forms = {"cpu": lambda x: x * x + x, "default": jnp.sin}  # as on all other platforms
    assert operations(lambda x: jax.lax.platform_dependent(x, **forms), x) == 24
    assert operations(lambda key: jax.random.permutation(key, 9), jax.random.key(0)) == 0


def test_loops_whose_length_depends_on_the_dispatch():
    def run(steps, examples, x):
        def step(i, x):
            return jax.lax.fori_loop(0, -(-examples // 4), lambda j, x: x + 1, x * 2)

        unused = lambda i, carry: (carry[0] + 1, carry[1] * 2)  # noqa: E731
        y, _ = jax.lax.fori_loop(2, jnp.maximum(steps, 1), unused, (x, x))
        return jax.lax.fori_loop(0, steps, step, x), y

    steps = lambda dispatches: dispatches.num_steps  # noqa: E731
    examples = lambda dispatches: dispatches.num_examples  # noqa: E731
    integer = shape(dtype=jnp.int32)
    found = count(jax.make_jaxpr(run)(integer, integer, shape(10)), [steps, examples, None])
    work = dispatches_of([0, 1, 5, 5], [8, 8, 8, 9])
    np.testing.assert_array_equal(found.of(work), [0, 30, 150 + 30, 200 + 30])
    assert repr(found) == (
        "Flops(fixed=0, loops=[Flops(fixed=10), Flops(fixed=10, loops=[Flops(fixed=10)])])"
    )


def test_what_cannot_be_counted_is_an_error():
    def halve(x):
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x)

    with pytest.raises(UncountedError, match=r"the loop at .*test_flops.py.* does not follow"):
        operations(halve, shape(3))
    with pytest.raises(UncountedError, match=r"the operation 'cholesky' at .*test_flops.py"):
        operations(lambda x: jax.lax.linalg.cholesky(x) + 1, shape(3, 3))

    def run(steps, x):
        loop = lambda x: jax.lax.fori_loop(0, steps, lambda i, x: x + 1, x)  # noqa: E731
        return jax.lax.cond(x.sum() > 0, loop, lambda x: x, x)

    known = [lambda dispatches: dispatches.num_steps, None]
    with pytest.raises(UncountedError, match=r"the conditional at .* holds a loop"):
        count(jax.make_jaxpr(run)(shape(dtype=jnp.int32), shape(3)), known)
