"""Every command on a page is run, in small, or stands in a table with the reason why it is not."""

import io
import itertools
import json
import re
import shlex
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT, programs, written_files
from page_helpers import COMMANDS, blocks

from fedjax_algos.cli import cli, main
from fedjax_algos.data.partitioning.simple import CIFAR100_COARSE
from fedjax_algos.runs.studies.trackers import trackers

# Options with which a command trains little: the values replace those of the line, or are added.
SMALL = {"--model": "linear", "--clients": "10", "--seeds": "1", "--local-steps": "2"}
SMALL |= {"--devices": "1"}
SMALL_IN_ROUNDS = {"--rounds": "2", "--eval-every": "1", "--cohort": "2"}
SMALL_ON_CLOCK = {"--seconds": "8", "--evaluations": "2"}

# Commands that begin so are not run, but what can be checked of their arguments is.
NOT_RUN = {
    "runs these tests, or .ci/run runs it": ["pytest", "bash .ci/run", "python3 -m venv"],
    "takes minutes": [
        "sphinx-build --fail-on-warning",
        "python benchmarks",
        "python experiments/papers",
        "python experiments/baselines.py",
    ],
    "needs a network": ["pip install", "sphinx-build --builder linkcheck", "curl", "wandb sync"],
    "is a server and does not end": ["tensorboard --logdir"],
    "needs the package wandb": ["fedjax-algos compare fedavg scaffold --track wandb"],
    "needs several hosts or MPI": ["srun", "mpirun"],
    "needs two processes; test_processes.py": ["fedjax-algos compare fedavg scaffold --devices 4"],
    "test_fedscale.py": ["python -c 'import json, pickle"],
    "needs a file of the line before": ["cat 'data", "tar xf", "unzip", "unlzma"],
    "needs results of the line before": ["fedjax-algos plot results/compare --metric test_"],
    "test_large_tasks.py": ["fedjax-algos compare --config experiments/papers"],
    "needs data of many GB; test_packing.py": [
        *(f"fedjax-algos pack {name}" for name in ("gldv2", "inaturalist", "tff_sqlite"))
    ],
    "needs data that are not here; tests/data/readers": [
        "fedjax-algos run fedavg --dataset 'image_folder:DATA",
        *(f"fedjax-algos run fedhbm --dataset {name}:" for name in ("gldv2", "inaturalist")),
        *(f"fedjax-algos run fedavg --dataset {name}:" for name in ("fed_isic2019", "fed_ixi")),
        *(f"fedjax-algos run {name} --dataset tff_sqlite:DATA" for name in ("fedhbm", "fedavg")),
        *(f"fedjax-algos run fedavg --dataset {name}:" for name in ("tfds", "hf")),
    ],
}
NOT_RUN = tuple(itertools.chain(*NOT_RUN.values()))
RUN_ELSEWHERE = {
    "docs/coming_from/fedml.md": "test_programs_on_pages.py",
    "docs/extend.md": "test_own_algorithms_page.py",
    "docs/own_algorithms.md": "test_own_algorithms_page.py",
}

# What the text of a page assumes: folders of results that its reader has
ASSUMED = {
    "docs/command_line.md": [
        "compare fedavg scaffold --out results/compare",
        "compare fedavg --out results/longer",
    ],
    "docs/results.md": [
        "compare fedavg --partition iid --out results/iid",
        "compare fedavg --partition classes_per_client:2 --out results/pairs",
    ],
}


def small(arguments):
    """The arguments of a command, such that it trains little."""
    if arguments[0] not in ("compare", "run", "sweep", "tune"):
        return arguments
    values = SMALL | (SMALL_ON_CLOCK if "--seconds" in arguments else SMALL_IN_ROUNDS)
    if any("head=" in argument for argument in arguments):
        values |= {"--model": "mlp:hidden=4"}
    if any("seen:" in argument for argument in arguments):
        values = {**values, "--clients": "30"}
    means = re.findall(r"poisson:mean=(\d+)", " ".join(arguments))
    if means or any("standard_" in argument for argument in arguments):
        number = max([30, *(int(mean) + 20 for mean in means)])  # slots for the page's mean
        values = {**values, "--cohort": f"{number}", "--clients": f"{number}"}
    if "--local-epochs" in arguments:
        values = {
            "--local-epochs": "1",
            **{k: v for k, v in values.items() if k != "--local-steps"},
        }
    arguments = list(arguments)
    for option, value in values.items():
        if option not in arguments:
            arguments += [option, value]
        elif ".py:" not in value_after(option, arguments):  # a model of the page's own
            arguments[arguments.index(option) + 1] = value
    return arguments


def value_after(option, words):
    """The value of an option of a command, or None."""
    return words[words.index(option) + 1] if option in words else None


def write_files():
    """The files that the pages name: data, devices, and algorithms of the reader's own."""
    pixels = np.random.default_rng(0).integers(0, 256, (250, 28, 28), np.uint8)
    labels = np.arange(250, dtype=np.uint8) % 10
    train, test = (pixels[:200], labels[:200]), (pixels[200:], labels[200:])
    for folder in ("data/fashion_mnist", "data/emnist", "my_package", "DATA"):
        Path(folder).mkdir(parents=True)
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez("data/fashion_mnist.npz", **dict(zip(names, train + test, strict=True)))
    for start, arrays in {
        "fashion_mnist/train": train,
        "fashion_mnist/t10k": test,
        "emnist/emnist-balanced-train": train,
        "emnist/emnist-balanced-test": test,
    }.items():
        for name, array in zip(("images-idx3", "labels-idx1"), arrays, strict=True):
            head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            Path(f"data/{start}-{name}-ubyte").write_bytes(head + array.tobytes())
    records = b"".join(bytes([c, f]) + bytes(3072) for f, c in enumerate(CIFAR100_COARSE))
    with tarfile.open("data/cifar-100-binary.tar.gz", "w:gz") as archive:
        for name in ("train.bin", "test.bin"):
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(records)
            archive.addfile(member, io.BytesIO(records))
    patients = [f"{50 + i},{120 + i % 7},hospital {i // 5},{i % 2}" for i in range(50)]
    Path("DATA/patients.csv").write_text("\n".join(["age,pressure,hospital,outcome", *patients]))
    device = {"computation": 25.0, "communication": 5000.0}
    trace = {"finish_time": 86400, "active": [0, 50000], "inactive": [30000, 80000]}
    Path("devices.json").write_text(json.dumps({"1": device}))
    Path("behaviour.json").write_text(json.dumps({"1": trace}))
    own = programs("docs/own_algorithms.md") + programs("docs/large_populations.md")
    own = {text.split()[1]: text for text in own if text.startswith("# ")}
    Path("extend.py").write_text(programs("docs/extend.md")[0])
    Path("sensors.py").write_text(own["sensors.py"])
    Path("my_package/my_module.py").write_text(programs("CONTRIBUTING.md")[0])
    Path("my_file.py").write_text(programs("CONTRIBUTING.md")[0])
    for name, text in written_files("docs/tutorials/own_codec.md").items():
        Path(name).write_text(text)
    Path("experiments").symlink_to(ROOT / "experiments")


@pytest.fixture
def folder(here):
    """A working folder with the files that the pages name; afterwards all is as before."""
    write_files()
    yield here
    sys.modules.pop("my_package.my_module", None)
    sys.modules.pop("my_package", None)


def run(arguments, capsys):
    """Runs a command; its output folder or file is there afterwards."""
    try:
        main(arguments)
    except SystemExit:
        pytest.fail(f"{shlex.join(arguments)}\n{capsys.readouterr().err}")
    out = value_after("--out", arguments)
    assert out is None or Path(out).exists()


def check(words):
    """What can be known of a command without running it: its options, and files that it names."""
    program, *arguments = words
    if program == "fedjax-algos":
        cli.commands[arguments[0]].make_context(arguments[0], arguments[1:])
        if "--track" in arguments:
            trackers.parse(value_after("--track", arguments))
    for argument in arguments:
        if re.match(r"(benchmarks|docs|experiments|\.ci)\b", argument):
            assert (ROOT / argument).exists(), argument
        elif extra := re.fullmatch(r"\.\[(\w+)\]", argument):
            assert extra[1] in metadata.metadata("fedjax_algos").get_all("Provides-Extra")
    if program == "python":
        sources = "".join(path.read_text() for path in (ROOT / arguments[0]).parent.glob("*.py"))
        for option in [word for word in arguments if word.startswith("--")]:
            assert re.search(rf"\b{option[2:]}\b", sources), option


def test_the_commands_are_known(folder):
    """Of all pages: each has a reason why it is not run, or options that the program has."""
    lines = [shlex.join(words) for found in COMMANDS.values() for words in found]
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)] == []
    for page, test in RUN_ELSEWHERE.items():
        assert page in COMMANDS
        assert page in (ROOT / "tests" / test).read_text()
    for words in itertools.chain(*COMMANDS.values()):
        known = words[0] == "fedjax-algos" or shlex.join(words).startswith(NOT_RUN)
        assert known, f"{words}: run it, or give the reason in NOT_RUN"
        check(words)
    scripts = re.sub("#SBATCH.*", "", " ".join(blocks("docs/many_runs.md", "text")))
    options = {option for each in cli.commands["compare"].params for option in each.opts}
    assert {"--share"} < set(re.findall(r"(?<=[\s\"])--[a-z-]+", scripts)) <= options


IN_HELP = {
    name: re.findall(r"^ *fedjax-algos .*", command.help.replace("\\\n", ""), re.MULTILINE)
    for name, command in cli.commands.items()
}
IN_HELP = {name: lines for name, lines in IN_HELP.items() if lines}


def test_help_has_examples():
    assert {name: len(lines) for name, lines in IN_HELP.items()} == dict.fromkeys(
        ("compare", "run", "sweep", "tune"), 3
    )
    for line in itertools.chain(*IN_HELP.values()):
        check(shlex.split(line))


@pytest.mark.nightly
@pytest.mark.parametrize("line", [*itertools.chain(*IN_HELP.values())])
def test_the_examples_in_help_run(line, folder, capsys):
    _, *arguments = shlex.split(line)
    if "--partition" not in arguments:  # else the clients are those of the data
        arguments = small(arguments)
    run([*arguments, "--out", "results/help"], capsys)


MARKS = {"README.md": pytest.mark.all}
RUN = [page for page in COMMANDS if page not in RUN_ELSEWHERE]
RUN = [pytest.param(page, marks=MARKS.get(page, pytest.mark.nightly)) for page in RUN]


@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run(page, folder, capsys):
    """In their order, in one folder, because they build on each other."""
    for line in ASSUMED.get(page, ()):
        run(small(line.split()), capsys)
    for words in COMMANDS[page]:
        if not shlex.join(words).startswith(NOT_RUN):
            run(small(words[1:]), capsys)
        elif words[0] == "tensorboard":
            assert Path(value_after("--logdir", words)).exists()
