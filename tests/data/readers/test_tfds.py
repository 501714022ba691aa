"""TensorFlow Datasets: data sets that the test writes are read without TensorFlow."""

import io
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from fedjax_algos.core import files
from fedjax_algos.data import datasets
from fedjax_algos.data.readers.tfds import tfds

RNG = np.random.default_rng(0)
TRAIN, TEST = (
    RNG.integers(0, 256, (5, 6, 4, 3), np.uint8),
    RNG.integers(0, 256, (2, 6, 4, 3), np.uint8),
)


@pytest.fixture(scope="module")
def package():
    return pytest.importorskip(
        "tensorflow_datasets", reason="tensorflow-datasets, an optional package, is not installed"
    )


@pytest.fixture(scope="module")
def folder(package, tmp_path_factory):
    """Sets `coloured` of images of one shape, `ragged` of several, and `plain` without labels."""
    pytest.importorskip("array_record", reason="array-record is not installed")
    folder = tmp_path_factory.mktemp("tfds")

    class Coloured(package.core.GeneratorBasedBuilder):
        VERSION = package.core.Version("1.0.0")
        SHAPE = (6, 4, 3)
        LABEL = package.features.ClassLabel(num_classes=7)

        def _info(self):
            image = package.features.Image(shape=self.SHAPE, encoding_format="png")
            features = package.features.FeaturesDict({"image": image, "label": self.LABEL})
            return package.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, manager):
            del manager
            return {"train": self._generate_examples(TRAIN), "test": self._generate_examples(TEST)}

        def _generate_examples(self, images):
            for i, image in enumerate(images):
                content = io.BytesIO()
                Image.fromarray(image).save(content, "PNG")
                yield f"{i}", {"image": io.BytesIO(content.getvalue()), "label": 6 - i}

    class Ragged(Coloured):
        SHAPE = (None, None, 3)

    class Plain(Coloured):
        LABEL = np.int64

    for builder in (Coloured, Ragged, Plain):
        builder(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


def test_tfds_is_read_exactly(folder):
    """TFDS shuffles when it writes, so examples are matched by label."""
    data = datasets.make(f"tfds:coloured,data_dir={folder}")
    for part, images in ((data.train, TRAIN), (data.test, TEST)):
        order = np.argsort(-part["y"])
        np.testing.assert_array_equal(part["x"][order], images)
        assert part["y"][order].tolist() == [6 - i for i in range(len(images))]
        assert (part["x"].dtype, part["y"].dtype) == (np.uint8, np.int32)
    assert (data.num_classes, data.users) == (7, None)


def test_tfds_splits_by_name(folder):
    data = tfds(
        name="coloured", data_dir=str(folder), train_split="train[:3]", test_split="train[3:]"
    )
    assert (len(data.train["y"]), len(data.test["y"])) == (3, 2)


def test_tfds_does_not_import_tensorflow(folder):
    check = (
        "import sys, fedjax_algos; from fedjax_algos.data.readers.tfds import tfds; "
        "before = {'tensorflow', 'tensorflow_datasets', 'ijson', 'PIL.Image'} & set(sys.modules); "
        f"tfds(name='coloured', data_dir={str(folder)!r}); "
        "print(sorted(before - {'PIL.Image'}), 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[] False"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("coloured", {"test_split": "validation"}, "split validation: cannot be read"),
        ("ragged", {}, r"its images have several shapes, \(None, None, 3\); choose another"),
        ("plain", {}, "does not consist of labelled images; choose another"),
        ("mnist", {}, "is not prepared; prepare it once, with TensorFlow: .*'array_record'"),
        ("no_such_set", {}, "cannot be read .*; check the name"),
    ],
)
def test_tfds_rejects_unsuitable_data_sets(folder, name, options, message):
    with pytest.raises(ValueError, match=message) as error:
        tfds(name=name, data_dir=str(folder), **options)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("part", "damage", "message"),
    [
        ("test.array", lambda content: content[: len(content) // 2], "split test: cannot be read"),
        ("test.array", lambda content: b"", "split test: cannot be read"),
        ("info", lambda content: content[:-20], "cannot be read"),
        (
            "info",
            lambda content: content.replace(b'"array_record"', b'"tfrecord"'),
            "has the format tfrecord, which only TensorFlow reads; remove it or name another",
        ),
    ],
)
def test_tfds_rejects_damaged_files(folder, tmp_path, part, damage, message):
    copy = tmp_path / "coloured"
    shutil.copytree(folder / "coloured", copy)
    (file,) = [file for file in (copy / "1.0.0").iterdir() if part in file.name]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=message) as error:
        tfds(name="coloured", data_dir=str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("bounded")
def test_tfds_refuses_pipes(folder, tmp_path):
    shutil.copytree(folder / "coloured", tmp_path / "coloured")
    (info,) = (tmp_path / "coloured").glob("*/dataset_info.json")
    info.unlink()
    os.mkfifo(info)
    with pytest.raises(ValueError, match="it is a named pipe, not a regular file"):
        tfds(name="coloured", data_dir=str(tmp_path))


def test_tfds_computes_the_memory_of_all_images(folder, monkeypatch):
    """There are 7 images of 6 * 4 * 3 bytes, and 5 labels of 4 bytes when the test is read."""
    monkeypatch.setattr(files, "host_memory", lambda: 2 * 524)
    assert len(tfds(name="coloured", data_dir=str(folder)).train["y"]) == 5
    monkeypatch.setattr(files, "host_memory", lambda: 2 * 523)
    with pytest.raises(
        ValueError, match=r"split test: its images would need 524 bytes, more than half.*slice"
    ):
        tfds(name="coloured", data_dir=str(folder))


def test_tfds_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ValueError, match="needs the package tensorflow-datasets; run: pip install"):
        tfds(name="mnist")
