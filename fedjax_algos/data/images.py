"""Decodes images into arrays of one shape."""

import io
from typing import Any, NamedTuple

import numpy as np

from fedjax_algos.base.errors import require
from fedjax_algos.base.files import reading
from fedjax_algos.core.options import Count

MAX_PIXELS = 2**27  # larger images are treated as errors


class ImageFormat(NamedTuple):
    """The format of decoded images: uint8[height, width, channels].

    An image is scaled so that its shorter side has `shorter_side` pixels (bilinear, with
    antialiasing), then cropped to the middle height x width, as usual for ImageNet.

    Attributes:
      height, width: rows and columns of the result, in pixels.
      channels: 3 for RGB, 1 for grey; other colours are converted.
      shorter_side: pixels, at least the smaller of `height` and `width`. None if all images must
        already have the size of the result.
    """

    height: Count
    width: Count
    channels: Count = 3
    shorter_side: Count | None = None


def square(image_size: int, shorter_side: int) -> ImageFormat:
    """Returns the format of an RGB image's middle square; ValueError unless it fits inside."""
    fix = f"give at least image_size={image_size}"
    require(shorter_side >= image_size, f"shorter_side={shorter_side} is out of range; {fix}")
    return ImageFormat(image_size, image_size, 3, shorter_side)


def decode_image(content: bytes, image_format: ImageFormat, name: str) -> np.ndarray:
    """Decodes a JPEG or PNG file to uint8[height, width, channels]; FileError for other files."""
    from PIL import Image

    height, width, channels, shorter = image_format
    mode = "RGB" if channels == 3 else "L"
    errors = (SyntaxError, Image.DecompressionBombError)
    with reading(name, "a JPEG or PNG image", "fetch the file again", *errors):
        file = open_image(content, "JPEG", "PNG")
        if shorter is not None:  # JPEG can be decoded at a smaller size
            file.draft(mode, (shorter, shorter))
        found = f"its pixels have more than 8 bits ({file.mode}), which would be clipped"
        fix = "scale them to 8 bits first, as with np.uint8(np.asarray(image) // 257)"
        require(not file.mode.startswith(("I", "F")), f"{found}; {fix}")
        image = file.convert(mode)
        if shorter is not None:
            scale = shorter / min(image.size)
            columns, rows = (max(shorter, round(side * scale)) for side in image.size)
            image = image.resize((columns, rows), Image.Resampling.BILINEAR)
        down, right = image.height - height, image.width - width  # pixels that are cut off
        fits = min(down, right) >= 0 and (shorter is not None or down == right == 0)
        found = f"it has {image.height} x {image.width} pixels, not {height} x {width}"
        require(fits, f"{found}; choose other sizes")
        pixels = np.asarray(image, np.uint8)[down // 2 :, right // 2 :][:height, :width]
        return pixels.reshape(height, width, channels)


def open_image(content: bytes, *formats: str) -> Any:
    """Opens an image with PIL, reading only its header; ValueError above `MAX_PIXELS`."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(content), formats=formats)
    except UnidentifiedImageError as error:  # whose message has an address in memory
        raise ValueError("its content cannot be identified") from error
    message = f"it has {image.height} x {image.width} pixels, more than {MAX_PIXELS}"
    require(image.width * image.height <= MAX_PIXELS, message)
    return image
