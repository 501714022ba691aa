"""The probe that finds optax transformations with a learning rate and a sign of their own."""

import jax
import jax.numpy as jnp
import optax
import pytest

import fedjax_algos as fa
from fedjax_algos.core import optimizers
from fedjax_algos.core.optimizers import check_transform

ROOT_MASK = {"weight": True, "bias": False}  # by the names of the params
LABELS = {"weight": "one", "bias": "other"}
WARM_UP = optax.linear_schedule(0.0, 1.0, 3)


def init(key):
    return fa.Model({"weight": jnp.zeros((3, 5)), "bias": jnp.zeros(5)})


def unused(*arguments):
    raise AssertionError("only the params of the problem are looked at")


PROBLEM = fa.Problem(init, unused, unused)


def masked(inner):
    return optax.masked(inner, ROOT_MASK)


def parted(inner):
    return optax.partition({"one": optax.scale_by_adam(), "other": inner}, LABELS)


def every_third(inner):
    return optax.MultiSteps(inner, 3).gradient_transformation()


RIGHT = {
    "identity": optax.identity(),
    "adam": optax.scale_by_adam(),
    "lion": optax.scale_by_lion(),
    "sign": optax.scale_by_sign(),
    "trace": optax.trace(0.9, nesterov=True),
    "centred": optax.centralize(),
    "clipped and decayed": optax.chain(optax.clip(1e-3), optax.add_decayed_weights(10.0)),
    "clipped below the noise": optax.chain(
        optax.clip_by_global_norm(1.0), optax.add_noise(25.0, 0.0, jax.random.key(0))
    ),
    "0 at first": optax.scale_by_schedule(WARM_UP),
    "masked": masked(optax.scale_by_adam()),
    "parted": parted(optax.set_to_zero()),
    "every third step": every_third(optax.scale_by_adam()),
    "stateful options": optax.inject_hyperparams(optax.scale_by_adam)(b1=0.9),
    "always 0": optax.set_to_zero(),
}
WRONG = {
    "adam": optax.adam(0.1),
    "a tiny rate": optax.sgd(1e-12),
    "the sign alone": optax.scale(-1.0),
    "at the end": optax.chain(optax.clip(1e-3), optax.add_decayed_weights(10.0), optax.sgd(0.1)),
    "noise": optax.noisy_sgd(0.1, key=jax.random.key(0)),
    "0 at first": optax.adam(WARM_UP),
    "masked": masked(optax.sgd(0.1)),
    "parted": parted(optax.sgd(0.1)),
    "every third step": every_third(optax.sgd(0.1)),
    "stateful options": optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
    "of the parameters": optax.lamb(0.1),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_transformations_pass_and_are_probed_once(name, monkeypatch):
    check_transform("mine", RIGHT[name], PROBLEM)

    def refuse(*arguments):
        raise AssertionError("probed again")

    monkeypatch.setattr(optimizers, "_sign", refuse)
    check_transform("mine", RIGHT[name], PROBLEM)
    assert RIGHT[name].update in optimizers._PROBED  # it did not pass because the probe failed


@pytest.mark.parametrize("name", WRONG)
def test_optimisers_with_a_rate_are_refused_each_time(name):
    for _ in range(2):
        with pytest.raises(ValueError, match=r"mine points against the gradient.*; give the trans"):
            check_transform("mine", WRONG[name], PROBLEM)


@pytest.mark.slow
def test_while_tracing():
    """What depends on a tracer passes; what does not is probed as ever, and nothing is leaked."""

    @jax.jit
    def build(rate):
        check_transform("mine", optax.clip_by_global_norm(rate), PROBLEM)
        check_transform("mine", optax.scale_by_adam(), PROBLEM)
        with pytest.raises(ValueError, match="points against the gradient"):
            check_transform("mine", optax.sgd(0.1), PROBLEM)
        return rate

    with jax.checking_leaks():
        assert build(0.5) == 0.5
        assert (jax.vmap(build)(jnp.ones(2)) == 1).all()
        assert jax.grad(build)(1.0) == 1


def test_an_init_that_fails_is_not_the_transformations_fault():
    failing = fa.Problem(lambda key: None, unused, unused)
    check_transform("mine", optax.scale_by_adam(), failing)
