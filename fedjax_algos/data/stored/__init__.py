"""Populations in files: read client by client, packed into one folder, and cut into cohorts."""

from fedjax_algos.data.stored.client_source import ClientDataset, ClientSource
from fedjax_algos.data.stored.images import ImageFormat, decode_image

__all__ = ["ClientDataset", "ClientSource", "ImageFormat", "decode_image"]
