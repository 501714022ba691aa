"""TensorFlow Datasets: data sets that the test writes are read without TensorFlow."""

import numpy as np
import pytest
from data_forms import FORMS, SMALL, refused, tfds

FORM = FORMS["tfds"]
pytestmark = pytest.mark.all  # quick: the bound of a good set, in test_damaged_files.py


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    tfds(folder)
    return folder


def test_images(folder):
    """TFDS shuffles when it writes, so examples are matched by label."""
    data = FORM.read(folder)
    for part, images in ((data.train, SMALL[:5]), (data.test, SMALL[5:])):
        order = np.argsort(-part["y"])
        np.testing.assert_array_equal(part["x"][order], images)
        assert part["y"][order].tolist() == [6 - i for i in range(len(images))]
        assert (part["x"].dtype, part["y"].dtype) == (np.uint8, np.int32)
    assert (data.num_classes, data.users) == (7, None)
    data = FORM.read(folder, train_split="train[:3]", test_split="train[3:]")
    labels = np.concatenate([data.train["y"], data.test["y"]])
    assert (len(data.train["y"]), sorted(labels)) == (3, [2, 3, 4, 5, 6])


def test_texts_and_natural_clients(folder, tmp_path):
    """Rows are in TFDS' own order, and have their number as the label."""
    options = {"name": "reviews", "x": "review", "y": "stars", "length": 3}
    path, begin, end = tmp_path / "words", 5, 6
    path.write_text("film 3\ngood 2\nbad 2\n")
    data = FORM.read(folder, **options, users="author", vocabulary=path)
    order = np.argsort(data.train["y"])
    expected = [[begin, 2, 2], [begin, 3, 1], [begin, 2, end], [begin, 4, end]]
    assert data.train["x"][order].tolist() == expected
    assert data.users[order].tolist() == [1, 0, 1, 2]
    assert data.test["x"][np.argsort(data.test["y"])].tolist() == [[begin, 2, 3], [begin, 1, end]]
    assert data.num_classes == 4
    data = FORM.read(folder, **options, words=1, users="year")  # good is the most frequent word
    assert data.train["x"][np.argsort(data.train["y"])][0].tolist() == [3, 1, 1]
    assert data.users[np.argsort(data.train["y"])].tolist() == [0, 1, 0, 1]
    data = FORM.read(folder, name="reviews", x="scores", y="stars")
    order = np.argsort(data.train["y"])
    np.testing.assert_array_equal(data.train["x"][order], [[i, 0.5] for i in range(4)])
    assert data.train["x"].dtype == np.float32


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("coloured", {"test_split": "validation"}, "split validation"),
        ("ragged", {}, r"one shape.*image Image\(shape=\(None, None, 3\)"),
        ("coloured", {"y": "class"}, "image, class do not fit.* choose from image Image"),
        (
            "reviews",
            {"x": "review", "y": "scores"},
            "scores do not fit: .* one value for each",
        ),
        ("mnist", {}, "prepare it once, with TensorFlow: .*'array_record'"),
        ("no_such_set", {}, "no_such_set"),
    ],
)
def test_unsuitable_data_sets(folder, name, options, named):
    with refused(folder, named):
        FORM.read(folder, name=name, **options)


def test_how_other_formats_are_converted(tmp_path):
    tfds(tmp_path)
    version = tmp_path / "coloured" / "1.0.0"
    info = version / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with refused(tmp_path, "FileFormat.TFRECORD is not supported.* tfds convert_format"):
        FORM.read(tmp_path)
