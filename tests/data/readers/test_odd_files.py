"""Files of odd form are read as they mean, or refused with a fix that works when it is followed."""

import gzip
import io
import json

import data_forms as forms
import numpy as np
import pytest
from PIL import Image

from fedjax_algos.data import datasets

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 99, (8, 4)), np.array([0, 1, 2, 0, 1, 2, 0, 1])
TABLE = "a,b,where,class\n1,2.5,north,1\n-3,4e-1,south,0\n5,6,north,1\n7,8,south,0\n"
NUMBERS = np.float32([[1, 2.5], [-3, 0.4], [5, 6], [7, 8]])


def npz(folder, **changes):
    """The spec of a file with eight training and two test examples."""
    arrays = {"x_train": X, "y_train": Y, "x_test": X[:2] + 1, "y_test": Y[:2]}
    arrays = {name: array for name, array in (arrays | changes).items() if array is not None}
    np.savez(folder / "a.npz", **arrays)
    return f"npz:{folder / 'a.npz'}"


def csv(folder, text, options="", encoding="utf-8"):
    """The spec of a table, whose test is a file of its own, so that no row is drawn."""
    for name in ("a.csv", "test.csv"):
        (folder / name).write_bytes(text.encode(encoding))
    more = "drop=where" if "drop" not in options and "user" not in options else ""
    options = ",".join(filter(None, [options, more, f"test={folder / 'test.csv'}"]))
    return f"csv:path={folder / 'a.csv'},label=class,{options}"


def idx(folder, rename=str, pack=None, inner=""):
    """The spec of four IDX files with other names, packed if `pack`, or as their name says."""
    forms.idx(folder)
    for path in list(folder.iterdir()):
        name, content = rename(path.name), path.read_bytes()
        is_packed = name.endswith(".gz") if pack is None else pack
        path.unlink()
        (folder / inner).mkdir(exist_ok=True)
        (folder / inner / name).write_bytes(gzip.compress(content) if is_packed else content)
    return f"idx:{folder}"


def leaf(folder, **changes):
    """The spec of LEAF's JSON of two users with vectors."""
    users = {"u": {"x": [[1, 2], [3, 4]], "y": [0, 1]}, "v": {"x": [[5, 6.5]], "y": [2]}}
    for part in ("train", "test"):
        content = {"users": ["u", "v"], "num_samples": [2, 1], "user_data": users} | changes
        (folder / part).mkdir(exist_ok=True)
        (folder / part / "a.json").write_text(json.dumps(content))
    return f"leaf:path={folder},task=vectors"


def pictures(folder, image, **options):
    """The spec of a folder with one image of 8x8 pixels, which trains and tests."""
    (folder / "1.jpg").write_bytes(encoded(image, **options))
    for name in ("train.csv", "test.csv"):
        (folder / name).write_text("user_id,image_id,class\n7,1,0\n")
    return f"image_folder:{folder},image_size=8,shorter_side=8"


def encoded(image, **options):
    content = io.BytesIO()
    image.save(content, **({"format": "PNG"} | options))
    return content.getvalue()


TYPES = ["u1", "i1", "u2", "i2", "i4", "u4", "i8", "f2", "f4", "f8", ">i2", ">f4", ">i8"]
MODES = ["L", "RGB", "P", "1", "RGBA", "LA"]
PHOTO = Image.fromarray(RNG.integers(0, 256, (8, 8, 3), np.uint8))
PHOTOS = {f"png {mode}": (PHOTO.convert(mode), {}) for mode in MODES}
PHOTOS |= {f"jpeg {m}": (PHOTO.convert(m), {"format": "JPEG"}) for m in ("L", "RGB", "CMYK")}
PHOTOS["progressive jpeg"] = PHOTO, {"format": "JPEG", "progressive": True}
TABLES = {
    "commas": (TABLE, ""),
    "semicolons": (TABLE.replace(",", ";"), "separator=;"),
    "tabs": (TABLE.replace(",", "\t"), "separator=tab"),
    "Windows": ("\ufeff" + TABLE.replace("\n", "\r\n"), ""),
    "no last line break": (TABLE.rstrip(), ""),
    "quotes": (TABLE.replace("a,b", '"a","b"').replace("2.5", '"2.5"'), ""),
    "a comma in a name": (TABLE.replace("where", '"where, when"'), "drop=where\\, when"),
    "a line break in a text": (TABLE.replace("north", '"nor\nth"'), ""),
    "blanks": (TABLE.replace(",2.5", ", 2.5 "), ""),
    "another order": ("class,a,b,where\n1,1,2.5,n\n0,-3,.4,s\n1,5,6,n\n0,7,8,s\n", ""),
    "classes as texts": (TABLE.replace(",1\n", ",yes\n").replace(",0\n", ",no\n"), ""),
    "classes from 1": (TABLE.replace(",1\n", ",2\n").replace(",0\n", ",1\n"), ""),
    "classes with zeros": (TABLE.replace(",1\n", ",07\n").replace(",0\n", ",06\n"), ""),
}
IDX = {
    "dashes": {},
    "dots": {"rename": lambda name: name.replace("-idx", ".idx")},
    "packed": {"rename": lambda name: f"{name}.gz"},
    "packed dots": {"rename": lambda name: name.replace("-idx", ".idx") + ".gz"},
    "packed without the name": {"pack": True},
    "named as if packed": {"rename": lambda name: f"{name}.gz", "pack": False},
}
EMPTY = {"u": {"x": [[1, 2]], "y": [0]}, "v": {"x": [], "y": []}}
NOTES = {  # of what is read
    "labels from 1": (npz, {"y_train": Y + 1, "y_test": Y[:2] + 1}, "no example has the labels 0"),
    "labels with a gap": (npz, {"y_train": 2 * Y, "y_test": Y[:2] * 2}, "has the labels 1, 3 of 5"),
    "unseen labels": (npz, {"y_test": Y[:2] + 9}, "no training example has the labels"),
    "test is training": (npz, {"x_test": X, "y_test": Y}, "the test examples are the training"),
    "an empty user": (leaf, {"user_data": EMPTY}, "1 clients of train have no samples"),
    "a user too many": (leaf, {"users": ["u", "v", "w"]}, "users and user_data differ"),
    "other numbers": (leaf, {"num_samples": [2, 3]}, "num_samples and user_data differ"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_types_of_numbers(tmp_path, dtype):
    data = datasets.make(npz(tmp_path, x_train=X.astype(dtype), x_test=X[:2].astype(dtype)))
    np.testing.assert_array_equal(data.train["x"], X)
    assert data.train["x"].dtype == np.dtype(dtype).newbyteorder("=")


@pytest.mark.parametrize("dtype", ["u1", "i8", "f4"])
def test_types_of_labels(tmp_path, dtype):
    data = datasets.make(npz(tmp_path, y_train=Y.astype(dtype)))
    np.testing.assert_array_equal(data.train["y"], np.int32(Y), strict=True)


@pytest.mark.parametrize("form", IDX)
def test_names_and_packing_of_idx_files(tmp_path, form):
    data = datasets.make(idx(tmp_path, **IDX[form]))
    np.testing.assert_array_equal(data.train["x"], forms.PIXELS[:5], strict=True)


@pytest.mark.parametrize("form", TABLES)
def test_tables(tmp_path, form):
    data = datasets.make(csv(tmp_path, *TABLES[form]))
    np.testing.assert_array_equal(data.train["x"], NUMBERS, strict=True)
    assert (data.train["y"].tolist(), data.num_classes) == ([1, 0, 1, 0], 2)


def test_a_table_that_is_divided(tmp_path):
    """A share of the rows is the test, the same each time; the others standardise columns."""
    (tmp_path / "a.csv").write_text(
        "a,b,c,user,class\n"
        + "".join(f"{i},{i * i},.1,{'xyz'[i % 3]},{i % 2}\n" for i in range(20))
    )
    spec = f"csv:path={tmp_path / 'a.csv'},label=class,user=user,test_share=0.3"
    data, again = datasets.make(spec), datasets.make(f"{spec},standardise=true")
    both = np.concatenate([data.train["x"], data.test["x"]])
    assert sorted(both[:, 0].tolist()) == list(range(20))
    assert (len(data.test["x"]), data.num_classes) == (6, 2)
    np.testing.assert_array_equal(data.users, data.train["x"][:, 0] % 3)
    np.testing.assert_array_equal(data.test["y"], data.test["x"][:, 0] % 2)
    mean, deviation = data.train["x"].mean(0), data.train["x"].std(0)
    np.testing.assert_allclose(again.test["x"] * deviation + mean, data.test["x"], rtol=1e-4)
    np.testing.assert_allclose(again.test["x"][:, 2], 0, atol=1e-7)  # although its mean is rounded
    np.testing.assert_array_equal(again.test["y"], data.test["y"])


@pytest.mark.parametrize("form", PHOTOS)
def test_modes_of_images(tmp_path, form):
    image, options = PHOTOS[form]
    source = datasets.make(pictures(tmp_path, image, **options)).train
    with Image.open(io.BytesIO(encoded(image, **options))) as opened:
        expected = np.asarray(opened.convert("RGB"))
    np.testing.assert_array_equal(source.examples_of(0)["x"], expected[None])


@pytest.mark.parametrize("form", NOTES)
def test_what_is_odd_is_noted(tmp_path, form):
    write, changes, note = NOTES[form]
    assert note in "\n".join(datasets.make(write(tmp_path, **changes)).notes)


DEEP = Image.fromarray(RNG.integers(0, 65536, (8, 8)).astype(np.uint16))
ONE = {"x": [[1]], "y": [0]}
UNEQUAL = {"u": {"x": [[1, 2], [3]], "y": [0, 1]}}
TEXTS = np.array(["cat", "dog"])[Y % 2]
MEDMNIST = {"x_train": None, "y_train": None, "train_images": X, "train_labels": Y[:, None]}
REFUSED = {  # how it is written, what is said, and what is written if that is followed
    "MedMNIST": (lambda f: npz(f, **MEDMNIST), r"write it with np.savez\(FILE, x_train=...\)", npz),
    "labels in a column": (lambda f: npz(f, y_train=Y[:, None]), r"\[8\]$", npz),
    "one-hot labels": (lambda f: npz(f, y_train=np.eye(3)[Y]), r"\[8\]$", npz),
    "labels as texts": (
        lambda f: npz(f, y_train=TEXTS), "give whole numbers from 0",
        lambda f: npz(f, y_train=np.unique(TEXTS, return_inverse=True)[1]),
    ),
    "labels that are bools": (lambda f: npz(f, y_train=Y > 0), r"is bool\[8\] .*; give whole", npz),
    "negative labels": (lambda f: npz(f, y_train=Y - 1), "has label -1.*from 0", npz),
    "texts": (lambda f: npz(f, x_train=X.astype(str)), "give numbers", npz),
    "NaN": (lambda f: npz(f, x_train=X / X[:, :1] * 0 + np.nan), "nan.*clean", npz),
    "a folder above": (
        lambda f: idx(f, inner="raw"), "no train-images-idx3-ubyte but raw; give the folder that",
        lambda f: f"idx:{f / 'raw'}",
    ),
    "a column of texts": (
        lambda f: csv(f, TABLE, "drop=b"),
        "'north'; give numbers, .* with drop=where",
        lambda f: csv(f, TABLE, "drop=b;where"),
    ),
    "an empty cell": (
        lambda f: csv(f, TABLE.replace("2.5", "")), "line 2 does not", lambda f: csv(f, TABLE)
    ),
    "Latin-1": (
        lambda f: csv(f, TABLE.replace("north", "nörd"), encoding="latin-1"),
        "is not UTF-8; save it in UTF-8", lambda f: csv(f, TABLE.replace("north", "nörd")),
    ),
    "another separator": (
        lambda f: csv(f, TABLE.replace(",", ";")), "0 columns 'class' among a;b;where;class",
        lambda f: csv(f, TABLE.replace(",", ";"), "separator=;"),
    ),
    "classes alone": (
        lambda f: csv(f, "class\n1\n0\n", "drop=class"), "need at least one array to stack",
        lambda f: csv(f, TABLE),
    ),
    "whole numbers beyond a float32": (
        lambda f: csv(f, TABLE.replace("2.5", "16777217")), "b has 16777217, .* drop=b",
        lambda f: csv(f, TABLE.replace("2.5", "16777217"), "drop=b;where"),
    ),
    "lists of several lengths": (lambda f: leaf(f, user_data=UNEQUAL), "inhomogeneous", leaf),
    "other lengths": (lambda f: leaf(f, user_data=EMPTY | {"v": ONE}), "must match", leaf),
    "16 bits": (
        lambda f: pictures(f, DEEP), r"more than 8 bits .*np.asarray\(image\) // 257",
        lambda f: pictures(f, Image.fromarray(np.uint8(np.asarray(DEEP) // 257))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", REFUSED)
def test_the_fix_of_a_refusal_works(tmp_path, form):
    write, message, mended = REFUSED[form]

    def read(spec):
        data = datasets.make(spec)
        if hasattr(data.train, "examples_of"):
            data.train.examples_of(0)

    with pytest.raises(ValueError, match=message):
        read(write(tmp_path))
    read(mended(tmp_path))
