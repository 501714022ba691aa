"""BatchNorm, against Flax's."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_algos.models.layers.normalisation import BatchNorm

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(5, 6, 4, 3), (5, 3, 2, 4, 3)])
def test_outputs_statistics_and_gradients_are_those_of_flax(shape, masked):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(2, 3, shape))
    # a row that is not finite must not reach the others
    mask = jnp.asarray([True, True, False, True, False]) if masked else None
    x = x.at[2].set(jnp.inf) if masked else x
    wide = None if mask is None else mask.reshape(-1, *(1,) * (len(shape) - 1))
    params = {"scale": rng.normal(size=3), "bias": rng.normal(size=3)}
    before = {"mean": rng.normal(size=3), "var": rng.uniform(1, 2, 3)}

    def run(kind):
        layer = kind(False, momentum=0.9, epsilon=1e-5, param_dtype=jnp.float64)

        def loss(params, x):
            variables = {"params": params, "batch_stats": before}
            outputs, after = layer.apply(variables, x, mask=wide, mutable=["batch_stats"])
            real = outputs if wide is None else jnp.where(wide, outputs, 0)
            return jnp.sin(real).sum(), (real, after)

        return jax.grad(loss, (0, 1), has_aux=True)(params, x)

    (ours, (own_params, images)) = run(BatchNorm)[1], run(BatchNorm)[0]
    (theirs, (their_params, other)) = run(nn.BatchNorm)[1], run(nn.BatchNorm)[0]
    if masked:  # of rows that are masked, no one reads the gradient
        images, other = images[mask], other[mask]
    for one, same in zip(
        jax.tree.leaves((ours, own_params, images)),
        jax.tree.leaves((theirs, their_params, other)),
        strict=True,
    ):
        np.testing.assert_allclose(one, same, rtol=1e-11, atol=1e-12)


def test_evaluation_reads_the_kept_statistics_as_in_flax():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 3, 2)))
    layers = [kind(True, param_dtype=jnp.float64) for kind in (BatchNorm, nn.BatchNorm)]
    ours, theirs = (layer.init_with_output(jax.random.key(0), x) for layer in layers)
    jax.tree.map(np.testing.assert_array_equal, ours[1], theirs[1])
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)  # statistics begin in float32
