"""Decoding of images to one shape."""

import numpy as np
import pytest
from image_helpers import encoded

from fedjax_algos.data.images import ImageFormat, decode_image

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)


def test_an_image_of_the_right_size_is_returned_as_it_is():
    assert (decode_image(encoded(PIXELS), ImageFormat(6, 8), "a") == PIXELS).all()
    grey = PIXELS[..., 0]
    assert (decode_image(encoded(grey), ImageFormat(6, 8, 1), "a") == grey[..., None]).all()
    colours = decode_image(encoded(grey), ImageFormat(6, 8, 3), "a")
    assert (colours == grey[..., None]).all()


def test_an_image_is_scaled_to_the_shorter_side_and_its_middle_is_cut_out():
    flat = np.full((30, 90, 3), 7, np.uint8)
    flat[:, 40:50] = 200  # survives only if the cut is in the middle
    image = decode_image(encoded(flat), ImageFormat(10, 2, 3, shorter_side=10), "a")
    assert image.shape == (10, 2, 3)
    assert (image == 200).all()
    tall = decode_image(encoded(flat.transpose(1, 0, 2)), ImageFormat(2, 10, 3, 10), "a")
    assert (tall == 200).all()


def test_a_jpeg_is_close_to_the_picture_that_was_encoded():
    smooth = np.linspace(0, 255, 64 * 64).reshape(64, 64).astype(np.uint8)
    image = decode_image(encoded(smooth, "JPEG"), ImageFormat(16, 16, 1, 16), "a")
    expected = smooth.reshape(16, 4, 16, 4).mean((1, 3))
    assert np.abs(image[..., 0] - expected).max() < 6


@pytest.mark.parametrize(
    ("content", "image_format", "message"),
    [
        (encoded(PIXELS), ImageFormat(8, 8), "has 6 x 8 pixels, not 8 x 8"),
        (encoded(PIXELS), ImageFormat(10, 10, 3, 9), "pixels, not 10 x 10"),
        (encoded(PIXELS)[:-30], ImageFormat(6, 8), "not an? .*: "),
        (encoded(PIXELS, "JPEG")[:40], ImageFormat(6, 8), "not an? .*: "),
        (b"", ImageFormat(6, 8), "not an? .*: "),
    ],
)
def test_damaged_images_and_other_sizes_are_named(content, image_format, message, monkeypatch):
    with pytest.raises(ValueError, match=message) as error:
        decode_image(content, image_format, "folder: client 'ann', image 3")
    assert str(error.value).startswith("folder: client 'ann', image 3: ")
    monkeypatch.setattr("fedjax_algos.data.images.MAX_PIXELS", 47)  # before it is decoded
    with pytest.raises(ValueError, match="6 x 8 pixels, more than 47"):
        decode_image(encoded(PIXELS), ImageFormat(6, 8), "a")
