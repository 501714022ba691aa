"""Feature shift: noise that grows from client to client, and rotated groups of clients."""

import numpy as np
import pytest

import fedjax_algos as fa
from fedjax_algos.data import shifts
from fedjax_algos.runs.studies.settings import Settings, split

ROWS = np.random.default_rng(0).permutation(3000)
PARTITION = fa.Partition.of(np.split(ROWS[:2400], 3))  # 600 rows belong to no client
INPUTS = np.random.default_rng(1).uniform(size=(3000, 8, 8)).astype(np.float32)


def test_noise_grows_from_client_to_client():
    moved = shifts.make("noise:level=0.4", INPUTS, PARTITION, 5) - INPUTS
    assert moved.dtype == np.float32
    for rows, level in zip(np.split(ROWS[:2400], 3), (0, 0.2, 0.4), strict=True):
        assert np.abs(moved[rows].mean()) < 0.005
        np.testing.assert_allclose(moved[rows].std(), level, rtol=0.02)
    assert not moved[ROWS[2400:]].any()
    # a row has the same draw in each partition, times another deviation
    other = fa.Partition.of([ROWS[2400:], ROWS[:2400]])
    again = shifts.make("noise:level=0.4", INPUTS, other, 5) - INPUTS
    rows = ROWS[800:1600]
    np.testing.assert_allclose(again[rows], 2 * moved[rows], atol=1e-6)
    assert (shifts.make("noise:level=0.4", INPUTS, PARTITION, 6) != moved + INPUTS).any()


def test_noise_of_pixels_is_limited():
    pixels = (INPUTS * 255).astype(np.uint8)
    shifted = shifts.make("noise:level=0.4", pixels, PARTITION, 5)
    expected = shifts.make("noise:level=0.4", pixels / np.float32(255), PARTITION, 5) * 255
    assert shifted.dtype == np.uint8
    assert expected.min() < -50
    assert np.abs(shifted - np.clip(expected, 0, 255)).max() < 0.51


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_of_clients_are_rotated(groups):
    shifted = shifts.make(f"rotation:groups={groups}", INPUTS, PARTITION, 0)
    for client, rows in enumerate(np.split(ROWS[:2400], 3)):
        turns = client % groups * 4 // groups
        np.testing.assert_array_equal(shifted[rows], np.rot90(INPUTS[rows], turns, (1, 2)))
    np.testing.assert_array_equal(shifted[ROWS[2400:]], INPUTS[ROWS[2400:]])


@pytest.mark.parametrize(
    ("spec", "inputs", "partition", "message"),
    [
        ("rotation:groups=3", INPUTS, PARTITION, "groups=3; give 1, 2 or 4"),
        ("rotation", INPUTS[:, :4], PARTITION, r"shape \(4, 8\); give a data set of square"),
        ("noise:level=0", INPUTS, PARTITION, "level=0 is out of range"),
        ("noise", INPUTS, fa.Partition.of([[0, 1], [1]], shared=True), "clients share examples"),
    ],
)
def test_what_cannot_be_shifted(spec, inputs, partition, message):
    with pytest.raises(ValueError, match=message):
        shifts.make(spec, inputs, partition, 0)


def test_a_client_holds_out_examples_with_its_own_shift():
    settings = Settings(
        clients=4, partition="iid", evaluate_clients="held_out", shift="noise:level=0.3"
    )
    dataset = settings.load()
    x = np.asarray(dataset.train["x"])
    whole = fa.data.partitions.make("iid", np.asarray(dataset.train["y"]), 4, 3)
    expected, parts = shifts.make("noise:level=0.3", x, whole, 3), split(settings, dataset, 3)
    for data in (parts.train, parts.held_out):
        rows = data.indices
        assert (x[rows] != expected[rows]).any()
        np.testing.assert_array_equal(np.asarray(data.examples["x"])[rows], expected[rows])
        np.testing.assert_array_equal(data.examples["y"], dataset.train["y"])
    with pytest.raises(ValueError, match="unknown shift 'turn'"):
        Settings(shift="turn").check()
