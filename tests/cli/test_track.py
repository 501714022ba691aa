"""--track; rows and settings of trackers are tested in test_resume.py and test_methods.py."""

import subprocess
import sys

import pytest
from helpers import programs
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def test_a_tracker_in_python(tmp_path):
    """docs/command_line.md: `on_evaluation` of a run."""
    names, measured = {}, [{"round": 0, "test_loss": 1.0}, {"round": 2, "test_loss": 0.5}]
    exec(programs("docs/command_line.md")[-1], names)

    def simulate(engine, data, on_evaluation, cohort_size):
        assert (engine, data, cohort_size) == ("engine", "data", 2)
        assert [on_evaluation(row) for row in measured] == [None, None]

    names["fa"] = type("fa", (), {"simulate": staticmethod(simulate)})
    names["simulate_with_a_tracker"]("engine", "data", tmp_path, cohort_size=2)
    reader = EventAccumulator(str(tmp_path / "tensorboard" / "mine" / "seed-0")).Reload()
    assert [(e.step, e.value) for e in reader.Scalars("test_loss")] == [(0, 1.0), (2, 0.5)]


def test_a_missing_package_is_told_before_anything_is_written(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    error = refused("run", "fedavg", "--track", "tensorboard")
    assert error.endswith("run: pip install 'fedjax_algos[tensorboard]'\n")


@pytest.mark.all
def test_no_tracker_is_imported_unless_it_is_given():
    names = "{'tensorboardX', 'wandb', 'tensorboard'}"
    program = f"import sys, fedjax_algos.cli; print({names} & {{*sys.modules}})"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert run.stdout == b"set()\n"
