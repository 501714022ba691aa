"""Volumes in NIfTI files, read by nibabel within bounds, and their resizing."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from fedjax_algos.core.files import open_regular, read_bounded, reading

MAX_VOXELS = 2**26  # of a volume; larger ones are treated as errors
_HEADER_BYTES = 348
_SIZES = [_HEADER_BYTES.to_bytes(4, "little"), _HEADER_BYTES.to_bytes(4, "big")]
_MAX_OFFSET = 2**20  # bytes before the voxels


def require_nibabel(reader: str) -> None:
    """Raises ValueError if nibabel is not installed.

    Args:
      reader: what needs it.
    """
    try:
        import nibabel  # noqa: F401
    except ImportError as error:
        raise ValueError(f"{reader} needs the package nibabel; run: pip install nibabel") from error


def read_volume(path: Path) -> np.ndarray:
    """float64[...]: the voxels of a gzipped NIfTI-1 file, scaled as its header says.

    Args:
      path: of the file.

    Raises:
      ValueError: if it is missing, damaged or too large, has not three axes, or is not finite.
    """
    import nibabel

    errors = (
        zlib.error,
        nibabel.filebasedimages.ImageFileError,
        nibabel.spatialimages.HeaderDataError,
        nibabel.wrapstruct.WrapStructError,
    )
    with reading(path, "a NIfTI-1 volume", "fetch the file again", *errors):
        with open_regular(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
            content = unpacked.read(_HEADER_BYTES)
            if content[:4] not in _SIZES or content[-4:] != b"n+1\0":  # which nibabel corrects
                raise ValueError("it is no NIfTI-1 file of header and voxels")
            header = nibabel.Nifti1Header(content)
            shape, dtype = header.get_data_shape(), header.get_data_dtype()
            offset = float(header["vox_offset"])
            if len(shape) != 3 or min(shape) < 1 or dtype.kind not in "uif":
                raise ValueError(f"it is {dtype}{list(shape)}, no volume of numbers")
            if math.prod(shape) > MAX_VOXELS or not _HEADER_BYTES <= offset <= _MAX_OFFSET:
                raise ValueError(f"it has {list(shape)} voxels from byte {offset:g}")
            size = int(offset) + math.prod(shape) * dtype.itemsize
            content += read_bounded(unpacked, size - len(content))
            if len(content) < size:
                raise ValueError(f"it has {len(content)} bytes, not {size}")
        volume = np.asarray(nibabel.Nifti1Image.from_bytes(content).dataobj, np.float64)
        if not np.isfinite(volume).all():
            raise ValueError("it has NaN or infinity")
    return volume


def area_means(volume: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """float64[shape]: the means of boxes of voxels, which may overlap, as PyTorch's mode "area".

    Along an axis of n voxels, number i of m results is the mean of the voxels from floor(i n / m)
    to below ceil((i + 1) n / m). Means of equal whole numbers are exact.

    Args:
      volume: float[...].
      shape: of the result, with as many axes.
    """
    count = 1.0
    for axis, (n, m) in enumerate(zip(volume.shape, shape, strict=True)):
        starts = np.arange(m) * n // m
        ends = -(-np.arange(1, m + 1) * n // m)
        sums = np.cumsum(volume, axis=axis, dtype=np.float64)
        sums = np.insert(sums, 0, 0.0, axis=axis)
        volume = sums.take(ends, axis) - sums.take(starts, axis)
        count = np.multiply.outer(count, ends - starts)
    return volume / count
