"""Reader of Fed-IXI: volumes of brains of three hospitals, and their masks, in NIfTI files."""

import gzip
import math
import os
import re
import zlib
from pathlib import Path

import jax
import numpy as np

from fedjax_algos.core.files import PathLike, needed, open_regular, read_bounded, reading, require
from fedjax_algos.data.federated_data import ClientDataset, ClientSource
from fedjax_algos.data.readers.images.image_files import Table, numbered, read_table
from fedjax_algos.data.registry import datasets

CENTRES = ("Guys", "HH", "IOP")  # in FLamby's order, by the column Manufacturer
SHAPE = (48, 60, 48)
_FIX = "fetch the file again"
MAX_VOXELS = 2**26  # of a volume; larger ones are treated as errors
_HEADER_BYTES = 348
_SIZES = [_HEADER_BYTES.to_bytes(4, "little"), _HEADER_BYTES.to_bytes(4, "big")]
_MAX_OFFSET = 2**20  # bytes before the voxels


@datasets.register
def fed_ixi(*, path: PathLike, split: str = "metadata_tiny.csv") -> ClientDataset:
    """Fed-IXI: volumes of 566 brains in three hospitals and masks of the brain, as in FLamby.

    Clients 0 to 2 are FLamby's centres Guys, HH and IOP, with 249, 145 and 59 training volumes and
    62, 36 and 15 test volumes; the test set has the same clients. "x" is float32[n, 48, 60, 48, 1]
    and "y" int32[n, 48, 60, 48], 1 where the brain is. As in FLamby, volumes of another size, such
    as the 83 x 44 x 55 voxels of the data set, are resized to the means of boxes of voxels (mode
    "area" of PyTorch); the intensities of each volume are then shifted and divided to mean 0 and
    standard deviation 1, and a resized voxel is part of the brain if its whole box is.

    Args:
      path: the folder with a folder for each person, `IXI002-Guys-0828/T1/*.nii.gz` and
        `IXI002-Guys-0828/label/*.nii.gz`, in the data set's archive `IXI_sample`, and with FLamby's
        file `metadata_tiny.csv`.
      split: that file, in the folder.

    Source: Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated
    Learning in Realistic Healthcare Settings", NeurIPS 2022, https://arxiv.org/abs/2210.04620;
    https://github.com/owkin/FLamby, flamby/datasets/fed_ixi. FLamby reads the archive, here its
    folder is read; FLamby's masks are one-hot, with a channel for each of the two classes.
    """
    needed("nibabel", "fed_ixi")
    table = read_table(Path(path, split), ("Patient ID", "Manufacturer", "Split"))
    folders = _folders(Path(path), table)
    parts = []
    for part in ("train", "test"):
        rows = table.where(Split=part)
        parts.append(_source(Path(path), rows, [folders[p] for p in rows.columns["Patient ID"]]))
    return ClientDataset(parts[0], parts[1], num_classes=2)


def _folders(path: Path, table: Table) -> dict[str, str]:
    """The name of each person's folder, by number as in the table."""
    folders: dict[str, str] = {}
    centres, listed = {}, set()
    with reading(path, "the folder of Fed-IXI", "give the folder that holds those of the persons"):
        for name in os.listdir(path):
            if match := re.fullmatch(r"IXI(\d{3})-([A-Za-z]+)-\d+", name):
                number = str(int(match[1]))
                require(number not in folders, f"it has two folders of person {number}")
                folders[number], centres[number] = name, match[2]
    with reading(table.name, "the table of the persons in the folder", _FIX):
        for person, maker, part in zip(*table.columns.values(), strict=True):
            shown = f"person {person[:50]}"
            require(person not in listed, f"{shown} is there twice")
            require(person in folders, f"{shown} has no folder")
            known = maker in ("0", "1", "2") and CENTRES[int(maker)] == centres[person]
            found = f"Manufacturer {maker[:50]}, but the folder {folders[person]}"
            require(known, f"{shown} has {found}")
            require(part in ("train", "test"), f"{shown} has Split={part[:50]}")
            listed.add(person)
        unlisted = [folders[person] for person in sorted(folders.keys() - listed)]
        require(not unlisted, f"it has no row for {', '.join(unlisted)[:50]}")
    return folders


def _source(path: Path, table: Table, folders: list[str]) -> ClientSource:
    makers = table.columns["Manufacturer"]
    present = sorted(set(makers))
    numbers = numbered(makers, present)

    def read(client: int) -> dict[str, np.ndarray]:
        own = [folders[row] for row in np.flatnonzero(numbers == client)]
        x, y = np.empty((len(own), *SHAPE, 1), np.float32), np.empty((len(own), *SHAPE), np.int32)
        for row, folder in enumerate(own):
            x[row, ..., 0] = _normalised(read_volume(_only_file(path / folder / "T1")))
            y[row] = _mask(_only_file(path / folder / "label"))
        return {"x": x, "y": y}

    example = {
        "x": jax.ShapeDtypeStruct((*SHAPE, 1), np.float32),
        "y": jax.ShapeDtypeStruct(SHAPE, np.int32),
    }
    names = [CENTRES[int(maker)] for maker in present]
    counts = np.bincount(numbers).astype(np.int32)
    return ClientSource(str(path), names, counts, example, read, identity=table.digest)


def _only_file(folder: Path) -> Path:
    with reading(folder, "a folder of one volume", "extract the archive again"):
        names = [name for name in os.listdir(folder) if name.endswith(".nii.gz")]
        require(len(names) == 1, f"it has {len(names)} files .nii.gz, not one")
    return folder / names[0]


def _normalised(volume: np.ndarray) -> np.ndarray:
    """A volume of `SHAPE` with mean 0 and standard deviation 1, or 0 if it is constant."""
    resized = area_means(volume, SHAPE)
    return (resized - resized.mean()) / (resized.std() or 1.0)


def _mask(path: Path) -> np.ndarray:
    volume = read_volume(path)
    with reading(path, "a mask", _FIX):
        require(np.isin(volume, (0, 1)).all(), "it has other labels than 0 and 1")
    return area_means(volume, SHAPE) == 1


def read_volume(path: Path) -> np.ndarray:
    """float64[...]: the voxels of a gzipped NIfTI-1 file, scaled as its header says."""
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
            known = content[:4] in _SIZES and content[-4:] == b"n+1\0"  # which nibabel corrects
            require(known, "it is no NIfTI-1 file of header and voxels")
            header = nibabel.Nifti1Header(content)
            shape, dtype = header.get_data_shape(), header.get_data_dtype()
            offset = float(header["vox_offset"])
            volume = len(shape) == 3 and min(shape) >= 1 and dtype.kind in "uif"
            require(volume, f"it is {dtype}{list(shape)}, no volume of numbers")
            small = math.prod(shape) <= MAX_VOXELS and _HEADER_BYTES <= offset <= _MAX_OFFSET
            require(small, f"it has {list(shape)} voxels from byte {offset:g}")
            size = int(offset) + math.prod(shape) * dtype.itemsize
            content += read_bounded(unpacked, size - len(content))
            require(len(content) == size, f"it has {len(content)} bytes, not {size}")
        volume = np.asarray(nibabel.Nifti1Image.from_bytes(content).dataobj, np.float64)
        require(np.isfinite(volume).all(), "it has NaN or infinity")
    return volume


def area_means(volume: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """float64[shape]: the means of boxes of voxels, which may overlap, as PyTorch's mode "area".

    Along an axis of n voxels, number i of m results is the mean of the voxels from floor(i n / m)
    to below ceil((i + 1) n / m). Means of equal whole numbers are exact.
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
