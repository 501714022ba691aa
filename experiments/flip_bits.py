"""Flips single bits in the files of runs that stopped, resumes them, and looks at what comes of it.

Each command is run once to its end, and once until it is interrupted. Then, for each kind of file
in that folder, a bit at a random place is flipped in a copy of the folder, and the copy is resumed.
Rounds (with metrics of clients), rows of client state on disk, the virtual clock, a sweep and
`tune` have checkpoints, of which two are kept: the newest is damaged, the one before it, or both.
Packed data are read by a new run, and `load_state` reads checkpoints in Python. All runs are in
this process, with compiled programs in a folder, and draw no figures.

What may come of it: the run is refused in one line that names the file; an older checkpoint is
used, which is said, and all rows and last models are those of the uninterrupted run in all digits;
or they are, and the file was not needed. Everything else is WRONG.

COMMAND   python experiments/flip_bits.py --flips 20
EXPECTED  a table of 300 flips whose column WRONG is 0 in every line, and exit code 0
TIME      about half an hour on two CPU cores that others use too; with --only load_state one minute
"""

import argparse
import contextlib
import csv
import io
import random
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path
from unittest import mock

import jax
import numpy as np

import fedjax_algos as fa
from fedjax_algos.analysis import pictures
from fedjax_algos.cli import main as command_line
from fedjax_algos.runs.loops.checkpoints import RunSaver

OUTCOMES = ("refused by name", "older checkpoint", "no effect", "WRONG")
SMALL = "--model linear --clients 8 --batch-size 4 --local-steps 2 --seeds 2 --checkpoint-every 0"
ROUNDS = f"--rounds 6 --eval-every 2 --cohort 2 {SMALL}"
COMMANDS = {  # and the evaluation in training at which they are interrupted
    "rounds": (f"compare fedavg --evaluate-clients train {ROUNDS}", 5),
    "rows on disk": (f"run scaffold --client-state disk {ROUNDS}", 2),
    "virtual clock": (f"run fedcompass --seconds 60 --evaluations 4 {SMALL}", 3),
    "sweep": (f"sweep fedavg --grid client_learning_rate=0.1,0.2 {ROUNDS}", 2),
    "tune": (f"tune fedavg fedprox --grid client_learning_rate=0.1,0.2 {ROUNDS}", 5),
    "packed data": (f"run fedavg --dataset packed:packed --partition natural {ROUNDS}", 0),
    "load_state": ("", 0),
}
LEAST = 5  # flips of a kind of file in one command
ENDED = "runs/01-fedavg/seed-0"
KINDS = {  # of files, by command; `newest`, `older` and `both` are the checkpoints of a run
    "rounds": {
        **{name: name for name in ("newest", "older", "both", "config.json")},
        **{f"{name} of an ended run": f"{ENDED}/{name}" for name in ("metrics.csv", "clients.csv")},
        **{f"{name} of an ended run": f"{ENDED}/{name}" for name in ("model.npz", "SHA256SUMS")},
        "metrics.csv of another run": "runs/01-fedavg/seed-1/metrics.csv",
    },
    "rows on disk": {"newest": "newest", "both": "both", "rows": "client_state/*.rows"},
    "virtual clock": {"newest": "newest", "both": "both", "config.json": "config.json"},
    "sweep": {"newest": "newest", "both": "both", "config.json": "config.json"},
    "tune": {name: name for name in ("newest", "both", "config.json", "scores.json")},
    "packed data": {
        **{name: name for name in ("index.npz", "train/x.npy", "train/y.npy")},
    },
    "load_state": {"newest": "newest", "both": "both"},
}


def no_figure(*arguments, **options):
    """Makes an empty file in place of a figure."""
    next(each for each in arguments if isinstance(each, Path)).touch()


def run(arguments):
    """(the exit code, what is on standard error) of a command; the exit code of a fault is 1."""
    errors = io.StringIO()
    with (
        contextlib.ExitStack() as stack,
        contextlib.redirect_stderr(errors),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("always")
        stack.enter_context(mock.patch.object(pictures, "plot_metric", no_figure))
        stack.enter_context(mock.patch.object(pictures, "plot_partition", no_figure))
        try:
            command_line([str(argument) for argument in arguments])
            code = 0
        except SystemExit as end:
            code = end.code
        except Exception:
            traceback.print_exc()
            code = 1
    return code, errors.getvalue()


@contextlib.contextmanager
def interrupted_at(number):
    """Ctrl-C arrives before the checkpoint of an evaluation of this number."""
    calls, after_evaluation = [], RunSaver.after_evaluation

    def counted(self, position, arrays, *rest, **options):
        calls.extend([0] * (arrays is not None))  # there is nothing to save before the first round
        if len(calls) == number and arrays is not None:
            signal.raise_signal(signal.SIGINT)
        after_evaluation(self, position, arrays, *rest, **options)

    with mock.patch.object(RunSaver, "after_evaluation", counted):
        yield


def results_of(folder):
    """All numbers that a run has written, without wall times."""
    content = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name in ("metrics.csv", "clients.csv", "trials.csv"):
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            content[name] = [{**row, "wall_seconds": ""} for row in rows]
        elif path.name == "model.npz":
            with np.load(path) as arrays:
                content[name] = {each: arrays[each].tobytes() for each in arrays}
        elif path.name == "tuned.toml":
            content[name] = path.read_text()
    return content


def load_state_results(folder):
    """(0, the state and rows of its checkpoints) or (2, the error), with all warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        engine, data = small_engine()
        try:
            state, rows = fa.load_state(folder, engine.init(0, data_population(data)))
        except ValueError as error:
            return 2, f"error: {error}\n", None
        except Exception:
            return 1, traceback.format_exc(), None
    for row in rows:
        row["wall_seconds"] = ""
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]
    return 0, "".join(f"warning: {warning.message}\n" for warning in told), (leaves, rows)


def small_engine():
    dataset = fa.data.datasets.make("digits")
    problem = fa.models.linear(dataset.example_shape, dataset.num_classes)
    partition = fa.data.partitions["iid"](dataset.train["y"], 8, 0)
    data = fa.federate(dataset.train, partition)
    return fa.make_engine(fa.algorithms.scaffold(problem, fa.Local(4, 0.1, steps=2))), data


def data_population(data):
    return fa.Population(data.num_clients, 2, len(data.indices))


class Command:
    """A command that was run to its end, and once until it was interrupted, in `scratch`."""

    def __init__(self, name, scratch):
        self.name, self.scratch = name, scratch
        self.folder = scratch / "stopped"  # what is damaged
        line, number = COMMANDS[name]
        self.arguments = [*line.split(), "--compilation-cache", scratch.parent / "compiled"]
        if name == "load_state":
            engine, data = small_engine()
            checkpoints = fa.Checkpoints(self.folder, every=0)
            fa.simulate(
                engine, data, cohort_size=2, rounds=6, eval_every=2, checkpoints=checkpoints
            )
            self.expected = load_state_results(self.folder)[2]
            self.older = older_state(self)
            return
        if name == "packed data":
            code, errors = run(f"pack digits {self.folder} --partition iid --clients 8".split())
            assert code == 0, errors
            self.arguments = [
                str(a).replace("packed:packed", f"packed:{self.folder}") for a in self.arguments
            ]
        code, errors = run([*self.arguments, "--out", scratch / "whole"])
        assert code == 0, errors
        self.expected = results_of(scratch / "whole")
        if number:
            with interrupted_at(number):
                code, errors = run([*self.arguments, "--out", self.folder])
            assert code == 130, errors

    def files(self, kind):
        """The paths that are damaged together, relative to the folder."""
        if kind not in ("newest", "older", "both"):
            return [path.relative_to(self.folder) for path in self.folder.glob(kind)]
        kept = [path for path in self.folder.rglob("*.npz") if path.stem.isdecimal()]
        runs = sorted({path.parent for path in kept})
        kept = sorted((p for p in kept if p.parent == runs[-1]), key=lambda path: int(path.stem))
        assert len(kept) == 2, kept
        chosen = {"newest": kept[1:], "older": kept[:1], "both": kept}[kind]
        return [path.relative_to(self.folder) for path in chosen]

    def outcome(self, paths, rng):
        """What comes of a bit that is flipped in each of these files, and what was said."""
        copy = self.scratch / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(self.scratch / "out", ignore_errors=True)
        shutil.copytree(self.folder, copy)
        flipped = [flip(copy / path, rng) for path in paths]
        if self.name == "load_state":
            code, errors, found = load_state_results(copy)
            expected = (self.expected, self.older)
        else:
            line = [str(a).replace(str(self.folder), str(copy)) for a in self.arguments]
            out = self.scratch / "out" if self.name == "packed data" else copy
            code, errors = run([*line, "--out", out, "--resume"])
            found = results_of(out) if code == 0 else None
            expected = (self.expected, self.expected)
        said = [line for line in errors.splitlines() if line.startswith(("error: ", "warning: "))]
        named = len(said) == 1 and all(path.name in said[0] for path in paths)
        if code == 2 and named and "Traceback" not in errors:
            return "refused by name", said, flipped
        if code == 0 and named and "is used" in said[0] and found == expected[1]:
            return "older checkpoint", said, flipped
        if code == 0 and not said and found == expected[0]:
            return "no effect", said, flipped
        return "WRONG", errors.splitlines()[-5:], flipped


def older_state(command):
    """What `load_state` reads if the newest checkpoint is not there."""
    copy = command.scratch / "older"
    shutil.copytree(command.folder, copy)
    for path in command.files("newest"):
        shutil.rmtree(copy / path) if (copy / path).is_dir() else (copy / path).unlink()
    return load_state_results(copy)[2]


def flip(path, rng):
    """Flips a bit of a file, or of one of the files in a folder; says which."""
    path = rng.choice(sorted(p for p in path.rglob("*") if p.is_file())) if path.is_dir() else path
    content = bytearray(path.read_bytes())
    place, bit = rng.randrange(len(content)), rng.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place} of {path.name}"


def flip_bits(name, flips, scratch, seed=0):
    """For each kind of file of a command: the number of each outcome, and all results.

    The flips of a kind that several commands have are divided between them.
    """
    command, rng = Command(name, scratch), random.Random(seed)
    for kind, pattern in KINDS[name].items():
        paths = command.files(pattern)
        assert paths, (kind, pattern)
        commands = sum(pattern in kinds.values() for kinds in KINDS.values())
        number = max(-(-flips // commands), min(flips, LEAST))
        outcomes = [command.outcome(paths, rng) for _ in range(number)]
        yield kind, Counter(outcome for outcome, *_ in outcomes), outcomes


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--flips", type=int, default=20, help="for each kind of file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=COMMANDS, help="one of the commands")
    options = parser.parse_args()
    total = Counter()
    print(f"{'':13} {'damaged':28} " + " ".join(f"{outcome:>16}" for outcome in OUTCOMES))
    with tempfile.TemporaryDirectory() as folder:
        for name in [options.only] if options.only else COMMANDS:
            scratch = Path(folder, name.replace(" ", "-"))
            scratch.mkdir()
            for kind, count, outcomes in flip_bits(name, options.flips, scratch, options.seed):
                numbers = " ".join(f"{count[outcome]:16}" for outcome in OUTCOMES)
                print(f"{name:13} {kind:28} {numbers}", flush=True)
                for outcome, said, flipped in outcomes:
                    if outcome == "WRONG":
                        print(*flipped, *said, sep="\n    ", flush=True)
                total += count
    print(f"{'':42} " + " ".join(f"{total[outcome]:16}" for outcome in OUTCOMES))
    sys.exit(total["WRONG"] > 0)


if __name__ == "__main__":
    main()
