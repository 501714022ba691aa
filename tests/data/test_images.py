"""Decoding of images to one shape."""

import numpy as np
import pytest
from data_forms import image

from fedjax_algos.data.images import ImageFormat, decode_image

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)


def test_an_image_of_the_right_size_is_returned_as_it_is():
    assert (decode_image(image(PIXELS), ImageFormat(6, 8), "a") == PIXELS).all()
    grey = PIXELS[..., 0]
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
        (image(PIXELS), ImageFormat(8, 8), "6 x 8 pixels, not 8 x 8"),
        (image(PIXELS), ImageFormat(10, 10, 3, 9), "pixels, not 10 x 10"),
        (image(PIXELS)[:-30], ImageFormat(6, 8), "not a JPEG or PNG image"),
        (image(PIXELS, "JPEG")[:40], ImageFormat(6, 8), "not a JPEG or PNG image"),
    ):
        with pytest.raises(ValueError, match=f"^client 'ann', image 3: .*{named}"):
            decode_image(content, wanted, "client 'ann', image 3")
    monkeypatch.setattr("fedjax_algos.data.images.MAX_PIXELS", 47)  # before it is decoded
    with pytest.raises(ValueError, match="6 x 8 pixels, more than 47"):
        decode_image(image(PIXELS), ImageFormat(6, 8), "a")
