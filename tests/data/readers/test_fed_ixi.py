"""FLamby's Fed-IXI, on small volumes in its layout, and the resizing of volumes."""

import gzip
import os
import sys

import nibabel
import numpy as np
import pytest
from bad_input_helpers import refused

from fedjax_algos.data import datasets
from fedjax_algos.data.readers.flamby import area_means, fed_ixi, read_volume

# (number, Manufacturer, centre, split)
PERSONS = [
    (2, 0, "Guys", "test"),
    (12, 1, "HH", "train"),
    (16, 0, "Guys", "train"),
    (35, 2, "IOP", "train"),
    (20, 0, "Guys", "train"),
]
SHAPE = (6, 4, 5)


def encoded(voxels, kind=nibabel.Nifti1Image):
    return gzip.compress(kind(voxels, np.eye(4)).to_bytes(), mtime=0)


def intensities(number, shape=SHAPE):
    return np.random.default_rng(number).integers(0, 1000, shape).astype(np.int16)


def brain(number, shape=SHAPE):
    return (np.random.default_rng(number).random(shape) < 0.8).astype(np.uint8)


def folder_of(number, centre):
    return f"IXI{number:03}-{centre}-{800 + number:04}"


def write_split(folder, rows):
    lines = [f"{number},{maker},{split}" for number, maker, _, split in rows]
    (folder / "metadata_tiny.csv").write_text("\n".join(["Patient ID,Manufacturer,Split", *lines]))


@pytest.fixture
def folder(tmp_path):
    for number, _, centre, _ in PERSONS:
        name = folder_of(number, centre)
        for part, kind, voxels in (("T1", "image", intensities), ("label", "label", brain)):
            (tmp_path / name / part).mkdir(parents=True)
            path = tmp_path / name / part / f"{name}_{kind}.nii.gz"
            path.write_bytes(encoded(voxels(number)))
    write_split(tmp_path, PERSONS)
    (tmp_path / "IXI.xls").write_bytes(b"")  # what else the archive has
    return tmp_path


def box(volume, shape, place):
    """The voxels that one voxel of the result comes from, by the definition."""
    spans = [
        slice(i * n // m, (i + 1) * n // m + bool((i + 1) * n % m))
        for i, n, m in zip(place, volume.shape, shape, strict=True)
    ]
    return volume[tuple(spans)]


def test_centres_are_clients(folder):
    data = datasets.make(f"fed_ixi:{folder}")
    assert data.train.client_ids == ["Guys", "HH", "IOP"]
    assert data.train.counts.tolist() == [2, 1, 1]
    assert (data.test.client_ids, data.test.counts.tolist()) == (["Guys"], [1])
    assert (data.num_classes, data.example_shape) == (2, (48, 60, 48, 1))
    examples = data.train.examples_of(0)
    shape, places = (48, 60, 48), np.random.default_rng(0).integers(0, 48, (200, 3))
    for row, number in enumerate((16, 20)):
        x, y = examples["x"][row, ..., 0], examples["y"][row]
        assert abs(x.mean()) < 1e-6
        assert abs(x.std() - 1) < 1e-5
        means = [box(intensities(number), shape, place).mean() for place in places]
        seen = np.array([x[tuple(place)] for place in places])
        slope, start = np.polyfit(means, seen, 1)  # mean and deviation of all voxels
        np.testing.assert_allclose(seen, slope * np.array(means) + start, atol=1e-5)
        inside = [box(brain(number), shape, place).all() for place in places]
        assert [y[tuple(place)] for place in places] == inside
        assert 0 < sum(inside) < 200
    assert (examples["x"].dtype, examples["y"].dtype) == (np.float32, np.int32)
    assert data.test.examples_of(0)["y"].shape == (1, 48, 60, 48)


def test_volumes_are_resized_as_by_pytorch():
    """As torch.nn.functional.interpolate(size=(48, 60, 48), mode="area") of torch 2.13 gives."""
    i, j, k = np.meshgrid(*map(np.arange, (83, 44, 55)), indexing="ij")
    means = area_means(np.sin(1 + 0.3 * i) * np.cos(0.2 * j) + 0.01 * k * k, (48, 60, 48))
    places = [(0, 0, 0), (47, 59, 47), (10, 20, 30), (23, 31, 5), (40, 2, 17)]
    seen = [0.9075145721435547, 28.41564178466797, 11.795753479003906, 0.21949706971645355]
    expected = [*seen, 3.9372241497039795]
    np.testing.assert_allclose([means[place] for place in places], expected, rtol=1e-6)
    ball = ((i - 41) / 30) ** 2 + ((j - 22) / 15) ** 2 + ((k - 27) / 20) ** 2 < 1
    assert ball.sum() == 37437
    assert (area_means(ball, (48, 60, 48)) == 1).sum() == 23116  # torch: resize, then .long()


def test_scaled_voxels_and_other_types(tmp_path):
    path = tmp_path / "a.nii.gz"
    image = nibabel.Nifti1Image(intensities(1), np.eye(4))
    image.header.set_slope_inter(0.5, -3)
    nibabel.save(image, path)
    np.testing.assert_array_equal(read_volume(path), 0.5 * intensities(1) - 3)
    for dtype in (np.float32, np.float64, np.uint8):
        path.write_bytes(encoded(intensities(1).astype(dtype)))
        np.testing.assert_array_equal(read_volume(path), intensities(1).astype(dtype))


def with_header(field, value):
    image = nibabel.Nifti1Image(intensities(16), np.eye(4))
    content = bytearray(image.to_bytes())
    header = nibabel.Nifti1Header(bytes(content[:348]), check=False)
    header[field] = value
    return gzip.compress(header.binaryblock + bytes(content[348:]), mtime=0)


GOOD = encoded(intensities(16))


def test_damaged_volumes_are_refused(folder):
    name = folder_of(16, "Guys")
    data = fed_ixi(path=folder)
    assert data.train.examples_of(1)["x"].shape == (1, 48, 60, 48, 1)
    for content in (
        b"",
        b"no volume",
        GOOD[:-20],
        gzip.compress(b"no volume", mtime=0),
        gzip.compress(gzip.decompress(GOOD)[:-1], mtime=0),
        gzip.compress(gzip.decompress(GOOD) + b"a", mtime=0),
        encoded(intensities(16)[0]),
        encoded(intensities(16)[..., None, None] + 0j),
        encoded(np.full(SHAPE, np.nan)),
        with_header("dim", [3, 32767, 32767, 32767, 1, 1, 1, 1]),
        with_header("dim", [3, -6, -4, 5, 1, 1, 1, 1]),
        with_header("dim", [99, 6, 4, 5, 1, 1, 1, 1]),
        with_header("vox_offset", 1e30),
        with_header("vox_offset", np.nan),
        with_header("datatype", 12345),
        with_header("sizeof_hdr", 1),
        with_header("magic", b"ni1"),
    ):
        (folder / name / "T1" / f"{name}_image.nii.gz").write_bytes(content)
        with refused(folder / name / "T1" / name):
            data.train.examples_of(0)


def test_masks_missing_files_and_pipes(folder):
    name = folder_of(35, "IOP")
    label = folder / name / "label" / f"{name}_label.nii.gz"
    label.write_bytes(encoded(2 * brain(35)))
    data = fed_ixi(path=folder)
    with pytest.raises(ValueError, match=r"_label.nii.gz: .*other labels than 0 and 1; fetch"):
        data.train.examples_of(2)
    label.unlink()
    with pytest.raises(ValueError, match=r"label: not .*: it has 0 files .nii.gz, not on"):
        data.train.examples_of(2)
    os.mkfifo(label)
    with pytest.raises(ValueError, match="it is a pipe or a device, not a regular file"):
        data.train.examples_of(2)


def test_splits_that_do_not_fit_the_folder_are_refused(folder):
    for rows in (
        [*PERSONS, PERSONS[1]],
        [*PERSONS, (13, 1, "HH", "train")],
        PERSONS[1:],
        [(2, 1, "HH", "test"), *PERSONS[1:]],
        [(2, 3, "HH", "test"), *PERSONS[1:]],
        [(2, 0, "Guys", "valid"), *PERSONS[1:]],
        [],
        [(2, 0, "Guys", "train"), *PERSONS[1:]],
    ):
        write_split(folder, rows)
        with refused(folder):
            fed_ixi(path=folder)


def test_what_is_missing_or_there_twice(folder, monkeypatch):
    with pytest.raises(ValueError, match=r"metadata_tiny.csv: there is no such file"):
        fed_ixi(path=folder / "none")
    (folder / "IXI012-HH-0001").mkdir()
    with pytest.raises(ValueError, match=r"it has two folders of person 12"):
        fed_ixi(path=folder)
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(ValueError, match="fed_ixi needs the package nibabel; run: pip install ni"):
        fed_ixi(path=folder)


@pytest.mark.usefixtures("bounded")
def test_a_compressed_volume_is_bounded(tmp_path, monkeypatch):
    """30 MB of zeros in 30 kB."""
    path = tmp_path / "a.nii.gz"
    path.write_bytes(gzip.compress(gzip.decompress(GOOD) + bytes(30 * 10**6)))
    with pytest.raises(ValueError, match=r"it has 30000592 bytes, not 592"):
        read_volume(path)
    monkeypatch.setattr("fedjax_algos.data.readers.flamby._MAX_BYTES", 500)
    with pytest.raises(ValueError, match=r"it has more than 500 bytes, which are too many"):
        read_volume(path)
