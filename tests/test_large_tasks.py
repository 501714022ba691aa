"""The configs of the papers' large tasks and their stand-ins, without the original data."""

import functools
import re
import runpy
import sys
from math import prod

import jax
import numpy as np
import pytest
from helpers import ROOT

from fedjax_algos.asynchrony import planners, system_of
from fedjax_algos.cli.config_file import read_config
from fedjax_algos.cli.options import settings_of
from fedjax_algos.data import datasets, in_memory
from fedjax_algos.models import linear, losses, models
from fedjax_algos.models.outputs import Outputs
from fedjax_algos.runs.studies.method import methods_of

PAPERS = ROOT / "experiments" / "papers"
if not PAPERS.exists():
    pytest.skip("the experiments are not part of this copy", allow_module_level=True)

pytestmark = pytest.mark.all
SMALL = {path.stem.removeprefix("small_"): path for path in sorted(PAPERS.glob("*/small_*.toml"))}
FULL = {name: path.with_name(f"full_{name}.toml") for name, path in SMALL.items()}

# of the originals: the shape of an example, the classes, and the parameters of the model
ORIGINALS = {
    "gldv2_mobilenet_v2": ((224, 224, 3), 2028, 4_821_740),
    "gldv2_vit_b_16": ((224, 224, 3), 2028, 87_358_188),
    "inaturalist_mobilenet_v2": ((224, 224, 3), 1203, 3_764_915),
    "inaturalist_vit_b_16": ((224, 224, 3), 1203, 86_723_763),
    "stackoverflow": ((20,), 10_004, 4_053_428),
    "fed_ixi": ((48, 60, 48, 1), 2, 246_156),
    "fed_isic2019": ((200, 200, 3), 8, 4_017_796),
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


@pytest.mark.parametrize("path", [*FULL.values(), *SMALL.values()], ids=lambda path: path.stem)
def test_compare_accepts_the_names_and_values(path):
    settings, specs = read(path)
    settings.check()
    for method in methods_of(specs, settings):
        algorithm = method.build(linear((3,), 2), settings)
        if settings.seconds is not None:
            system = system_of(settings.system, settings.batch_size)(0)
            plan = planners.make(method.on_the_clock(algorithm, settings).planner)(
                system, settings.clients, seconds=settings.seconds
            )
            assert len(plan.group) > settings.evaluations / 10
        elif settings.local_epochs is not None:
            assert algorithm.local.epochs == settings.local_epochs


def test_models_have_the_published_sizes():
    """And rounds follow from the GHBM paper's Table 3: the GiB of one model in a round."""
    assert ORIGINALS.keys() == FULL.keys()
    for name, (shape, num_classes, size) in ORIGINALS.items():
        assert size_of(read(FULL[name])[0].model, shape, num_classes) == size, name
    mobilenet, vit = (read(FULL[f"gldv2_{name}"])[0] for name in ("mobilenet_v2", "vit_b_16"))
    of_imagenet = size_of(vit.model, (224, 224, 3), 1000)
    assert round(4 * 4_821_740 * mobilenet.rounds / 2**30, 1) == 89.8
    assert round(4 * of_imagenet * vit.rounds / 2**30, 1) == 483.7


@pytest.mark.parametrize("name", SMALL)
def test_a_stand_in_differs_in_little(name):
    (full, specs), (small, small_specs) = read(FULL[name]), read(SMALL[name])
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
    main = runpy.run_path(str(PAPERS / "made_data.py"))["main"]
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["made_data.py", str(folder)])
        main()
        with pytest.raises(SystemExit):  # nothing is overwritten
            main()
    return folder


@pytest.mark.parametrize("name", SMALL)
def test_made_data_are_read_as_the_originals(made, name):
    """And of images that have a class the nearest mean of a class mostly finds it."""
    settings, _ = read(SMALL[name])
    data = datasets.make(settings.dataset.replace("results/made", str(made)))
    (place,) = re.findall(r"made/(?:stackoverflow/)?([\w.]+)", settings.dataset)[:1]
    clients, count, classes = MADE[place]
    assert (data.train.num_clients, data.num_classes) == (clients, classes)
    assert data.train.counts[0] == count
    assert settings.clients <= clients
    assert len(data.example_shape) == len(ORIGINALS[name][0])
    if len(data.example_shape) == 3:
        data = in_memory(data)
        x, y = data.train["x"].astype(float), data.train["y"]
        means = np.stack([x[y == label].mean(0) for label in range(classes)])
        distances = ((data.test["x"][:, None] - means) ** 2).sum((2, 3, 4))
        assert (distances.argmin(1) == data.test["y"]).mean() > 0.5


def test_the_focal_loss_has_the_published_weights():
    """Those of FLamby, with its four digits."""
    published = [5.5813, 2.0472, 7.0204, 26.1194, 9.5369, 101.0707, 92.5224, 38.3443]
    logits, labels = np.random.default_rng(0).normal(size=(8, 8)), np.arange(8)
    p = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True))[labels, labels]
    expected = -np.array(published) * (1 - p) ** 2 * np.log(p)
    settings, _ = read(FULL["fed_isic2019"])
    found = losses.make(settings.loss, Outputs(jax.numpy.array(logits)), {"y": labels})
    np.testing.assert_allclose(found, expected, rtol=2e-5)
