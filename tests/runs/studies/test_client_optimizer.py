"""The clients' optimiser in runs: against NumPy, in methods and sweeps, and for every algorithm."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, by_kind, dispatches_of, one_round, quadratics, run, small_network

import fedjax_algos as fa
from fedjax_algos.core import client_optimizer
from fedjax_algos.runs.studies.method import Method, methods_of, parse_spec
from fedjax_algos.runs.studies.settings import Settings
from fedjax_algos.runs.studies.sweeps import prepare_sweep

pytestmark = pytest.mark.usefixtures("x64")

ONE_EACH = {case.name: case for case in reversed(CASES)}
OWN_OPTIMIZER = {"fedgbo", "mfl", "mimelite", "mimexlite", "mimelitemom", "mime", "mimemom"}
OWN_OPTIMIZER |= {"diloco", "fedadamw", "fedlada", "fedmuon"}
GRADIENTS_OF_DELTAS = {"scaffold", "fednova", "fedcm", "fedlga", "qfedavg", "fedgamma", "mofedsam"}
REFUSING = OWN_OPTIMIZER | GRADIENTS_OF_DELTAS | {"ghbm", "localghbm", "fedhbm"}


def nesterov(g, b, v, t):
    b = 0.9 * b + g
    return g + 0.9 * b, b, v


def adam(g, m, v, t):
    """Kingma and Ba, Algorithm 1, with beta_1 = 0.8."""
    m, v = 0.8 * m + 0.2 * g, 0.999 * v + 0.001 * g * g
    return m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8), m, v


SGD = "sgd:momentum=0.9,nesterov=true"
BY_HAND = [("adam:b1=0.8", adam), pytest.param(SGD, nesterov, marks=pytest.mark.all)]


@pytest.mark.parametrize(("spec", "rule"), BY_HAND)
def test_local_steps_are_those_of_numpy(spec, rule):
    """Two rounds, so the state of the second one starts anew."""
    toy, rate, x = quadratics([[1.0, 2.0], [0.5]], [[0.3, -1.0], [2.0]]), 0.05, 0.5
    local = fa.Local(4, rate, steps=4, batches="full", transform=client_optimizer(spec))
    algorithm = fa.algorithms.fedavg(toy.problem, local, weighting="uniform")
    for params in run(algorithm, toy.data, [[0, 1], [0, 1]]):
        ends = []
        for client in toy.clients:
            y, *averages = x, 0.0, 0.0
            for t in range(1, 5):
                g = (client["a"] * (y - client["b"])).mean()
                direction, *averages = rule(g, *averages, t)
                y -= rate * direction
            ends.append(y)
        x = np.mean(ends)
        np.testing.assert_allclose(params["x"], x, rtol=1e-12)


def method_of(name, client_optimizer="signum"):
    return Method(name, name, ONE_EACH[name].hyperparameters, 0.05, "", client_optimizer)


@pytest.mark.parametrize("case", by_kind([c for c in CASES if c.name not in REFUSING], quick=False))
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
        state, _ = round_fn(round_fn.init(0, fa.Population(4, 2, 17)), toy.data, dispatches)
        # a cluster is chosen by the losses of the models before the steps
        personal = round_fn.algorithm.personal is not None and case.name != "ifca"
        rows = jax.tree.map(lambda leaf: leaf[::2], state.clients)  # of the clients 0 and 2
        return [state.server.params, *[rows] * personal]

    by_gradient, by_sign = jax.device_get((models(False), models(True)))
    for one, other in zip(by_gradient, by_sign, strict=True):
        leaves = zip(*map(jax.tree.leaves, (one, other)), strict=True)
        assert any((a != b).all() for a, b in leaves)


@pytest.mark.parametrize("name", sorted(REFUSING))
def test_an_algorithm_refuses_an_optimiser_that_its_rule_does_not_allow(name):
    problem, settings = small_network().problem, Settings()
    traits = method_of(name, "sgd").build(problem, settings).traits
    assert traits.requires_sgd or traits.own_optimizer
    with pytest.raises(ValueError, match=rf"^{name} does not take client_optimizer='signum'"):
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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fedavg:client_optimizer=adm", "unknown client optimiser 'adm'; did you mean adam"),
        ("fedavg:client_optimizer=", "unknown client optimiser ''"),
        (
            "fedavg:client_optimizer=adam,client_learning_rate=1",
            "has a learning rate; give client_l",
        ),
        ("fedavg:client_optimizer=adam:b1=0.8,weighting=uniform", "unknown option 'weighting'"),
    ],
)
def test_wrong_specs(spec, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        methods_of((spec,), Settings())


@pytest.mark.parametrize("spec", ["fedavg:client_optimizer=adam", "fedavg"])
def test_an_optimiser_beside_a_grid_of_them_is_refused(spec):
    settings = Settings(client_optimizer=None if "adam" in spec else "adam")
    with pytest.raises(ValueError, match="adam is given beside the grid's values"):
        prepare_sweep(settings, spec, {"client_optimizer": ["sgd", "yogi"]})
