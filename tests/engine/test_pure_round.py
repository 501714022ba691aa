"""`pure_round` equals the engine, and composes with the transformations of JAX."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engine_helpers import kinds_in_all
from helpers import CASES, Case, Toy, one_round, stored, unused_params, with_unused
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core.options import options
from fedjax_algos.core.trees import add_scaled
from fedjax_algos.models.outputs import Outputs
from fedjax_algos.participation import Cohorts

pytestmark = pytest.mark.usefixtures("x64")

LOCAL = fa.Local(batch_size=2, learning_rate=0.05, epochs=2)
POPULATION = fa.Population(num_clients=4, cohort_size=3, total_examples=18)
ASYNCHRONOUS = ["fedasync", "fedat", "fedbuff", "fedcompass", "asyncsgd", "ca2fl", "fadas", "ace"]
WITH_PARTS = ("fedrep", "fedbn", "fedper", "lgfedavg", "fedbabu", "fedala")
ONE_EACH = {case.name: case for case in reversed(CASES) if case.name not in ASYNCHRONOUS}
RATE, VALUE, STEP = 0.05, 0.3, 1e-5  # client learning rate, all float options, difference


@pytest.fixture(scope="module")
def toy():
    """A model with one number; four clients with 5, 2, 8 and 3 examples: 6, 2, 8 and 4 steps."""

    def apply(model, batch, key, training):
        logits = model.params["x"] * batch["a"]
        return Outputs(logits, jnp.stack([logits, batch["a"]], 1)), ()

    problem = fa.Problem(
        init=lambda key: fa.Model({"x": jax.random.uniform(key, (), float)}),
        apply=apply,
        loss=lambda outputs, batch: (outputs.logits - batch["y"]) ** 2,
    )
    rng = np.random.default_rng(0)
    clients = [{name: rng.uniform(0.5, 2, n) for name in "ay"} for n in (5, 2, 8, 3)]
    return Toy(problem, stored(clients), clients)


@pytest.fixture(scope="module")
def dispatches(toy):
    return Cohorts(toy.data.counts(), LOCAL, cohort_size=3, seed=1).dispatches(5)


@pytest.mark.parametrize("case", kinds_in_all(ONE_EACH.values()), ids=str)
def test_every_algorithm_in_all_transformations(case, toy, dispatches):
    """`vmap`, `grad`, `jacfwd` and central differences agree, also with a plain run without bounds.

    That a `scan` has the engine's bits is in tests/algorithms/test_every_algorithm.py.
    """
    bounded = fa.differentiable(LOCAL, toy.data.counts())
    names = [o.name for o in options(algorithms[case.name]).values() if o.kind is float]
    problem, others = toy.problem, {}
    if case.name in WITH_PARTS:  # which divide the params by their names
        problem, others = with_unused(problem), unused_params()

    def final(point, seed, local=bounded):
        x, rate, *values = point
        given = case.hyperparameters | dict(zip(names, values, strict=True))
        round_fn = fa.pure_round(Case(case.name, given).build(problem, local), "sequential")
        rates = jnp.broadcast_to(rate, dispatches.client.shape)
        state, metrics = jax.lax.scan(
            lambda state, of_round: round_fn(state, toy.data, of_round),
            round_fn.init(seed, POPULATION, {"x": x} | others),
            dispatches._replace(learning_rate=rates),
        )
        return state.server.params["x"] + metrics["train_loss"].total.sum()

    @jax.jit
    @jax.vmap
    def derivatives(seed, point):
        value, reverse = jax.value_and_grad(final)(point, seed)
        return value, reverse, jax.jacfwd(final)(point, seed)

    point = np.asarray([0.5, RATE] + [VALUE] * len(names))
    steps = STEP * np.eye(len(point))
    points = np.concatenate([point[None], point + steps, point - steps, 0.9 * point[None]])
    seeds = np.arange(len(points)) // (len(points) - 1)  # the last one has seed 1
    values, reverse, forward = derivatives(seeds, points)
    np.testing.assert_allclose(reverse, forward, rtol=1e-9, atol=1e-12)
    above, below = values[1:-1].reshape(2, -1)
    np.testing.assert_allclose(reverse[0], (above - below) / (2 * STEP), rtol=1e-6, atol=1e-8)
    assert (np.asarray(reverse[0, :2]) != 0).all()
    plain = jax.jit(functools.partial(final, local=LOCAL))(points[-1], 1)
    np.testing.assert_allclose(values[-1], plain, rtol=1e-12)


@pytest.mark.parametrize(("name", "batches"), [("mime", "short"), ("fednova", "full")])
def test_bounds_do_not_change_what_is_counted(name, batches, toy):
    local = LOCAL._replace(batches=batches)
    dispatches = Cohorts(toy.data.counts(), local, cohort_size=3, seed=1).dispatches(2)
    flops = []
    for bounded in (local, fa.differentiable(local, toy.data.counts())):
        algorithm = algorithms[name](toy.problem, bounded)
        state = jax.eval_shape(lambda made=algorithm: fa.pure_round(made).init(0, POPULATION))
        flops.append(fa.count_flops(algorithm, state, toy.data).of(dispatches))
    np.testing.assert_array_equal(*flops)


@pytest.mark.parametrize("wrapper", ["", "power_of_choice:candidates=1"])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_data_and_dispatches_may_be_constants_of_a_program(wrapper, array, toy, dispatches):
    """As closures they are not traced, but what is computed of them in the trace is."""
    algorithm = algorithms["fedavg"](toy.problem, LOCAL)
    round_fn = fa.pure_round(fa.wrappers.wrap(algorithm, wrapper) if wrapper else algorithm)
    one = jax.tree.map(array, one_round(dispatches, 0))
    state = round_fn.init(0, POPULATION)
    shapes = jax.eval_shape(lambda state: round_fn(state, toy.data, one), state)
    assert shapes[0].server.params["x"].shape == ()


@pytest.mark.all
def test_more_steps_than_the_bound_are_never_cut_off(toy, dispatches):
    local = LOCAL._replace(reverse=fa.ReverseMode(max_steps=7, max_examples=8))
    algorithm = algorithms["fedavg"](toy.problem, local)
    one = one_round(dispatches, 0)._replace(num_steps=np.asarray([6, 8, 4], np.int32))
    engine, round_fn = fa.make_engine(algorithm), fa.pure_round(algorithm)
    for compute in (engine.round, round_fn):
        with pytest.raises(ValueError, match=r"num_steps=8, .* max_steps=7"):
            compute(engine.init(0, POPULATION), toy.data, one)
    state, _ = jax.jit(round_fn)(round_fn.init(0, POPULATION), toy.data, one)
    assert np.isnan(state.server.params["x"])
    with pytest.raises(ValueError, match="reverse"):
        fa.make_executor(algorithm)


@pytest.mark.all
def test_gradients_with_respect_to_weights_and_examples(toy, dispatches):
    """Of the final model to each p_i and to all examples; checkpointed, with a traced rate."""
    local = fa.differentiable(LOCAL, toy.data.counts(), jax.checkpoint_policies.everything_saveable)
    of_rounds = one_round(dispatches, slice(2))

    def final(weights, examples):
        def contribute(update, dispatch, staleness):
            weight = weights[dispatch.client]
            return fa.WeightedSum(jax.tree.map(lambda leaf: weight * leaf, update), weight)

        rated = local._replace(learning_rate=weights.sum() * RATE)
        frame = algorithms["fedavg"](toy.problem, rated)
        round_fn = fa.pure_round(frame._replace(contribute=contribute), "vmapped")
        data = toy.data._replace(examples=examples)
        state = round_fn.init(0, POPULATION, {"x": jnp.asarray(0.5)})
        state, _ = jax.lax.scan(lambda s, d: jax.checkpoint(round_fn)(s, data, d), state, of_rounds)
        return state.server.params["x"]

    point = jnp.asarray([0.1, 0.4, 0.3, 0.2]), toy.data.examples
    direction = jax.tree.map(lambda leaf: jnp.sin(jnp.arange(leaf.size)), point)
    compiled = jax.jit(jax.value_and_grad(final, argnums=(0, 1)))
    _, gradient = compiled(*point)
    above, _ = compiled(*add_scaled(point, STEP, direction))
    below, _ = compiled(*add_scaled(point, -STEP, direction))
    slope = optax.tree.vdot(gradient, direction)
    np.testing.assert_allclose(slope, (above - below) / (2 * STEP), rtol=1e-7)
    assert (np.asarray(gradient[0]) != 0).all()


@pytest.mark.all
def test_seeds_inside_a_mesh_of_ones_own(toy):
    """A whole simulation, its cohorts included, mapped over two devices and two seeds on each."""
    algorithm, counts = algorithms["fedhbm"](toy.problem, LOCAL), toy.data.counts()
    round_fn = fa.pure_round(algorithm)

    def run(seed):
        dispatches = fa.traced_dispatches(seed, counts, LOCAL, cohort_size=3, rounds=4)
        state = round_fn.init(seed, POPULATION)
        return jax.lax.scan(lambda s, d: round_fn(s, toy.data, d), state, dispatches)[0]

    mesh = Mesh(jax.devices()[:2], ("seeds",))
    mapped = jax.shard_map(
        jax.vmap(run), mesh=mesh, in_specs=P("seeds"), out_specs=P("seeds"), check_vma=False
    )
    states = jax.jit(mapped)(jnp.arange(4))
    engine = fa.make_engine(algorithm)
    for seed in range(4):
        expected, _ = fa.simulate(engine, toy.data, cohort_size=3, rounds=4, seed=seed)
        state = jax.tree.map(lambda leaf, i=seed: leaf[i], states)
        chex.assert_trees_all_close(state, expected, rtol=1e-12)


def test_wrong_calls(toy):
    fedavg = algorithms["fedavg"]

    def pure(layout="auto", reverse=None, **options):
        local = LOCAL._replace(reverse=reverse)
        return fa.pure_round(fedavg(toy.problem, local), layout, **options)

    for make, error, named in (
        (lambda: fa.pure_round(fedavg), TypeError, "what a factory returns"),
        (lambda: pure(non_finite="error"), ValueError, "non_finite='error'"),
        (lambda: pure("wide"), ValueError, "layout='wide'"),
        (lambda: pure(reverse=8), TypeError, "reverse=8"),
        (lambda: pure(reverse=fa.ReverseMode(0, 8)), ValueError, r"max_steps=0"),
    ):
        with pytest.raises(error, match=named):
            make()
