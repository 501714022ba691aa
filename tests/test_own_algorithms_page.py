"""docs/own_algorithms.md: its code runs, and its algorithms are those of their papers."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import fixed, one_round, run

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "own_algorithms.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FILES = {text.split("\n")[0][2:]: text for text in BLOCKS if re.match(r"# \w+\.py\n", text)}
LOOPS = [text for text in BLOCKS if text not in FILES.values()]

pytestmark = pytest.mark.usefixtures("own_files")


@pytest.fixture
def own_files(tmp_path, monkeypatch):
    """The page's files in the working folder."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)


def test_the_page_has_its_parts():
    names = ["clipped", "fedspeed", "ditto", "median", "robust", "topk"]
    assert list(FILES) == [f"{name}.py" for name in names]
    assert len(LOOPS) == 5


@pytest.mark.all
def test_the_loops_run_and_what_they_assert_holds(capsys):
    names = {}
    for text in LOOPS:
        exec(text, names)
    assert capsys.readouterr().out.startswith("0 ")


@pytest.mark.all
def test_the_command_compares_the_files():
    (command,) = re.findall(r"```sh\n(.*?)\n```", PAGE, re.DOTALL)
    program, *arguments = command.replace("\\\n", "").split()
    assert program == "fedjax-algos"
    small = "--model linear --clients 6 --cohort 3 --rounds 2 --eval-every 2 --local-steps 2"
    main([*arguments, *small.split(), "--seeds", "1"])
    folder = Path("results") / "compare"
    assert set(json.loads((folder / "config.json").read_text())["methods"]) == {
        "fedavg",
        "fedavg+middle",
        *(name.removesuffix(".py") for name in FILES if name != "robust.py"),
    }
    header, *rows = (folder / "metrics.csv").read_text().splitlines()
    columns = header.split(",")
    method, loss, upload = map(columns.index, ("method", "test_loss", "upload_bytes"))
    last = {row.split(",")[method]: row.split(",") for row in rows}
    wrapped = last.pop("fedavg+middle")
    assert float(wrapped[loss]) == pytest.approx(float(last["median"][loss]))
    assert len({row[loss] for row in last.values()}) == 5  # ditto's global model is fedavg's
    assert last["ditto"][loss] == last["fedavg"][loss]
    assert float(last["topk"][upload]) == 2 * 3 * 50 * (4 + 4)  # rounds, cohort, k, value and place


# Transcriptions: clients with one example each, of loss a (w - b)^2 / 2 in each of five coordinates
RNG = np.random.default_rng(0)
A, B = RNG.uniform(0.5, 2, (4, 5)), RNG.normal(size=(4, 5))
RATE, STEPS, SETS = 0.1, 3, [(0, 1, 2), (2, 0, 3), (1, 2, 0), (3, 2, 1)]
LOCAL = fa.Local(batch_size=1, learning_rate=RATE, steps=STEPS)


def vectors():
    problem = fa.Problem(
        init=lambda key: fa.Model({"u": jnp.zeros(2, float), "v": jnp.ones((1, 3), float)}),
        apply=lambda model, batch, key, training: (
            jnp.concatenate([model.params["u"], model.params["v"][0]]),
            (),
        ),
        loss=lambda w, batch: (batch["a"] * (w[None] - batch["b"]) ** 2).sum(1) / 2,
    )
    return problem, fa.federate({"a": A, "b": B}, fa.Partition.of([[i] for i in range(4)]))


START = np.array([0.0, 0, 1, 1, 1])


def gradient(client, w):
    return A[client] * (w - B[client])


def descend(w, direction):
    for _ in range(STEPS):
        w = w - RATE * direction(w)
    return w


def fedspeed(x, rows, cohort, rho=0.3, alpha=0.7, lambda_=2.0):
    sent = []
    for i in cohort:
        g_hat = rows.get(i, 0)

        def direction(y, i=i, g_hat=g_hat):
            g = gradient(i, y)
            quasi = (1 - alpha) * g + alpha * gradient(i, y + rho * g)
            return quasi - g_hat + (y - x) / lambda_

        y = descend(x, direction)
        rows[i] = g_hat - (y - x) / lambda_
        sent.append(y - lambda_ * rows[i])
    return np.mean(sent, 0)


def ditto(w, rows, cohort, lambda_=0.4):
    for i in cohort:
        rows[i] = descend(rows.get(i, START), lambda v, i=i: gradient(i, v) + lambda_ * (v - w))
    return np.mean([descend(w, lambda y, i=i: gradient(i, y)) for i in cohort], 0)


def clipped(x, rows, cohort, bound=0.2):
    delta = np.mean([x - descend(x, lambda y, i=i: gradient(i, y)) for i in cohort], 0)
    return x - delta * min(1, bound / np.linalg.norm(delta))


def median(x, rows, cohort):
    return x - np.median([x - descend(x, lambda y, i=i: gradient(i, y)) for i in cohort], 0)


def topk(x, rows, cohort, k=2):
    updates = []
    for i in cohort:
        wanted = rows.get(i, 0) + x - descend(x, lambda y, i=i: gradient(i, y))
        update = np.where(np.abs(wanted) >= np.sort(np.abs(wanted))[-k], wanted, 0)
        rows[i] = wanted - update
        updates.append(update)
    return x - np.mean(updates, 0)


CASES = {
    "clipped.py:clipped:bound=0.2": clipped,
    "fedspeed.py:fedspeed:rho=0.3,alpha=0.7,lambda_=2": fedspeed,
    "ditto.py:ditto:lambda_=0.4": ditto,
    "median.py:median": median,
    "topk.py:topk:k=2": topk,
}


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.all
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("spec", CASES)
def test_an_algorithm_is_the_one_of_its_paper(spec):
    """Its models, and its rows: g_hat_i, v_i and e_i, which for Ditto are the result."""
    problem, data = vectors()
    algorithm = algorithms.make(spec, problem, LOCAL)
    x, rows, expected = START, {}, []
    for cohort in SETS:
        x = CASES[spec](x, rows, cohort)
        expected.append(x)
    history = run(algorithm, data, SETS, layout=2)  # a slot of a cohort of three is empty
    np.testing.assert_allclose([flat(p) for p in history], expected, rtol=0, atol=1e-12)
    engine = fa.make_engine(algorithm, "sequential")
    state, _ = fa.simulate(engine, data, cohort_size=3, rounds=4, sampler=fixed(SETS))
    np.testing.assert_allclose(flat(state.server.params), expected[-1], rtol=0, atol=1e-12)
    for client, row in rows.items():
        np.testing.assert_allclose(flat(one_round(state.clients, client)), row, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_the_wrapper_of_fedavg_is_the_median():
    problem, data = vectors()
    fedavg, scaffold = (algorithms[name](problem, LOCAL) for name in ("fedavg", "scaffold"))
    own = run(algorithms.make("median.py:median", problem, LOCAL), data, SETS)
    wrapped = run(fa.wrappers.wrap(fedavg, "robust.py:middle"), data, SETS)
    np.testing.assert_allclose([*map(flat, own)], [*map(flat, wrapped)], atol=1e-12)
    of_scaffold = run(fa.wrappers.wrap(scaffold, "robust.py:middle"), data, SETS)
    assert np.isfinite(flat(of_scaffold[-1])).all()
    assert np.abs(flat(of_scaffold[-1]) - flat(own[-1])).max() > 1e-3
