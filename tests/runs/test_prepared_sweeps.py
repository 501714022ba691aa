"""Sweeps of settings, in float32: they give the numbers of a comparison."""

import numpy as np
import pytest

from fedjax_algos.runs import comparison
from fedjax_algos.runs.batched.sweeps import prepare_sweep, run_sweep
from fedjax_algos.runs.experiment import prepare
from fedjax_algos.runs.method import methods_of
from fedjax_algos.runs.settings import Settings

SMALL = Settings(
    model="linear", clients=12, cohort=4, rounds=3, local_steps=2, eval_every=2, seeds=(0, 1)
)


def check(method, grid, specs, programs, **changes):
    """A sweep on two devices gives the rows of a comparison of `specs` on one."""
    settings = Settings(**vars(SMALL) | changes)
    two_devices = Settings(**vars(settings) | {"devices": 2})
    rows, notes = run_sweep(prepare_sweep(two_devices, method, grid))
    assert len(notes) == programs
    expected = comparison.run(prepare(settings, methods_of(specs, settings)))
    assert len(rows) == len(expected)
    for row, other in zip(rows, expected, strict=True):
        assert list(row) == list(other)  # the same columns in the same order
        for name in other.keys() - {"wall_seconds", "method"}:
            np.testing.assert_allclose(row[name], other[name], rtol=1e-5, err_msg=name)


@pytest.mark.slow
def test_choices_have_a_program_each():
    check(
        "fedgbo:client_learning_rate=0.2",
        {"optimizer": ["sgdm", "adam"], "beta": [0.5]},
        tuple(f"fedgbo:optimizer={n},beta=0.5,client_learning_rate=0.2" for n in ("sgdm", "adam")),
        programs=2,
        clip_norm=0.5,
        sampler="cyclic:num_groups=3",
        work="partial",
    )
    # and so have the settings of the local work
    rows, notes = run_sweep(prepare_sweep(SMALL, "fedavg", {"local_steps": [1, 2]}))
    assert len(notes) == 2
    expected = comparison.run(prepare(SMALL, methods_of(("fedavg",), SMALL)))
    for row, other in zip(rows[-6:], expected, strict=True):
        np.testing.assert_allclose(row["test_loss"], other["test_loss"], rtol=1e-5)


# the last test of this file, because the fixture is for the rest of the file
@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_real_numbers_share_a_program():
    """With the compiler's optimisations, as in real runs."""
    check(
        "fedprox:weighting=uniform",
        {"mu": ["0.1", "1"], "client_learning_rate": ["0.3"]},
        tuple(f"fedprox:weighting=uniform,mu={mu},client_learning_rate=0.3" for mu in (0.1, 1)),
        programs=1,
        rate_schedule="exponential:decay=0.5",
        partition="dirichlet:alpha=1",
    )


def test_clients_are_not_evaluated_in_a_sweep():
    settings = Settings(**vars(SMALL) | {"evaluate_clients": "train"})
    with pytest.raises(ValueError, match="evaluate_clients='train' is not for sweeps; give eval"):
        prepare_sweep(settings, "fedprox", {"mu": [0.1]})
