import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import Case, quadratics, run

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


def test_local_optimiser_starts_afresh_in_every_turn():
    """Two rounds of one Adam step each: both are first steps, of size rate."""
    toy = quadratics([[1.0]], [[100.0]])
    local = fa.Local(1, 0.1, steps=1, transform=optax.scale_by_adam())
    history = run(Case("fedavg", {}).build(toy.problem, local), toy.data, [(0,), (0,)])
    np.testing.assert_allclose([float(p["x"]) for p in history], [0.6, 0.7], atol=1e-8)
