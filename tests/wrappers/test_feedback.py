"""What is remembered of what codecs have lost, upwards and downwards, and what downloads cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import fixed, run, small_network, with_statistics
from histories import COUNTS, RATE, SETS, START, local_models, regression
from wrapper_helpers import (
    NETWORK_LOCAL,
    in_a_round,
    later,
    one_example_each,
    rounds_of,
    sends,
    transfer_of,
)

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.algorithms.global_optimizers.mfl import Upload
from fedjax_algos.core import WeightedSum
from fedjax_algos.runs import Run, run_batched
from fedjax_algos.runs.loops.checkpoints import Checkpoints
from fedjax_algos.wrappers import Codec, compress, randk, topk, wrap

pytestmark = pytest.mark.usefixtures("x64")
V = np.array([3.0, -1.0, 0.5, -4.0])
ALONE = [(0,)] * 4
TOY = small_network()
POPULATION = fa.Population(4, 2, 17, seed=np.uint32(5))
GROUP = jnp.int32(0)
LOSSY = "topk:fraction=0.3,direction=down"
DIFFERENCES = f"{LOSSY},feedback=ef21"


def vector(params):
    return np.hstack([params["offset"], params["slope"]])


def trained(y, client):
    """The vector of a client's model after two local steps from y, in NumPy."""
    return vector(local_models({"offset": y[0], "slope": y[1:]}, client, 2)[-1])


def largest(v):
    """The entry of largest magnitude, in float32, and else 0."""
    return np.where(np.arange(len(v)) == np.abs(v).argmax(), v.astype(np.float32), 0)


def on_regression(specs, **options):
    """The vectors after rounds of FedAvg with wrappers; top-k of .3 sends one entry of three."""
    local = fa.Local(8, RATE, steps=2, batches="full")
    algorithm = fa.algorithms.fedavg(regression().problem, local, **options)
    return [vector(params) for params in run(wrap(algorithm, specs), regression().data, SETS)]


def always(vector, dispatches=4):
    """One client sends the vector in all dispatches."""
    return np.stack([[vector] * dispatches])


def memories(states, client=0):
    return np.array([state.clients.own[0][0]["x"][client] for state in states])


def sent(states):
    """What the server has subtracted in each round."""
    params = np.array([0 * states[0].server.params["x"], *(s.server.params["x"] for s in states)])
    return params[:-1] - params[1:]


def test_residuals_of_error_feedback():
    states = rounds_of(topk(sends(always(V)), fraction=0.25, feedback="ef"), ALONE[:3], 1)
    np.testing.assert_array_equal(sent(states), [[0, 0, 0, -4], [6, 0, 0, 0], [0, 0, 0, -8]])
    expected = [[3, -1, 0.5, 0], [0, -2, 1, -4], [3, -3, 1.5, 0]]
    np.testing.assert_array_equal(memories(states), expected)


def test_distances_of_ef21():
    states = rounds_of(topk(sends(always(V)), fraction=0.25, feedback="ef21"), ALONE, 1)
    distances = ((memories(states) - V) ** 2).sum(1)
    np.testing.assert_array_equal(distances, [10.25, 1.25, 0.25, 0])
    np.testing.assert_array_equal(sent(states), memories(states))  # U is the mean of one


@pytest.mark.parametrize("codec", [topk, randk])
def test_nothing_sent_is_lost(codec):
    """What has arrived, and the residuals of all clients, are the sum of what was to be sent."""
    vectors = np.random.default_rng(0).normal(size=(4, 9, 12))
    sets = [(0, 1), (2, 1), (3, 0)] * 3
    states = rounds_of(codec(sends(vectors), fraction=0.3, feedback="ef"), sets, 4)
    wanted = sum(vectors[i, : sum(i in cohort for cohort in sets)].sum(0) for i in range(4))
    residuals = states[-1].clients.own[0][0]["x"].sum(0)
    np.testing.assert_allclose(2 * sent(states).sum(0) + residuals, wanted, atol=1e-12)
    assert np.abs(residuals).max() > 0.1


def test_ef21_remembers_the_mean_over_all_clients():
    """Also of those that are not in the cohort, and of those that have not been dispatched."""
    vectors = np.random.default_rng(1).normal(size=(4, 9, 12))
    algorithm = topk(sends(vectors), fraction=0.3, feedback="ef21")
    states = rounds_of(algorithm, [(0, 1), (2, 1), (0, 2)] * 2, 4, layout="sequential")
    means = [state.clients.own[0][0]["x"].sum(0) / 4 for state in states]
    np.testing.assert_allclose(sent(states), means, atol=1e-12)


def diana_of(vectors, sets, mask, factor, alpha):
    """What the server subtracts, in NumPy, if the codec multiplies the entries of a mask."""
    num_clients, _, d = vectors.shape
    h, mean_h, numbers, history = np.zeros((num_clients, d)), np.zeros(d), [0] * num_clients, []
    for cohort in sets:
        received = []
        for i in cohort:
            c = mask * (vectors[i, numbers[i]] - h[i]) * factor
            h[i] += alpha * c
            received.append(c)
            numbers[i] += 1
        history.append(mean_h + np.mean(received, 0))
        mean_h = mean_h + alpha * np.sum(received, 0) / num_clients
    np.testing.assert_allclose(mean_h, h.mean(0), atol=1e-12)
    return history


@pytest.mark.parametrize(("omega", "layout"), [(1.0, 2), (np.inf, "vmapped")])
def test_diana(omega, layout):
    """The codec keeps every second entry; if omega is infinite, nothing is remembered."""
    vectors = np.random.default_rng(2).normal(size=(3, 9, 6)).astype(np.float32).astype(float)
    sets, mask = [(0, 1), (2, 1), (0, 2), (0, 1)], np.arange(6) % 2 == 0
    factor = 2 if omega == 1 else 1
    codec = Codec(lambda key, v: v, lambda c, d: jnp.where(mask, c, 0) * factor, lambda d: omega)
    algorithm = compress("a", sends(vectors), codec, feedback="diana")
    found = sent(rounds_of(algorithm, sets, 3, layout=layout))
    expected = diana_of(vectors, sets, mask, factor, 1 / (1 + omega))
    np.testing.assert_allclose(found, expected, atol=1e-6 if omega == 1 else 1e-12)


@pytest.mark.parametrize(
    ("spec", "most"),
    [
        ("randk:fraction=0.05,feedback=ef", 200),  # an entry is sent in one of 20 rounds
        ("randk:fraction=0.05,feedback=diana", 0),
        *later(("qsgd:levels=7,feedback=ef", 9), ("eden:bits=0.5,feedback=ef", 9)),
        *later(("randk:fraction=0.05,feedback=ef21", 0)),
    ],
)
def test_an_unbiased_codec_that_expands_does_not_diverge(spec, most):
    """Rand-k multiplies by 20; the memory of one client finds its vector, and e stays bounded."""
    v = np.random.default_rng(4).normal(size=20)
    states = rounds_of(wrap(sends(always(v, dispatches=400)), spec), [(0,)] * 400, 1)
    last = memories(states)[-1]
    if most:
        assert np.abs(last).max() < most * np.abs(v).max()
        np.testing.assert_allclose(sent(states).sum(0) + last, 400 * v, rtol=1e-6)
    else:
        np.testing.assert_allclose(last, v, atol=1e-6)


def test_fedavg_with_top_k_and_error_feedback_in_numpy():
    """Three of six clients a round, two local steps of full gradients, weights by examples."""
    x, e = vector(START), np.zeros((6, 3))
    for cohort, found in zip(SETS, on_regression("topk:fraction=0.3,feedback=ef"), strict=True):
        total = np.zeros(3)
        for i in cohort:
            wanted = x - trained(x, i) + e[i]
            message = largest(wanted)
            e[i] = wanted - message
            total += COUNTS[i] * message
        x = x - total / sum(COUNTS[i] for i in cohort)
        np.testing.assert_allclose(found, x, atol=1e-7)
    assert np.abs(e).max(1).min() > 1e-3  # all clients have a residual


def fedavg(*specs):
    return wrap(fa.algorithms.fedavg(TOY.problem, NETWORK_LOCAL, weighting="uniform"), specs)


@pytest.mark.parametrize("feedback", ["none", "ef21"])
def test_both_rules_in_numpy(feedback):
    """FedAvg with top-k of the model, or of its change; updates are differences to x^."""
    history = on_regression(f"{LOSSY},feedback={feedback}", server_learning_rate=0.7)
    x = held = vector(START)  # the first download is the model itself
    for cohort, found in zip(SETS, history, strict=True):
        if feedback == "none":
            held = largest(x)
        total = sum(COUNTS[i] * (held - trained(held, i)) for i in cohort)
        x = x - 0.7 * total / sum(COUNTS[i] for i in cohort)
        held = held + largest(x - held)
        np.testing.assert_allclose(found, x, atol=1e-7)
    assert np.abs(x - held).max() > 1e-3  # not all has been sent


def test_an_unbiased_codec_is_divided_by_its_expansion():
    """It doubles vectors; clients then hold the model, and not one that oscillates around it."""
    double = Codec(lambda key, v: v, lambda message, d: 2 * message, lambda d: 1.0)
    bare = sends(np.random.default_rng(0).normal(size=(2, 3, 5)))
    algorithm = compress("double", bare, double, direction="down", feedback="ef21")
    for state in rounds_of(algorithm, [(0, 1)] * 3, 2):
        assert np.abs(state.server.params["x"]).min() > 1e-2
        held = state.server.own[-1][0]["x"]
        np.testing.assert_allclose(held, state.server.params["x"], atol=1e-6)


def test_a_broadcast_has_one_key_for_all_clients_and_another_in_each_step():
    algorithm = fedavg("randk:fraction=0.5,direction=down")
    params = jax.tree.map(jnp.ones_like, TOY.problem.init(jax.random.key(0)).params)

    @jax.jit
    @jax.vmap
    def places(seed, step):
        server = algorithm.init(params, POPULATION._replace(seed=seed))
        sent = algorithm.broadcast(server._replace(facts=server.facts._replace(step=step)), GROUP)
        return jnp.concatenate([jnp.ravel(leaf) != 0 for leaf in jax.tree.leaves(sent)])

    first, *others = np.asarray(places(np.uint32([5, 5, 6]), np.int32([0, 1, 0])))
    assert first.sum() == 10
    assert (first != others).any(1).all()
    lossy = wrap(sends(np.ones((1, 2, 3))), "randk:fraction=0.5,direction=down")
    facts = [state.server.facts for state in rounds_of(lossy, [(0,)] * 2, 1, seed=7)]
    assert [(each.seed, each.step) for each in facts] == [(7, 1), (7, 2)]


def test_a_broadcast_is_decoded_once_a_round():
    """And not once for each client of the loop over the cohort."""
    codec = Codec(lambda key, v: v, lambda message, d: jnp.sinh(message))
    algorithm = compress("sinh", sends(np.ones((2, 1, 3))), codec, direction="down")
    arguments = in_a_round(algorithm, one_example_each(2))
    jaxpr = jax.make_jaxpr(fa.pure_round(algorithm, "sequential"))(*arguments)
    assert str(jaxpr).count(" sinh ") == 1
    loops = [each for each in jaxpr.jaxpr.eqns if each.primitive.name == "scan"]
    assert loops
    assert not any("sinh" in str(loop) for loop in loops)


@pytest.mark.all
@pytest.mark.parametrize(
    ("feedback", "down"), [("ef", "qsgd:levels=7,direction=down"), ("ef21", DIFFERENCES)]
)
def test_both_ways_in_either_order(feedback, down):
    """Both have random numbers and memories of their own, so that the order does not count."""
    up = f"topk:fraction=0.3,feedback={feedback}"
    one, other, one_way = (
        on_regression(specs, weighting="uniform") for specs in ([up, down], [down, up], [up])
    )
    np.testing.assert_allclose(one, other, rtol=1e-12)
    assert transfer_of(fedavg(up, down)) == transfer_of(fedavg(down, up))
    assert np.abs(one_way[-1] - one[-1]).max() > 1e-3


@pytest.mark.parametrize("feedback", ["none", "ef21"])
def test_moments_stay_non_negative_and_counts_are_exact(feedback):
    """What is decoded is 10 too small."""
    codec = Codec(lambda key, v: v, lambda message, d: message - 10)

    def lowered(bare):
        return compress("lowered", bare, codec, direction="down", feedback=feedback)

    bare = fa.algorithms.mfl(TOY.problem, NETWORK_LOCAL, optimizer="adam")
    algorithm, local = lowered(bare), lowered(fa.algorithms.localghbm(TOY.problem, NETWORK_LOCAL))

    @jax.jit
    def broadcasts():
        params = TOY.problem.init(jax.random.key(0)).params
        ones = jax.tree.map(jnp.ones_like, params)
        sums = WeightedSum(Upload(ones, bare.init(params, POPULATION)[1]), jnp.ones(()))
        server = algorithm.init(params, POPULATION)
        server = algorithm.server_update(server, sums, jnp.int32(1), GROUP)
        exact = local.broadcast(local.init(params, POPULATION), GROUP).participation
        return algorithm.broadcast(server, GROUP), exact

    (x, s), participation = broadcasts()
    assert max(leaf.max() for leaf in jax.tree.leaves((x, s.m))) < 0
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(s.v))
    assert participation == 0.5


def test_messages_are_counted_by_hand():
    """20 float64, of which six float32 are sent with places of five bits."""
    model, message = 160, 6 * 4 + 4

    def counted(algorithm):
        return transfer_of(algorithm)[:4]  # `download`, `upload`, `message` and `missed`

    assert counted(fedavg(LOSSY)) == (message, model, message, message)
    assert counted(fedavg(DIFFERENCES)) == (model, model, message, message)
    assert counted(fedavg(f"{DIFFERENCES},catch_up=full")) == (model, model, message, model)
    for name in ("scaffold", "mime"):  # x and c, in mime one after the other
        twice = wrap(algorithms[name](TOY.problem, NETWORK_LOCAL), LOSSY)
        assert counted(twice) == (2 * message, 2 * model, 2 * message, 2 * message)
    # of statistics the last ones alone are needed
    bare = fa.algorithms.fedavg(with_statistics(TOY.problem), NETWORK_LOCAL)
    whole, statistics = model + 8 * 3, 8 * 3
    assert counted(wrap(bare, DIFFERENCES)) == (whole, whole, message + statistics, message)
    # a client keeps what later messages build upon
    lossy, differences = (
        fa.count_memory(algorithm, *in_a_round(algorithm)[:2])
        for algorithm in (fedavg(LOSSY), fedavg(DIFFERENCES))
    )
    assert (lossy.between_rounds, differences.between_rounds) == (0, model)
    assert lossy.in_round == differences.in_round


COHORTS = [(0, 1), (0, 2), (0, 2), (2, 0), (1, 0), (2, 0), (0, 2), (3, 0), (0, 2), (0, 2), (1, 0)]
ROUNDS = {"cohort_size": 2, "eval_every": 5, "sampler": fixed(COHORTS)}
# four first dispatches, fourteen without a gap; client 2 misses one round twice, and client 1
# misses three rounds, and then five, for which the model is smaller than six messages
GAPS = np.array([4, 14, 2, 0, 1, 0, 1])
DOWNLOADED = {
    "sum": [0, 3 * 160 + 6 * 28 + 4 * 28, 1228, 4 * 160 + 14 * 28 + 2 * 56 + 4 * 28 + 160],
    "full": [0, 4 * 160 + 6 * 28, 1484, 4 * 160 + 14 * 28 + 4 * 160],
}


@pytest.mark.parametrize("catch_up", ["sum", "full"])
def test_who_missed_rounds_downloads_more(catch_up):
    transfer = transfer_of(fedavg(f"{DIFFERENCES},catch_up={catch_up}"))
    assert transfer.downloads(GAPS) == DOWNLOADED[catch_up][-1]


@pytest.mark.all
def test_downloads_of_runs(tmp_path):
    """One run, batched ones, and one that goes on from a checkpoint, but not of the other kind."""
    engine, full = fa.make_engine(fedavg(DIFFERENCES)), fedavg(f"{DIFFERENCES},catch_up=full")
    saved = {"checkpoints": Checkpoints(tmp_path, every=0)}

    def train(rounds, engine=engine, **options):
        state, rows = fa.simulate(engine, TOY.data, rounds=rounds, **options, **ROUNDS)
        return state, [row["download_bytes"] for row in rows]

    assert train(11)[1] == DOWNLOADED["sum"]
    _, (state, _), (_, found) = (train(rounds, **saved) for rounds in (5, 10, 11))
    assert found == DOWNLOADED["sum"]
    assert train(1, state=state, start_round=10)[1] == DOWNLOADED["sum"][-2:]
    with pytest.raises(ValueError, match="the algorithm, its options or the model: different"):
        train(11, fa.make_engine(full), **saved)

    def factory(problem, local):
        return wrap(fa.algorithms.fedavg(problem, local, weighting="uniform"), DIFFERENCES)

    runs = [Run("fedavg", seed, TOY.data, NETWORK_LOCAL, {}, {}) for seed in (0, 1)]
    batched = run_batched(factory, TOY.problem, runs, rounds=11, **ROUNDS).rows
    assert [row["seed"] for row in batched] == [0] * 4 + [1] * 4
    assert [row["download_bytes"] for row in batched] == 2 * DOWNLOADED["sum"]


def test_a_broadcast_that_is_not_what_is_declared_is_refused():
    bare = fedavg()
    for kinds, sent, reason in (
        ("model", lambda server: server, "a model in the broadcast is .*, unlike the params"),
        (("model", "vector"), lambda server: (server.params, jnp.int32(1)), "has int32 entries"),
        (("model", "count"), lambda server: server.params, "the broadcast is PyTreeDef"),
    ):
        wrong = bare._replace(broadcast=lambda server, group, sent=sent: sent(server))
        wrong = wrong._replace(traits=fa.Traits(broadcast=kinds))
        for spec in (LOSSY, DIFFERENCES):
            with pytest.raises(ValueError, match=rf"broadcast=.*{reason}.*Traits\(broadcast="):
                transfer_of(wrap(wrong, spec))
    with pytest.raises(ValueError, match="broadcast='models'"):
        fa.make_engine(bare._replace(traits=fa.Traits(broadcast="models")))
