"""Optimal client sampling: probabilities, an unbiased mean, who is refused, and counted bytes."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CASES, LAYOUTS, dispatches_of, fixed, one_round, run, small_network, stored
from scipy import optimize
from sweep_helpers import assert_same_rows, separately, sweep_toy
from wrapper_helpers import sends

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.participation import independent
from fedjax_algos.wrappers import wrap
from fedjax_algos.wrappers.optimal_client_sampling import inclusion

pytestmark = pytest.mark.usefixtures("x64")
TOY = small_network()
LOCAL = fa.Local(batch_size=4, learning_rate=0.1, steps=2)
SETS = [(0, 1, 2), (3, 2, 0)]
ONE_EACH = list({case.name: case for case in CASES}.values())
SEVERAL = "its clients send several vectors"
TWICE = "its clients send twice in a round"
REFUSED = {
    **dict.fromkeys(("scaffold", "fedgbo", "mimelite", "mimexlite", "mimelitemom"), SEVERAL),
    **dict.fromkeys(("mime", "mimemom"), TWICE),
    **dict.fromkeys(("fednova", "qfedavg", "fedlga"), "its clients send counts"),
    "mfl": SEVERAL,
    "fedat": "its clients send models",
    "ifca": "its clients choose",
}


@pytest.mark.parametrize(
    ("norms", "uploads", "expected"),
    [
        ((1, 2, 3, 10), 2, (1 / 6, 1 / 3, 1 / 2, 1)),
        ((2, 2, 2, 2, 2), 2, (0.4,) * 5),
        ((1, 1, 8, 9), 3, (0.5, 0.5, 1, 1)),
        ((4, 1, 3), 0.5, (0.25, 0.0625, 0.1875)),
        ((0, 3, 0, 1), 1, (0, 0.75, 0, 0.25)),
        ((0, 3, 0, 1), 2, (0, 1, 0, 1)),
        ((0, 0), 1, (0, 0)),
        ((3, 1, 7), 3, (1, 1, 1)),
        ((3, 1, 7), 9, (1, 1, 1)),
    ],
)
def test_goldens(norms, uploads, expected):
    found = inclusion(jnp.array(norms, float), uploads)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def bisected(importance, uploads):
    """The same by a search of c, in NumPy."""

    def excess(c):
        return np.minimum(1, c * importance).sum() - uploads

    return np.minimum(1, optimize.brentq(excess, 0, 1e6, xtol=1e-14, rtol=1e-14) * importance)


def test_a_search_of_the_factor_finds_the_same():
    rng = np.random.default_rng(0)
    for importance in np.exp(2 * rng.normal(size=(50, 7))):
        uploads = rng.uniform(0.1, 6.9)
        found = inclusion(jnp.asarray(importance), uploads)
        np.testing.assert_allclose(found, bisected(importance, uploads), rtol=1e-9)


NORMS, WEIGHTS = np.array([3.0, 1.0, 0.5, 6.0, 2.0]), np.array([1, 4, 2, 3, 1])


def rounds_of_seeds(spec, number, **changes):
    """The model, and the number of uploads, after one round of many seeds.

    Client i of five sends NORMS[i] times the unit vector i, with the weight WEIGHTS[i].
    """
    bare = sends(-np.diag(NORMS)[:, None])
    weighted = fa.algorithms.fedavg(bare.problem, bare.local).contribute
    round_fn = fa.pure_round(wrap(bare._replace(contribute=weighted), spec))
    data = stored([{"b": np.zeros(n)} for n in WEIGHTS])
    dispatches = one_round(dispatches_of(data, bare.local, [range(5)]), 0)._replace(**changes)

    def of_seed(seed):
        state = round_fn.init(seed, fa.Population(5, 5, int(WEIGHTS.sum())))
        state, _ = round_fn(state, data, dispatches)
        return state.server.params["x"], round_fn.algorithm.uploads(state.server)

    return jax.device_get(jax.jit(jax.vmap(of_seed))(jnp.arange(number, dtype=jnp.uint32)))


def test_each_entry_is_0_or_divided_by_its_probability_and_the_mean_is_unbiased():
    number, p = 20_000, bisected(NORMS * WEIGHTS, 2.5)
    found, uploads = rounds_of_seeds("optimal_client_sampling:uploads=2.5", number)
    whole = WEIGHTS * NORMS / WEIGHTS.sum()
    sent = found != 0
    np.testing.assert_allclose(found, np.where(sent, whole / p, 0), rtol=1e-5)
    np.testing.assert_array_equal(sent.sum(1), uploads)
    deviation = np.sqrt(p * (1 - p) / number)
    assert (np.abs(sent.mean(0) - p) <= 4 * deviation).all()
    pairs = (sent[:, :, None] & sent[:, None]).mean(0)[np.triu_indices(5, 1)]
    joint = np.outer(p, p)[np.triu_indices(5, 1)]  # independent draws
    assert (np.abs(pairs - joint) <= 4 * np.sqrt(joint * (1 - joint) / number)).all()
    assert abs(uploads.mean() - 2.5) <= 4 * np.sqrt((p * (1 - p)).sum() / number)


def test_who_does_not_answer_is_not_in_the_mean():
    """Two of five answer, so all that do send with three uploads, and weights are theirs."""
    arrives = np.array([True, False, True, False, False])
    found, uploads = rounds_of_seeds("optimal_client_sampling", 3, arrives=arrives)
    whole = np.where(arrives, WEIGHTS * NORMS, 0) / WEIGHTS[arrives].sum()
    np.testing.assert_allclose(found, np.tile(whole, (3, 1)), rtol=1e-12)
    np.testing.assert_array_equal(uploads, 2)


@pytest.mark.all
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_as_many_uploads_as_clients_are_the_mean_or_it_is_refused(case):
    bare, spec = case.build(TOY.problem, LOCAL), "optimal_client_sampling:uploads=3"
    if reason := REFUSED.get(case.name):
        with pytest.raises(ValueError, match=f"cannot wrap this algorithm: .*{reason}.*; leave"):
            wrap(bare, spec)
        return
    found, expected, plain = (run(wrap(bare, each), TOY.data, SETS) for each in (spec, "mean", ""))
    chex.assert_trees_all_equal(found, expected)
    chex.assert_trees_all_close(found, plain, rtol=1e-6, atol=1e-9)


def test_layouts_and_codecs_agree():
    bare, spec = fa.algorithms.fedcm(TOY.problem, LOCAL), "optimal_client_sampling:uploads=1.5"
    expected = run(wrap(bare, spec), TOY.data, SETS)
    for layout in LAYOUTS[1:]:
        found = run(wrap(bare, spec), TOY.data, SETS, layout=layout)
        chex.assert_trees_all_close(found, expected, rtol=1e-12)
    found = run(wrap(bare, f"identity+{spec}"), TOY.data, SETS)
    chex.assert_trees_all_equal(found, expected)


def simulate(algorithm, **options):
    given = {"cohort_size": 4, "rounds": 6, "eval_every": 3, "seed": 1}
    return fa.simulate(fa.make_engine(algorithm), TOY.data, **given | options)


@pytest.mark.parametrize("before", ["", "topk:fraction=0.2+"])
def test_what_is_sent_is_counted(before):
    """Every client that answers sends its norm, and the chosen ones their message."""
    bare = fa.algorithms.fedavg(TOY.problem, LOCAL)
    algorithm = wrap(bare, f"{before}optimal_client_sampling:uploads=1.5")
    how = {"failures": independent(probability=0.3), "sampler": fixed([(0, 1, 2, 3)] * 6)}
    state, rows = simulate(algorithm, **how)
    _, plain = simulate(wrap(bare, before.rstrip("+")), **how)
    uploads, answered = int(algorithm.uploads(state.server)), 24 - rows[-1]["lost"]
    each = plain[-1]["upload_bytes"] // answered
    assert each == {"": 8 * 20, "topk:fraction=0.2+": 4 * (4 + 1)}[before]
    assert 0 < uploads < answered
    assert [row["upload_bytes"] for row in rows[::2]] == [0, 4 * answered + uploads * each]
    for name in ("download_bytes", "lost", "participation_gini"):
        assert rows[-1][name] == plain[-1][name]


def test_a_sweep_counts_what_each_run_has_sent():
    def sampled(problem, local):
        bare = fa.algorithms.fedavg(problem, local)
        return wrap(bare, "optimal_client_sampling:uploads=0.8")

    rows, notes = sweep_toy(sampled, {"client_learning_rate": [0.05, 0.1]})
    assert len(notes) == 1
    assert_same_rows(rows[:3], separately(sampled, 0, 0.05))
    assert_same_rows(rows[-3:], separately(sampled, 7, 0.1))
    assert rows[2]["upload_bytes"] != rows[-1]["upload_bytes"]


def test_a_run_goes_on_from_a_checkpoint_with_the_same_numbers(tmp_path):
    algorithm = wrap(
        fa.algorithms.fedavg(TOY.problem, LOCAL), "optimal_client_sampling:uploads=1.5"
    )
    whole, rows = simulate(algorithm)
    saved = fa.Checkpoints(tmp_path, every=0)
    simulate(algorithm, rounds=3, checkpoints=saved)
    state, again = simulate(algorithm, checkpoints=saved)
    chex.assert_trees_all_equal(state.server, whole.server)
    assert [row["upload_bytes"] for row in again] == [row["upload_bytes"] for row in rows]


def test_what_does_not_fit_is_refused():
    bare = fa.algorithms.fedavg(TOY.problem, LOCAL)
    sampled = wrap(bare, "optimal_client_sampling")
    for spec in ("identity", "topk", "power_of_choice", "optimal_client_sampling"):
        with pytest.raises(ValueError, match=f"{spec}: its clients are chosen already.*after"):
            wrap(sampled, spec)
    with pytest.raises(ValueError, match='reduce="stack"'):
        fa.make_executor(sampled)
    with pytest.raises(ValueError, match=r"uploads=3 cannot be called; give a function \(server\)"):
        fa.make_engine(bare._replace(uploads=3))
    with pytest.raises(ValueError, match="uploads=0 is out of range"):
        wrap(bare, "optimal_client_sampling:uploads=0")
    init = TOY.problem.init
    problem = TOY.problem._replace(init=lambda key: init(key)._replace(statistics={"mean": 0.0}))
    with pytest.raises(ValueError, match="the model has statistics"):
        wrap(algorithms["fedavg"](problem, LOCAL), "optimal_client_sampling")
