"""The configs of the papers' large tasks and their stand-ins, without the original data."""

import functools
import importlib.util
import re
import sys
from math import prod
from pathlib import Path

import jax
import numpy as np
import pytest

from fedjax_algos.asynchrony import planners, system_of
from fedjax_algos.cli.config_file import read_config
from fedjax_algos.cli.options import settings_of
from fedjax_algos.data import datasets, in_memory
from fedjax_algos.models import linear, losses, models
from fedjax_algos.models.outputs import Outputs
from fedjax_algos.runs.method import methods_of

ROOT = Path(__file__).parents[1]
PAPERS = ROOT / "experiments" / "papers"
if not PAPERS.exists():
    pytest.skip("the experiments are not part of this copy", allow_module_level=True)

SMALL = sorted(PAPERS.glob("*/small_*.toml"))
FULL = [path.with_name(path.name.replace("small_", "full_")) for path in SMALL]

# of the originals: the shape of an example, the classes, and the parameters of the model
ORIGINALS = {
    "full_gldv2_mobilenet_v2": ((224, 224, 3), 2028, 4_821_740),
    "full_gldv2_vit_b_16": ((224, 224, 3), 2028, 87_358_188),
    "full_inaturalist_mobilenet_v2": ((224, 224, 3), 1203, 3_764_915),
    "full_inaturalist_vit_b_16": ((224, 224, 3), 1203, 86_723_763),
    "full_stackoverflow": ((20,), 10_004, 4_053_428),
    "full_fed_ixi": ((48, 60, 48, 1), 2, 246_156),
    "full_fed_isic2019": ((200, 200, 3), 8, 4_017_796),
}
# of the made data: the clients, the first client's examples, and the classes
MADE = {
    "landmarks": (40, 8, 10),
    "inaturalist": (120, 13, 10),
    "stackoverflow.sqlite": (60, 21, 54),
    "IXI_sample": (3, 8, 2),
    "fed_isic2019": (6, 60, 8),
}


@pytest.fixture(autouse=True)
def root(monkeypatch):
    """The configs name files of the checkout."""
    monkeypatch.chdir(ROOT)


def read(path):
    """What `compare --config` makes of a file."""
    config = read_config(str(path))
    return settings_of({}, "10", config), config.methods


@functools.cache
def size_of(spec, example_shape, num_classes):
    """The parameters of a model, without its weights, which are in no file here."""
    spec = re.sub(r"weights=[^,]*,head=new,", "", spec)
    problem = models.make(spec, example_shape, num_classes)
    params = jax.eval_shape(problem.init, jax.random.key(0)).params
    return sum(prod(leaf.shape) for leaf in jax.tree.leaves(params))


def test_each_task_has_both():
    assert sorted(path.stem for path in FULL) == sorted(ORIGINALS)
    assert [path for path in FULL if not path.exists()] == []


@pytest.mark.parametrize("path", [*FULL, *SMALL], ids=lambda path: path.stem)
def test_compare_accepts_the_names_and_values(path):
    settings, specs = read(path)
    settings.check()
    problem = linear((3,), 2)
    for method in methods_of(specs, settings):
        algorithm = method.build(problem, settings)
        if settings.seconds is not None:
            system = system_of(settings.system, settings.batch_size)(0)
            planner = planners.make(method.planner)
            plan = planner(system, settings.clients, seconds=settings.seconds)
            assert len(plan.group) > settings.evaluations / 10
        elif settings.local_epochs is not None:
            assert algorithm.local.epochs == settings.local_epochs


@pytest.mark.parametrize("path", FULL, ids=lambda path: path.stem)
def test_models_have_the_published_sizes(path):
    shape, num_classes, size = ORIGINALS[path.stem]
    assert size_of(read(path)[0].model, shape, num_classes) == size


def test_rounds_follow_from_the_bytes_of_the_paper():
    """Its Table 3 counts one model of 4-byte floats in a round, in GiB."""
    mobilenet, _ = read(PAPERS / "ghbm/full_gldv2_mobilenet_v2.toml")
    vit, _ = read(PAPERS / "ghbm/full_gldv2_vit_b_16.toml")
    own = size_of(mobilenet.model, (224, 224, 3), 2028)
    of_imagenet = size_of(vit.model, (224, 224, 3), 1000)
    assert round(4 * own * mobilenet.rounds / 2**30, 1) == 89.8
    assert round(4 * of_imagenet * vit.rounds / 2**30, 1) == 483.7


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_a_stand_in_differs_in_little(path):
    (full, specs), (small, small_specs) = read(FULL[SMALL.index(path)]), read(path)
    differing = {name for name in vars(full) if getattr(full, name) != getattr(small, name)}
    of_rounds = {"clients", "cohort", "rounds", "eval_every"}
    of_clock = {"local_steps", "batch_size", "seconds", "evaluations"}
    assert differing <= {"dataset", "model", "seeds"} | (of_clock if full.seconds else of_rounds)
    assert small.dataset.partition(":")[0] == full.dataset.partition(":")[0]  # the reader
    kept = [spec for spec in specs if not re.search("tau=(10|20|40)", spec)]
    steps = "min_steps=20,max_steps=100", "min_steps=2,max_steps=10"
    assert list(small_specs) == [spec.replace(*steps) for spec in kept]
    family = (re.search("network=([a-z]+)", small.model) or re.match("([a-z]+)", small.model))[1]
    assert full.model.startswith(family)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder that the program that makes the data has filled."""
    spec = importlib.util.spec_from_file_location("made_data", PAPERS / "made_data.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["made_data.py", str(folder)])
        program.main()
        with pytest.raises(SystemExit):  # nothing is overwritten
            program.main()
    return folder


def load(path, folder):
    return datasets.make(read(path)[0].dataset.replace("results/made", str(folder)))


@pytest.mark.all
@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_made_data_are_read_as_the_originals(made, path):
    settings, _ = read(path)
    (name,) = re.findall(r"made/(?:stackoverflow/)?([\w.]+)", settings.dataset)[:1]
    data = load(path, made)
    clients, count, classes = MADE[name]
    assert (data.train.num_clients, data.num_classes) == (clients, classes)
    assert data.train.counts[0] == count
    assert settings.clients <= clients
    shape = ORIGINALS[path.stem.replace("small_", "full_")][0]
    assert len(data.example_shape) == len(shape)


@pytest.mark.parametrize("name", ["gldv2_vit_b_16", "inaturalist_vit_b_16", "fed_isic2019"])
def test_made_images_tell_their_class(made, name):
    """The nearest mean of a class finds it more often than not."""
    (path,) = PAPERS.glob(f"*/small_{name}.toml")
    data = in_memory(load(path, made))
    x, y = data.train["x"].astype(float), data.train["y"]
    means = np.stack([x[y == label].mean(0) for label in range(data.num_classes)])
    distances = ((data.test["x"][:, None] - means) ** 2).sum((2, 3, 4))
    assert (distances.argmin(1) == data.test["y"]).mean() > 0.5


def test_the_focal_loss_has_the_published_weights():
    """Those of FLamby, with its four digits."""
    published = [5.5813, 2.0472, 7.0204, 26.1194, 9.5369, 101.0707, 92.5224, 38.3443]
    settings, _ = read(PAPERS / "fedcompass/full_fed_isic2019.toml")
    logits, labels = np.random.default_rng(0).normal(size=(8, 8)), np.arange(8)
    p = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True))[labels, labels]
    expected = -np.array(published) * (1 - p) ** 2 * np.log(p)
    found = losses.make(settings.loss, Outputs(jax.numpy.array(logits)), {"y": labels})
    np.testing.assert_allclose(found, expected, rtol=2e-5)
