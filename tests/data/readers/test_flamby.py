"""FLamby's Fed-ISIC2019 and Fed-IXI, on small files in their layouts; the resizing of volumes."""

import numpy as np
import pytest
from data_forms import brain, decoded, fed_ixi, intensities, isic_image, volume
from data_forms import fed_isic2019 as write_isic

from fedjax_algos.data import datasets
from fedjax_algos.data.readers.flamby import area_means, read_volume

SHAPE = (48, 60, 48)


def test_volumes_of_hospitals(tmp_path):
    fed_ixi(tmp_path)
    data = datasets.make(f"fed_ixi:{tmp_path}")
    assert data.train.client_ids == ["Guys", "HH", "IOP"]
    assert data.train.counts.tolist() == [2, 1, 1]
    assert (data.test.client_ids, data.test.counts.tolist()) == (["Guys"], [1])
    assert (data.num_classes, data.example_shape) == (2, (*SHAPE, 1))
    examples = data.train.examples_of(0)
    for x, y, number in zip(examples["x"], examples["y"], (16, 20), strict=True):
        means = area_means(intensities(number), SHAPE)
        np.testing.assert_allclose(x[..., 0], (means - means.mean()) / means.std(), atol=1e-5)
        np.testing.assert_array_equal(y, area_means(brain(number), SHAPE) == 1)
        assert 0 < y.mean() < 1
    assert (examples["x"].dtype, examples["y"].dtype) == (np.float32, np.int32)
    assert data.test.examples_of(0)["y"].shape == (1, *SHAPE)


def test_volumes_are_resized_as_by_pytorch():
    """As torch.nn.functional.interpolate(size=(48, 60, 48), mode="area") of torch 2.13 gives."""
    i, j, k = np.indices((83, 44, 55))
    means = area_means(np.sin(1 + 0.3 * i) * np.cos(0.2 * j) + 0.01 * k * k, SHAPE)
    places = [(0, 0, 0), (47, 59, 47), (10, 20, 30), (23, 31, 5), (40, 2, 17)]
    seen = [0.9075145721435547, 28.41564178466797, 11.795753479003906, 0.21949706971645355]
    expected = [*seen, 3.9372241497039795]
    np.testing.assert_allclose([means[place] for place in places], expected, rtol=1e-6)
    ball = ((i - 41) / 30) ** 2 + ((j - 22) / 15) ** 2 + ((k - 27) / 20) ** 2 < 1
    assert ball.sum() == 37437
    assert (area_means(ball, SHAPE) == 1).sum() == 23116  # torch: resize, then .long()


def test_scaled_voxels_and_other_types(tmp_path):
    nibabel, path = pytest.importorskip("nibabel"), tmp_path / "a.nii.gz"
    image = nibabel.Nifti1Image(intensities(1), np.eye(4))
    image.header.set_slope_inter(0.5, -3)
    nibabel.save(image, path)
    np.testing.assert_array_equal(read_volume(path), 0.5 * intensities(1) - 3)
    for dtype in (np.float32, np.float64, np.uint8):
        path.write_bytes(volume(intensities(1).astype(dtype)))
        np.testing.assert_array_equal(read_volume(path), intensities(1).astype(dtype))


def test_centres_are_clients_and_images_are_cut(tmp_path):
    """As albumentations' CenterCrop(200, 200) cuts 224 x 298 pixels."""
    write_isic(tmp_path)
    middle = [decoded(isic_image(number))[12:212, 49:249] for number in range(6)]
    data = datasets.make(f"fed_isic2019:{tmp_path}")
    assert data.train.client_ids == ["0", "2", "4"]
    assert data.test.client_ids == ["0", "2"]
    assert (data.num_classes, data.example_shape, data.notes) == (8, (200, 200, 3), ())
    examples = data.train.examples_of(0)
    np.testing.assert_array_equal(examples["x"], [middle[0], middle[4]])
    assert examples["y"].tolist() == [1, 2]
    np.testing.assert_array_equal(data.test.examples_of(1)["x"], [middle[5]])
    assert data.test.examples_of(0)["y"].tolist() == [2]
