"""`pure_round` equals the engine, and composes with the transformations of JAX."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import CASES, LAYOUTS, Case, Toy, stored, unused_params, with_unused
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.core.options import options
from fedjax_algos.core.trees import add_scaled
from fedjax_algos.engine.federated_round import run_rounds
from fedjax_algos.models.outputs import Outputs
from fedjax_algos.participation import Cohorts

pytestmark = pytest.mark.usefixtures("x64")

LOCAL = fa.Local(batch_size=2, learning_rate=0.05, epochs=2)
POPULATION = fa.Population(num_clients=4, cohort_size=3, total_examples=18)
ASYNCHRONOUS = ("fedasync", "fedat", "fedbuff", "fedcompass")
ONE_EACH = {case.name: case for case in CASES if case.name not in ASYNCHRONOUS}  # the last one
ROUNDS, RATE, VALUE = 5, 0.05, 0.3  # the client learning rate, and all float options
STEP = 1e-5


@pytest.fixture(scope="module")
def toy():
    """A model with one number; four clients with 5, 2, 8 and 3 examples: 6, 2, 8 and 4 steps."""

    def apply(model, batch, key, training):
        logits = model.params["x"] * batch["a"]
        return Outputs(logits, jnp.stack([logits, batch["a"]], 1)), ()

    problem = fa.Problem(
        init=lambda key: fa.Model({"x": jax.random.uniform(key, (), float)}),
        apply=apply,
        loss=lambda outputs, batch: (outputs.logits - batch["b"]) ** 2,
    )
    rng = np.random.default_rng(0)
    clients = [{name: rng.uniform(0.5, 2, n) for name in "ab"} for n in (5, 2, 8, 3)]
    return Toy(with_unused(problem), stored(clients), clients)  # for fedbn and fedrep


@pytest.fixture(scope="module")
def dispatches(toy):
    return Cohorts(toy.data.counts(), LOCAL, cohort_size=3, seed=1).dispatches(ROUNDS)


def float_options(case):
    return [o.name for o in options(algorithms[case.name]).values() if o.kind is float]


@pytest.mark.sampled
@pytest.mark.parametrize("case", ONE_EACH.values(), ids=str)
def test_every_algorithm_in_all_transformations(case, toy, dispatches):
    """A `scan` has the engine's bits; `vmap`, `grad`, `jacfwd` and central differences agree."""
    local = fa.differentiable(LOCAL, toy.data.counts())
    names = float_options(case)

    def build(values):
        given = case.hyperparameters | dict(zip(names, values, strict=True))
        return Case(case.name, given).build(toy.problem, local)

    def run(seed, point):
        x, rate, *values = point
        round_fn = fa.pure_round(build(values), "sequential")
        rates = jnp.broadcast_to(rate, dispatches.client.shape)
        return jax.lax.scan(
            lambda state, of_round: round_fn(state, toy.data, of_round),
            round_fn.init(seed, POPULATION, {"x": x} | unused_params()),
            dispatches._replace(learning_rate=rates),
        )

    def final(point, seed):
        state, metrics = run(seed, point)
        return state.server.params["x"] + metrics["train_loss"].total.sum()

    @jax.jit
    @jax.vmap
    def derivatives(seed, point):
        value, reverse = jax.value_and_grad(final)(point, seed)
        return value, reverse, jax.jacfwd(final)(point, seed)

    compiled, point = jax.jit(run), jnp.asarray([0.5, RATE] + [VALUE] * len(names))
    state, metrics = compiled(0, point)
    algorithm = build([VALUE] * len(names))
    engine, begin = fa.make_engine(algorithm, "sequential"), fa.pure_round(algorithm).init
    start = begin(0, POPULATION, {"x": point[0]} | unused_params())
    first = jax.tree.map(jnp.copy, start)  # own buffers to consume
    expected, total = engine.rounds(first, toy.data, dispatches)
    chex.assert_trees_all_equal(state, expected)
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf.sum(0), metrics), total, rtol=1e-12)

    steps, one = STEP * np.eye(len(point)), np.asarray(point)[None]
    points = np.concatenate([one, one + steps, one - steps, 0.9 * one])
    seeds = np.arange(len(points)) // (len(points) - 1)  # the last one has seed 1
    values, reverse, forward = derivatives(seeds, points)
    np.testing.assert_allclose(reverse, forward, rtol=1e-9, atol=1e-12)
    above, below = values[1:-1].reshape(2, -1)
    np.testing.assert_allclose(reverse[0], (above - below) / (2 * STEP), rtol=1e-6, atol=1e-8)
    assert (np.asarray(reverse[0, :2]) != 0).all()
    other, metrics = compiled(1, points[-1])
    loss = metrics["train_loss"].total.sum()
    np.testing.assert_allclose(values[-1], other.server.params["x"] + loss, rtol=1e-12)


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "layout"), [("scaffold", 2), ("centralised", "sequential")])
def test_chunks_of_clients_equal_the_engine(name, layout, toy, dispatches):
    """Two chunks, of which the last has an empty slot; the dispatches are sorted by their steps."""
    algorithm = algorithms[name](toy.problem, LOCAL)
    engine, round_fn = fa.make_engine(algorithm, layout), fa.pure_round(algorithm, layout)
    expected, _ = engine.rounds(engine.init(0, POPULATION), toy.data, dispatches)
    state, _ = jax.jit(
        lambda seed: jax.lax.scan(
            lambda state, of_round: round_fn(state, toy.data, of_round),
            round_fn.init(seed, POPULATION),
            dispatches,
        )
    )(0)
    chex.assert_trees_all_equal(state, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batches"), [("mime", "short"), ("fednova", "full")])
def test_bounds_change_neither_results_nor_counts(name, batches, toy):
    ends, flops = [], []
    local = LOCAL._replace(batches=batches)
    dispatches = Cohorts(toy.data.counts(), local, cohort_size=3, seed=1).dispatches(2)
    for bounded in (local, fa.differentiable(local, toy.data.counts())):
        algorithm = algorithms[name](toy.problem, bounded)
        engine = fa.make_engine(algorithm, "vmapped")
        state = engine.init(0, POPULATION)
        flops.append(fa.count_flops(algorithm, state, toy.data).of(dispatches))
        ends.append(engine.rounds(state, toy.data, dispatches))
    chex.assert_trees_all_close(*ends, rtol=1e-13)
    np.testing.assert_array_equal(*flops)


def test_more_steps_than_the_bound_are_never_cut_off(toy, dispatches):
    local = LOCAL._replace(reverse=fa.ReverseMode(max_steps=7, max_examples=8))
    algorithm = algorithms["fedavg"](toy.problem, local)
    one = jax.tree.map(lambda leaf: leaf[0], dispatches)
    one = one._replace(num_steps=np.asarray([6, 8, 4], np.int32))
    engine, round_fn = fa.make_engine(algorithm), fa.pure_round(algorithm)
    for compute in (engine.round, round_fn):
        with pytest.raises(ValueError, match=r"num_steps=8, but local\.reverse has max_steps=7"):
            compute(engine.init(0, POPULATION), toy.data, one)
    state, _ = jax.jit(round_fn)(round_fn.init(0, POPULATION), toy.data, one)
    assert np.isnan(state.server.params["x"])
    with pytest.raises(ValueError, match="build it with a Local without reverse"):
        fa.make_executor(algorithm)


@pytest.mark.slow
def test_gradients_with_respect_to_weights_and_examples(toy, dispatches):
    """Of the final model with respect to p_i, one for each client, and to all examples.

    Rounds are checkpointed, although the algorithm's rate is traced.
    """
    local = fa.differentiable(LOCAL, toy.data.counts(), jax.checkpoint_policies.everything_saveable)
    of_rounds = jax.tree.map(lambda leaf: leaf[:2], dispatches)

    def final(weights, examples):
        def contribute(update, dispatch, staleness):
            weight = weights[dispatch.client]
            return fa.WeightedSum(jax.tree.map(lambda leaf: weight * leaf, update), weight)

        rated = local._replace(learning_rate=weights.sum() * RATE)
        frame = algorithms["fedavg"](toy.problem, rated)
        round_fn = fa.pure_round(frame._replace(contribute=contribute), "vmapped")
        data = toy.data._replace(examples=examples)
        state = round_fn.init(0, POPULATION, {"x": jnp.asarray(0.5)} | unused_params())
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


@pytest.mark.slow
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


@pytest.mark.sampled
@pytest.mark.parametrize("case", ONE_EACH.values(), ids=str)
def test_every_algorithm_lowers_for_accelerators(case, toy, dispatches):
    """Rounds in one program, for CUDA and TPU, without callbacks and float64."""

    def narrow(tree):
        return jax.tree.map(lambda leaf: leaf.astype(leaf.dtype.name.replace("64", "32")), tree)

    with jax.enable_x64(False):
        data, dispatches = narrow(toy.data), narrow(dispatches)
        algorithm = Case(case.name, case.hyperparameters).build(toy.problem, LOCAL)
        round_fn = fa.pure_round(algorithm, LAYOUTS[list(ONE_EACH).index(case.name) % 3])
        state = jax.eval_shape(lambda: round_fn.init(0, POPULATION))
        export = jax.export.export(
            jax.jit(partial(run_rounds, round_fn)), platforms=["cuda", "tpu"]
        )
        program = export(state, data, dispatches, np.int32(3)).mlir_module()
        assert "f64" not in program
        assert "callback" not in program


def test_wrong_calls(toy):
    with pytest.raises(TypeError, match="give what a factory returns"):
        fa.pure_round(algorithms["fedavg"])
    algorithm = algorithms["fedavg"](toy.problem, LOCAL)
    with pytest.raises(ValueError, match="non_finite='error' needs the host"):
        fa.pure_round(algorithm, non_finite="error")
    with pytest.raises(ValueError, match="layout='wide' is unknown"):
        fa.pure_round(algorithm, "wide")
    with pytest.raises(TypeError, match=r"Local: reverse=8.*make it with differentiable"):
        algorithms["fedavg"](toy.problem, LOCAL._replace(reverse=8))
    with pytest.raises(ValueError, match=r"Local: reverse\.max_steps=0"):
        algorithms["fedavg"](toy.problem, LOCAL._replace(reverse=fa.ReverseMode(0, 8)))
