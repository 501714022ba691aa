"""Every command on a page is run, in small, or stands in a table with the reason why it is not."""

import io
import itertools
import json
import re
import shlex
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from helpers import FENCED, PAGES, ROOT, programs, written_files

from fedjax_algos.cli import cli, main
from fedjax_algos.data.partitioning.simple import CIFAR100_COARSE
from fedjax_algos.runs.saving.trackers import trackers

LANGUAGES = {"sh", "python", "text", "yaml", "bibtex"}  # yaml is for FedML

# Options with which a command trains little: the values replace those of the line, or are added.
SMALL = {"--model": "linear", "--clients": "10", "--seeds": "1"}
SMALL |= {"--local-steps": "2", "--devices": "1"}
SMALL_IN_ROUNDS = {"--rounds": "2", "--eval-every": "1", "--cohort": "2"}
SMALL_ON_CLOCK = {"--seconds": "8", "--evaluations": "2"}

# Commands that begin so are not run, but what can be checked of their arguments is.
NOT_RUN = {
    "python3 -m venv": "makes an environment; .ci/run runs README's line",
    "pip install": "needs a network; .ci/run runs README's line",
    "pytest": "runs these tests",
    "sphinx-build --fail-on-warning": "takes minutes; .ci/run runs it",
    "sphinx-build --builder linkcheck": "needs a network",
    "bash .ci/run": "runs these tests",
    "tensorboard --logdir": "is a server and does not end",
    "fedjax-algos compare fedavg scaffold --track wandb": "needs the package wandb",
    "wandb sync": "needs a network",
    "srun": "needs Slurm and several hosts",
    "mpirun": "needs MPI",
    "fedjax-algos compare fedavg scaffold --devices 4": "needs two processes; test_processes.py",
    "python benchmarks": "takes minutes",
    "fedjax-algos run fedavg --dataset 'image_folder:DATA": "needs images; test_image_folder.py",
    "fedjax-algos run fedhbm --dataset gldv2:DATA": "needs 500 GB; test_image_folder.py",
    "fedjax-algos run fedhbm --dataset inaturalist:DATA": "needs 186 GB; test_image_folder.py",
    "fedjax-algos run fedavg --dataset fed_isic2019:DATA": "needs 9 GB; test_fed_isic2019.py",
    "fedjax-algos run fedavg --dataset fed_ixi:DATA": "needs 444 MB; test_fed_ixi.py",
    "curl": "needs a network",
    "fedjax-algos compare --config experiments/papers": "test_large_tasks.py",
    "fedjax-algos pack gldv2": "needs 500 GB; test_packing.py",
    "fedjax-algos pack inaturalist": "needs 186 GB; test_packing.py",
    "fedjax-algos pack tff_sqlite": "needs many GB; test_packing.py",
    "fedjax-algos plot results/compare --metric test_": "needs results of the line before",
    "python experiments/papers": "takes minutes; test_large_tasks.py runs made_data.py",
    "cat 'data": "needs a file of the line before",
    "tar xf data": "needs a file of the line before",
    "unzip": "needs a file of the line before",
    "unlzma": "needs a file of the line before",
    "tar xf DATA": "needs a file of the line before",
    "fedjax-algos run fedhbm --dataset tff_sqlite:DATA": "needs many GB; test_sqlite.py",
    "fedjax-algos run fedavg --dataset tff_sqlite:DATA": "needs data of TFF; test_sqlite.py",
    "fedjax-algos run fedavg --dataset tff_hdf5:train=DATA": "needs data of TFF; test_tff_hdf5.py",
    "fedjax-algos run fedavg --dataset fedjax_sqlite:train=DATA": "needs data; test_sqlite.py",
    "fedjax-algos run fedavg --dataset tfds:": "needs a prepared data set; test_tfds.py",
    "fedjax-algos run fedavg --dataset hf:": "needs a network; test_hf.py",
}
RUN_ELSEWHERE = {
    "docs/coming_from/fedml.md": "test_coming_from_page.py",
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


def blocks(page):
    """(language, text) of each fenced block of a page."""
    found = FENCED.finditer((ROOT / page).read_text())
    return [(block[2].strip(), block[3]) for block in found]


def commands(page):
    """The words of each command in the blocks `sh` of a page, without the environment's folder."""
    for language, text in blocks(page):
        for line in text.replace("\\\n", " ").splitlines() if language == "sh" else ():
            words = shlex.split(line, comments=True)
            for is_and, group in itertools.groupby(words, lambda word: word == "&&"):
                program, *arguments = group
                if not is_and:
                    program = re.sub(r"^\.venv\S*/bin/", "", program)
                    yield [re.sub(r"^python3\.\d+$", "python3", program), *arguments]


COMMANDS = {page: list(commands(page)) for page in PAGES}
COMMANDS = {page: found for page, found in COMMANDS.items() if found}
OF_OTHERS = [words for page, found in COMMANDS.items() for words in found if page != "README.md"]


def small(arguments):
    """The arguments of a command, such that it trains little."""
    if arguments[0] not in ("compare", "run", "sweep", "tune"):
        return arguments
    values = SMALL | (SMALL_ON_CLOCK if "--seconds" in arguments else SMALL_IN_ROUNDS)
    if any("head=" in argument for argument in arguments):
        values |= {"--model": "mlp:hidden=4"}
    if any("poisson:" in argument for argument in arguments):
        values = {**values, "--cohort": "30", "--clients": "30"}  # slots for the page's mean
    arguments = list(arguments)
    for option, value in values.items():
        if ".py:" in str(value_after(option, arguments)):
            continue  # a model of the page's own
        if option in arguments:
            arguments[arguments.index(option) + 1] = value
        else:
            arguments += [option, value]
    return arguments


def value_after(option, words):
    """The value of an option of a command, or None."""
    return words[words.index(option) + 1] if option in words else None


def write_image_sets(pixels, labels):
    """Small sets in the formats of docs/datasets/images.md."""
    train, test = (pixels[:200], labels[:200]), (pixels[200:], labels[200:])
    starts = {"fashion_mnist": ("train", "t10k")}
    starts["emnist"] = ("emnist-balanced-train", "emnist-balanced-test")
    for folder, parts in starts.items():
        Path("data", folder).mkdir()
        for start, arrays in zip(parts, (train, test), strict=True):
            for name, array in zip(("images-idx3", "labels-idx1"), arrays, strict=True):
                lengths = np.array(array.shape, ">u4").tobytes()
                content = bytes([0, 0, 8, array.ndim]) + lengths + array.astype(np.uint8).tobytes()
                Path("data", folder, f"{start}-{name}-ubyte").write_bytes(content)
    records = b"".join(bytes([c, f]) + bytes(3072) for f, c in enumerate(CIFAR100_COARSE))
    with tarfile.open("data/cifar-100-binary.tar.gz", "w:gz") as archive:
        for name in ("train.bin", "test.bin"):
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(records)
            archive.addfile(member, io.BytesIO(records))


def write_files():
    """The files that the pages name: data, devices, and algorithms of the reader's own."""
    pixels = np.random.default_rng(0).integers(0, 256, (250, 28, 28), np.uint8)
    labels = np.arange(250) % 10
    names = ("x_train", "y_train", "x_test", "y_test")
    Path("data").mkdir()
    arrays = (pixels[:200], labels[:200], pixels[200:], labels[200:])
    np.savez("data/fashion_mnist.npz", **dict(zip(names, arrays, strict=True)))
    write_image_sets(pixels, labels)
    device = {"computation": 25.0, "communication": 5000.0}
    trace = {"finish_time": 86400, "active": [0, 50000], "inactive": [30000, 80000]}
    Path("client_device_capacity").write_text(json.dumps({"1": device}))
    Path("client_behave_trace").write_text(json.dumps({"1": trace}))
    Path("my_package").mkdir()
    (fedspeed,) = (p for p in programs("docs/own_algorithms.md") if p.startswith("# fedspeed.py"))
    (fedexp,) = programs("CONTRIBUTING.md")
    (sensors,) = (p for p in programs("docs/large_populations.md") if p.startswith("# sensors.py"))
    Path("sensors.py").write_text(sensors)
    Path("my_package/my_module.py").write_text(fedspeed)
    Path("my_file.py").write_text(f"{fedspeed}\n\n{fedexp}")
    for name, text in written_files("docs/tutorials/own_codec.md").items():
        Path(name).write_text(text)
    Path("experiments").symlink_to(ROOT / "experiments")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with the files that the pages name; afterwards all is as before."""
    monkeypatch.chdir(tmp_path)
    write_files()
    yield tmp_path
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
        elif argument.startswith("results/") and program == "tensorboard":
            assert Path(argument).exists(), argument
        elif extra := re.fullmatch(r"\.\[(\w+)\]", argument):
            assert extra[1] in metadata.metadata("fedjax_algos").get_all("Provides-Extra")
    if program == "python":
        sources = "".join(path.read_text() for path in (ROOT / arguments[0]).parent.glob("*.py"))
        for option in [word for word in arguments if word.startswith("--")]:
            assert re.search(rf"\b{option[2:]}\b", sources), option


@pytest.mark.all
@pytest.mark.parametrize("page", [page for page in COMMANDS if page not in RUN_ELSEWHERE])
def test_the_commands_of_a_page_run(page, folder, capsys):
    """In their order, in one folder, because they build on each other.

    One of README.md that another page has, too, is run there only.
    """
    for line in ASSUMED.get(page, ()):
        run(small(line.split()), capsys)
    for words in COMMANDS[page]:
        if page == "README.md" and words in OF_OTHERS:
            continue
        elif shlex.join(words).startswith(tuple(NOT_RUN)):
            check(words)
        else:
            assert words[0] == "fedjax-algos", f"{words}: run it, or give the reason in NOT_RUN"
            run(small(words[1:]), capsys)


def test_the_tables_name_nothing_else():
    lines = [shlex.join(words) for found in COMMANDS.values() for words in found]
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in lines)] == []
    for page, test in RUN_ELSEWHERE.items():
        assert page in COMMANDS
        assert page in (ROOT / "tests" / test).read_text()


def test_every_block_has_a_language():
    """A command or a program without one would not be found; a block {...} is read by Sphinx."""
    found = {(page, language) for page in PAGES for language, _ in blocks(page)}
    assert [(p, name) for p, name in found if name not in LANGUAGES and name[:1] != "{"] == []
    for page in PAGES:  # and no Python is hidden from the tests by its indentation
        assert [text for language, text in blocks(page) if language == "python"] == programs(page)


@pytest.mark.parametrize("page", COMMANDS)
def test_a_shell_reads_the_commands(page):
    text = "".join(text for language, text in blocks(page) if language == "sh")
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
