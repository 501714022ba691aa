"""Clients' optimisers: those of optax without their rates, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_algos as fa
from fedjax_algos.core import client_optimizer, client_optimizers, optimizers
from fedjax_algos.core.optimizers import canonical, check_transform, local_transform

OFFERED = sorted(name for name in client_optimizers if ":" not in name)
WITH_OPTIONS = [
    "adafactor:momentum=0.9",
    "adam:b1=0.8,nesterov=true",
    "lars:weight_decay=0.1,nesterov=true",
    "sgd:momentum=0.9",
    "sgd:momentum=0.9,nesterov=true",
]
STEPS = 6
later = functools.partial(pytest.param, marks=pytest.mark.all)

pytestmark = pytest.mark.usefixtures("x64")


def draw(seed):
    rng = np.random.default_rng(seed)
    return {"w": jnp.asarray(rng.normal(size=(4, 3))), "b": jnp.asarray(rng.normal(size=3))}


def descended(transform, rate):
    """The params after some steps `y <- y - rate * transform(g)`, g a function of y."""

    def step(carry, shift):
        params, state = carry
        gradient = jax.tree.map(lambda p, s: jnp.tanh(p) + s, params, shift)
        direction, state = transform.update(gradient, state, params)
        params = jax.tree.map(lambda p, d: p - rate * d, params, direction)
        return (params, state), params

    params = draw(0)
    shifts = jax.tree.map(lambda *leaves: 0.5 * jnp.stack(leaves), *map(draw, range(1, STEPS + 1)))
    return jax.lax.scan(step, (params, transform.init(params)), shifts)[1]


@pytest.mark.parametrize(
    "spec",
    ["adamw:weight_decay=0.1", "rmsprop:momentum=0.9,nesterov=true"]
    + [later(spec) for spec in OFFERED + WITH_OPTIONS],
)
def test_steps_are_those_of_optax_with_the_rate(spec):
    """The rate of `Local` times the direction is the step of optax at this rate: so is its sign."""
    name, options = client_optimizers.parse(spec)

    @jax.jit
    def both(rate):
        module = optax if hasattr(optax, name) else optax.contrib
        whole = getattr(module, name)(learning_rate=rate, **options)
        # descended subtracts, optax's updates are added
        expected = descended(optax.chain(whole, optax.scale(-1.0)), 1.0)
        return descended(client_optimizer(spec), rate), expected

    rounding = 1e-7 if "adafactor:momentum" in spec else 1e-9  # optax keeps it in float32
    for rate in (0.03, 2.0):
        found, expected = both(rate)
        assert jax.tree.all(jax.tree.map(lambda leaf: np.isfinite(leaf).all(), expected))
        for leaf, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(leaf, wanted, rtol=rounding)


def test_all_optimisers_of_optax_are_offered_or_unknown():
    own = {
        name
        for name in vars(optax)
        if "learning_rate" in getattr(getattr(optax, name), "__annotations__", ())
        and not name.startswith(("scale_by", "inject", "_"))
    }
    contributed = {name for name in OFFERED if hasattr(optax.contrib, name)}
    assert contributed >= {"muon", "prodigy"}
    assert set(OFFERED) <= own | contributed
    refused = {
        "sophia",
        "schedule_free_sgd",
        "fromage",
        "lbfgs",
        "noisy_sgd",
        "optimistic_adam",
        "polyak_sgd",
        "rprop",
        "sm3",
    }
    for name in own - set(OFFERED) | refused:  # a later optax may have more
        with pytest.raises(ValueError, match="unknown client optimiser"):
            client_optimizer(name)


def test_clipping_precedes_decay_and_decay_the_optimiser():
    """torch's SGD(weight_decay, momentum) after clip_grad_norm_, as in the GHBM paper's code."""
    transform = local_transform("sgd:momentum=0.5", 1.0, 0.1)
    params, rate = np.array([2.0, 1.0]), 0.3
    y, state, b = jnp.asarray(params), transform.init(jnp.asarray(params)), None
    for gradient in (np.array([3.0, 4.0]), np.array([0.3, -0.4])):
        direction, state = transform.update(jnp.asarray(gradient), state, y)
        y = y - rate * direction
        g = gradient * min(1.0, 1.0 / np.linalg.norm(gradient)) + 0.1 * params
        b = g if b is None else 0.5 * b + g
        params = params - rate * b
    np.testing.assert_allclose(y, params, rtol=1e-12)


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("sgd:0.9,nesterov=TRUE", "sgd:momentum=0.9,nesterov=true"),
        ("adam:b1=0.9", "adam"),
        ("adam:eps=0.0000001,b1=0", "adam:b1=0.0,eps=1e-07"),
    ],
)
def test_every_optimiser_has_one_text_and_is_one_object(spec, same):
    assert canonical(spec) == same
    assert client_optimizer(canonical(spec)) is client_optimizer(same)
    assert local_transform(same, 1.0, 0.1) is local_transform(same, 1.0, 0.1)
    others = client_optimizer("sgd"), local_transform(same, 1.0, 0.2)
    assert not {client_optimizer(same), local_transform(same, 1.0, 0.1)} & {*others}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("adam:b1=1", "b1=1 is out of range"),
        ("adam:nesterov=1", "nesterov='1'"),
        ("adam:mu_dtype=float32", "unknown option 'mu_dtype'"),
        ("lars:trust_ratio_mask=true", "unknown option 'trust_ratio_mask'"),
        ("adafactor:weight_decay_rate=0.1", "unknown option 'weight_decay_rate'"),
        ("adam:learning_rate=0.1", "has a learning rate; give client_learning_rate"),
        ("sgd:momentum=0.9,client_learning_rate=1", "before client_optimizer"),
        ("sgd:nesterov=true", "nesterov=true needs a momentum"),
        ("sign_sgd:beta=0.9", "unknown option 'beta'; leave it out"),
        (optax.adam(0.1), "give a text such as"),
    ],
)
def test_wrong_texts_get_the_fix(spec, message):
    with pytest.raises(ValueError if isinstance(spec, str) else TypeError) as caught:
        client_optimizer(spec)
    assert message in str(caught.value)


OWN = """
import optax

def climbing(*, rate: float):
    return optax.adam(rate)

def no_transformation():
    return 3
"""


def test_optimisers_of_ones_own(here):
    """A wrong sign cannot pass, neither alone nor behind clipping and decay."""
    (here / "own.py").write_text(OWN)
    with pytest.raises(ValueError, match="returns a int"):
        client_optimizer("own.py:no_transformation")
    for clip_norm, weight_decay in ((0.0, 0.0), (1.0, 0.1)):
        transform = local_transform("own.py:climbing:rate=0.1", clip_norm, weight_decay)
        with pytest.raises(ValueError, match="points against the gradient"):
            check_transform("Local: transform", transform, PROBLEM)


# The probe that finds transformations with a learning rate and a sign of their own

WARM_UP = optax.linear_schedule(0.0, 1.0, 3)
PROBLEM = fa.Problem(
    lambda key: fa.Model({"weight": jnp.zeros((3, 5)), "bias": jnp.zeros(5)}), None, None
)


CLIPPED = optax.chain(optax.clip(1e-3), optax.add_decayed_weights(10.0))
ADAM, SGD, ZERO, KEY = optax.scale_by_adam(), optax.sgd(0.1), optax.set_to_zero(), jax.random.key(0)
STATEFUL_SGD = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
NOISE = optax.chain(optax.clip_by_global_norm(1.0), optax.add_noise(25.0, 0.0, KEY))


def parted(inner):
    labels = {"weight": "one", "bias": "other"}
    return optax.partition({"one": ADAM, "other": inner}, labels)


def masked(inner):
    return optax.masked(inner, {"weight": True, "bias": False})


def every_third(inner):
    return optax.MultiSteps(inner, 3).gradient_transformation()


TRANSFORMS = {  # a right and a wrong one
    "adam": (ADAM, optax.adam(0.1)),
    "clipped": (CLIPPED, optax.chain(CLIPPED, SGD)),
    "noise": (NOISE, optax.noisy_sgd(0.1, key=KEY)),
    "0 at first": (optax.scale_by_schedule(WARM_UP), optax.adam(WARM_UP)),
    "parted": (parted(ZERO), parted(SGD)),
}
LATER = {
    "alone": (ZERO, optax.scale(-1e-12)),
    "masked": (masked(ADAM), masked(SGD)),
    "every third step": (every_third(ADAM), every_third(SGD)),
    "stateful": (optax.inject_hyperparams(optax.scale_by_adam)(b1=0.9), STATEFUL_SGD),
    "centred": (optax.centralize(), optax.chain(optax.centralize(), SGD)),
}


@pytest.mark.parametrize("name", [*TRANSFORMS, *(later(name) for name in LATER)])
def test_optimisers_with_a_rate_are_refused_and_others_are_probed_once(name, monkeypatch):
    right, wrong = (TRANSFORMS | LATER)[name]
    for _ in range(2):
        with pytest.raises(ValueError, match="mine points against the gradient"):
            check_transform("mine", wrong, PROBLEM)
    check_transform("mine", right, PROBLEM)
    monkeypatch.setattr(optimizers, "_sign", None)
    check_transform("mine", right, PROBLEM)
    assert right.update in optimizers._PROBED  # it did not pass because the probe failed


@pytest.mark.all
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
        assert build(jnp.float32(0.5)) == 0.5
        assert (jax.vmap(build)(jnp.ones(2, jnp.float32)) == 1).all()
        assert jax.grad(build)(jnp.float32(1)) == 1
