"""Data sets of Hugging Face: small ones in files of their forms, without a network."""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from bad_input_helpers import refused
from image_helpers import encoded
from PIL import Image

from fedjax_algos.core import files
from fedjax_algos.data import datasets
from fedjax_algos.data.readers.client_files.hf import hf
from fedjax_algos.data.stored import pack, packed

package = pytest.importorskip("datasets", reason="datasets, an optional package, is not installed")
package.disable_progress_bars()

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (5, 6, 4, 3), np.uint8)
LABELS, WRITERS = [2, 0, 1, 2, 0], ["b", "a", "b", "c", "a"]
VECTORS = RNG.integers(0, 256, (5, 3), np.uint8)
TEXTS = ["good good film", "bad film", "good", "", "ugly"]


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(package.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(package.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


FEATURES = {
    "image": package.Image(),
    "label": package.ClassLabel(names=["cat", "dog", "owl", "cow"]),
    "writer": package.Value("string"),
    "number": package.Value("int32"),
    "vector": package.List(package.Value("uint8")),
    "grid": package.Array2D((2, 2), "float32"),
    "text": package.Value("string"),
}


def columns(rows=range(5), **changes):
    chosen = list(rows)
    values = {
        "image": [{"bytes": encoded(IMAGES[i]), "path": None} for i in chosen],
        "label": [LABELS[i] for i in chosen],
        "writer": [WRITERS[i] for i in chosen],
        "number": [10 - i // 2 for i in chosen],
        "vector": [VECTORS[i].tolist() for i in chosen],
        "grid": [np.full((2, 2), i / 4, np.float32) for i in chosen],
        "text": [TEXTS[i] for i in chosen],
    }
    return values | changes


def saved(folder, train, test=None):
    parts = {"train": train, "test": test or columns([1, 3])}
    split = {}
    for name, values in parts.items():
        features = package.Features({key: FEATURES[key] for key in values})
        split[name] = package.Dataset.from_dict(values, features=features)
    package.DatasetDict(split).save_to_disk(folder)
    return str(folder)


@pytest.fixture
def folder(tmp_path):
    return saved(tmp_path / "set", columns())


def test_images_and_numbers_in_memory(folder):
    data = datasets.make(f"hf:{folder}")
    np.testing.assert_array_equal(data.train["x"], IMAGES)
    np.testing.assert_array_equal(data.test["x"], IMAGES[[1, 3]])
    assert (data.train["y"].tolist(), data.test["y"].tolist()) == (LABELS, [0, 2])
    assert (data.num_classes, data.users, data.train["y"].dtype) == (4, None, np.int32)
    vectors, grids = hf(name=folder, x="vector"), hf(name=folder, x="grid", y="number")
    np.testing.assert_array_equal(vectors.train["x"], VECTORS)
    assert vectors.train["x"].dtype == np.uint8
    assert grids.train["x"].shape == (5, 2, 2)
    assert grids.train["x"][4].tolist() == [[1, 1], [1, 1]]
    assert (grids.num_classes, grids.train["y"].tolist()) == (11, [10, 10, 9, 9, 8])


def test_natural_clients(folder, tmp_path):
    data = hf(name=folder, users="writer")
    assert list(data.train.client_ids) == ["a", "b", "c"]
    assert data.train.counts.tolist() == [2, 2, 1]
    assert list(data.test.client_ids) == ["a", "c"]
    with ThreadPoolExecutor(3) as pool:
        parts = list(pool.map(data.train.examples_of, range(3)))
    for part, rows in zip(parts, ([1, 4], [0, 2], [3]), strict=True):
        np.testing.assert_array_equal(part["x"], IMAGES[rows])
        assert part["y"].tolist() == [LABELS[i] for i in rows]
    assert all(isinstance(file, bytes) for file in data.train.read(0)["x"])
    numbered = hf(name=folder, users="number", x="vector")
    assert list(numbered.train.client_ids) == ["8", "9", "10"]
    assert numbered.train.counts.tolist() == [1, 2, 2]
    again = hf(name=folder, users="writer")
    assert numbered.train.identity != data.train.identity == again.train.identity
    pack(data, tmp_path / "packed")  # images stay encoded
    stored = packed(path=tmp_path / "packed")
    for client, part in enumerate(parts):
        np.testing.assert_array_equal(stored.train.examples_of(client)["x"], part["x"])
    test = columns([1, 3])
    del test["writer"]
    data = hf(name=saved(tmp_path / "one", columns(), test), users="writer")
    assert (list(data.test.client_ids), data.test.counts.tolist()) == (["all"], [2])


def test_sizes_of_images(tmp_path):
    """The middle 2 x 2 of images whose shorter side is 4 already."""
    tall = [{"bytes": encoded(IMAGES[i]), "path": None} for i in range(5)]
    tall[2] = {"bytes": encoded(RNG.integers(0, 256, (9, 4, 3), np.uint8)), "path": None}
    name = saved(tmp_path / "set", columns(image=tall))
    data = hf(name=name, image_size=2, shorter_side=4)
    np.testing.assert_array_equal(data.train["x"][0], IMAGES[0, 2:4, 1:3])
    with pytest.raises(ValueError, match="it has 9 x 4 pixels, not 6 x 4"):
        hf(name=name)
    grey = [{"bytes": encoded(image[:, :, 0]), "path": None} for image in IMAGES]
    test = columns([1, 3], image=grey[:2])
    data = hf(name=saved(tmp_path / "grey", columns(image=grey), test))
    np.testing.assert_array_equal(data.train["x"], IMAGES[..., :1])


def test_images_in_files_of_their_own(tmp_path):
    """A folder for each class, of which the package makes columns."""
    folder = tmp_path / "pets"
    for part, rows in (("train", range(5)), ("test", [1, 3])):
        for i in rows:
            place = folder / part / ("owl", "cat", "dog")[LABELS[i]] / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(IMAGES[i]).save(place)
    data = hf(name=str(folder), users="label")
    assert data.train.counts.tolist() == [1, 2, 2]  # cat, dog and owl
    np.testing.assert_array_equal(data.train.examples_of(1)["x"], IMAGES[[0, 3]])
    assert data.train.examples_of(1)["y"].tolist() == [1, 1]
    (folder / "train/cat/2.png").unlink()
    os.mkfifo(folder / "train/cat/2.png")
    with pytest.raises(ValueError, match="it is a pipe or a device, not a regular file"):
        data.train.examples_of(0)


def test_texts(folder, tmp_path):
    data = hf(name=folder, x="text", length=3, words=2)
    begin, end = 4, 5  # of the 2 words good and film; 3 is any other
    expected = [[1, 1], [3, 2], [1, end], [3, end], [3, end]]
    assert data.train["x"].tolist() == [[begin, *ids] for ids in expected]
    assert (data.train["y"].tolist(), data.num_classes) == (LABELS, 4)
    path = tmp_path / "words"
    path.write_text("film\ngood\n")
    texts = {"train": columns(), "test": columns([0])}
    for part in texts.values():
        del part["label"]
    name = saved(tmp_path / "texts", texts["train"], texts["test"])
    following = hf(name=name, x="text", users="writer", vocabulary=path, length=3)
    assert following.train.examples_of(0)["x"].tolist() == [[begin, 3, 1], [begin, 3, end]]
    assert following.train.examples_of(0)["y"].tolist() == [[3, 1, end], [3, end, 0]]
    assert following.num_classes == 6
    assert hf(name=name, x="text", users="writer", length=9).num_classes == 90  # of characters
    with pytest.raises(ValueError, match="text is a text without labels or clients"):
        hf(name=name, x="text")


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_folders_of_files(tmp_path, form):
    kept = ("writer", "number", "text") + (("vector", "label") if form != "csv" else ())
    for name, rows in (("train", range(5)), ("test", [1, 3])):
        table = package.Dataset.from_dict({key: columns(rows)[key] for key in kept})
        getattr(table, f"to_{form}")(str(tmp_path / f"{name}.{form}"))
    if form == "csv":  # an empty text is no text in a CSV file
        with pytest.raises(ValueError, match="a text is missing"):
            hf(name=str(tmp_path), x="text", y="number")
        return
    data = hf(name=str(tmp_path), users="writer", x="vector")
    np.testing.assert_array_equal(data.train.examples_of(0)["x"], VECTORS[[1, 4]])
    assert data.train.examples_of(0)["y"].tolist() == [0, 0]


def test_code_of_a_data_set_is_not_run(here):
    folder = here / "script"
    folder.mkdir()
    (folder / "script.py").write_text(f"open({str(here / 'run')!r}, 'w')")
    for name in (str(folder), "script"):
        with pytest.raises(ValueError, match=r"hf .*script: not an? .*: "):
            hf(name=name)
    assert not (here / "run").exists()


def test_options_that_do_not_fit(folder):
    for options, message in (
        ({"x": "colour"}, r"no feature 'colour', only image, label, writer, .*; choose one"),
        ({"y": "colour"}, "no feature 'colour'"),
        ({"users": "colour"}, r"no column 'colour', only image"),
        ({"users": "grid"}, "grid is no column of texts or whole numbers"),
        ({"train_split": "all"}, "has no split 'all', only train, test"),
        ({"y": "text"}, r"labels is of type \|S14; give whole numbers"),
        ({"x": "vector", "image_size": 2}, "vector is no image; leave image_size and shorter_side"),
        ({"shorter_side": 2}, "give an image_size of at most shorter_side"),
        ({"x": "number"}, r"number has shape \[5\]; give"),
        ({"num_classes": 2}, "has label 2 in example 0; give whole numbers from 0 to 1"),
        ({"users": "writer", "x": "text", "vocabulary": "none.txt"}, "there is no such file"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            hf(name=folder, **options)
        assert str(error.value).isprintable()


BAD, FINE = ({"bytes": each, "path": None} for each in (b"\x89PNG\r\n", encoded(IMAGES[0])))


def test_damaged_columns(tmp_path):
    images = [{"image": each} for each in ([BAD] * 5, [FINE] * 4 + [BAD], [FINE] * 4 + [None])]
    labels = [{"label": each} for each in ([0, 1, None, 2, 0], [0, 1, 2, 2, -1])]
    vectors = {"x": "vector", "vector": [[1]] * 4 + [[1, 2]]}
    cases = (*images, *labels, vectors, {"x": "text", "text": [None] * 5})
    for number, changes in enumerate(cases):
        options = {"x": changes.pop("x", "image")}
        name = saved(tmp_path / f"{number}", columns(**changes))
        with refused(f"hf {name}, split train"):
            hf(name=name, **options)


@pytest.mark.usefixtures("bounded")
def test_missing_damaged_and_odd_folders(folder, tmp_path, monkeypatch):
    damages = (
        ("train/data-00000-of-00001.arrow", lambda content: content[: len(content) // 2]),
        ("train/data-00000-of-00001.arrow", lambda content: b""),
        ("train/dataset_info.json", lambda content: content[:-20]),
        ("train/state.json", lambda content: b"[]"),
        ("dataset_dict.json", lambda content: b'{"splits": ["train", "other"]}'),
    )
    for number, (part, damage) in enumerate(damages):
        copy = shutil.copytree(folder, tmp_path / str(number))
        (copy / part).write_bytes(damage((copy / part).read_bytes()))
        with refused(f"hf {copy}"):
            hf(name=str(copy))
    for name, message in (
        (str(tmp_path / "none"), "not an? .*: "),
        ("some/name", "not an? .*: "),
        (os.path.join(folder, "train"), "it has one split; give a folder"),
        (os.path.join(folder, "dataset_dict.json"), "it has one split; give a folder"),
    ):
        with pytest.raises(ValueError, match=message):
            hf(name=name)
    (tmp_path / "empty").mkdir()
    for name, rows in (("train", 2), ("test", 0)):
        table = package.Dataset.from_dict({"image": [1] * rows, "label": [0] * rows})
        table.to_parquet(str(tmp_path / "empty" / f"{name}.parquet"))
    with pytest.raises(ValueError, match=r"not .*corresponds to no data"):
        hf(name=str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="hf needs the package datasets; run: pip install datas"):
        hf(name="mnist")


def test_the_memory_of_all_images_is_computed(folder, monkeypatch):
    """There are 7 images of 6 * 4 * 3 bytes."""
    monkeypatch.setattr(files, "host_memory", lambda: 2 * 504)
    assert len(hf(name=folder).train["y"]) == 5
    monkeypatch.setattr(files, "host_memory", lambda: 2 * 503)
    with pytest.raises(ValueError, match="its examples would need 504 bytes, more than half"):
        hf(name=folder)
    assert hf(name=folder, users="writer").train.num_clients == 3
