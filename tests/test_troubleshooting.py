"""docs/troubleshooting.md: each of its lines is made here, and its text is found in the error."""

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
from helpers import Case, small_network

import fedjax_algos as fa
from fedjax_algos.cli import main
from fedjax_algos.runs import comparison
from fedjax_algos.runs.saving.opening import open_folder
from fedjax_algos.runs.saving.results_folder import ResultsFolder

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
TEXTS = re.findall(r"^\| `(.*?)` \|", PAGE.read_text(), re.MULTILINE)
LOCAL = fa.Local(2, 0.1, steps=1)
SMALL = "--model linear --clients 8 --local-steps 2 --cohort 2 --eval-every 2"
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


def run(method="fedavg", rounds=4, more="", local="--batch-size 4"):
    return f"run {method} --rounds {rounds} {SMALL} {local} --out out {more}"


def engine_of(name="fedavg", local=LOCAL, **changes):
    """An engine of the small network, of which functions are replaced."""
    problem = small_network().problem._replace(**changes)
    return fa.make_engine(Case(name, {}).build(problem, local))


def simulate(name="fedavg", rounds=1, checkpoints=None, **changes):
    options = {"cohort_size": 2, "rounds": rounds, "eval_every": 1, "checkpoints": checkpoints}
    fa.simulate(engine_of(name, **changes), small_network().data, **options)


def first_dispatches():
    counts = small_network().data.counts()
    drawn = fa.participation.Cohorts(counts, LOCAL, cohort_size=2, seed=0).dispatches(1)
    return jax.tree.map(lambda leaf: leaf[0], drawn)


def sampled(sampler):
    fa.simulate(engine_of(), small_network().data, cohort_size=2, rounds=1, sampler=sampler)


class Told:
    """Makes what a line is about, and returns all that is printed, warned and raised."""

    def __init__(self, capsys, monkeypatch):
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def __call__(self, command, *arguments, **keywords):
        """Of a command, or of a call."""
        text = ""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                if isinstance(command, str):
                    main(command.split())
                else:
                    command(*arguments, **keywords)
            except SystemExit:
                pass
            except Exception as error:
                notes = getattr(error, "__notes__", [])
                text = " ".join([f"{type(error).__name__}: {error}", *notes])
        captured = self.capsys.readouterr()
        warned = " ".join(str(warning.message) for warning in warned)
        return " ".join(f"{text} {captured.out} {captured.err} {warned}".split())

    def patched(self, owner, name, value, command):
        with self.monkeypatch.context() as patched:
            patched.setattr(owner, name, value)
            return self(command)

    def interrupted(self, command=None):
        """What an interrupted run shows, or a command after it."""

        def add_and_interrupt(folder, row):
            add_row(folder, row)
            if row["round"] == 2:
                signal.raise_signal(signal.SIGINT)

        add_row = ResultsFolder.add_row
        seen = self.patched(ResultsFolder, "add_row", add_and_interrupt, run())
        return self(command) if command else seen

    def in_use(self):
        with open_folder("out", "run"):
            return self(run())

    def other_checkpoint(self):
        simulate(checkpoints="saved")
        return self(simulate, "fedprox", checkpoints="saved")

    def edited(self):
        self.interrupted()
        text = Path("out/config.json").read_text()
        Path("out/config.json").write_text(text.replace('"rounds": 4', '"rounds": 5'))
        return self(run(more="--resume"))

    def damaged(self, number):
        saved = {"rounds": 2, "checkpoints": fa.Checkpoints("saved", every=0)}
        simulate(**saved)
        for path in sorted(Path("saved").iterdir())[-number:]:
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        return self(simulate, **saved)

    def pipe(self):
        os.mkfifo("settings.toml")
        return self("compare --config settings.toml")

    def consumed(self):
        data, engine = small_network().data, engine_of()
        state = engine.init(0, fa.Population(4, 2, 17))
        dispatches = first_dispatches()
        engine.round(state, data, dispatches)
        return self(engine.round, state, data, dispatches)

    def mislabelled(self):
        def entropy(outputs, batch):
            return optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])

        problem = fa.models.linear((3,), 10)._replace(loss=entropy)
        examples = {"x": np.zeros((2, 3), np.float32), "y": np.array([1, 10], np.int32)}
        engine = fa.make_engine(fa.algorithms.fedavg(problem, LOCAL))
        return self(engine.put_data, fa.federate(examples, fa.Partition.of([[0, 1]])))

    def narrow(self):
        params = small_network().problem.init(jax.random.key(0)).params
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        return self(engine_of().init, 0, fa.Population(4, 2, 17), params)

    def unbounded(self):
        run_round, population = fa.pure_round(engine_of().algorithm), fa.Population(4, 2, 17)
        start, dispatches = run_round.init(0, population), first_dispatches()
        dispatches = dispatches._replace(num_steps=jnp.asarray(dispatches.num_steps))

        def norm(params):
            state = start._replace(server=start.server._replace(params=params))
            after, _ = run_round(state, small_network().data, dispatches)
            return optax.tree.norm(after.server.params)

        return self(jax.grad(norm), start.server.params)

    def summed_row(self):
        algorithm = engine_of("scaffold").algorithm

        def client_update(*arguments):
            row, *rest = algorithm.client_update(*arguments)
            return (jax.tree.map(jnp.sum, row), *rest)

        engine = fa.make_engine(algorithm._replace(client_update=client_update))
        return self(fa.simulate, engine, small_network().data, cohort_size=2, rounds=1)

    def full_disk(self):
        def refuse(*arguments, **keywords):
            raise OSError(28, "No space left on device")

        return self.patched(csv, "DictWriter", refuse, run())


SCENARIOS = {
    "interrupted": Told.interrupted,
    "is not complete": lambda told: told.interrupted("table out"),
    "is in use": Told.in_use,
    "is not empty": lambda told: told.interrupted(run()),
    "holds other runs": lambda told: told.interrupted(
        run(more="--resume").replace("--eval-every 2", "--eval-every 1")
    ),
    "config.json'": Told.edited,
    "is damaged": lambda told: told.damaged(1),
    "no checkpoint in": lambda told: told.damaged(2),
    "the checkpoint in": Told.other_checkpoint,
    "cannot be written": Told.full_disk,
    "... updates of clients": lambda told: told(run("own.py:spoiled")),
    "not finite at round": lambda told: told(run("own.py:diverging")),
    "client ... made": lambda told: told(run("own.py:spoiled", more="--non-finite error")),
    "unknown algorithm": lambda told: told(run("fedporx")),
    "devices=99": lambda told: told(run(more="--devices 99")),
    "clients keep state": lambda told: told(run("scaffold", more="--sampler with_replacement")),
    "batch_size=": lambda told: told(run(more="--batch-size 2000000000", local="")),
    "it is a pipe or a device": Told.pipe,
    "this state was consumed": Told.consumed,
    "Problem.loss raised": lambda told: told(simulate, loss=lambda outputs, batch: batch["label"]),
    "have label 10": Told.mislabelled,
    "the model's outputs": lambda told: told(simulate, loss=lambda outputs, b: outputs - b["y"]),
    "points against": lambda told: told(simulate, local=LOCAL._replace(transform=optax.adam(0.1))),
    "of type bfloat16": Told.narrow,
    "Reverse-mode": Told.unbounded,
    "does not take": lambda told: told(sampled, lambda seed: seed),
    "the client state": Told.summed_row,
    "This is a fault": lambda told: told.patched(comparison, "simulate", None, run()),
    "ZeroDivisionError": lambda told: told(run("own.py:broken")),
}


def test_every_line_has_a_scenario():
    assert len(TEXTS) == len(SCENARIOS)
    for text, beginning in zip(TEXTS, SCENARIOS, strict=True):
        assert text.startswith(beginning)


@pytest.mark.all
@pytest.mark.parametrize("text", TEXTS)
def test_a_line_is_what_is_seen(text, capsys, monkeypatch, here):
    (here / "own.py").write_text(OWN)
    (make,) = (make for beginning, make in SCENARIOS.items() if text.startswith(beginning))
    seen = make(Told(capsys, monkeypatch))
    assert re.search(".*".join(map(re.escape, text.split("..."))), seen), seen
