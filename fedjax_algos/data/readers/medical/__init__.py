"""Readers of medical data of several hospitals."""

from fedjax_algos.data.readers.medical import fed_isic2019, fed_ixi

__all__ = ["fed_isic2019", "fed_ixi"]
