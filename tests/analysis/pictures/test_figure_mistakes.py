"""Options and rows of which no figure can be drawn."""

import pytest
from summary_helpers import FIRST, NAN, OTHER, rows

from fedjax_algos.analysis.pictures import draw_metric, plot_metric

TWO_METHODS = rows("fedavg", FIRST) + rows("fedprox", OTHER)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"band": "sd"}, "band='sd' is unknown; choose none, interval, range or seeds"),
        ({"log": "z"}, "log='z' is unknown; choose none, x, y or both"),
        ({"metric": "speed"}, "metric='speed' is unknown; choose round, test_accuracy"),
        ({"metric": []}, "metric is empty; give at least one"),
        ({"x": ["round", "round"]}, "x has 'round' twice; give it once"),
        ({"x": "flops"}, "x='flops' is unknown; choose round, upload_bytes or wall_seconds"),
        ({"facet": "round"}, "facet='round' is unknown; choose method or seed"),
        ({"methods": ["fedavgm"]}, "unknown method 'fedavgm'; did you mean fedavg?"),
        ({"methods": []}, "methods is empty; give at least one"),
        ({"labels": {"a": "b"}}, "unknown label 'a'; choose fedavg or fedprox"),
        ({"labels": {"fedavg": "FedProx"}}, "'fedavg' and 'fedprox' would have the same label"),
        ({"x_limits": (1, 1)}, r"x_limits=\(1, 1\) is no interval; give the lower limit first"),
        ({"y_limits": (NAN, 1)}, r"y_limits=\(nan, 1\) is no interval; give finite numbers"),
        ({"y_limits": (1,)}, r"is no interval; give the lower and the upper limit"),
        ({"y_limits": (0, 1), "log": "y"}, "does not fit a logarithmic axis; give limits above 0"),
        (
            {"y_limits": (0, 1), "metric": ["test_accuracy", "test_loss"]},
            "y_limits is that of one column, but there are 2; leave it out",
        ),
        ({"x_label": "a", "x": ["round", "upload_bytes"]}, "x_label is that of one column"),
        ({"size": (0.5, 3)}, r"size=\(0.5, 3\) is out of range; give the width and the height"),
        ({"size": 3}, "size=3 is out of range"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        draw_metric(TWO_METHODS, **options)


def test_figures_that_cannot_be_drawn(tmp_path):
    with pytest.raises(ValueError, match="there are no rows to plot"):
        draw_metric([])
    many = [row for index in range(25) for row in rows(f"a{index}", FIRST)]
    with pytest.raises(ValueError, match="25 panels are too many for a figure; choose at most 24"):
        draw_metric(many, facet="method")
    with pytest.raises(ValueError, match="size=1x1 has no room for the axes beside the texts"):
        plot_metric(many, tmp_path / "a.png", size=(1, 1))
    assert list(tmp_path.iterdir()) == []


def test_flops_are_an_axis_where_they_were_measured():
    with_flops, without = rows("first", FIRST, flops=1e9), rows("other", OTHER)
    message = "x='flops' is unknown; choose round, upload_bytes or wall_seconds"
    with pytest.raises(ValueError, match=message):
        draw_metric(with_flops + without, x="flops")
