"""Clients' optimisers: those of optax without their rates, and what is refused."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_algos as fa
from fedjax_algos.core import client_optimizer, client_optimizers
from fedjax_algos.core.optimizers import canonical, check_transform, local_transform

OFFERED = sorted(name for name in client_optimizers if ":" not in name)
WITH_OPTIONS = [
    "adafactor:momentum=0.9",
    "adam:b1=0.8,nesterov=true",
    "adamw:weight_decay=0.1",
    "lars:weight_decay=0.1,nesterov=true",
    "rmsprop:momentum=0.9,nesterov=true",
    "sgd:momentum=0.9",
    "sgd:momentum=0.9,nesterov=true",
]
STEPS = 6

pytestmark = pytest.mark.usefixtures("x64")


def draw(seed):
    rng = np.random.default_rng(seed)
    return {
        "w": jnp.asarray(rng.normal(size=(4, 3)), float),
        "b": jnp.asarray(rng.normal(size=3), float),
    }


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


@pytest.mark.sampled
@pytest.mark.parametrize("rate", [0.03, 2.0])
@pytest.mark.parametrize("spec", OFFERED + WITH_OPTIONS)
def test_steps_are_those_of_optax_with_the_rate(spec, rate):
    """The rate of `Local` times the direction is the step of optax at this rate: so is its sign."""
    name, options = client_optimizers.parse(spec)
    whole = getattr(optax, name)(learning_rate=rate, **options)
    # descended subtracts, optax's updates are added
    expected = descended(optax.chain(whole, optax.scale(-1.0)), 1.0)
    found = descended(client_optimizer(spec), rate)
    assert jax.tree.all(jax.tree.map(lambda leaf: np.isfinite(leaf).all(), expected))
    rounding = 1e-7 if "adafactor:momentum" in spec else 1e-9  # optax keeps it in float32
    for leaf, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=rounding)


def test_all_optimisers_of_optax_are_offered_or_refused_with_a_reason():
    own = {
        name
        for name in vars(optax)
        if "learning_rate" in getattr(getattr(optax, name), "__annotations__", ())
        and not name.startswith(("scale_by", "inject", "_"))
    }
    assert set(OFFERED) <= own
    refused = {"fromage", "lbfgs", "noisy_sgd", "optimistic_adam", "polyak_sgd", "rprop", "sm3"}
    for name in own - set(OFFERED) | refused:  # a later optax may have more
        told = "is not for local steps, because" if name in refused else "unknown"
        with pytest.raises(ValueError, match=told):
            client_optimizer(name)


@pytest.mark.parametrize("optimizer", [optax.fromage, optax.rprop])
def test_the_rates_of_refused_optimisers_do_not_scale_their_steps(optimizer):
    params, gradient = draw(0)["w"], draw(1)["w"]

    def third_step(rate):
        transform = optimizer(rate)
        state = transform.init(params)
        for _ in range(3):
            update, state = transform.update(gradient, state, params)
        return np.asarray(update) / rate

    assert not np.allclose(third_step(0.03), third_step(60.0), rtol=1e-3)


def torch_sgd(gradients, momentum, nesterov):
    """torch.optim.SGD's directions, without dampening, as its documentation gives them."""
    directions, b = [], None
    for g in gradients:
        b = g if b is None else momentum * b + g
        directions.append(g + momentum * b if nesterov else b)
    return directions


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_that_of_torch(nesterov):
    gradients = [np.array([1.0, -2.0]), np.array([0.5, 3.0]), np.array([-1.5, 0.25])]
    transform = client_optimizer(f"sgd:momentum=0.9,nesterov={nesterov}")
    state, found = transform.init(jnp.zeros(2)), []
    for gradient in gradients:
        direction, state = transform.update(jnp.asarray(gradient), state)
        found.append(direction)
    np.testing.assert_allclose(found, torch_sgd(gradients, 0.9, nesterov), rtol=1e-12)
    by_hand = [1.9, 1.76, -1.716] if nesterov else [1.0, 1.4, -0.24]
    np.testing.assert_allclose([each[0] for each in found], by_hand, rtol=1e-12)


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


def test_equal_texts_give_one_object():
    assert client_optimizer("adam:b1=0.8,b2=0.9") is client_optimizer("adam:b2=0.9,b1=0.8")
    assert client_optimizer("adam:0.8") is client_optimizer("adam:b1=0.8")
    assert client_optimizer("adam") is not client_optimizer("adam:b1=0.8")
    assert local_transform("adam", 1.0, 0.1) is local_transform("adam", 1.0, 0.1)
    assert local_transform("adam", 1.0, 0.1) is not local_transform("adam", 1.0, 0.2)


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("sgd:0.9,nesterov=TRUE", "sgd:momentum=0.9,nesterov=true"),
        ("sgd:nesterov=true,momentum=9e-1", "sgd:momentum=0.9,nesterov=true"),
        ("adam:b1=0.9", "adam"),
        ("adam:eps=0.0000001,b1=0", "adam:b1=0.0,eps=1e-07"),
    ],
)
def test_every_optimiser_has_one_text(spec, same):
    assert canonical(spec) == same
    assert client_optimizer(canonical(spec)) is client_optimizer(same)


def test_sgd_is_the_gradient_itself():
    gradient = draw(0)
    passed, state = client_optimizer("sgd").update(gradient, ())
    assert passed is gradient
    assert not jax.tree.leaves(state)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("adm", "unknown client optimiser 'adm'; did you mean adam?"),
        ("adam:eps_rot=0.9", "adam: unknown option 'eps_rot'; did you mean eps_root?"),
        ("adam:b1=1", "adam: b1=1 is out of range; give a number of at least 0 and below 1"),
        ("adam:b1=nan", "adam: b1='nan' is no number"),
        ("adam:b1=high", "adam: b1='high' is no number"),
        ("adam:nesterov=1", "adam: nesterov='1' is unknown; choose True or False"),
        ("adam:eps=-1", "adam: eps=-1 is out of range; give a number of at least 0"),
        ("adam:b1=0.9,b1=0.8", "adam: b1 is given twice; give it once"),
        ("adam:mu_dtype=float32", "adam: unknown option 'mu_dtype'"),
        ("lars:trust_ratio_mask=true", "lars: unknown option 'trust_ratio_mask'"),
        ("adafactor:weight_decay_rate=0.1", "adafactor: unknown option 'weight_decay_rate'"),
        ("adam:learning_rate=0.1", "has a learning rate; give client_learning_rate instead"),
        ("sgd:momentum=0.9,client_learning_rate=1", "has a learning rate; give client_learning_"),
        ("sgd:nesterov=true", "sgd: nesterov=true needs a momentum; give momentum=0.9 too"),
        ("rmsprop:nesterov=true", "rmsprop: nesterov=true needs a momentum"),
        ("sign_sgd:beta=0.9", "sign_sgd takes no options; leave 'beta' out"),
        ("lbfgs", "it needs the value of the loss besides the gradient"),
    ],
)
def test_wrong_texts_get_the_fix(spec, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        client_optimizer(spec)


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="give a text such as"):
        client_optimizer(optax.adam(0.1))


OWN = """
import optax

def clipped_sign(*, size: float = 1.0):
    return optax.chain(optax.clip(size), optax.scale_by_sign(), optax.scale(size))

def climbing():
    return optax.adam(0.1)

def no_transformation():
    return 3
"""


@pytest.fixture
def own_file(tmp_path):
    path = tmp_path / "own_optimizers.py"
    path.write_text(OWN)
    yield path
    for name in [name for name in client_optimizers if ":" in name]:
        del client_optimizers[name]


def test_optimisers_of_ones_own(own_file):
    transform = client_optimizer(f"{own_file}:clipped_sign:size=0.5")
    direction, _ = transform.update(jnp.array([3.0, -0.1]), transform.init(jnp.zeros(2)))
    np.testing.assert_array_equal(direction, [0.5, -0.5])
    with pytest.raises(ValueError, match="unknown option 'sise'; did you mean size"):
        client_optimizer(f"{own_file}:clipped_sign:sise=0.5")
    with pytest.raises(ValueError, match="returns a int; give a function"):
        client_optimizer(f"{own_file}:no_transformation")


def test_a_wrong_sign_cannot_pass(own_file):
    """Neither of one's own optimiser, nor behind clipping and decay."""
    problem = fa.Problem(lambda key: fa.Model(jnp.zeros(3)), None, None)
    for clip_norm, weight_decay in ((0.0, 0.0), (1.0, 0.1)):
        transform = local_transform(f"{own_file}:climbing", clip_norm, weight_decay)
        with pytest.raises(ValueError, match="points against the gradient"):
            check_transform("Local: transform", transform, problem)
