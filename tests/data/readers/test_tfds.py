"""TensorFlow Datasets: data sets that the test writes are read without TensorFlow."""

import io
import os
import shutil
import sys

import numpy as np
import pytest
from bad_input_helpers import refused
from image_helpers import encoded

from fedjax_algos.core import files
from fedjax_algos.data import datasets
from fedjax_algos.data.readers.client_files.tfds import tfds

RNG = np.random.default_rng(0)
TRAIN, TEST = (RNG.integers(0, 256, (count, 6, 4, 3), np.uint8) for count in (5, 2))
REVIEWS = {
    "train": [("good good film", "b"), ("bad film", "a"), ("good", "b"), ("", "c")],
    "test": [("good bad ugly", "a"), ("film", "d")],
}


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
                yield f"{i}", {"image": io.BytesIO(encoded(image)), "label": 6 - i}

    class Ragged(Coloured):
        SHAPE = (None, None, 3)

    class Plain(Coloured):
        LABEL = np.int64

    class Reviews(package.core.GeneratorBasedBuilder):
        VERSION = package.core.Version("1.0.0")

        def _info(self):
            features = {
                "review": package.features.Text(),
                "stars": np.int64,
                "author": package.features.Text(),
                "year": np.int32,
                "scores": package.features.Tensor(shape=(2,), dtype=np.float32),
            }
            features = package.features.FeaturesDict(features)
            return package.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, manager):
            del manager
            return {name: self._generate_examples(name) for name in REVIEWS}

        def _generate_examples(self, name):
            for i, (review, author) in enumerate(REVIEWS[name]):
                scores = np.float32([i, 0.5])
                values = {"review": review, "stars": i, "author": author, "year": 1999 + i % 2}
                yield f"{i}", values | {"scores": scores}

    for builder in (Coloured, Ragged, Plain, Reviews):
        builder(data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


@pytest.mark.parametrize("name", ["coloured", "plain"])
def test_tfds_is_read_exactly(folder, name):
    """TFDS shuffles when it writes, so examples are matched by label."""
    data = datasets.make(f"tfds:{name},data_dir={folder}")
    for part, images in ((data.train, TRAIN), (data.test, TEST)):
        order = np.argsort(-part["y"])
        np.testing.assert_array_equal(part["x"][order], images)
        assert part["y"][order].tolist() == [6 - i for i in range(len(images))]
        assert (part["x"].dtype, part["y"].dtype) == (np.uint8, np.int32)
    assert (data.num_classes, data.users) == (7, None)
    slices = {"train_split": "train[:3]", "test_split": "train[3:]"}
    data = tfds(name=name, data_dir=str(folder), **slices)
    labels = np.concatenate([data.train["y"], data.test["y"]])
    assert (len(data.train["y"]), sorted(labels)) == (3, [2, 3, 4, 5, 6])


def test_tfds_texts_and_natural_clients(folder, tmp_path):
    """Rows are in TFDS' own order, and have their number as the label."""
    options = {"name": "reviews", "data_dir": str(folder), "x": "review", "y": "stars", "length": 3}
    path = tmp_path / "words"
    path.write_text("film 3\ngood 2\nbad 2\n")
    data = tfds(**options, users="author", vocabulary=path)
    order = np.argsort(data.train["y"])
    begin, end = 5, 6
    expected = [[begin, 2, 2], [begin, 3, 1], [begin, 2, end], [begin, 4, end]]
    assert data.train["x"][order].tolist() == expected
    assert data.users[order].tolist() == [1, 0, 1, 2]
    assert data.test["x"][np.argsort(data.test["y"])].tolist() == [[begin, 2, 3], [begin, 1, end]]
    assert data.num_classes == 4
    data = tfds(**options, words=1, users="year")  # good is the most frequent word of train
    assert data.train["x"][np.argsort(data.train["y"])][0].tolist() == [3, 1, 1]
    assert data.users[np.argsort(data.train["y"])].tolist() == [0, 1, 0, 1]
    data = tfds(name="reviews", data_dir=str(folder), x="scores", y="stars")
    order = np.argsort(data.train["y"])
    np.testing.assert_array_equal(data.train["x"][order], [[i, 0.5] for i in range(4)])
    assert data.train["x"].dtype == np.float32


def test_tfds_rejects_unsuitable_data_sets(folder):
    for name, options, message in (
        ("coloured", {"test_split": "validation"}, "split validation: not an? .*: "),
        ("ragged", {}, "its examples have several shapes"),
        ("plain", {"y": "class"}, "no feature 'class' of numbers or texts, only image, label"),
        ("reviews", {}, "no feature 'image' of numbers or texts, only review, stars, author, year"),
        ("reviews", {"x": "review", "y": "scores"}, "'scores' has the shape"),
        ("reviews", {"x": "year", "y": "stars"}, r"x_train has shape \[4\]; give"),
        ("coloured", {"users": "image"}, "'image' has the shape"),
        ("mnist", {}, "is not prepared; prepare it once, with TensorFlow: .*'array_record'"),
        ("no_such_set", {}, "not .*; check the name"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            tfds(name=name, data_dir=str(folder), **options)
        assert "\n" not in str(error.value)
        assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("test.array", lambda content: content[: len(content) // 2]),
        ("test.array", lambda content: b""),
        ("info", lambda content: content[:-20]),
    ],
)
def test_tfds_rejects_damaged_files(folder, tmp_path, part, damage):
    shutil.copytree(folder / "coloured", tmp_path / "coloured")
    (file,) = (tmp_path / "coloured" / "1.0.0").glob(f"*{part}*")
    file.write_bytes(damage(file.read_bytes()))
    with refused(f"tfds coloured in {tmp_path}"):
        tfds(name="coloured", data_dir=str(tmp_path))


@pytest.mark.usefixtures("bounded")
def test_tfds_says_how_other_formats_are_converted(folder, tmp_path):
    shutil.copytree(folder / "coloured", tmp_path / "coloured")
    version = tmp_path / "coloured" / "1.0.0"
    info = version / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    command = f"tfds convert_format --dataset_version_dir={version} --out_file_format=array_record"
    with pytest.raises(ValueError, match=f"convert it where TensorFlow is installed: {command}$"):
        tfds(name="coloured", data_dir=str(tmp_path))
    info.unlink()
    os.mkfifo(info)
    with pytest.raises(ValueError, match="it is a pipe or a device, not a regular file"):
        tfds(name="coloured", data_dir=str(tmp_path))


def test_tfds_computes_the_memory_of_all_images(folder, monkeypatch):
    """There are 7 images of 6 * 4 * 3 bytes, and 5 labels of 8 bytes when the test is read."""
    monkeypatch.setattr(files, "host_memory", lambda: 2 * 544)
    assert len(tfds(name="coloured", data_dir=str(folder)).train["y"]) == 5
    monkeypatch.setattr(files, "host_memory", lambda: 2 * 543)
    with pytest.raises(
        ValueError, match=r"split test: its examples would need 544 bytes, more than half.*slice"
    ):
        tfds(name="coloured", data_dir=str(folder))


def test_tfds_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ValueError, match="needs the package tensorflow-datasets; run: pip install"):
        tfds(name="mnist")
