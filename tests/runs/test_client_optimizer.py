"""The clients' optimiser in runs: against NumPy, in methods and sweeps, and for every algorithm."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, quadratics, small_network, with_unused

import fedjax_algos as fa
from fedjax_algos.core import client_optimizer
from fedjax_algos.models.outputs import Outputs
from fedjax_algos.participation import Cohorts
from fedjax_algos.runs.batched.sweeps import prepare_sweep
from fedjax_algos.runs.experiment import prepare
from fedjax_algos.runs.method import Method, methods_of, parse_spec
from fedjax_algos.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("x64")

ONE_EACH = {case.name: case for case in CASES}  # the last one of each name
OWN_OPTIMIZER = {"fedgbo", "mfl", "mimelite", "mimexlite", "mimelitemom", "mime", "mimemom"}
GRADIENTS_OF_DELTAS = {"scaffold", "fednova", "fedcm", "fedlga", "qfedavg"}
DISPLACEMENTS = {"ghbm", "localghbm", "fedhbm"}
REFUSING = OWN_OPTIMIZER | GRADIENTS_OF_DELTAS | DISPLACEMENTS
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


BY_HAND = {"sgd:momentum=0.9,nesterov=true": nesterov, "adam:b1=0.8": adam}


@pytest.mark.all
@pytest.mark.parametrize("spec", BY_HAND)
def test_local_steps_are_those_of_numpy(spec):
    """Two rounds, so the state of the second one starts anew."""
    a, b = [[1.0, 2.0], [0.5]], [[0.3, -1.0], [2.0]]
    toy, rate, x = quadratics(a, b), 0.05, 0.5
    local = fa.Local(4, rate, steps=4, batches="full", transform=client_optimizer(spec))
    engine = fa.make_engine(fa.algorithms.fedavg(toy.problem, local, weighting="uniform"))
    state, _ = fa.simulate(engine, toy.data, cohort_size=2, rounds=2)
    for _ in range(2):
        ends = []
        for own_a, own_b in zip(map(np.array, a), map(np.array, b), strict=True):
            y, optimizer = x, 0.0
            for k in range(4):
                direction, optimizer = BY_HAND[spec]((own_a * (y - own_b)).mean(), optimizer, k)
                y = y - rate * direction
            ends.append(y)
        x = np.mean(ends)
    np.testing.assert_allclose(state.server.params["x"], x, rtol=1e-12)


@functools.cache
def toy():
    """A model with one number, quick to compile, and the dispatches of a round."""

    def apply(model, batch, key, training):
        logits = model.params["x"] * batch["a"]
        return Outputs(logits, jnp.stack([logits, batch["a"]], 1)), ()

    problem = fa.Problem(
        init=lambda key: fa.Model({"x": jnp.asarray(0.5, float)}),
        apply=apply,
        loss=lambda outputs, batch: (outputs.logits - batch["b"]) ** 2,
    )
    problem = with_unused(problem)  # for the patterns of fedbn and fedrep
    data = quadratics([[1.0, 1.3, 0.7], [0.6, 1.1]], [[0.2, 2.0, 1.0], [0.9, -1.5]]).data
    local = fa.Local(2, 0.05, steps=3)
    dispatches = Cohorts(data.counts(), local, cohort_size=2, seed=0).dispatches(1)
    return problem, data, jax.tree.map(lambda leaf: leaf[0], dispatches)


def method_of(name, client_optimizer="signum"):
    options = {"head": "x"} if name == "fedrep" else ONE_EACH[name].hyperparameters
    return Method(name, name, options, 0.05, "", client_optimizer)


@pytest.mark.all
@pytest.mark.parametrize("name", sorted(set(ONE_EACH) - REFUSING))
def test_the_optimiser_changes_the_numbers_of_an_algorithm(name):
    """Of the global model and, if there are some, of the clients' own ones."""
    problem, data, dispatches = toy()
    built = method_of(name).build(problem, Settings(batch_size=2, local_steps=3))
    assert built.local.transform is client_optimizer("signum")

    @jax.jit
    def models(sign):
        def update(gradient, state, params=None):
            return jax.tree.map(lambda g: jnp.where(sign, jnp.sign(g), g), gradient), state

        transform = client_optimizer("sgd")._replace(update=update)
        local = fa.Local(2, 0.05, steps=3, transform=transform)
        factory, options = fa.algorithms.algorithms[name], method_of(name).hyperparameters
        run = fa.pure_round(factory(problem, local, **options))
        state, _ = run(run.init(0, fa.Population(2, 2, 5)), data, dispatches)
        own = run.algorithm.personal and state.clients
        return state.server.params, own

    by_gradient, by_sign = jax.device_get((models(False), models(True)))
    if name != "fedrep":  # of whose shared part nothing is read here
        assert by_gradient[0]["x"] != by_sign[0]["x"]
    if by_gradient[1] is not None and name not in ("ifca", "fedbn"):  # a choice, and no layer
        leaves = zip(*map(jax.tree.leaves, (by_gradient[1], by_sign[1])), strict=True)
        assert any((one != other).all() for one, other in leaves)


@pytest.mark.parametrize("name", sorted(REFUSING))
def test_an_algorithm_refuses_an_optimiser_that_its_rule_does_not_allow(name):
    problem, settings = small_network().problem, Settings()
    assert method_of(name, "sgd").build(problem, settings).traits.requires_sgd
    with pytest.raises(ValueError, match=rf"^{name}: client_optimizer='signum' is not for it, bec"):
        method_of(name).build(problem, settings)


def test_variants_whose_rule_allows_it():
    for name, options in (("ghbm", {"tau": 2, "nesterov": True}), ("fedlga", {"mode": "update"})):
        Method(name, name, options, 0.1, "", "adam").build(small_network().problem, Settings())


def test_a_method_may_have_an_optimiser():
    sgd = "sgd:momentum=0.9,nesterov=true"
    spec = f"fedprox:mu=0.1,client_learning_rate=0.3,client_optimizer={sgd}"
    values = {"mu": 0.1, "client_learning_rate": 0.3, "client_optimizer": sgd}
    assert parse_spec(spec) == ("fedprox", values, (), "")
    values, spec = {"client_optimizer": "adam:0.8"}, "fedavg:client_optimizer=adam:0.8@buffered:5"
    assert parse_spec(spec) == ("fedavg", values, (), "buffered:5")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fedavg:client_optimizer=adm", "unknown client optimiser 'adm'; did you mean adam"),
        ("fedavg:client_optimizer=", "unknown client optimiser ''"),
        ("fedavg:client_optimizer=adam,client_learning_rate=1", "in a method's spec before client"),
        ("fedavg:client_optimizer=adam,weighting=uniform", "a method's own options before client_"),
        ("fedavg:client_optimizer=adam:b1=0.8,weighting=uniform", "unknown option 'weighting'"),
        ("scaffold:client_optimizer=adam", "scaffold: client_optimizer='adam' is not for it"),
    ],
)
def test_wrong_methods_get_the_fix(spec, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        prepare(SMALL, methods_of((spec,), SMALL))


def test_the_optimiser_of_all_methods():
    specs = ("fedavg", "fedavg:client_optimizer=sgd:0.9", "fedavg:client_optimizer=adam:b1=0.9")
    methods = methods_of(specs, Settings())
    assert methods[1].configuration()["client_optimizer"] == "sgd:momentum=0.9"
    (replaced,) = methods_of(specs[1:2], Settings(client_optimizer="yogi"))
    assert replaced.client_optimizer == "yogi"
    with pytest.raises(ValueError, match="are the same; leave one out"):
        methods_of((*specs, "fedavg:client_optimizer=adam"), Settings())
    for wrong, message in (("adam:b1=2", "adam: b1=2 is out of range"), ("", "unknown client")):
        with pytest.raises(ValueError, match=message):
            Settings(client_optimizer=wrong).check()


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("fedavg:client_optimizer=adam", {}, "adam is given beside the grid's values"),
        ("fedavg", {"client_optimizer": "adam"}, "adam is given beside the grid's values"),
        ("scaffold", {}, "scaffold: client_optimizer='yogi' is not for it"),
    ],
)
def test_a_grid_of_optimisers_is_refused(method, given, message):
    settings = Settings(**vars(SMALL) | given)
    with pytest.raises(ValueError, match=message):
        prepare_sweep(settings, method, {"client_optimizer": ["sgd", "yogi"]})
