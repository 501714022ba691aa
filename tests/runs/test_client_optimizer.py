"""The clients' optimiser in runs: against NumPy, in methods and sweeps, and for every algorithm."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, by_kind, dispatches_of, one_round, quadratics, run, small_network

import fedjax_algos as fa
from fedjax_algos.core import client_optimizer
from fedjax_algos.runs.batched.sweeps import prepare_sweep
from fedjax_algos.runs.experiment import prepare
from fedjax_algos.runs.method import Method, methods_of, parse_spec
from fedjax_algos.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("x64")

ONE_EACH = {case.name: case for case in reversed(CASES)}
OWN_OPTIMIZER = {"fedgbo", "mfl", "mimelite", "mimexlite", "mimelitemom", "mime", "mimemom"}
GRADIENTS_OF_DELTAS = {"scaffold", "fednova", "fedcm", "fedlga", "qfedavg"}
REFUSING = OWN_OPTIMIZER | GRADIENTS_OF_DELTAS | {"ghbm", "localghbm", "fedhbm"}
SMALL = Settings(model="linear", clients=12, cohort=4, rounds=2, local_steps=3, eval_every=1)


def nesterov(g, state, k):
    b = 0.9 * state + g
    return g + 0.9 * b, b


def adam(g, state, k):
    """Kingma and Ba, Algorithm 1, with beta_1 = 0.8."""
    m, v = (0.0, 0.0) if k == 0 else state
    m, v = 0.8 * m + 0.2 * g, 0.999 * v + 0.001 * g * g
    corrected, scale = m / (1 - 0.8 ** (k + 1)), v / (1 - 0.999 ** (k + 1))
    return corrected / (np.sqrt(scale) + 1e-8), (m, v)


SGD = "sgd:momentum=0.9,nesterov=true"
BY_HAND = {SGD: nesterov, "adam:b1=0.8": adam}


@pytest.mark.parametrize("spec", [pytest.param(SGD, marks=pytest.mark.all), "adam:b1=0.8"])
def test_local_steps_are_those_of_numpy(spec):
    """Two rounds, so the state of the second one starts anew."""
    a, b = [[1.0, 2.0], [0.5]], [[0.3, -1.0], [2.0]]
    toy, rate, x = quadratics(a, b), 0.05, 0.5
    local = fa.Local(4, rate, steps=4, batches="full", transform=client_optimizer(spec))
    algorithm = fa.algorithms.fedavg(toy.problem, local, weighting="uniform")
    for params in run(algorithm, toy.data, [[0, 1], [0, 1]]):
        ends = []
        for own_a, own_b in zip(map(np.array, a), map(np.array, b), strict=True):
            y, optimizer = x, 0.0
            for k in range(4):
                direction, optimizer = BY_HAND[spec]((own_a * (y - own_b)).mean(), optimizer, k)
                y = y - rate * direction
            ends.append(y)
        x = np.mean(ends)
        np.testing.assert_allclose(params["x"], x, rtol=1e-12)


def method_of(name, client_optimizer="signum"):
    return Method(name, name, ONE_EACH[name].hyperparameters, 0.05, "", client_optimizer)


ALLOWING = [case for case in CASES if case.name not in REFUSING]


@pytest.mark.parametrize("case", by_kind(ALLOWING, quick=False))
def test_the_optimiser_changes_the_numbers_of_an_algorithm(case):
    """Of the global model and, if there are some, of the clients' own ones."""
    toy = small_network()
    built = method_of(case.name).build(toy.problem, Settings(batch_size=2, local_steps=3))
    assert built.local.transform is client_optimizer("signum")

    @jax.jit
    def models(sign):
        def update(gradient, state, params=None):
            return jax.tree.map(lambda g: jnp.where(sign, jnp.sign(g), g), gradient), state

        transform = client_optimizer("sgd")._replace(update=update)
        local = fa.Local(2, 0.05, steps=3, transform=transform)
        round_fn = fa.pure_round(case.build(toy.problem, local))
        dispatches = one_round(dispatches_of(toy.data, local, [[0, 2]]), 0)
        state = round_fn.init(0, fa.Population(4, 2, 17))
        state, _ = round_fn(state, toy.data, dispatches)
        rows = jax.tree.map(lambda leaf: leaf[::2], state.clients)  # of the clients 0 and 2
        own = round_fn.algorithm.personal and rows
        return state.server.params, own

    by_gradient, by_sign = jax.device_get((models(False), models(True)))
    for one, other in zip(by_gradient, by_sign, strict=True):
        leaves = [*zip(*map(jax.tree.leaves, (one, other)), strict=True)]
        # a cluster is chosen by the losses of the models before the steps
        chosen = case.name == "ifca" and one is by_gradient[1]
        assert chosen or not leaves or any((a != b).all() for a, b in leaves)


@pytest.mark.parametrize("name", sorted(REFUSING))
def test_an_algorithm_refuses_an_optimiser_that_its_rule_does_not_allow(name):
    problem, settings = small_network().problem, Settings()
    assert method_of(name, "sgd").build(problem, settings).traits.requires_sgd
    with pytest.raises(ValueError, match=rf"^{name}: client_optimizer='signum'"):
        method_of(name).build(problem, settings)


def test_variants_whose_rule_allows_it():
    for name, options in (("ghbm", {"tau": 2, "nesterov": True}), ("fedlga", {"mode": "update"})):
        Method(name, name, options, 0.1, "", "adam").build(small_network().problem, Settings())


def test_a_method_may_have_an_optimiser():
    spec = f"fedprox:mu=0.1,client_learning_rate=0.3,client_optimizer={SGD}"
    values = {"mu": 0.1, "client_learning_rate": 0.3, "client_optimizer": SGD}
    assert parse_spec(spec) == ("fedprox", values, (), "")
    values, spec = {"client_optimizer": "adam:0.8"}, "fedavg:client_optimizer=adam:0.8@buffered:5"
    assert parse_spec(spec) == ("fedavg", values, (), "buffered:5")


def test_the_optimiser_of_all_methods():
    specs = ("fedavg", "fedavg:client_optimizer=sgd:0.9", "fedavg:client_optimizer=adam:b1=0.9")
    methods = methods_of(specs, Settings())
    assert methods[1].configuration()["client_optimizer"] == "sgd:momentum=0.9"
    (replaced,) = methods_of(specs[1:2], Settings(client_optimizer="yogi"))
    assert replaced.client_optimizer == "yogi"
    with pytest.raises(ValueError, match="are the same"):
        methods_of((*specs, "fedavg:client_optimizer=adam"), Settings())


def compared(settings, spec, grid):
    prepare(settings, methods_of((spec,), settings))


BESIDE = "adam is given beside the grid's values"


@pytest.mark.parametrize(
    ("spec", "given", "message"),
    [
        ("fedavg:client_optimizer=adm", {}, "unknown client optimiser 'adm'; did you mean adam"),
        ("fedavg:client_optimizer=", {}, "unknown client optimiser ''"),
        ("fedavg:client_optimizer=adam,client_learning_rate=1", {}, "before client_optimizer"),
        ("fedavg:client_optimizer=adam,weighting=uniform", {}, "options before client_optimizer"),
        ("fedavg:client_optimizer=adam:b1=0.8,weighting=uniform", {}, "unknown option 'weighting'"),
        ("scaffold:client_optimizer=adam", {}, "scaffold: client_optimizer='adam'"),
        ("fedavg", {"client_optimizer": "adam:b1=2"}, "adam: b1=2 is out of range"),
        ("fedavg", {"client_optimizer": ""}, "unknown client optimiser ''"),
        ("fedavg:client_optimizer=adam", {"grid": True}, BESIDE),
        ("fedavg", {"grid": True, "client_optimizer": "adam"}, BESIDE),
    ],
)
def test_what_is_refused(spec, given, message):
    """In a comparison, or beside a grid of optimisers in a sweep."""
    settings = Settings(**vars(SMALL) | {n: v for n, v in given.items() if n != "grid"})
    grid = {"client_optimizer": ["sgd", "yogi"]}
    with pytest.raises(ValueError, match=re.escape(message)):
        (prepare_sweep if "grid" in given else compared)(settings, spec, grid)
