"""The columns of a row of metrics."""

from fedjax_algos.analysis import metrics_row

COSTS = {"download_bytes": 4, "upload_bytes": 2, "flops": 1.5, "wall_seconds": 0.1}


def test_columns_have_one_order():
    metrics = {"train_loss": 0.3, "test_loss": 0.2, "test_accuracy": 0.9}
    row = metrics_row(7, metrics, **COSTS)
    assert list(row.items()) == [("round", 7), *metrics.items(), *COSTS.items()]
    row = metrics_row(0, metrics, simulated_seconds=0.0, arrivals=0, lost=0, **COSTS)
    clock, events = ("simulated_seconds", 0.0), [("arrivals", 0), ("lost", 0)]
    assert list(row.items()) == [("round", 0), clock, *metrics.items(), *events, *COSTS.items()]
