"""The short form of experiments/unreliable_clients.py."""

import importlib.util
from pathlib import Path

import pytest

from fedjax_algos.runs.settings import Settings

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "unreliable_clients.py"


@pytest.mark.slow
@pytest.mark.skipif(not EXPERIMENT.exists(), reason="the experiments are not part of this copy")
def test_fedavg_learns_although_clients_send_nan_and_drop_out():
    spec = importlib.util.spec_from_file_location("unreliable_clients", EXPERIMENT)
    experiment = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(experiment)
    settings = Settings(partition="iid", rounds=40, model="linear", seeds=(0,), local_steps=5)
    rows = experiment.compare(settings)
    clean, unreliable = experiment.best(rows["clean"]), experiment.best(rows["unreliable"])
    assert clean > 85
    assert unreliable > clean - 2
    excluded = [row["excluded_updates"] for row in rows["unreliable"][0]]
    assert excluded == sorted(excluded)
    assert excluded[0] == 0
    assert 40 < excluded[-1] < 90  # about a fifth of 40 rounds of 8 clients
