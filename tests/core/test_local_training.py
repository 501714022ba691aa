import jax
import jax.numpy as jnp
import pytest
from helpers import quadratics

import fedjax_algos as fa
from fedjax_algos.core.local_training import batch_gradient

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize(("mask", "expected"), [([True, False], 1.5), ([False, False], 0.0)])
def test_masked_rows_leave_no_trace(mask, expected):
    """Without a real row the gradient is 0."""
    model = fa.Model({"x": jnp.asarray(2.0)})
    batch = {"a": jnp.asarray([1.0, 7.0]), "b": jnp.asarray([0.5, -9.0])}
    gradient = batch_gradient(quadratics([[1.0]], [[0.0]]).problem)
    found, _, loss = gradient(model, batch, jnp.asarray(mask), jax.random.key(0))
    assert float(found["x"]) == expected
    assert float(loss.value()) == pytest.approx(0.5 * expected**2)
    assert float(loss.weight) == sum(mask)
