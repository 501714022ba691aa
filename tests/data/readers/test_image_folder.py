"""Images in a folder that tables divide over clients, as GLDv2 and iNaturalist have them."""

from unittest.mock import Mock

import numpy as np
import pytest
from data_forms import FORMS, SQUARES, TEST, TRAIN, image, refused, write
from data_forms import image_folder as write_folder

from fedjax_algos.data import datasets
from fedjax_algos.data.images import ImageFormat, decode_image
from fedjax_algos.data.readers import image_folder as image_files

FORM = FORMS["image_folder"]
PIXELS = [*SQUARES.values()]
FILES = [image(pixels) for pixels in PIXELS]
ORDERS = {"10 9 0": [2, 1, 0], "2 0 1": [2, 0, 1], "10 9 x": [0, 1, 2], "10 9 09": [1, 2, 0]}


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path)
    return tmp_path


def pixels_of(*ids):
    return np.stack([SQUARES[each] for each in ids])


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


@pytest.mark.parametrize(("names", "order"), ORDERS.items())
def test_classes_and_clients_are_numbered_in_ascending_order(folder, names, order):
    """Of names that are all whole numbers, as numbers."""
    names = names.split()
    lines = map(",".join, zip(names, ("b1", "a1", "b2"), names, strict=True))
    train = "\n".join(["user_id,image_id,class", *lines])
    write(folder, {"train.csv": train, "test.csv": f"image_id,class\nt1,{names[0]}\n"})
    data = FORM.read(folder)
    assert [names.index(name) for name in data.train.client_ids] == np.argsort(order).tolist()
    assert [data.train.examples_of(client)["y"] for client in order] == order
    assert data.test.examples_of(0)["y"].tolist() == [order[0]]
    assert data.num_classes == 3


def test_a_test_table_with_clients_and_images_of_both_tables(folder):
    write(folder, {"test.csv": "class,user_id,image_id\nant,cy,t2\ndog,ann,c1\n"})
    data = FORM.read(folder)
    assert data.test.client_ids == ["ann", "cy"]
    assert data.test.examples_of(0)["y"].tolist() == [3]
    assert data.notes == ("1 images are in the training and in the test file",)


def test_other_columns_quotes_and_line_ends(folder):
    text = '\ufeffkind,who,file,note\r\n"an, t",7,a1,""\r\n\r\ncat,7,b1,"a\nb"\r\n'
    write(folder, {"t.csv": text, "s.csv": "kind,file\ncat,t1"})
    columns = {"client_column": "who", "image_column": "file", "class_column": "kind"}
    data = FORM.read(folder, train="t.csv", test="s.csv", **columns)
    assert data.train.client_ids == ["7"]
    assert data.train.examples_of(0)["y"].tolist() == [0, 1]
    np.testing.assert_array_equal(data.train.examples_of(0)["x"], pixels_of("a1", "b1"))


def test_gldv2(tmp_path):
    """The landmarks' layout: the first three characters are folders."""
    ids = ("0a1f00", "0a1f01", "ffe2", "09z")
    write(tmp_path, {"/".join(each[:3]) + f"/{each}.jpg": FILES[n] for n, each in enumerate(ids)})
    train = f"user_id,image_id,class\n1000,{ids[0]},2\n52,{ids[1]},0\n52,{ids[2]},1\n"
    write(tmp_path, {"federated_train.csv": train, "test.csv": f"image_id,class\n{ids[3]},2\n"})
    data = datasets.make(f"gldv2:{tmp_path},image_size=8,shorter_side=8")
    assert data.train.client_ids == ["52", "1000"]
    assert data.train.examples_of(0)["y"].tolist() == [0, 1]
    np.testing.assert_array_equal(data.train.examples_of(1)["x"][0], PIXELS[0])
    np.testing.assert_array_equal(data.test.examples_of(0)["x"][0], PIXELS[3])


IMAGES = "train_val_images"
USERS = "user_id,image_id,class,label\n7,aa,0,4801\n7,b*,1,12\n11,cc,0,4801\n"
INAT = {
    "federated_train_user_120k.csv": USERS,
    "test.csv": "image_id,class,label\ndd,1,12\n",
    f"{IMAGES}/Aves/Corvus corax/aa.jpg": FILES[0],
    f"{IMAGES}/Plantae/[x]/b*.jpg": FILES[1],
    f"{IMAGES}/Plantae/[x]/cc.jpg": FILES[2],
    f"{IMAGES}/Plantae/Salix/dd.jpg": FILES[3],
}


def test_inaturalist(tmp_path, monkeypatch):
    """Folders of species, which the table does not name, are listed once, to read an image."""
    listed = Mock(wraps=image_files.glob.iglob)
    monkeypatch.setattr(image_files.glob, "iglob", listed)
    write(tmp_path, INAT)
    spec = f"inaturalist:{tmp_path},image_size=8,shorter_side=8"
    data = datasets.make(spec)
    listed.assert_not_called()
    assert data.train.client_ids == ["7", "11"]
    np.testing.assert_array_equal(data.train.examples_of(0)["x"], PIXELS[:2])
    np.testing.assert_array_equal(data.train.examples_of(1)["x"][0], PIXELS[2])
    np.testing.assert_array_equal(data.test.examples_of(0)["x"][0], PIXELS[3])
    listed.assert_called_once()
    (tmp_path / IMAGES / "Plantae/Salix/dd.jpg").unlink()
    with pytest.raises(ValueError, match=r"client 'part 0', .*/dd.jpg: there is no such file"):
        datasets.make(spec).test.examples_of(0)
    write(tmp_path, {f"{IMAGES}/Aves/Salix/cc.jpg": b""})
    with pytest.raises(ValueError, match="the image cc is there twice"):
        datasets.make(spec).train.examples_of(0)


def test_other_patterns(folder):
    """Names of folders are no patterns."""
    write(folder, {f"[a]b/x/{name}.jpg": image(pixels) for name, pixels in SQUARES.items()})
    data = FORM.read(folder, file="[a]b/*/{id}.jpg")
    np.testing.assert_array_equal(data.train.examples_of(0)["x"], pixels_of("a1"))
    wrong = "", "a.jpg", "/{id}.jpg", "../{id}.jpg", "*/{id[0]}/{id}.jpg", "*/{id}*", "a*/{id}"
    for pattern in wrong:
        with pytest.raises(ValueError, match="is not a path of an image"):
            FORM.read(folder, file=pattern)
    with pytest.raises(ValueError, match="shorter_side=4 is out of range; give at least image_s"):
        FORM.read(folder, shorter_side=4)
    with refused(folder, "'b1' is not an id of an image with file="):
        FORM.read(folder, file="{id[2]}/{id}.jpg")
    write(folder, {"train.csv": "user_id,image_id,class\na,..b,c\n"})
    with refused(folder, r"'\.\.b' is not an id of an image"):
        FORM.read(folder, file="{id[0]}{id[1]}/{id}.jpg")


def test_images_without_clients_are_read_in_parts(folder, monkeypatch):
    """A large test set is never in the memory as a whole."""
    monkeypatch.setattr(image_files, "PART", 2)
    write(folder, {"test.csv": "image_id,class\nt1,ant\nb1,ant\nb2,ant\nb3,ant\nt2,ant"})
    data = FORM.read(folder)
    assert data.test.client_ids == ["part 0", "part 1", "part 2"]
    assert data.test.counts.tolist() == [2, 2, 1]
    np.testing.assert_array_equal(data.test.examples_of(1)["x"], pixels_of("b2", "b3"))


def test_the_identity_is_that_of_the_table_and_of_the_options(folder):
    def identity(**options):
        return FORM.read(folder, **options).train.identity

    first, others = identity(), {identity(image_size=4)}
    others |= {identity(shorter_side=9), identity(file="{id}.png")}
    write(folder, {"test.csv": TEST.replace("dog", "ape")})  # which changes the numbers of classes
    others.add(identity())
    write(folder, {"test.csv": TEST, "train.csv": TRAIN.replace("b3,bee", "b3,cat")})
    assert len(others | {first, identity()}) == 6


OF_ONE = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)


def test_an_image_of_the_right_size_is_returned_as_it_is():
    assert (decode_image(image(OF_ONE), ImageFormat(6, 8), "a") == OF_ONE).all()
    grey = OF_ONE[..., 0]
    for channels in (1, 3):
        assert (decode_image(image(grey), ImageFormat(6, 8, channels), "a").T == grey.T).all()


def test_an_image_is_scaled_to_the_shorter_side_and_its_middle_is_cut_out():
    flat = np.full((30, 90, 3), 7, np.uint8)
    flat[:, 40:50] = 200  # survives only if the cut is in the middle
    pixels = decode_image(image(flat), ImageFormat(10, 2, 3, shorter_side=10), "a")
    assert pixels.shape == (10, 2, 3)
    assert (pixels == 200).all()
    assert (decode_image(image(flat.swapaxes(0, 1)), ImageFormat(2, 10, 3, 10), "a") == 200).all()
    smooth = np.linspace(0, 255, 64 * 64).reshape(64, 64).astype(np.uint8)
    pixels = decode_image(image(smooth, "JPEG"), ImageFormat(16, 16, 1, 16), "a")
    assert np.abs(pixels[..., 0] - smooth.reshape(16, 4, 16, 4).mean((1, 3))).max() < 6


def test_damaged_images_and_other_sizes_are_named(monkeypatch):
    for content, wanted, named in (
        (image(OF_ONE), ImageFormat(8, 8), "6 x 8 pixels, not 8 x 8"),
        (image(OF_ONE), ImageFormat(10, 10, 3, 9), "pixels, not 10 x 10"),
        (image(OF_ONE)[:-30], ImageFormat(6, 8), "not a JPEG or PNG image"),
        (image(OF_ONE, "JPEG")[:40], ImageFormat(6, 8), "not a JPEG or PNG image"),
    ):
        with pytest.raises(ValueError, match=f"^client 'ann', image 3: .*{named}"):
            decode_image(content, wanted, "client 'ann', image 3")
    monkeypatch.setattr("fedjax_algos.data.images.MAX_PIXELS", 47)  # before it is decoded
    with pytest.raises(ValueError, match="6 x 8 pixels, more than 47"):
        decode_image(image(OF_ONE), ImageFormat(6, 8), "a")
