"""Cohorts that are chosen among candidates by values: who is chosen, what is counted, and where."""

import chex
import jax
import numpy as np
import pytest
from helpers import CASES, dispatches_of, fixed, one_round, run, small_network

import fedjax_algos as fa
from fedjax_algos.asynchrony import simulated
from fedjax_algos.core.algorithm import Selection
from fedjax_algos.data.stored import StoredData
from fedjax_algos.data.stored.stored_data import source_of
from fedjax_algos.engine.exchange import count_transfer
from fedjax_algos.participation import Cohorts, independent
from fedjax_algos.wrappers import wrap

pytestmark = pytest.mark.usefixtures("x64")
TOY = small_network()
LOCAL = fa.Local(batch_size=4, learning_rate=0.1, steps=2)
EVERYONE = [(0, 1, 2, 3), (3, 0, 1, 2)]
POPULATION = fa.Population(4, 2, 17)
ONE_EACH = list({case.name: case for case in CASES}.values())
COMPARED = ["fedavg", "scaffold", "fedlga", "mime", "fednova", "ifca"]


def losses_at(params, clients):
    """The mean squared error of each client at some params, by NumPy."""

    def loss(examples):
        hidden = np.tanh(examples["x"] @ params["hidden"]["w"] + params["hidden"]["b"])
        return np.mean((hidden @ params["out"] - examples["y"]) ** 2)

    return np.array([loss(TOY.clients[client]) for client in clients])


def chosen_by_hand(algorithm, sets, losses=losses_at):
    """The params after each round, in which the two candidates of the largest loss take part."""
    dispatches, round_fn = dispatches_of(TOY.data, LOCAL, sets), fa.pure_round(algorithm)
    state, step, ends = round_fn.init(0, POPULATION), jax.jit(round_fn), []
    for index in range(len(sets)):
        candidates = one_round(dispatches, index)
        values = losses(jax.device_get(state.server.params), candidates.client)
        best = np.argsort(-values, kind="stable")[:2]
        taken = jax.tree.map(lambda leaf, best=best: leaf[best], candidates)
        state, _ = step(state, TOY.data, taken)
        ends.append(state.server.params)
    return ends


@pytest.mark.parametrize("name", COMPARED)
def test_the_round_is_that_of_the_candidates_with_the_largest_loss(name):
    """Sums, a stack, a prelude, rows, counts and choices; two rounds."""
    bare = next(case for case in ONE_EACH if case.name == name).build(TOY.problem, LOCAL)
    ends = run(wrap(bare, "power_of_choice"), TOY.data, EVERYONE)
    chex.assert_trees_all_close(ends, chosen_by_hand(bare, EVERYONE), rtol=1e-10)


def test_the_last_loss_is_that_of_the_last_local_update():
    """Who has not trained comes first; then the largest loss of the last update counts."""
    bare = fa.algorithms.fedavg(TOY.problem, LOCAL)
    wrapped = wrap(bare, "power_of_choice:loss=last")
    known = np.full(4, np.inf)
    dispatches = dispatches_of(TOY.data, LOCAL, [*EVERYONE, *EVERYONE])
    plain, state = jax.jit(fa.pure_round(bare)), fa.pure_round(bare).init(0, POPULATION)
    for index in range(4):
        candidates = one_round(dispatches, index)
        best = np.lexsort((candidates.client, -known[candidates.client]))[:2]
        for place in best:  # one at a time, for its own loss
            alone = jax.tree.map(lambda leaf, place=place: leaf[[place]], candidates)
            _, metrics = plain(state, TOY.data, alone)
            known[candidates.client[place]] = metrics["train_loss"].value()
        taken = jax.tree.map(lambda leaf, best=best: leaf[best], candidates)
        state, _ = plain(state, TOY.data, taken)
    end = run(wrapped, TOY.data, [*EVERYONE, *EVERYONE])[-1]
    chex.assert_trees_all_close(end, state.server.params, rtol=1e-6)


def simulate(engine, data=TOY.data, **options):
    given = {"cohort_size": 2, "rounds": 3, "eval_every": 2, "seed": 1}
    return fa.simulate(engine, data, **given | options)


SYSTEM = simulated(speeds="exponential", seconds_per_step=0.5)


@pytest.mark.parametrize("spec", ["power_of_choice:candidates=1.5", "oort:seconds=1", "active"])
def test_all_places_and_layouts_agree(spec, tmp_path):
    """Devices, chunks, stored data, and one round in a call; rows off the device, bit for bit."""
    size = 1 if spec == "active" else 2
    algorithm = wrap(fa.algorithms.scaffold(TOY.problem, LOCAL), spec, SYSTEM)
    engine = fa.make_engine(algorithm)
    first, _ = simulate(engine, cohort_size=size)
    for option in ({"layout": "2"}, {"devices": 2, "layout": "vmapped"}):
        state, _ = simulate(fa.make_engine(algorithm, **option), cohort_size=size)
        chex.assert_trees_all_close(state.server, first.server, rtol=1e-9)
    rows = np.split(np.asarray(TOY.data.indices), TOY.data.offsets[1:-1])
    stored = StoredData(source_of(TOY.data.examples, fa.Partition.of(rows), list("abcd")))
    state, _ = simulate(engine, stored, cohort_size=size)
    chex.assert_trees_all_close(state.server, first.server, rtol=1e-9)
    places = "device", "host", fa.RowsOnDisk(tmp_path)
    engines = [fa.make_engine(algorithm, client_state=place) for place in places]
    end, *others = (after_single_rounds(each, size) for each in engines)
    chex.assert_trees_all_close(end[0], first.server, rtol=1e-9)
    for other in others:
        chex.assert_trees_all_equal(other, end)


def after_single_rounds(engine, size):
    """The server state and the clients' states after three rounds of a run with seed 1."""
    candidates = engine.algorithm.selection.num_candidates(size)
    cohorts = Cohorts(TOY.data.counts(), LOCAL, cohort_size=candidates, seed=1)
    state = engine.init(1, fa.Population(4, size, 17))
    for _ in range(3):
        state, _ = engine.round(state, TOY.data, one_round(cohorts.dispatches(1), 0))
    return jax.device_get((state.server, fa.client_states(engine, state)))


def test_a_candidate_that_fails_reports_nothing():
    """And the chosen ones arrive; who fails is known from the dispatches."""
    bare = fa.algorithms.fedavg(TOY.problem, LOCAL)
    how = {"failures": independent(probability=0.4), "sampler": fixed([(0, 1, 2, 3)] * 3)}
    engine = fa.make_engine(wrap(bare, "power_of_choice"))
    state, rows = simulate(engine, **how)
    cohorts = Cohorts(TOY.data.counts(), LOCAL, cohort_size=4, seed=1, **how)
    dispatches, plain = cohorts.dispatches(3), fa.make_engine(bare)
    expected = plain.init(1, POPULATION)
    trained, answered = 0, int(dispatches.arrives.sum())
    for index in range(3):
        candidates = one_round(dispatches, index)
        values = losses_at(jax.device_get(expected.server.params), candidates.client)
        values = np.where(candidates.arrives, values, -np.inf)
        best = np.argsort(-values)[:2]
        best = best[candidates.arrives[best]]
        trained += len(best)
        taken = jax.tree.map(lambda leaf, best=best: leaf[best], candidates)
        expected, _ = plain.round(expected, TOY.data, taken)
    chex.assert_trees_all_close(state.server, expected.server, rtol=1e-10)
    assert (answered, trained) == (6, 5)
    model = 8 * 20
    assert rows[-1]["lost"] == 12 - answered
    assert rows[-1]["download_bytes"] == 12 * model  # all candidates are asked
    assert rows[-1]["upload_bytes"] == 4 * answered + trained * model


@pytest.mark.parametrize("loss", ["full", "batch", "last"])
def test_what_is_counted(loss):
    """Candidates that are asked download the model and report 4 bytes; the chosen ones train."""
    bare = fa.algorithms.fedavg(TOY.problem, LOCAL)
    _, (_, plain) = simulate(fa.make_engine(bare), rounds=2)
    engine = fa.make_engine(wrap(bare, f"power_of_choice:loss={loss}"))
    _, (_, row) = simulate(engine, rounds=2)
    model, asked = 8 * 20, 0 if loss == "last" else 8
    assert row["download_bytes"] == model * (asked or 4)
    assert row["upload_bytes"] == 4 * model + 4 * asked
    examples = {"full": 24 * 2, "batch": 4 * 8, "last": 0}[loss]  # in pieces of 4
    each = 2 * (3 * 4 + 4) + 12  # multiply-adds, and about as many others
    assert row["flops"] - plain["flops"] == pytest.approx(examples * each, rel=0.05, abs=8)


def test_a_run_goes_on_from_a_checkpoint_with_the_same_numbers(tmp_path):
    engine = fa.make_engine(wrap(fa.algorithms.fedavg(TOY.problem, LOCAL), "oort"))
    whole, rows = simulate(engine, rounds=4)
    saved = fa.Checkpoints(tmp_path, every=0)
    simulate(engine, rounds=2, checkpoints=saved)
    state, again = simulate(engine, rounds=4, checkpoints=saved)
    chex.assert_trees_all_equal(state.server, whole.server)
    chex.assert_trees_all_equal(state.clients, whole.clients)
    kept = ("round", "download_bytes", "upload_bytes", "flops")
    np.testing.assert_equal([[row[name] for name in kept] for row in again],
                            [[row[name] for name in kept] for row in rows])  # fmt: skip


def test_work_that_differs_has_no_count_of_operations():
    """Only the device knows who trains; bytes are counted."""
    local = LOCAL._replace(steps=None, epochs=1)
    engine = fa.make_engine(wrap(fa.algorithms.fedavg(TOY.problem, local), "power_of_choice"))
    _, rows = simulate(engine, rounds=1)
    assert np.isnan(rows[-1]["flops"])


def test_what_does_not_fit_is_refused():
    bare = fa.algorithms.fedavg(TOY.problem, LOCAL)
    wrapped = wrap(bare, "power_of_choice")
    with pytest.raises(ValueError, match=r"candidates=0.5 is out of range"):
        wrap(bare, "power_of_choice:candidates=0.5")
    with pytest.raises(ValueError, match="oort: its clients are chosen already"):
        wrap(bare, "power_of_choice+oort")
    with pytest.raises(ValueError, match=r"topk: its clients are chosen already.*after topk"):
        wrap(bare, "power_of_choice+topk")
    with pytest.raises(ValueError, match=r"mean: its clients are chosen already.*after mean"):
        wrap(bare, "power_of_choice+mean")
    lossy, differences = "cast:direction=down", "topk:direction=down,feedback=ef21"
    for spec in (f"{lossy}+power_of_choice", f"{differences}+power_of_choice"):
        with pytest.raises(ValueError, match="receive an encoded one; leave direction=down out"):
            fa.make_engine(wrap(bare, spec))
    with pytest.raises(ValueError, match="only the chosen clients receive them; leave"):
        fa.make_engine(wrap(bare, f"{differences}+oort"))
    fa.make_engine(wrap(bare, f"{lossy}+oort"))
    with pytest.raises(ValueError, match=r"slots of each one's device; .*examples='replicated'"):
        fa.make_engine(wrapped, devices=2, examples="sharded")
    with pytest.raises(ValueError, match=r"chosen by what candidates report.*synchronous rounds"):
        fa.make_executor(wrapped)
    with pytest.raises(ValueError, match=r"chosen among 6 candidates.*than the 4 clients"):
        simulate(fa.make_engine(wrapped), cohort_size=3)


@pytest.mark.parametrize("factor", [1.0, 1.1, 1.5, 2.0, 3.0, 10.0])
def test_the_number_of_candidates_gives_the_cohort(factor):
    selection = Selection(factor, None, None)
    for size in range(1, 300):
        candidates = selection.num_candidates(size)
        assert candidates == int(np.ceil(round(factor * size, 6)))
        assert selection.cohort_size(candidates) == size


def test_bytes_of_one_client():
    algorithm = wrap(fa.algorithms.scaffold(TOY.problem, LOCAL), "power_of_choice")
    state = fa.make_engine(algorithm).init(0, POPULATION)
    dispatch = one_round(dispatches_of(TOY.data, LOCAL, EVERYONE), 0)
    transfer = count_transfer(algorithm, state, TOY.data, dispatch)
    assert transfer == (2 * 8 * 20, 2 * 8 * 20, 2 * 8 * 20, 2 * 8 * 20, 4)
