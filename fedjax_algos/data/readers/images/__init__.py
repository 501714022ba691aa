"""Readers of folders of images, which tables divide over clients."""

from fedjax_algos.data.readers.images import image_files, image_folder

__all__ = ["image_files", "image_folder"]
