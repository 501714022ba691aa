"""--track; that each row reaches its tracker once is tested in test_resume.py."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedjax_algos.cli import main
from fedjax_algos.cli.environment import make_trackers
from fedjax_algos.runs.saving.trackers import trackers

pytestmark = pytest.mark.usefixtures("quick_pictures")
PAGE = Path(__file__).parents[2] / "docs" / "command_line.md"
SEEN = """
import contextlib

settings = {}


def remember():
    @contextlib.contextmanager
    def track(run):
        settings[run.method, run.seed] = run.settings
        yield dict.clear

    return track
"""


@pytest.mark.all
def test_settings_of_a_sweep(here):
    (here / "seen.py").write_text(SEEN)
    grid = ["--grid", "mu=0.5", "--grid", "local_steps=2"]
    small = ["--model", "linear", "--clients", "4", "--cohort", "2", "--rounds", "1"]
    main(["sweep", "fedprox", *grid, *small, "--seeds", "1", "--track", "seen.py:remember"])
    seen = trackers["seen.py:remember"].__wrapped__.__globals__["settings"]
    (values,) = seen.values()
    assert list(seen) == [("fedprox mu=0.5 local_steps=2", 0)]
    assert (values["algorithm"], values["mu"], values["clients"]) == ("fedprox", 0.5, 4)
    assert values["local_steps"] == 2  # of the grid
    del trackers["seen.py:remember"]


def test_a_tracker_in_python(tmp_path):
    """docs/command_line.md: `on_evaluation` of a run."""
    *_, program = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names, rows = {}, [{"round": 0, "test_loss": 1.0}, {"round": 2, "test_loss": 0.5}]
    exec(program, names)

    def simulate(engine, data, on_evaluation, cohort_size):
        assert (engine, data, cohort_size) == ("engine", "data", 2)
        assert [on_evaluation(row) for row in rows] == [None, None]

    names["fa"] = type("fa", (), {"simulate": staticmethod(simulate)})
    names["simulate_with_a_tracker"]("engine", "data", tmp_path, cohort_size=2)
    reader = EventAccumulator(str(tmp_path / "tensorboard" / "mine" / "seed-0")).Reload()
    assert [(e.step, e.value) for e in reader.Scalars("test_loss")] == [(0, 1.0), (2, 0.5)]


def test_a_missing_package_is_told_before_anything_is_written(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    error = refused("run", "fedavg", "--track", "tensorboard")
    assert error.endswith("run: pip install 'fedjax_algos[tensorboard]'\n")


def test_a_tracker_twice_is_refused():
    with pytest.raises(ValueError, match="track has 'tensorboard' twice; give it once"):
        make_trackers(["tensorboard", "tensorboard:flush_seconds=1"])


@pytest.mark.all
def test_no_tracker_is_imported_unless_it_is_given():
    program = (
        "import sys, fedjax_algos.cli; from fedjax_algos.cli.environment import make_trackers; "
        "print(make_trackers(()), {'tensorboardX', 'wandb', 'tensorboard'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert run.stdout == b"[] set()\n"
