"""Images in a folder that tables divide over clients, as GLDv2 and iNaturalist have them."""

import os

import numpy as np
import pytest
from bad_input_helpers import refused
from image_helpers import encoded

from fedjax_algos.core import files
from fedjax_algos.data import datasets, open_federated, pack
from fedjax_algos.data.readers import image_folder as image_files
from fedjax_algos.data.readers.image_folder import gldv2, image_folder, inaturalist


def picture(seed, kind="PNG", shape=(8, 8, 3)):
    """The content of a file, and the pixels that it was made of."""
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    return encoded(pixels, kind), pixels


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


TRAIN = "user_id,image_id,class\nbo,b1,cat\nann,a1,ant\nbo,b2,ant\ncy,c1,dog\nbo,b3,bee\n"
TEST = "image_id,class\nt1,dog\nt2,ant\n"
IDS = ("b1", "a1", "b2", "c1", "b3", "t1", "t2")
SMALL = {"image_size": 8, "shorter_side": 8}


@pytest.fixture
def folder(tmp_path):
    images = {f"{each}.jpg": picture(number)[0] for number, each in enumerate(IDS)}
    return write(tmp_path, {"train.csv": TRAIN, "test.csv": TEST, **images})


def pixels_of(*ids):
    return np.stack([picture(IDS.index(each))[1] for each in ids])


def test_clients_have_their_images_in_the_order_of_the_table(folder):
    data = datasets.make(f"image_folder:{folder},image_size=8,shorter_side=8")
    assert data.train.client_ids == ["ann", "bo", "cy"]
    assert data.train.counts.tolist() == [1, 3, 1]
    assert (data.num_classes, data.example_shape, data.notes) == (4, (8, 8, 3), ())
    examples = data.train.examples_of(1)
    np.testing.assert_array_equal(examples["x"], pixels_of("b1", "b2", "b3"))
    assert examples["y"].tolist() == [2, 0, 1]  # ant, bee, cat, dog
    assert (examples["x"].dtype, examples["y"].dtype) == (np.uint8, np.int32)
    assert data.test.client_ids == ["part 0"]
    test = data.test.examples_of(0)
    np.testing.assert_array_equal(test["x"], pixels_of("t1", "t2"))
    assert test["y"].tolist() == [3, 0]
    pack(data, folder / "packed")
    stored = open_federated(folder / "packed")
    assert stored.client_ids == ["ann", "bo", "cy"]
    np.testing.assert_array_equal(stored.load()["x"], pixels_of("a1", "b1", "b2", "b3", "c1"))
    np.testing.assert_array_equal(open_federated(folder / "packed", "test").load()["y"], [3, 0])


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (("10", "9", "0"), [2, 1, 0]),  # numbers, of which some are missing
        (("2", "0", "1"), [2, 0, 1]),  # 0 to K - 1 stay as they are
        (("10", "9", "x"), [0, 1, 2]),
        (("10", "9", "09"), [1, 2, 0]),
    ],
)
def test_classes_and_clients_are_numbered_in_ascending_order(folder, names, order):
    """Of names that are all whole numbers, as numbers."""
    rows = zip(names, ("b1", "a1", "b2"), names, strict=True)
    lines = [",".join(row) for row in rows]
    write(folder, {"train.csv": "\n".join(["user_id,image_id,class", *lines])})
    write(folder, {"test.csv": f"image_id,class\nt1,{names[0]}\n"})
    data = image_folder(path=folder, **SMALL)
    assert [names.index(name) for name in data.train.client_ids] == np.argsort(order).tolist()
    labels = [int(data.train.examples_of(client)["y"][0]) for client in order]
    assert labels == order
    assert data.test.examples_of(0)["y"].tolist() == [order[0]]
    assert data.num_classes == 3


def test_clients_with_few_examples_are_left_out_and_counted(folder):
    data = image_folder(path=folder, min_examples=2, **SMALL)
    assert data.train.client_ids == ["bo"]
    assert data.num_classes == 4  # the classes do not depend on it
    np.testing.assert_array_equal(data.train.examples_of(0)["x"], pixels_of("b1", "b2", "b3"))
    left_out = "2 of 3 clients have fewer than 2 examples and are left out, with 2 of 5 examples"
    assert data.notes == (left_out,)
    with pytest.raises(ValueError, match="no client has min_examples=4, but at most 3"):
        image_folder(path=folder, min_examples=4, **SMALL)


def test_a_test_table_with_clients_and_images_of_both_tables(folder):
    write(folder, {"test.csv": "class,user_id,image_id\nant,cy,t2\ndog,ann,c1\n"})
    data = image_folder(path=folder, **SMALL)
    assert data.test.client_ids == ["ann", "cy"]
    assert data.test.examples_of(0)["y"].tolist() == [3]
    assert data.notes == ("1 images are in the training and in the test file",)


def test_other_columns_quotes_and_line_ends(folder):
    text = '\ufeffkind,who,file,note\r\n"an, t",7,a1,""\r\n\r\ncat,7,b1,"a\nb"\r\n'
    write(folder, {"t.csv": text, "s.csv": "kind,file\ncat,t1"})
    columns = {"client_column": "who", "image_column": "file", "class_column": "kind"}
    data = image_folder(path=folder, train="t.csv", test="s.csv", **columns, **SMALL)
    assert data.train.client_ids == ["7"]
    assert data.train.examples_of(0)["y"].tolist() == [0, 1]
    np.testing.assert_array_equal(data.train.examples_of(0)["x"], pixels_of("a1", "b1"))


def test_gldv2(tmp_path):
    """The landmarks' layout: the first three characters are folders."""
    ids = ("0a1f00", "0a1f01", "ffe2", "09z")
    files = {"/".join(each[:3]) + f"/{each}.jpg": picture(n)[0] for n, each in enumerate(ids)}
    train = f"user_id,image_id,class\n1000,{ids[0]},2\n52,{ids[1]},0\n52,{ids[2]},1\n"
    write(tmp_path, {"federated_train.csv": train, "test.csv": f"image_id,class\n{ids[3]},2\n"})
    data = gldv2(path=write(tmp_path, files), **SMALL)
    assert data.train.client_ids == ["52", "1000"]
    assert data.train.examples_of(0)["y"].tolist() == [0, 1]
    np.testing.assert_array_equal(data.train.examples_of(1)["x"][0], picture(0)[1])
    np.testing.assert_array_equal(data.test.examples_of(0)["x"][0], picture(3)[1])


INAT = {
    "federated_train_user_120k.csv": (
        "user_id,image_id,class,label\n7,aa,0,4801\n7,b*,1,12\n11,cc,0,4801\n"
    ),
    "test.csv": "image_id,class,label\ndd,1,12\n",
    "train_val_images/Aves/Corvus corax/aa.jpg": picture(0)[0],
    "train_val_images/Aves/Corvus corax/other.jpg": b"",
    "train_val_images/Plantae/[x]/b*.jpg": picture(1)[0],
    "train_val_images/Plantae/[x]/cc.jpg": picture(2)[0],
    "train_val_images/Plantae/Salix/dd.jpg": picture(3)[0],
}


def test_inaturalist(tmp_path, monkeypatch):
    """An image is in the folder of its species, which the table does not name.

    Folders are listed once, and only when an image is read.
    """
    listed, iglob = [], image_files.glob.iglob
    monkeypatch.setattr(
        image_files.glob, "iglob", lambda *a, **k: listed.append(a) or iglob(*a, **k)
    )
    data = inaturalist(path=write(tmp_path, INAT), **SMALL)
    assert listed == []
    assert data.train.client_ids == ["7", "11"]
    expected = np.stack([picture(0)[1], picture(1)[1]])
    np.testing.assert_array_equal(data.train.examples_of(0)["x"], expected)
    np.testing.assert_array_equal(data.train.examples_of(1)["x"][0], picture(2)[1])
    np.testing.assert_array_equal(data.test.examples_of(0)["x"][0], picture(3)[1])
    assert len(listed) == 1
    (tmp_path / "train_val_images/Plantae/[x]/b*.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"'7', train_val_images/Plantae/\[x\]/b\*.jpg: not "):
        data.train.examples_of(0)
    (tmp_path / "train_val_images/Plantae/Salix/dd.jpg").unlink()
    data = inaturalist(path=tmp_path, **SMALL)
    with pytest.raises(ValueError, match=r"client 'part 0', .*/dd.jpg: there is no such file"):
        data.test.examples_of(0)
    write(tmp_path, {"train_val_images/Aves/Salix/cc.jpg": b""})
    with pytest.raises(ValueError, match=r"the image cc is there twice, as .*; remove one"):
        inaturalist(path=tmp_path, **SMALL).train.examples_of(0)


def test_other_patterns(folder):
    """Names of folders are no patterns."""
    write(folder, {f"[a]b/x/{each}.jpg": picture(n)[0] for n, each in enumerate(IDS)})
    data = image_folder(path=folder, file="[a]b/*/{id}.jpg", **SMALL)
    np.testing.assert_array_equal(data.train.examples_of(0)["x"], pixels_of("a1"))
    patterns = "", "a.jpg", "/{id}.jpg", "../{id}.jpg", "*/{id[0]}/{id}.jpg", "*/{id}*", "a*/{id}"
    for pattern in patterns:
        with pytest.raises(ValueError, match=r"is no path of an image; give one such as \{id\}"):
            image_folder(path=folder, file=pattern, **SMALL)
    with pytest.raises(ValueError, match="'b1' is no id of an image with file="):
        image_folder(path=folder, file="{id[2]}/{id}.jpg", **SMALL)
    write(folder, {"train.csv": "user_id,image_id,class\na,..b,c\n"})
    with pytest.raises(ValueError, match="is no id of an image"):
        image_folder(path=folder, file="{id[0]}{id[1]}/{id}.jpg", **SMALL)
    with pytest.raises(ValueError, match="shorter_side=4 is out of range; give at least image_si"):
        image_folder(path=folder, image_size=8, shorter_side=4)
    with pytest.raises(ValueError, match=r"none.csv: there is no such file; check the path"):
        image_folder(path=folder, train="none.csv")


def test_images_without_clients_are_read_in_parts(folder, monkeypatch):
    """A large test set is never in the memory as a whole, and a repeated image is found."""
    monkeypatch.setattr(image_files, "PART", 2)
    rows = [(each, "ant") for each in ("t1", "b1", "b2", "b3", "t2")]
    test = "\n".join(["image_id,class", *map(",".join, rows)])
    data = image_folder(path=write(folder, {"test.csv": test}), **SMALL)
    assert data.test.client_ids == ["part 0", "part 1", "part 2"]
    assert data.test.counts.tolist() == [2, 2, 1]
    np.testing.assert_array_equal(data.test.examples_of(1)["x"], pixels_of("b2", "b3"))
    write(folder, {"test.csv": test + "\nt1,ant"})
    with pytest.raises(ValueError, match=r"test.csv: .*it has the image 't1' twice; remove a row"):
        image_folder(path=folder, **SMALL)


def test_the_identity_is_that_of_the_table_and_of_the_options(folder):
    def identity(**options):
        return image_folder(path=folder, **(SMALL | options)).train.identity

    first = identity()
    assert identity() == first
    others = {identity(min_examples=2), identity(image_size=4), identity(shorter_side=9)}
    others.add(identity(file="{id}.png"))
    write(folder, {"test.csv": TEST.replace("dog", "ape")})  # which changes the numbers of classes
    others.add(identity())
    write(folder, {"test.csv": TEST, "train.csv": TRAIN.replace("b3,bee", "b3,cat")})
    assert len(others | {first, identity()}) == 7


def test_damaged_tables_are_refused(folder):
    for name, content in (
        ("train.csv", ""),
        ("train.csv", "user_id,class\nann,ant\n"),
        ("test.csv", "image_id\nt1\n"),
        ("train.csv", TRAIN + "bo,b4\n"),
        ("train.csv", TRAIN + "bo,,ant\n"),
        ("train.csv", TRAIN + "bo,b1,ant\n"),
        ("test.csv", TEST + "t1,dog\n"),
        ("train.csv", "user_id,image_id,class\n"),
        ("train.csv", "class," + TRAIN.replace("\n", ",c\n")),
        ("train.csv", TRAIN.encode("utf-16")),
        ("train.csv", TRAIN + 'bo,"b4,ant\n'),
        ("train.csv", TRAIN + "bo,../a1,ant\n"),
        ("train.csv", TRAIN + "bo,/etc/a,ant\n"),
        ("train.csv", TRAIN + "bo,a\0b,ant\n"),
    ):
        write(folder, {"train.csv": TRAIN, "test.csv": TEST, name: content})
        with refused(folder):
            image_folder(path=folder, **SMALL)


def test_missing_and_damaged_images_are_found_when_they_are_read(folder, monkeypatch):
    cut = picture(2)[0][:-40], picture(2, "JPEG", (64, 64, 3))[0][:900]
    data = image_folder(path=folder, **SMALL)
    for content in (b"", b"no image at all", picture(2, "GIF")[0], *cut, None):
        (folder / "b2.jpg").unlink()
        if content is not None:
            write(folder, {"b2.jpg": content})
        np.testing.assert_array_equal(data.train.examples_of(0)["x"], pixels_of("a1"))
        with refused(folder):
            data.train.examples_of(1)
    monkeypatch.setattr(image_files, "MAX_IMAGE_BYTES", 100)
    data = image_folder(path=folder, **SMALL)
    with pytest.raises(ValueError, match=r"client 'ann', a1.jpg: .*it has more than 100 bytes"):
        data.train.examples_of(0)
    (folder / "a1.jpg").unlink()
    os.mkfifo(folder / "a1.jpg")
    with pytest.raises(ValueError, match="it is a pipe or a device, not a regular file"):
        data.train.examples_of(0)
    (folder / "c1.jpg").unlink()
    (folder / "c1.jpg").mkdir()
    with pytest.raises(ValueError, match=r"client 'cy', c1.jpg: cannot be read: Is a directory"):
        data.train.examples_of(2)
    monkeypatch.setattr(files, "max_text_bytes", lambda: 50)
    with pytest.raises(ValueError, match=r"train.csv: .*it has more than 50 bytes"):
        image_folder(path=folder, **SMALL)
