"""Readers of FLamby's medical data from several hospitals: Fed-ISIC2019 and Fed-IXI."""

import gzip
import math
import os
import re
from collections import Counter
from pathlib import Path

import jax
import numpy as np

from fedjax_algos.base.errors import needed, require
from fedjax_algos.base.files import PathLike, open_regular, read_bounded, reading
from fedjax_algos.core.options import Count
from fedjax_algos.data.federated_data import ClientDataset, ClientSource, datasets
from fedjax_algos.data.images import square
from fedjax_algos.data.readers.image_folder import ImageFiles, image_source
from fedjax_algos.data.readers.tables import Table, class_numbers, numbered, read_table

_CENTRES = 6  # of Fed-ISIC2019
_CLASSES = 8  # MEL, NV, BCC, AK, BKL, DF, VASC, SCC
_HOSPITALS = {"0": "Guys", "1": "HH", "2": "IOP"}  # of Fed-IXI, by the column Manufacturer
_SHAPE = (48, 60, 48)
_FIX = "fetch the file again"
_MAX_BYTES = 2**29  # of an uncompressed volume; larger ones are treated as errors
_HEADER_BYTES = 348
_SIZES = [_HEADER_BYTES.to_bytes(4, order) for order in ("little", "big")]


@datasets.register
def fed_isic2019(
    *,
    path: PathLike,
    split: str = "train_test_split",
    file: str = "ISIC_2019_Training_Input_preprocessed/{id}.jpg",
    image_size: Count = 200,
    shorter_side: Count = 224,
) -> ClientDataset:
    """Fed-ISIC2019: 23,247 photos of skin lesions in six centres and eight classes, as in FLamby.

    Clients 0 to 5 are FLamby's centres: BCN, HAM_vidir_molemax, HAM_vidir_modern, HAM_rosendahl,
    MSK and HAM_vienna_dias, with 9930, 3163, 2691, 1807, 655 and 351 training images, and 2483,
    791, 672, 452, 164 and 88 test images. The test set has the same clients; together they are
    FLamby's pooled test set. "x" is uint8[n, image_size, image_size, 3], the middle of the image,
    and "y" is the column `target`.

    Args:
      path: the folder that FLamby's scripts `download_isic.py` and `resize_images.py` have filled,
        with FLamby's file `train_test_split`.
      split: FLamby's file `train_test_split`, in the folder.
      file: the path of an image in the folder, as in `image_folder`.
      image_size: pixels of both sides of the result, at least 1.
      shorter_side: pixels of the shorter side of a whole image, at least `image_size`. FLamby's
        images have 224 and are not scaled again.

    Source: Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated
    Learning in Realistic Healthcare Settings", NeurIPS 2022, https://arxiv.org/abs/2210.04620;
    https://github.com/owkin/FLamby, flamby/datasets/fed_isic2019. In training, FLamby scales,
    rotates, flips, shears and brightens images at random, cuts out a random square and erases parts
    of it; here every image is its middle, as in FLamby's test set. FLamby subtracts the mean of
    ImageNet and divides by its standard deviation; here pixels stay 0 to 255. Its scripts round the
    side of a few images down to 223 pixels; here those are scaled to `shorter_side`.
    """
    image_format = square(image_size, shorter_side)
    table = read_table(Path(path, split), ("image", "target", "center", "fold", "fold2"))
    class_numbers(table, "center", _CENTRES)
    folds = (table.columns[name] for name in ("fold", "center", "fold2"))
    with reading(table.name, "the split of Fed-ISIC2019", _FIX):
        for row, (fold, centre, both) in enumerate(zip(*folds, strict=True)):
            named = f"row {row} has fold={fold!r} and fold2={both!r} in center {centre}"
            require(fold in ("train", "test") and both == f"{fold}_{centre}", named)
        for image, times in Counter(table.columns["image"]).items():
            require(times == 1, f"it has the image '{image[:80]}' twice")
    files = ImageFiles(path, file, table.columns["image"])
    sources = []
    for fold in ("train", "test"):
        part = table.where("fold", fold)
        labels = class_numbers(part, "target", _CLASSES)
        sources.append(image_source(part, files, labels, image_format, "image", "center"))
    return ClientDataset(sources[0], sources[1], _CLASSES)


@datasets.register
def fed_ixi(*, path: PathLike, split: str = "metadata_tiny.csv") -> ClientDataset:
    """Fed-IXI: volumes of 566 brains in three hospitals and masks of the brain, as in FLamby.

    Clients 0 to 2 are FLamby's centres Guys, HH and IOP, with 249, 145 and 59 training volumes and
    62, 36 and 15 test volumes; the test set has the same clients. "x" is float32[n, 48, 60, 48, 1]
    and "y" int32[n, 48, 60, 48], 1 where the brain is. As in FLamby, volumes of another size, such
    as the data set's 83 x 44 x 55 voxels, are resized to the means of boxes of voxels (PyTorch's
    mode "area"). Each volume's intensities are then standardised to mean 0 and standard deviation
    1. A resized voxel is part of the brain if its whole box is.

    Args:
      path: the extracted folder of the archive `IXI_sample`, which has a folder for each person,
        `IXI002-Guys-0828/T1/*.nii.gz` and `IXI002-Guys-0828/label/*.nii.gz`, and FLamby's file
        `metadata_tiny.csv`.
      split: FLamby's file `metadata_tiny.csv`, in the folder.

    Source: as for `fed_isic2019`, flamby/datasets/fed_ixi. FLamby reads the archive itself, and its
    masks are one-hot, with a channel for each of the two classes.
    """
    needed("nibabel", "fed_ixi")
    table = read_table(Path(path, split), ("Patient ID", "Manufacturer", "Split"))
    folders = _folders(Path(path), table)
    train, test = (_source(Path(path), table.where("Split", s), folders) for s in ("train", "test"))
    return ClientDataset(train, test, num_classes=2)


def _folders(path: Path, table: Table) -> dict[str, str]:
    """Returns the name of each person's folder, by the person's number in the table."""
    with reading(path, "the folder of Fed-IXI", "give the folder with a folder for each person"):
        names = [re.fullmatch(r"IXI(\d{3})-[A-Za-z]+-\d+", name) for name in os.listdir(path)]
    pairs = [(str(int(match[1])), match[0]) for match in names if match]
    folders, times = dict(pairs), Counter(person for person, _ in pairs)
    rows = Counter(table.columns["Patient ID"])
    with reading(table.name, "the table of the persons in the folder", _FIX):
        other = [person for person in rows | times if (rows[person], times[person]) != (1, 1)]
        require(not other, f"it has not one row and folder for person {', '.join(other)[:50]}")
        for person, maker, part in zip(*table.columns.values(), strict=True):
            hospital = folders[person].split("-")[1]
            fits = (maker, hospital) in _HOSPITALS.items() and part in ("train", "test")
            found = f"person {person} has Manufacturer={maker[:50]} and Split={part[:50]}"
            require(fits, f"{found}, and the folder {folders[person]}")
    return folders


def _source(path: Path, table: Table, folders: dict[str, str]) -> ClientSource:
    persons, makers = table.columns["Patient ID"], table.columns["Manufacturer"]
    present = sorted(set(makers))
    numbers = numbered(makers, present)

    def read(client: int) -> dict[str, np.ndarray]:
        rows = np.flatnonzero(numbers == client)
        shape = len(rows), *_SHAPE
        x, y = np.empty((*shape, 1), np.float32), np.empty(shape, np.int32)
        for i, row in enumerate(rows):
            folder = path / folders[persons[row]]
            resized = area_means(read_volume(_only_file(folder / "T1")), _SHAPE)
            x[i, ..., 0] = (resized - resized.mean()) / (resized.std() or 1.0)
            label = _only_file(folder / "label")
            mask = read_volume(label)
            with reading(label, "a mask", _FIX):
                require(np.isin(mask, (0, 1)).all(), "it has other labels than 0 and 1")
            y[i] = area_means(mask, _SHAPE) == 1
        return {"x": x, "y": y}

    x = jax.ShapeDtypeStruct((*_SHAPE, 1), np.float32)
    example = {"x": x, "y": jax.ShapeDtypeStruct(_SHAPE, np.int32)}
    names = [_HOSPITALS[maker] for maker in present]
    counts = np.bincount(numbers).astype(np.int32)
    return ClientSource(str(path), names, counts, example, read, identity=table.digest)


def _only_file(folder: Path) -> Path:
    with reading(folder, "a folder of one volume", "extract the archive again"):
        (name,) = (name for name in os.listdir(folder) if name.endswith(".nii.gz"))
    return folder / name


def read_volume(path: Path) -> np.ndarray:
    """Reads a gzipped NIfTI-1 file as float64[...] voxels, scaled as its header says."""
    import nibabel

    with reading(path, "a NIfTI-1 volume", _FIX, Exception):  # nibabel raises many types
        with open_regular(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
            content = read_bounded(unpacked, _MAX_BYTES)
        start = content[:_HEADER_BYTES]
        known = start[:4] in _SIZES and start[-4:] == b"n+1\0"  # nibabel would repair others
        require(known, "it is not a NIfTI-1 file of header and voxels")
        header = nibabel.Nifti1Header(start)
        shape, dtype = header.get_data_shape(), header.get_data_dtype()
        volume = len(shape) == 3 and min(shape) >= 1 and dtype.kind in "uif"
        size = int(header["vox_offset"]) + math.prod(shape) * dtype.itemsize
        found = f"it has {len(content)} bytes, and by its header {size} of {dtype}{list(shape)}"
        require(volume and len(content) == size, f"{found}, not a whole volume of numbers")
        voxels = np.asarray(nibabel.Nifti1Image.from_bytes(content).dataobj, np.float64)
        require(np.isfinite(voxels).all(), "it has NaN or infinity")
    return voxels


def area_means(volume: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Resizes a volume to the means of boxes, which may overlap, as PyTorch's mode "area"."""
    count = 1.0  # box i of m, on an axis of n, is floor(i n / m) to below ceil((i + 1) n / m)
    for axis, (n, m) in enumerate(zip(volume.shape, shape, strict=True)):
        starts = np.arange(m) * n // m
        ends = -(-np.arange(1, m + 1) * n // m)
        sums = np.insert(np.cumsum(volume, axis=axis, dtype=np.float64), 0, 0.0, axis=axis)
        volume = sums.take(ends, axis) - sums.take(starts, axis)
        count = np.multiply.outer(count, ends - starts)
    return volume / count
