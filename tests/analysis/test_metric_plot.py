"""The picture of a metric."""

import pytest
from summary_helpers import ALL_DIVERGED, FIRST, HALF_DIVERGED, OTHER, rows

from fedjax_algos.analysis import plots


def test_flops_are_an_axis_where_they_were_measured(tmp_path):
    with_flops, without = rows("first", FIRST, flops=1e9), rows("other", OTHER)
    plots.plot_metric(with_flops, tmp_path / "a.png", x="flops")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    message = "x='flops' is unknown; choose round, upload_bytes or wall_seconds"
    with pytest.raises(ValueError, match=message):
        plots.plot_metric(with_flops + without, tmp_path / "b.png", x="flops")


@pytest.mark.filterwarnings("error")
def test_diverged_runs_are_plotted_without_warnings(tmp_path):
    measured = rows("half", HALF_DIVERGED) + rows("all", ALL_DIVERGED) + rows("fine", OTHER)
    plots.plot_metric(measured, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
