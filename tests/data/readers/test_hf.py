"""Data sets of Hugging Face: small ones in files of their forms, without a network."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from data_forms import FORMS, HF, RNG, SMALL, hf, hf_tables, image, refused, write

from fedjax_algos.data import datasets

package = pytest.importorskip("datasets", reason="datasets, an optional package, is not installed")
FORM = FORMS["hf"]
LABELS = HF["label"][:5]


def test_images_and_numbers_in_memory(tmp_path):
    hf(tmp_path)
    data = datasets.make(f"hf:{tmp_path / 'set'}")
    np.testing.assert_array_equal(data.train["x"], SMALL[:5])
    np.testing.assert_array_equal(data.test["x"], SMALL[5:])
    assert (data.train["y"].tolist(), data.test["y"].tolist()) == (LABELS, [0, 2])
    assert (data.num_classes, data.users, data.train["y"].dtype) == (4, None, np.int32)
    vectors, grids = FORM.read(tmp_path, x="vector"), FORM.read(tmp_path, x="grid", y="number")
    np.testing.assert_array_equal(vectors.train["x"], HF["vector"][:5])
    assert vectors.train["x"].dtype == np.uint8
    np.testing.assert_array_equal(grids.train["x"], HF["grid"][:5])
    assert (grids.num_classes, grids.train["y"].tolist()) == (11, [10, 10, 9, 9, 8])
    texts, again = FORM.read(tmp_path, y="writer"), FORM.read(tmp_path, test_split="train")
    assert (texts.num_classes, texts.train["y"].tolist()) == (3, [1, 0, 1, 2, 0])  # b, a, b, c, a
    assert again.notes == ("the test examples are the training examples",)


def test_natural_clients(tmp_path):
    hf(tmp_path)
    data = FORM.read(tmp_path, users="writer")
    assert list(data.train.client_ids) == ["a", "b", "c"]
    assert data.train.counts.tolist() == [2, 2, 1]
    assert list(data.test.client_ids) == ["a", "c"]
    with ThreadPoolExecutor(3) as pool:
        parts = list(pool.map(data.train.examples_of, range(3)))
    for part, rows in zip(parts, ([1, 4], [0, 2], [3]), strict=True):
        np.testing.assert_array_equal(part["x"], SMALL[rows])
        assert part["y"].tolist() == [LABELS[i] for i in rows]
    assert all(isinstance(file, bytes) for file in data.train.read(0)["x"])
    numbered = FORM.read(tmp_path, users="number", x="vector")
    assert list(numbered.train.client_ids) == ["8", "9", "10"]
    assert numbered.train.counts.tolist() == [1, 2, 2]
    again = FORM.read(tmp_path, users="writer")
    assert numbered.train.identity != data.train.identity == again.train.identity
    _, tables = hf_tables()
    tables["test"] = tables["test"].remove_columns("writer")
    package.DatasetDict(tables).save_to_disk(tmp_path / "one")
    data = FORM.read(tmp_path, name=str(tmp_path / "one"), users="writer")
    assert (list(data.test.client_ids), data.test.counts.tolist()) == (["all"], [2])


@pytest.mark.all
def test_sizes_of_images(tmp_path):
    """The middle 2 x 2 of images whose shorter side is 4 already."""
    longer = {"bytes": image(RNG.integers(0, 256, (9, 4, 3), np.uint8)), "path": None}
    hf(tmp_path, image=[longer if i == 2 else each for i, each in enumerate(HF["image"])])
    data = FORM.read(tmp_path, image_size=2, shorter_side=4)
    np.testing.assert_array_equal(data.train["x"][0], SMALL[0, 2:4, 1:3])
    with refused(tmp_path, "it has 9 x 4 pixels, not 6 x 4"):
        FORM.read(tmp_path)
    hf(tmp_path, image=[{"bytes": image(each[:, :, 0]), "path": None} for each in SMALL])
    np.testing.assert_array_equal(FORM.read(tmp_path).train["x"], SMALL[:5, ..., :1])


@pytest.mark.all
def test_images_in_files_of_their_own(tmp_path):
    """A folder for each class, of which the package makes columns."""
    for part, rows in (("train", range(5)), ("test", [5, 6])):
        names = {i: f"set/{part}/{('owl', 'cat', 'dog')[HF['label'][i]]}/{i}.png" for i in rows}
        write(tmp_path, {name: image(SMALL[i]) for i, name in names.items()})
    data = FORM.read(tmp_path, users="label")
    assert data.train.counts.tolist() == [1, 2, 2]  # cat, dog and owl
    np.testing.assert_array_equal(data.train.examples_of(1)["x"], SMALL[[0, 3]])
    assert data.train.examples_of(1)["y"].tolist() == [1, 1]


@pytest.mark.all
def test_texts(tmp_path):
    hf(tmp_path)
    data = FORM.read(tmp_path, x="text", length=3, words=2)
    begin, end = 4, 5  # of the 2 words good and film; 3 is any other
    expected = [[1, 1], [3, 2], [1, end], [3, end], [3, end]]
    assert data.train["x"].tolist() == [[begin, *ids] for ids in expected]
    assert (data.train["y"].tolist(), data.num_classes) == (LABELS, 4)
    path = tmp_path / "words"
    path.write_text("film\ngood\n")
    hf(tmp_path, without=["label"])
    following = FORM.read(tmp_path, x="text", users="writer", vocabulary=path, length=3)
    assert following.train.examples_of(0)["x"].tolist() == [[begin, 3, 1], [begin, 3, end]]
    assert following.train.examples_of(0)["y"].tolist() == [[3, 1, end], [3, end, 0]]
    assert following.num_classes == 6
    with refused(tmp_path, r"y_train is int32\[5, 80\] for 5 examples"):
        FORM.read(tmp_path, x="text")


def test_code_of_a_data_set_is_not_run(here):
    hf_tables()  # without a network
    write(here, {"set/set.py": f"open({str(here / 'run')!r}, 'w')"})
    for name in (str(here / "set"), "set"):
        with pytest.raises(ValueError, match=r"hf .*set: not a data set"):
            FORM.read(here, name=name)
    assert not (here / "run").exists()


@pytest.mark.all
def test_options_that_do_not_fit(tmp_path):
    hf(tmp_path)
    for options, named in (
        ({"x": "colour"}, "no feature 'colour', only image, label, writer, "),
        ({"users": "colour"}, r"Columns \['colour'\] not in the dataset"),
        ({"users": "grid"}, "grid is not a column of texts or whole numbers"),
        ({"train_split": "all"}, "no split 'all', only train, test"),
        ({"x": "vector", "image_size": 2}, "image_size=2 .*x=vector"),
        ({"shorter_side": 2}, "shorter_side=2"),
        ({"x": "number"}, r"number is int32\[5\]"),
    ):
        with refused(tmp_path, named):
            FORM.read(tmp_path, **options)
