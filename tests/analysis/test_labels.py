"""Display names of methods, and the algorithms that labels name."""

import pytest

from fedjax_algos.analysis.labels import algorithm_of, display_names


@pytest.mark.parametrize(
    ("label", "algorithm"),
    [
        ("fedavg", "fedavg"),
        ("FedAvg, tuned", "fedavg"),
        ("iid: FEDAVG-2", "fedavg"),
        ("fedavg_mine", "fedavg"),
        ("Per-FedAvg alpha=0.1", "perfedavg"),
        ("fedavgs", None),
        ("my fedavg", None),
        ("", None),
        (": :", None),
    ],
)
def test_the_algorithm_of_a_label(label, algorithm):
    assert algorithm_of(label) == algorithm


def test_display_names_by_label():
    labels = ["fedavg", "fedprox mu=0.1", "a: fedgbo sgdm", "mine", "fedavgs 2", "perfedavg"]
    shown = ["FedAvg", "FedProx mu=0.1", "a: FedGBO sgdm", "mine", "fedavgs 2", "Per-FedAvg"]
    assert display_names(labels) == dict(zip(labels, shown, strict=True))
    assert display_names(labels[:2], {"fedavg": "A", "z": "Z"})["fedavg"] == "A"
    assert display_names(["fedavg", "FedAvg"]) == {"fedavg": "fedavg", "FedAvg": "FedAvg"}
    message = "'fedavg' and 'mine' would have the same label 'mine'; give them different ones"
    with pytest.raises(ValueError, match=message):
        display_names(labels, {"fedavg": "mine"})
