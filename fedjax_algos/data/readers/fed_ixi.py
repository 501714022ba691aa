"""Reader of Fed-IXI: volumes of brains of three hospitals, and their masks."""

import os
import re
from pathlib import Path

import jax
import numpy as np

from fedjax_algos.core.files import PathLike, reading
from fedjax_algos.core.texts import printable
from fedjax_algos.data.client_source import ClientDataset, ClientSource
from fedjax_algos.data.readers.nifti import area_means, read_volume, require_nibabel
from fedjax_algos.data.readers.tables import Table, numbered, read_table
from fedjax_algos.data.registry import datasets

CENTRES = ("Guys", "HH", "IOP")  # in FLamby's order, by the column Manufacturer
SHAPE = (48, 60, 48)
_FIX = "fetch the file again"


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

    Raises:
      ValueError: if nibabel is not installed; if the file of the split is missing or damaged, has a
        person twice, or has others than the folder. When a client is read, for a volume that is
        missing, damaged, too large or not finite, and for a mask with other values than 0 and 1.

    Source: Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated
    Learning in Realistic Healthcare Settings", NeurIPS 2022, https://arxiv.org/abs/2210.04620;
    https://github.com/owkin/FLamby, flamby/datasets/fed_ixi. FLamby reads the archive, here its
    folder is read; FLamby's masks are one-hot, with a channel for each of the two classes.
    """
    require_nibabel("fed_ixi")
    table = read_table(Path(path, split), ("Patient ID", "Manufacturer", "Split"))
    folders = _folders(Path(path), table)
    parts = []
    for part in ("train", "test"):
        rows = table.where(Split=part)
        parts.append(_source(Path(path), rows, [folders[p] for p in rows.columns["Patient ID"]]))
    return ClientDataset(parts[0], parts[1], num_classes=2)


def _folders(path: Path, table: Table) -> dict[str, str]:
    """The name of each person's folder, by number as in the table."""
    with reading(path, "the folder of Fed-IXI", "give the folder that holds those of the persons"):
        found = [re.fullmatch(r"IXI(\d{3})-([A-Za-z]+)-\d+", name) for name in os.listdir(path)]
    folders: dict[str, str] = {}
    centres = {}
    for match in filter(None, found):
        number = str(int(match[1]))
        if number in folders:
            raise ValueError(f"{path}: has {folders[number]} and {match[0]}; remove one")
        folders[number], centres[number] = match[0], match[2]
    listed = set()
    for person, maker, part in zip(*table.columns.values(), strict=True):
        shown = f"{table.name}: person {printable(person, 50)}"
        if person in listed:
            raise ValueError(f"{shown} is there twice; remove a row")
        if person not in folders:
            raise ValueError(f"{shown} has no folder in {path}; extract it or remove the row")
        if maker not in ("0", "1", "2") or CENTRES[int(maker)] != centres[person]:
            what = f"Manufacturer {printable(maker, 50)}, but the folder {folders[person]}"
            raise ValueError(f"{shown} has {what}; {_FIX}")
        if part not in ("train", "test"):
            raise ValueError(f"{shown} has Split={printable(part, 50)}; give train or test")
        listed.add(person)
    if unlisted := sorted(folders.keys() - listed):
        raise ValueError(f"{table.name}: has no row for {folders[unlisted[0]]}; {_FIX}")
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
        if len(names) != 1:
            raise ValueError(f"it has {len(names)} files .nii.gz, not one")
    return folder / names[0]


def _normalised(volume: np.ndarray) -> np.ndarray:
    """A volume of `SHAPE` with mean 0 and standard deviation 1, or 0 if it is constant."""
    resized = area_means(volume, SHAPE)
    return (resized - resized.mean()) / (resized.std() or 1.0)


def _mask(path: Path) -> np.ndarray:
    volume = read_volume(path)
    other = volume[(volume != 0) & (volume != 1)]
    if len(other):
        raise ValueError(f"{printable(path)}: has the label {other[0]:g}, not 0 or 1; {_FIX}")
    return area_means(volume, SHAPE) == 1
