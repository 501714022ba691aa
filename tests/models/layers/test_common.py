"""BatchNorm, against Flax's."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_kinds import in_all

from fedjax_algos.models.layers.common import BatchNorm, Normalisation

pytestmark = pytest.mark.usefixtures("x64")
IMAGES, VOLUMES = (5, 6, 4, 3), (5, 3, 2, 4, 3)
OTHERS = (IMAGES, False, False), (IMAGES, True, False), (IMAGES, False, True)
OTHERS = in_all(*OTHERS, (VOLUMES, False, False))


@pytest.mark.parametrize(("shape", "masked", "evaluated"), [(VOLUMES, True, False), *OTHERS])
def test_outputs_statistics_and_gradients_are_those_of_flax(shape, masked, evaluated):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(2, 3, shape))
    real = np.array([True, True, not masked, True, not masked])
    # a row that is not finite must not reach the others
    x = x.at[2].set(jnp.inf) if masked else x
    wide = jnp.asarray(real.reshape(-1, *(1,) * (len(shape) - 1))) if masked else None
    params = {"scale": rng.normal(size=3), "bias": rng.normal(size=3)}
    before = {"mean": rng.normal(size=3), "var": rng.uniform(1, 2, 3)}

    def run(kind):
        layer = kind(evaluated, momentum=0.9, epsilon=1e-5, param_dtype=jnp.float64)

        def loss(params, x):
            variables = {"params": params, "batch_stats": before}
            outputs, after = layer.apply(variables, x, mask=wide, mutable=["batch_stats"])
            return jnp.sin(outputs[real]).sum(), (outputs[real], after)

        (own, images), found = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, x)
        return own, images[real], found  # no one reads the gradient of masked rows

    compare = partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-12)
    jax.tree.map(compare, *map(run, (BatchNorm, nn.BatchNorm)))


def test_the_networks_move_their_statistics_by_a_tenth():
    x = jnp.asarray(np.random.default_rng(0).normal(1, 2, (4, 3, 5, 2)))
    layer = Normalisation("batch", 2, True)
    start = layer.init(jax.random.key(0), x)
    _, variables = layer.apply(start, x, mutable=["batch_stats"])
    for name, before, expected in (("mean", 0, x.mean((0, 1, 2))), ("var", 1, x.var((0, 1, 2)))):
        found = variables["batch_stats"]["BatchNorm_0"][name]
        np.testing.assert_allclose(found, 0.9 * before + 0.1 * expected, rtol=1e-6)
