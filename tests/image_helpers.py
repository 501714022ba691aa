"""Image files that tests make."""

import io

from PIL import Image


def encoded(pixels, kind="PNG", **options):
    """The content of a file of uint8 pixels."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind, **options)
    return content.getvalue()
