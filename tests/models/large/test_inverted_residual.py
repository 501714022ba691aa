"""Stochastic depth; `test_weights.py` has the outputs of the networks."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_algos.models import Conv, DepthwiseConv
from fedjax_algos.models.large.inverted_residual import InvertedResidual, Stage
from fedjax_algos.models.large.residual import Normalisation


@pytest.mark.all
def test_stochastic_depth_leaves_out_whole_branches_of_single_examples():
    """The others are divided by the probability of staying, so that the mean is the same."""
    rate, rows = 0.3, 400
    block = InvertedResidual(
        Stage(2, 4, 1, 1), 1, nn.silu, True, rate, Conv, partial(DepthwiseConv, use_bias=False),
        partial(Normalisation, "group", 2, True),
    )  # fmt: skip
    x = jnp.asarray(np.random.default_rng(0).normal(size=(rows, 2, 2, 4)), jnp.float32)
    key = jax.random.key(0)
    variables = jax.jit(partial(block.init, training=False))(key, x[:1])
    apply = jax.jit(block.apply, static_argnames="training")
    given = variables, x, {"dropout": key}
    whole, some = (np.asarray(apply(*given[:2], training=flag, rngs=given[2])) for flag in (0, 1))
    out = np.isclose(some, x, atol=1e-6).all((1, 2, 3))
    assert out.mean() == pytest.approx(rate, abs=4 * (rate * (1 - rate) / rows) ** 0.5)
    expected = np.where(out[:, None, None, None], x, x + (whole - x) / (1 - rate))
    np.testing.assert_allclose(some, expected, atol=1e-5)
