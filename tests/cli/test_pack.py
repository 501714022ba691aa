"""The command `pack`, and commands on what it has written."""

import shutil

import numpy as np
import pytest
from report_helpers import read_table
from same_runs import without_time

from fedjax_algos.cli import main
from fedjax_algos.data import datasets
from fedjax_algos.data.stored import in_memory, packed

pytestmark = pytest.mark.usefixtures("quick_pictures")
PACK = "pack digits packed --partition dirichlet:alpha=0.3 --clients 12"
RUN = "--model linear --rounds 4 --local-steps 2 --dataset packed:packed --partition natural"


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed") / "packed"
    main([text.replace("packed", str(folder)) for text in PACK.split()])
    return folder


@pytest.fixture
def folder(once, here):
    return shutil.copytree(once, here / "packed")


def rows_of(folder):
    return without_time(read_table(folder / "metrics.csv"))


def in_order(x):
    return x[np.lexsort(x.reshape(len(x), -1).T)]


def test_pack(command, refused, folder):
    dataset, digits = in_memory(packed(path=folder)), datasets.make("digits")
    np.testing.assert_array_equal(in_order(dataset.train["x"]), in_order(digits.train["x"]))
    np.testing.assert_array_equal(dataset.test["y"], digits.test["y"])
    assert np.bincount(dataset.users).tolist() == packed(path=folder).train.counts.tolist()
    again = command(*PACK.split())
    assert "all clients were in the folder already" in again
    assert "12 clients with 1433 training examples, and 364 test examples, in packed" in again
    for other in (f"{PACK} --seed 1", PACK.replace("0.3", "0.5")):
        assert "was packed from something else" in refused(*other.split())


WRONG = """
pack digits x | digits has no clients with partition=natural and clients=None; give both
pack digits x --partition iid | digits has no clients with partition=iid and clients=None
pack digits x --partition iid --clients 0 | 0 is not in the range
pack packed:packed x --seed 0 | packed:packed already has clients; leave --seed out
pack packed:nowhere x | there is no such file
pack digits packed/index.npz --partition iid --clients 3 | 'packed/index.npz' cannot be w
run fedavg --dataset packed:packed --partition iid --clients 5000 | cannot give 5000 clients 1 each
"""


@pytest.mark.parametrize("case", WRONG.strip().splitlines())
def test_what_cannot_be_packed(refused, folder, case):
    line, message = case.split(" | ")
    assert message in refused(*line.split())


@pytest.mark.all
def test_the_rows_are_those_of_the_same_clients_in_memory(command, folder, here):
    """With centralised training, which reads the examples of all clients, all are in memory."""
    options = [*RUN.split(), "--clients", "12", "--cohort", "4", "--seeds", "2", "--out"]
    command("compare", "scaffold", *options, "files")
    command("compare", "scaffold", "centralised", *options, "memory")
    in_files, resident = rows_of(here / "files"), rows_of(here / "memory")
    assert in_files == [row for row in resident if row["method"] != "centralised"]
    assert len(in_files) == 4
    assert (here / "memory" / "partition.png").exists()
    assert not (here / "files" / "partition.png").exists()
    assert "StoredData(name=packed/train" in (here / "files" / "partition.txt").read_text()
    assert np.load(here / "files" / "partitions.npz")["clients_0"].tolist() == list(range(12))
    command("report", "files")


@pytest.mark.all
def test_some_clients_and_some_test_examples(command, folder, here):
    some = "--partition natural:min_examples=50 --clients 5 --cohort 2 --test-examples 50"
    options = RUN.removesuffix(" --partition natural")
    command("run", "scaffold", *f"{options} {some} --out some".split())
    chosen = np.load(here / "some" / "partitions.npz")["clients_0"]
    large = np.flatnonzero(packed(path=folder).train.counts >= 50)
    expected = np.sort(np.random.default_rng(0).choice(large, 5, replace=False))
    assert chosen.tolist() == expected.tolist()
    accuracy = float(rows_of(here / "some")[-1]["test_accuracy"])
    assert accuracy * 50 == pytest.approx(round(accuracy * 50), abs=1e-4)


OWN = """
import flax.linen as nn
import jax
import numpy as np
import fedjax_algos as fa

def read(client):
    return {"x": np.full((4, 2), client, np.float32), "y": np.full(4, 3 * client, np.float32)}

def source(*, name="x"):
    example = {name: jax.ShapeDtypeStruct((2,), np.float32)}
    example["y"] = jax.ShapeDtypeStruct((), np.float32)
    return fa.data.ClientSource("mine", ["a", "b", "c"], np.full(3, 4), example, read)

def loss(outputs, batch):
    return (outputs.logits[:, 0] - batch["y"]) ** 2

def regression(example_shape, num_classes):
    assert num_classes is None
    problem = fa.models.classifier(nn.Dense(1), example_shape)
    metrics = lambda outputs, batch: {"accuracy": 1 - loss(outputs, batch)}
    return problem._replace(loss=loss, metrics=metrics)
"""


@pytest.mark.all
def test_a_regression_of_ones_own_clients(command, refused, here):
    (here / "own.py").write_text(OWN)
    assert "3 clients with 12 training examples" in command("pack", "own.py:source", "mine")
    line = "run fedavg --partition natural --clients 3 --cohort 3 --rounds 2 --local-steps 1"
    own = f"{line} --model own.py:regression --dataset".split()
    for name in ("packed:mine", "own.py:source"):
        command(*own, name, "--out", name[:3])
    assert rows_of(here / "pac") == rows_of(here / "own")
    error = refused(*f"{line} --dataset packed:mine --model linear".split())
    assert "model='linear' is for classes, and 'packed:mine' has none" in error
    assert "mine has z, y, but no x" in refused(*own, "own.py:source:name=z")
