"""FLamby's Fed-ISIC2019, on a few images in its layout."""

import io

import numpy as np
import pytest
from bad_input_helpers import refused
from image_helpers import encoded
from PIL import Image

from fedjax_algos.data import datasets
from fedjax_algos.data.readers.flamby import fed_isic2019

HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"
# (image, class, centre, fold); as in FLamby's file, in no order
ROWS = [
    ("ISIC_0065613", 1, 0, "train"),
    ("ISIC_0032511", 0, 2, "train"),
    ("ISIC_0063710", 2, 0, "test"),
    ("ISIC_0012669_downsampled", 7, 4, "train"),
    ("ISIC_0058767", 2, 0, "train"),
    ("ISIC_0032885", 1, 2, "test"),
]


def line(image, target, centre, fold):
    one_hot = ",".join(str(float(target == c)) for c in range(9))
    return f"{image},{one_hot},{target},{centre},{fold},{fold}_{centre}"


def write_split(folder, lines, header=HEADER):
    (folder / "train_test_split").write_text("\n".join([header, *lines]) + "\n")
    return folder


def pixels(number, shape=(224, 298, 3)):
    """What a JPEG file decodes to."""
    smooth = np.linspace(0, 200, shape[1])[None, :, None] + np.zeros(shape) + 5 * number
    content = encoded(smooth.astype(np.uint8), "JPEG", quality=95)
    return content, np.asarray(Image.open(io.BytesIO(content)))


@pytest.fixture
def folder(tmp_path):
    images = tmp_path / "ISIC_2019_Training_Input_preprocessed"
    images.mkdir()
    for number, (name, *_) in enumerate(ROWS):
        (images / f"{name}.jpg").write_bytes(pixels(number)[0])
    return write_split(tmp_path, [line(*row) for row in ROWS])


def middle(number):
    """What albumentations' CenterCrop(200, 200) keeps of 224 x 298 pixels."""
    return pixels(number)[1][12:212, 49:249]


def test_centres_are_clients_and_images_are_cut(folder):
    data = datasets.make(f"fed_isic2019:{folder}")
    assert data.train.client_ids == ["0", "2", "4"]
    assert data.test.client_ids == ["0", "2"]
    assert (data.num_classes, data.example_shape, data.notes) == (8, (200, 200, 3), ())
    examples = data.train.examples_of(0)
    np.testing.assert_array_equal(examples["x"], [middle(0), middle(4)])
    assert examples["y"].tolist() == [1, 2]
    np.testing.assert_array_equal(data.test.examples_of(1)["x"], [middle(5)])
    assert data.test.examples_of(0)["y"].tolist() == [2]


def test_damaged_splits_are_refused(tmp_path):
    for lines in (
        [line("a", 8, 0, "train")],
        [line("a", 0, 0, "train"), line("b", 0, 6, "test")],
        [line("a", "1.0", 0, "train")],
        [line("a", 0, 1, "valid")],
        [line("a", 0, 1, "train")[:-1] + "2"],
        [line("a", 0, 1, "train"), line("a", 0, 1, "test")],
        [line("a", 0, 1, "train")],
        [line("a", 0, 1, "train")[:-9]],
        [line("../a", 0, 1, "train"), line("b", 0, 1, "test")],
    ):
        with refused(tmp_path):
            fed_isic2019(path=write_split(tmp_path, lines))


def test_missing_columns_and_images(folder):
    images = folder / "ISIC_2019_Training_Input_preprocessed"
    (images / "ISIC_0058767.jpg").unlink()
    (images / "ISIC_0032511.jpg").write_bytes(pixels(1, (224, 190, 3))[0])  # it is scaled
    (images / "ISIC_0012669_downsampled.jpg").write_bytes(b"\xff\xd8\xff")
    data = fed_isic2019(path=folder)
    with pytest.raises(ValueError, match=r"client '0', .*/ISIC_0058767.jpg: there is no such file"):
        data.train.examples_of(0)
    assert data.train.examples_of(1)["x"].shape == (1, 200, 200, 3)
    with pytest.raises(ValueError, match=r"client '4', .*/ISIC_0012669_downsampled.jpg: not a"):
        data.train.examples_of(2)
    write_split(folder, [], HEADER.replace(",fold2", ""))
    with pytest.raises(ValueError, match="it has no column 'fold2'"):
        fed_isic2019(path=folder)
    with pytest.raises(ValueError, match="shorter_side=100 is out of range; give at least"):
        fed_isic2019(path=folder, shorter_side=100)
