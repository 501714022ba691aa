import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import Case, quadratics, run

import fedjax_algos as fa
from fedjax_algos.core import ClientData
from fedjax_algos.core.local_training import batch_gradient
from fedjax_algos.core.randomness import permutation_words

pytestmark = pytest.mark.usefixtures("x64")


def view(count):
    words = permutation_words(jax.random.key(5))
    examples = jnp.arange(100, 100 + count)
    return ClientData(examples, jnp.arange(count), jnp.int32(0), jnp.int32(count), words, ())


@pytest.mark.sampled
@pytest.mark.parametrize("count", [1, 3, 8, 11])
def test_every_epoch_sees_every_example_once(count):
    data, batch_size = view(count), 4
    steps = -(-count // batch_size)
    epochs = []
    for epoch in range(3):
        seen = []
        for step in range(epoch * steps, (epoch + 1) * steps):
            batch, real = data.batch(jnp.int32(step), batch_size)
            assert batch.shape == (batch_size,)
            seen += np.asarray(batch)[np.asarray(real)].tolist()
        assert sorted(seen) == list(range(100, 100 + count))
        epochs.append(seen)
    if count > 3:
        assert epochs[0] != epochs[1] != epochs[2]


def test_masked_rows_leave_no_trace():
    toy = quadratics([[1.0]], [[0.0]])
    gradient = batch_gradient(toy.problem)
    model = fa.Model({"x": jnp.asarray(2.0)})
    batch = {"a": jnp.asarray([1.0, 7.0]), "b": jnp.asarray([0.5, -9.0])}
    alone, _, loss = gradient(model, batch, jnp.asarray([True, False]), jax.random.key(0))
    assert float(alone["x"]) == 1.5
    assert float(loss.value()) == pytest.approx(0.5 * 1.5**2)
    assert float(loss.weight) == 1


def test_a_batch_without_real_rows_has_gradient_zero():
    toy = quadratics([[1.0]], [[0.0]])
    batch = {"a": jnp.ones(2), "b": jnp.ones(2)}
    model = fa.Model({"x": jnp.asarray(2.0)})
    gradient, _, loss = batch_gradient(toy.problem)(
        model, batch, jnp.zeros(2, bool), jax.random.key(0)
    )
    assert float(gradient["x"]) == float(loss.total) == float(loss.value()) == 0


def test_transform_comes_after_the_correction():
    """Weight decay sees g + mu (y - x) and y: y <- y - rate (g + mu (y - x) + wd y)."""
    toy = quadratics([[1.0]], [[1.0]])
    decayed = fa.Local(1, 0.1, steps=2, transform=optax.add_decayed_weights(0.3))
    (actual,) = run(Case("fedprox", {"mu": 0.5}).build(toy.problem, decayed), toy.data, [(0,)])
    y = x = 0.5
    for _ in range(2):
        y -= 0.1 * ((y - 1) + 0.5 * (y - x) + 0.3 * y)
    assert float(actual["x"]) == pytest.approx(y, abs=1e-15)


def test_fedgbo_reads_transformed_gradients():
    """Clipping and decay act before U, so the inverse still finds the mean of what U read."""
    toy = quadratics([[1.0]], [[1.0]])
    decayed = fa.Local(1, 0.1, steps=2, transform=optax.add_decayed_weights(0.3))
    algorithm = Case("fedgbo", {"optimizer": "sgdm", "beta": 0.9}).build(toy.problem, decayed)
    history = run(algorithm, toy.data, [(0,), (0,)])
    x, m = 0.5, 0.0
    for actual in history:
        y, seen = x, []
        for _ in range(2):
            seen.append((y - 1) + 0.3 * y)
            y -= 0.1 * (0.9 * m + 0.1 * seen[-1])
        x, m = y, 0.9 * m + 0.1 * np.mean(seen)
        assert float(actual["x"]) == pytest.approx(x, abs=1e-14)


def test_local_optimiser_starts_afresh_in_every_turn():
    """Two rounds of one Adam step each: both are first steps, of size rate."""
    toy = quadratics([[1.0]], [[100.0]])
    local = fa.Local(1, 0.1, steps=1, transform=optax.scale_by_adam())
    history = run(Case("fedavg", {}).build(toy.problem, local), toy.data, [(0,), (0,)])
    np.testing.assert_allclose([float(p["x"]) for p in history], [0.6, 0.7], atol=1e-8)


def test_an_averaged_loss_is_refused():
    toy = quadratics([[1.0]], [[1.0]])
    averaged = toy.problem._replace(loss=lambda outputs, batch: jnp.mean(batch["a"]))
    algorithm = Case("fedavg", {}).build(averaged, fa.Local(1, 0.1, steps=1))
    with pytest.raises(ValueError, match=r"one value for each example, shape \(1,\): return the"):
        run(algorithm, toy.data, [(0,)])
