"""docs/troubleshooting.md: each of its lines is made here, and its text is found in the error."""

import contextlib
import csv
import os
import re
import signal
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import ROOT, Case, dispatches_of, one_round, small_network

import fedjax_algos as fa
from fedjax_algos.cli import main
from fedjax_algos.runs import comparison
from fedjax_algos.runs.studies.results_folder import ResultsFolder, open_folder

PAGE = (ROOT / "docs/troubleshooting.md").read_text()
TEXTS = re.findall(r"^\| `(.*?)` \|", PAGE, re.MULTILINE)
LOCAL, POPULATION = fa.Local(2, 0.1, steps=1), fa.Population(4, 2, 17)
TOY = small_network()
FIRST = one_round(dispatches_of(TOY.data, LOCAL, [(0, 1)]), 0)
SMALL = "--rounds 4 --model linear --clients 8 --local-steps 2 --cohort 2 --eval-every 2"
RUN = f"run fedavg {SMALL} --batch-size 4 --out out"
OWN = """
import jax.numpy as jnp
from fedjax_algos.algorithms import algorithms


def spoiled(problem, local):
    fedavg = algorithms["fedavg"](problem, local)

    def contribute(update, dispatch, staleness):
        sums = fedavg.contribute(update, dispatch, staleness)
        return sums._replace(weight=jnp.where(dispatch.server_step == 1, jnp.nan, sums.weight))

    return fedavg._replace(contribute=contribute)


def diverging(problem, local):
    fedavg = algorithms["fedavg"](problem, local)

    def server_update(server, sums, count, group):
        spoiled = {"Dense_0": {n: p * jnp.nan for n, p in server.params["Dense_0"].items()}}
        return server._replace(params=spoiled)

    return fedavg._replace(server_update=server_update)


def broken(problem, local):
    raise ZeroDivisionError("mine")
"""


def command(line):
    with contextlib.suppress(SystemExit):
        main(line.split())


def patched(owner, name, value, line=RUN):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value)
        command(line)


def interrupted(*lines):
    """A run is interrupted, and then come other commands."""

    def add_and_interrupt(folder, row):
        add_row(folder, row)
        if row["round"] == 2:
            signal.raise_signal(signal.SIGINT)

    add_row = ResultsFolder.add_row
    patched(ResultsFolder, "add_row", add_and_interrupt)
    for line in lines:
        command(line)


def edited():
    interrupted()
    path = Path("out/config.json")
    path.write_text(path.read_text().replace('"rounds": 4', '"rounds": 5'))
    command(f"{RUN} --resume")


def in_use():
    with open_folder("out", "run"):
        command(RUN)


def full_disk():
    def refuse(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    patched(csv, "DictWriter", refuse)


def engine_of(name="fedavg", local=LOCAL, **changes):
    """An engine of the small network, of which functions are replaced."""
    return fa.make_engine(Case(name, {}).build(TOY.problem._replace(**changes), local))


def simulate(name="fedavg", rounds=1, engine=None, checkpoints=None, sampler=None, **changes):
    options = {"cohort_size": 2, "rounds": rounds, "eval_every": 1, "checkpoints": checkpoints}
    options |= {} if sampler is None else {"sampler": sampler}
    fa.simulate(engine or engine_of(name, **changes), TOY.data, **options)


def other_checkpoint():
    simulate(checkpoints="saved")
    simulate("fedprox", checkpoints="saved")


def damaged(number):
    saved = {"rounds": 2, "checkpoints": fa.Checkpoints("saved", every=0)}
    simulate(**saved)
    for path in sorted(Path("saved").iterdir())[-number:]:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    simulate(**saved)


def consumed():
    engine = engine_of()
    given = engine.init(0, POPULATION), TOY.data, FIRST
    engine.round(*given)
    engine.round(*given)


def mislabelled():
    def entropy(outputs, batch):
        return optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])

    problem = fa.models.linear((3,), 10)._replace(loss=entropy)
    examples = {"x": np.zeros((2, 3), np.float32), "y": np.array([1, 10], np.int32)}
    engine = fa.make_engine(fa.algorithms.fedavg(problem, LOCAL))
    engine.put_data(fa.federate(examples, fa.Partition.of([[0, 1]])))


def narrow():
    params = TOY.problem.init(jax.random.key(0)).params
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    engine_of().init(0, POPULATION, params)


def unbounded():
    run_round = fa.pure_round(engine_of().algorithm)
    start = run_round.init(0, POPULATION)
    dispatches = FIRST._replace(num_steps=jnp.asarray(FIRST.num_steps))

    def norm(params):
        state = start._replace(server=start.server._replace(params=params))
        return optax.tree.norm(run_round(state, TOY.data, dispatches)[0].server.params)

    jax.grad(norm)(start.server.params)


def summed_row():
    algorithm = engine_of("scaffold").algorithm

    def client_update(*arguments):
        row, *rest = algorithm.client_update(*arguments)
        return (jax.tree.map(jnp.sum, row), *rest)

    simulate(engine=fa.make_engine(algorithm._replace(client_update=client_update)))


SCENARIOS = {
    "interrupted": interrupted,
    "is not complete": lambda: interrupted("table out"),
    "is in use": in_use,
    "is not empty": lambda: interrupted(RUN),
    "holds other runs": lambda: interrupted(RUN.replace("eval-every 2", "eval-every 1 --resume")),
    "config.json: not": edited,
    "is damaged": lambda: damaged(1),
    "no checkpoint in": lambda: damaged(2),
    "the checkpoint in": other_checkpoint,
    "cannot be written": full_disk,
    "... updates of clients": lambda: command(RUN.replace("fedavg", "own.py:spoiled")),
    "not finite at round": lambda: command(RUN.replace("fedavg", "own.py:diverging")),
    "client ... made": lambda: command(RUN.replace("fedavg", "own.py:spoiled --non-finite error")),
    "unknown algorithm": lambda: command(RUN.replace("fedavg", "fedporx")),
    "devices=99": lambda: command(f"{RUN} --devices 99"),
    "clients keep state": lambda: command(RUN.replace("avg", "hbm --sampler with_replacement")),
    "batch_size=": lambda: command(RUN.replace("size 4", "size 2000000000")),
    "it is a pipe or a device": lambda: os.mkfifo("a.toml") or command("compare --config a.toml"),
    "this state was consumed": consumed,
    "Problem.loss raised": lambda: simulate(loss=lambda outputs, batch: batch["label"]),
    "have label 10": mislabelled,
    "the model's outputs": lambda: simulate(loss=lambda outputs, batch: outputs - batch["y"]),
    "points against": lambda: engine_of(local=LOCAL._replace(transform=optax.adam(0.1))),
    "of type bfloat16": narrow,
    "Reverse-mode": unbounded,
    "does not take": lambda: simulate(sampler=lambda seed: seed),
    "the client state": summed_row,
    "This is a fault": lambda: patched(comparison, "SynchronousRun", None),
    "ZeroDivisionError": lambda: command(RUN.replace("fedavg", "own.py:broken")),
}


def test_every_line_has_a_scenario():
    starts = zip(TEXTS, SCENARIOS, strict=True)
    assert [text for text, start in starts if not text.startswith(start)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("start", SCENARIOS)
def test_a_line_is_what_is_seen(start, capsys, here):
    (here / "own.py").write_text(OWN)
    raised = ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            SCENARIOS[start]()
        except Exception as error:
            notes = getattr(error, "__notes__", [])
            raised = " ".join([f"{type(error).__name__}: {error}", *notes])
    told = [raised, *capsys.readouterr(), *(str(warning.message) for warning in warned)]
    (text,) = (text for text in TEXTS if text.startswith(start))
    seen = " ".join(" ".join(told).split())
    assert re.search(".*".join(map(re.escape, text.split("..."))), seen), seen
