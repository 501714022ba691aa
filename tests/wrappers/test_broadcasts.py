"""Codecs downwards: both rules in NumPy, what each download costs, and what is refused."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    LAYOUTS,
    dispatches_of,
    fixed,
    one_round,
    run,
    small_network,
    stored,
    with_statistics,
)
from wrapper_helpers import least_squares, rounds_of, sends

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.algorithms.global_optimizers.mfl import Upload
from fedjax_algos.asynchrony import FixedSystem, immediate
from fedjax_algos.core import WeightedSum
from fedjax_algos.engine.exchange import count_transfer
from fedjax_algos.runs.batched import Run, run_batched
from fedjax_algos.runs.saving.checkpoints import Checkpoints
from fedjax_algos.wrappers import Codec, compress, wrap

pytestmark = pytest.mark.usefixtures("x64")
TOY = small_network()
LOCAL = fa.Local(batch_size=4, learning_rate=0.1, steps=2, batches="full")
SETS = [(0, 1), (3, 0), (2, 3)]
POPULATION = fa.Population(4, 2, 17, seed=np.uint32(5))
GROUP = jnp.int32(0)
LOSSY = "topk:fraction=0.3,direction=down"
DIFFERENCES = f"{LOSSY},feedback=ef21"
TWO_WAYS = ["topk:fraction=0.3,feedback=ef", "qsgd:levels=7,direction=down"]


def fedavg(*specs):
    return wrap(fa.algorithms.fedavg(TOY.problem, LOCAL, weighting="uniform"), specs)


@pytest.mark.parametrize("feedback", ["none", "ef21"])
def test_both_rules_in_numpy(feedback):
    """FedAvg with top-k of the model, or of its change; updates are differences to x^."""
    rng = np.random.default_rng(6)
    counts, sets, rate, k, d = (2, 5, 3), [(0, 1), (2, 1), (0, 2), (1, 0)], 0.1, 3, 7
    a, b = [rng.normal(size=(n, d)) for n in counts], [rng.normal(size=n) for n in counts]
    x = rng.normal(size=d)
    first = jnp.asarray(x)
    problem = fa.Problem(
        init=lambda key: fa.Model({"x": first}),
        apply=lambda model, batch, key, training: (batch["a"] @ model.params["x"], ()),
        loss=lambda outputs, batch: 0.5 * (outputs - batch["b"]) ** 2,
    )
    local = fa.Local(batch_size=8, learning_rate=rate, steps=2, batches="full")
    data = stored([{"a": a[i], "b": b[i]} for i in range(3)])
    algorithm = fa.algorithms.fedavg(problem, local, server_learning_rate=0.7)
    spec = f"topk:fraction={k / d},direction=down,feedback={feedback}"
    history = run(wrap(algorithm, spec), data, sets)

    def largest(v):
        message = np.zeros(d)
        places = np.argsort(-np.abs(v))[:k]
        message[places] = v[places].astype(np.float32)
        return message

    held = x.copy()  # the first download is the model itself
    for cohort, found in zip(sets, history, strict=True):
        if feedback == "none":
            held = largest(x)
        total = np.zeros(d)
        for i in cohort:
            y = held.copy()
            for _ in range(2):
                y -= rate * a[i].T @ (a[i] @ y - b[i]) / counts[i]
            total += counts[i] * (held - y)
        x = x - 0.7 * total / sum(counts[i] for i in cohort)
        held = held + largest(x - held)
        np.testing.assert_allclose(found["x"], x, atol=1e-7)
    assert np.abs(x - held).max() > 1e-3  # not all has been sent


def test_differences_converge_where_a_lossy_model_stalls():
    """The best model has ten entries that are not 0, of which top-1 of the model sends one."""
    problem, data, best = least_squares()
    local = fa.Local(batch_size=1, learning_rate=0.02, steps=1)
    bare, distances = fa.algorithms.fedavg(problem, local, weighting="uniform"), {}
    for feedback in ("none", "ef21"):
        algorithm = wrap(bare, f"topk:fraction=0.1,direction=down,feedback={feedback}")
        end = run(algorithm, data, [(0, 1, 2, 3)] * 3000)[-1]
        distances[feedback] = np.linalg.norm(end["x"] - best)
    assert distances["none"] > 0.5
    assert distances["ef21"] < 1e-6


def test_an_unbiased_codec_is_divided_by_its_expansion():
    """It doubles vectors; clients then hold the model, and not one that oscillates around it."""
    double = Codec(lambda key, v: v, lambda message, d: 2 * message, lambda d: 1.0)
    bare = sends(np.random.default_rng(0).normal(size=(2, 3, 5)))
    algorithm = compress("double", bare, double, direction="down", feedback="ef21")
    for state in rounds_of(algorithm, [(0, 1)] * 3, 2):
        assert np.abs(state.server.params["x"]).min() > 1e-2
        np.testing.assert_allclose(
            state.server.own.held[0]["x"], state.server.params["x"], atol=1e-6
        )


def test_a_broadcast_has_one_key_for_all_clients_and_another_in_each_step():
    algorithm = fedavg("randk:fraction=0.5,direction=down")
    params = jax.tree.map(jnp.ones_like, TOY.problem.init(jax.random.key(0)).params)

    @jax.jit
    def sent(seed, step):
        server = algorithm.init(params, POPULATION._replace(seed=seed))
        return algorithm.broadcast(server._replace(own=server.own._replace(step=step)), GROUP)

    def places(seed, step):
        leaves = jax.tree.leaves(sent(np.uint32(seed), np.int32(step)))
        return np.concatenate([np.ravel(leaf) != 0 for leaf in leaves])

    assert places(5, 0).sum() == 10
    np.testing.assert_array_equal(places(5, 0), places(5, 0))
    assert (places(5, 0) != places(5, 1)).any()
    assert (places(5, 0) != places(6, 0)).any()


def test_a_broadcast_is_decoded_once_a_round():
    """And not once for each client of the loop over the cohort."""
    codec = Codec(lambda key, v: v, lambda message, d: jnp.sinh(message))
    algorithm = compress("sinh", fedavg(), codec, direction="down")
    round_fn = fa.pure_round(algorithm, "sequential")
    state = jax.eval_shape(lambda: round_fn.init(0, POPULATION))
    dispatches = one_round(dispatches_of(TOY.data, LOCAL, SETS), 0)
    jaxpr = jax.make_jaxpr(round_fn)(state, TOY.data, dispatches)
    assert str(jaxpr).count(" sinh ") == 1
    assert not any("sinh" in str(equation) for equation in loops_of(jaxpr.jaxpr))


def loops_of(jaxpr):
    return [each for each in jaxpr.eqns if each.primitive.name == "scan"]


@pytest.mark.parametrize("spec", [LOSSY, DIFFERENCES, "eden:bits=2,direction=down"])
def test_layouts_give_the_same_results(spec):
    algorithm = wrap(algorithms["scaffold"](TOY.problem, LOCAL), spec)
    first, *others = [run(algorithm, TOY.data, SETS, layout=layout) for layout in LAYOUTS]
    for other in others:
        chex.assert_trees_all_close(other, first, rtol=1e-6)


def test_both_ways_in_either_order():
    """Both have random numbers of their own, so that the order of the wrappers does not count."""
    ends = [run(fedavg(*specs), TOY.data, SETS) for specs in (TWO_WAYS, TWO_WAYS[::-1])]
    chex.assert_trees_all_close(*ends, rtol=1e-12)
    one_way = run(fedavg(TWO_WAYS[0]), TOY.data, SETS)
    assert np.abs(one_way[-1]["out"] - ends[0][-1]["out"]).max() > 1e-3


def test_differences_downwards_beside_a_rule_with_memory_on_the_server():
    """EF21 in both directions: the server state has both memories, in either order."""
    up, down = "topk:fraction=0.3,feedback=ef21", DIFFERENCES
    ends = [run(fedavg(*specs), TOY.data, SETS) for specs in ((up, down), (down, up))]
    chex.assert_trees_all_close(*ends, rtol=1e-12)
    assert [transfer_of(fedavg(*each))[1:] for each in ((up, down), (down, up))] == [(28,) * 3] * 2


@pytest.mark.parametrize("feedback", ["none", "ef21"])
def test_moments_stay_non_negative_and_counts_are_exact(feedback):
    """What is decoded is 10 too small."""
    codec = Codec(lambda key, v: v, lambda message, d: message - 10)

    def lowered(bare):
        return compress("lowered", bare, codec, direction="down", feedback=feedback)

    bare = algorithms["mfl"](TOY.problem, LOCAL, optimizer="adam")
    algorithm, params = lowered(bare), TOY.problem.init(jax.random.key(0)).params
    server = algorithm.init(params, POPULATION)
    ones = jax.tree.map(jnp.ones_like, params)
    sums = WeightedSum(Upload(ones, bare.init(params, POPULATION)[1]), jnp.ones(()))
    server = algorithm.server_update(server, sums, jnp.int32(1), GROUP)
    x, s = algorithm.broadcast(server, GROUP)
    assert max(leaf.max() for leaf in jax.tree.leaves((x, s.m))) < 0
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(s.v))
    local = lowered(algorithms["localghbm"](TOY.problem, LOCAL))
    assert local.broadcast(local.init(params, POPULATION), GROUP).participation == 0.5


def transfer_of(algorithm):
    state = jax.eval_shape(lambda: fa.pure_round(algorithm).init(0, POPULATION))
    return count_transfer(
        algorithm, state, TOY.data, one_round(dispatches_of(TOY.data, LOCAL, SETS), 0)
    )


def test_messages_are_counted_by_hand():
    """20 float64, of which six float32 are sent with places of five bits."""
    model, message = 160, 6 * 4 + 4
    assert transfer_of(fedavg(LOSSY)) == (message, model, message, message)
    assert transfer_of(fedavg(DIFFERENCES)) == (model, model, message, message)
    assert transfer_of(fedavg(f"{DIFFERENCES},catch_up=full")) == (model, model, message, model)
    for name in ("scaffold", "mime"):  # x and c, in mime one after the other
        twice = wrap(algorithms[name](TOY.problem, LOCAL), LOSSY)
        assert transfer_of(twice) == (2 * message, 2 * model, 2 * message, 2 * message)
    # of statistics the last ones alone are needed
    problem = with_statistics(TOY.problem)
    statistics = 8 * sum(
        leaf.size for leaf in jax.tree.leaves(problem.init(jax.random.key(0)).statistics)
    )
    found = transfer_of(wrap(fa.algorithms.fedavg(problem, LOCAL), DIFFERENCES))
    whole = model + statistics
    assert found == (whole, whole, message + statistics, message)


COHORTS = [(0, 1), (0, 2), (0, 2), (2, 0), (1, 0), (2, 0), (0, 2), (3, 0), (0, 2), (0, 2), (1, 0)]
ROUNDS = {"cohort_size": 2, "eval_every": 5, "sampler": fixed(COHORTS)}
# four first dispatches, fourteen without a gap; client 2 misses one round twice, and client 1
# misses three rounds, and then five, for which the model is smaller than six messages
DOWNLOADED = {
    "sum": [0, 3 * 160 + 6 * 28 + 4 * 28, 1228, 4 * 160 + 14 * 28 + 2 * 56 + 4 * 28 + 160],
    "full": [0, 4 * 160 + 6 * 28, 1484, 4 * 160 + 14 * 28 + 4 * 160],
}


@pytest.mark.parametrize("catch_up", ["sum", "full"])
def test_who_missed_rounds_downloads_more(catch_up, tmp_path):
    """In one run, in batched ones, and in one that goes on from a checkpoint and then further."""
    spec = f"{DIFFERENCES},catch_up={catch_up}"
    engine = fa.make_engine(fedavg(spec))

    def downloaded(rows):
        return [row["download_bytes"] for row in rows]

    _, rows = fa.simulate(engine, TOY.data, rounds=11, **ROUNDS)
    assert downloaded(rows) == DOWNLOADED[catch_up]
    saved = {"checkpoints": Checkpoints(tmp_path, every=0)}
    for rounds in (5, 10, 11):
        state, rows = fa.simulate(engine, TOY.data, rounds=rounds, **saved, **ROUNDS)
    assert downloaded(rows) == DOWNLOADED[catch_up]
    _, rows = fa.simulate(engine, TOY.data, rounds=1, state=state, start_round=10, **ROUNDS)
    assert downloaded(rows) == DOWNLOADED[catch_up][-2:]

    def factory(problem, local):
        return wrap(fa.algorithms.fedavg(problem, local, weighting="uniform"), spec)

    runs = [Run("fedavg", seed, TOY.data, LOCAL, {}, {}) for seed in (0, 1)]
    batched = run_batched(factory, TOY.problem, runs, rounds=11, **ROUNDS).rows
    for seed in (0, 1):
        own = [row for row in batched if row["seed"] == seed]
        assert downloaded(own) == DOWNLOADED[catch_up]


def test_a_client_keeps_what_later_messages_build_upon():
    found = {}
    for spec in (LOSSY, DIFFERENCES):
        algorithm = fedavg(spec)
        state = jax.eval_shape(lambda a=algorithm: fa.pure_round(a).init(0, POPULATION))
        found[spec] = fa.count_memory(algorithm, state, TOY.data)
    assert [memory.between_rounds for memory in found.values()] == [0, 160]
    assert found[LOSSY].in_round == found[DIFFERENCES].in_round


def test_a_checkpoint_of_another_charge_is_refused(tmp_path):
    runs = [
        (fa.make_engine(fedavg(f"{DIFFERENCES},catch_up={catch_up}")), catch_up)
        for catch_up in ("sum", "full")
    ]
    fa.simulate(runs[0][0], TOY.data, rounds=1, checkpoints=tmp_path, **ROUNDS)
    with pytest.raises(ValueError, match="the algorithm, its options or the model: others"):
        fa.simulate(runs[1][0], TOY.data, rounds=1, checkpoints=tmp_path, **ROUNDS)


def test_on_the_virtual_clock_downloads_are_messages():
    algorithm, seen = fedavg(LOSSY), []

    def system(seed, **transfer):
        seen.append(transfer)
        return FixedSystem([1.0, 1.5, 2.0, 2.5])

    executor = fa.make_executor(algorithm)
    options = {"seconds": 6.0, "evaluations": 1}
    result = fa.simulate_async(executor, TOY.data, immediate(steps=2), system, **options)
    assert seen[-1] == {"download_bytes": 28, "upload_bytes": 160}
    last = result.rows[-1]
    assert last["download_bytes"] == 28 * (last["arrivals"] + last["lost"]) > 0
    with pytest.raises(ValueError, match=r"build upon each other.*; give feedback=none, or use"):
        fa.make_executor(fedavg(DIFFERENCES))


def test_what_does_not_fit_is_refused():
    down = "direction=down"
    for specs, reason in {
        (f"topk:{down},feedback=ef",): "feedback=ef does not fit: it is a rule of clients; give",
        (f"randk:{down},feedback=diana",): "give feedback=ef21 or none",
        (f"terngrad:{down},feedback=ef21",): "a vector with.*; give clip=0",
        (LOSSY, f"qsgd:{down}"): "the broadcasts are encoded already; leave one of the two out",
        ("topk:direction=sideways",): "direction='sideways' is unknown; choose up or down",
        ("topk:catch_up=full",): "catch_up=full has no effect; give it with direction=down",
        (f"{LOSSY},catch_up=full",): "catch_up=full has no effect",
        (f"{DIFFERENCES},catch_up=half",): "catch_up='half' is unknown",
    }.items():
        with pytest.raises(ValueError, match=reason):
            fedavg(*specs)
    bare = fedavg()
    assert wrap(bare, f"topk:fraction=1,{down}") is bare


def test_a_broadcast_that_is_not_what_is_declared_is_refused():
    bare = fedavg()
    both = bare._replace(broadcast=lambda server, group: server)
    numbers = bare._replace(broadcast=lambda server, group: (server.params, jnp.int32(1)))
    numbers = numbers._replace(traits=fa.Traits(broadcast=("model", "vector")))
    parts = bare._replace(traits=fa.Traits(broadcast=("model", "count")))
    for algorithm, reason in {
        both: "a model in the broadcast is .*, unlike the params",
        numbers: "a vector has int32 entries",
        parts: "the broadcast is PyTreeDef",
    }.items():
        for spec in (LOSSY, DIFFERENCES):
            with pytest.raises(ValueError, match=rf"broadcast=.*{reason}.*Traits\(broadcast="):
                transfer_of(wrap(algorithm, spec))
    wrong = bare._replace(traits=fa.Traits(broadcast="models"))
    with pytest.raises(ValueError, match="Traits: broadcast='models' is unknown"):
        fa.make_engine(wrong)
