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


def check(method, grid, spec, programs, **changes):
    """The last setting of a sweep on two devices has the rows of a comparison on one."""
    settings = Settings(**vars(SMALL) | changes)
    two_devices = Settings(**vars(settings) | {"devices": 2})
    rows, notes = run_sweep(prepare_sweep(two_devices, method, grid))
    assert len(notes) == programs
    expected = comparison.run(prepare(settings, methods_of((spec,), settings)))
    assert len(rows) == 2 * len(expected)
    for row, other in zip(rows[len(expected) :], expected, strict=True):
        assert list(row) == list(other)  # the same columns in the same order
        for name in other.keys() - {"wall_seconds", "method"}:
            np.testing.assert_allclose(row[name], other[name], rtol=1e-5, err_msg=name)
    return rows


@pytest.mark.all
def test_choices_and_settings_of_the_local_work_have_a_program_each():
    rows = check(
        "fedavg:client_learning_rate=0.2",
        {"client_optimizer": ["sgd", "yogi"], "local_steps": [2]},
        "fedavg:client_learning_rate=0.2,client_optimizer=yogi",
        programs=2,
        clip_norm=0.5,
        sampler="cyclic:num_groups=3",
        work="partial",
    )
    labels = [f"fedavg client_optimizer={name} local_steps=2" for name in ("sgd", "yogi")]
    assert [row["method"] for row in rows] == [label for label in labels for _ in range(6)]
    assert rows[2]["test_loss"] != rows[8]["test_loss"]


# the last test that trains, because the fixture is for the rest of the file
@pytest.mark.all
@pytest.mark.usefixtures("optimised")
def test_real_numbers_share_a_program():
    """With the compiler's optimisations, as in real runs."""
    check(
        "fedprox:weighting=uniform",
        {"mu": ["0.1", "1"], "client_learning_rate": ["0.3"]},
        "fedprox:weighting=uniform,mu=1,client_learning_rate=0.3",
        programs=1,
        rate_schedule="exponential:decay=0.5",
        partition="dirichlet:alpha=1",
    )


def test_clients_are_not_evaluated_in_a_sweep():
    settings = Settings(**vars(SMALL) | {"evaluate_clients": "train"})
    with pytest.raises(ValueError, match="evaluate_clients='train' is not for sweeps; give eval"):
        prepare_sweep(settings, "fedprox", {"mu": [0.1]})
