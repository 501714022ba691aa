"""TensorBoard's own reader reads the event files, and no row is there twice."""

import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from fedjax_algos.runs.studies.trackers import TrackedRun, trackers

COLUMNS = "round", "test_accuracy", "upload_bytes", "wall_seconds", "t"
NUMBERS = (0, 0.1, 0, 0.5), (5, 0.75, 2**40, 7.5, math.nan), (7, 0.9, 2**41, 12.0, 1.0)
ROWS = [dict(zip(COLUMNS, numbers, strict=False)) for numbers in NUMBERS]
SETTINGS = {"mu": 0.25, "clients": 12, "model": "<b>ä", "nested": True, "target": None}


@pytest.fixture
def run(tmp_path):
    return TrackedRun(tmp_path, "01-fedavg/seed-3", "fedavg", 3, SETTINGS)


def track(run, rows):
    with trackers.make("tensorboard")(run) as add_row:
        for row in rows:
            add_row({"method": "fedavg", "seed": 3} | row)


def read(run):
    """What TensorBoard reads in the folder of the run."""
    return EventAccumulator(str(run.folder / "tensorboard" / run.name)).Reload()


def points(reader, tag):
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def test_each_column_is_a_scalar(run):
    track(run, ROWS)
    reader = read(run)
    assert {*reader.Tags()["scalars"]} == {*COLUMNS} - {"round"}
    accuracies = [(0, np.float32(0.1)), (5, np.float32(0.75)), (7, np.float32(0.9))]
    assert points(reader, "test_accuracy") == accuracies
    assert points(reader, "upload_bytes") == [(0, 0), (5, 2**40), (7, 2**41)]
    np.testing.assert_equal(points(reader, "t"), [(5, math.nan), (7, 1.0)])
    times = [event.wall_time for event in reader.Scalars("test_accuracy")]
    assert np.diff(times) == pytest.approx([7.0, 4.5], abs=1e-4)


def test_settings_are_hyper_parameters(run):
    track(run, ROWS[:1])
    content = {
        tag.rpartition("/")[2]: HParamsPluginData.FromString(data)
        for tag, data in read(run).PluginTagToContent("hparams").items()
    }
    given = content["session_start_info"].session_start_info.hparams
    assert (given["mu"].number_value, given["clients"].number_value) == (0.25, 12)
    assert (given["model"].string_value, given["nested"].bool_value) == ("<b>ä", True)
    assert "target" not in given
    metrics = content["experiment"].experiment.metric_infos
    assert [metric.name.tag for metric in metrics] == ["test_accuracy"]
    assert content["session_end_info"].HasField("session_end_info")


def test_a_run_that_begins_again_replaces_its_file(run):
    with pytest.raises(TypeError):
        track(run, [ROWS[0], None])
    assert len(points(read(run), "test_accuracy")) == 1  # the file was closed
    assert "session_end_info" not in str(read(run).PluginTagToContent("hparams"))
    track(run, ROWS)
    assert [step for step, _ in points(read(run), "test_accuracy")] == [0, 5, 7]
    assert len([*(run.folder / "tensorboard" / run.name).iterdir()]) == 1


def test_rows_are_written_at_once(run):
    with trackers.make("tensorboard")(run) as add_row:
        add_row(ROWS[0])
        assert len(read(run).Tags()["scalars"]) == 3


def test_a_folder_that_cannot_be_written(run):
    (run.folder / "tensorboard").write_text("")
    with pytest.raises(ValueError, match="cannot be written"):
        track(run, ROWS)
