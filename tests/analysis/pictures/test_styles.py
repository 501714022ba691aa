"""Styles and names of methods: fixed, different in a figure, visible without colour vision."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis.labels import DISPLAY_NAMES, algorithm_of, display_names
from fedjax_algos.analysis.pictures import Style, method_styles
from fedjax_algos.analysis.pictures.curves import COLOURS, FIXED_STYLES

# from linear RGB to XYZ; and Machado, Oliveira and Fernandes, "A Physiologically-based Model for
# Simulation of Color Vision Deficiency", 2009: protanopia, deuteranopia and tritanopia, severity 1
MATRICES = """
0.4124564 0.3575761 0.1804375  0.2126729 0.7151522 0.0721750  0.0193339 0.1191920 0.9503041
0.152286 1.052583 -0.204868    0.114503 0.786281 0.099216     -0.003882 -0.048116 1.051998
0.367322 0.860646 -0.227968    0.280085 0.672501 0.047413     -0.011820 0.042940 0.968881
1.255528 -0.076749 -0.178779   -0.078411 0.930809 0.147602    0.004733 0.691367 0.303900
"""
XYZ, *VISIONS = np.loadtxt(MATRICES.splitlines()).reshape(4, 3, 3)
WHITE = np.array([0.95047, 1.0, 1.08883])


def lab(rgb, vision):
    """CIELAB of colours, as a kind of vision sees them."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ vision.T, 0, 1) @ XYZ.T / WHITE
    f = np.where(seen > 0.008856, np.cbrt(seen), 7.787 * seen + 16 / 116)
    x, y, z = f.T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


def test_colours_differ_for_all_kinds_of_vision_and_in_grey():
    """The smallest difference of two colours, in CIELAB; 2.3 is just noticeable."""
    rgb = np.array([to_rgb(colour) for colour in COLOURS])
    for vision in (np.eye(3), *VISIONS):
        pairs = itertools.combinations(lab(rgb, vision), 2)
        smallest = min(np.linalg.norm(first - second) for first, second in pairs)
        assert smallest > 30
    greys = np.sort(255 * rgb @ [0.299, 0.587, 0.114])  # as Pillow's convert("L")
    assert greys[0] == 0
    assert np.diff(greys).min() > 17
    assert greys[-1] < 185


def colours(labels):
    return {style.colour for style in method_styles(labels).values()}


def test_names_in_the_table_are_algorithms_with_different_styles():
    assert FIXED_STYLES.keys() < DISPLAY_NAMES.keys() == algorithms.keys()
    assert len(set(FIXED_STYLES.values())) == len(FIXED_STYLES)


@pytest.mark.parametrize(
    "names",
    [
        "fedavg fedprox fedmax mfl mimelite fedadam fedgbo mimexlite",
        "fedavg fedprox fednova scaffold feddyn fedlga",
        "fedavg fedprox scaffold feddyn ghbm fedadc fedcm",
        "fedavg fedasync fedbuff fedat fedcompass",
        "fedavg apfl ditto fedbn fedrep ifca perfedavg pfedme",
    ],
)
def test_methods_of_a_paper_have_fixed_styles_and_differ_in_colour(names):
    assert {*names.split()} <= FIXED_STYLES.keys()
    assert len(colours(names.split())) == len(names.split())


def test_a_style_follows_from_the_label_whatever_stands_beside_it():
    assert method_styles(["fedavg"]) == {"fedavg": Style("#000000", "o", "-")}
    labels = ["mine mu=0.1", "fedavg", "scaffold"]
    for order in itertools.permutations(labels):
        styles = method_styles(order)
        assert list(styles) == list(order)
        assert styles == method_styles(sorted(labels))
    assert {styles[labels[0]].colour} == colours(labels[:1])
    assert len(colours(labels)) == 3


def test_an_algorithm_has_its_style_whatever_its_case_and_options():
    for name, style in FIXED_STYLES.items():
        spelled = DISPLAY_NAMES[name]
        for label in (name, spelled, spelled.upper(), f"{spelled} lr=0.1", f"{spelled}, tuned"):
            assert method_styles([label, "mine"])[label] == style, label
    assert method_styles(["Fedavgs"])["Fedavgs"] != FIXED_STYLES["fedavg"]


@pytest.mark.parametrize("name", FIXED_STYLES)
def test_variants_share_a_colour_beside_other_algorithms(name):
    """They differ in marker and line, and from all other styles."""
    for number in (2, 3, 4):
        variants = [name, *(f"{name} mu={value}" for value in range(number - 1))]
        styles = method_styles([*FIXED_STYLES, *variants])
        assert len(set(styles.values())) == len(styles)
        assert {styles[label].colour for label in variants} == {FIXED_STYLES[name].colour}
        styles = method_styles([*variants[1:], "other"])
        assert styles[variants[1]] == FIXED_STYLES[name]
        for part in ("marker", "line"):
            assert len({getattr(styles[label], part) for label in variants[1:]}) == number - 1


def test_a_codec_has_one_line_beside_all_algorithms():
    plain = ["fedavg", "scaffold", "fedprox"]
    codecs = ["topk", "qsgd levels=4", "eden"]
    labels = plain + [f"{name}+{codec}" for name in plain for codec in codecs]
    styles = method_styles(labels)
    assert len(set(styles.values())) == len(labels)
    for name in plain:
        assert {styles[f"{name}+{codec}"].colour for codec in codecs} == {styles[name].colour}
    lines = [{styles[f"{name}+{codec}"].line for name in plain} for codec in codecs]
    assert len(lines) == len(set.union(*lines)) == 3
    assert display_names(labels)["fedavg+qsgd levels=4"] == "FedAvg+qsgd levels=4"


def test_many_variants_have_different_colours_and_markers_as_long_as_there_are_some():
    labels = [f"fedprox mu={value}" for value in range(64)]
    for number in (2, 5, 8):
        assert len(colours(labels[:number])) == number
        assert len({style.marker for style in method_styles(labels[:number]).values()}) == number
    assert len(colours(["fedavg", *labels[:6]])) == 7
    assert len(set(method_styles(labels).values())) == 64
    assert len(method_styles(map(str, range(100)))) == 100


def test_a_folder_does_not_change_a_style_unless_the_method_is_there_twice():
    alone = method_styles(["fedavg", "fedprox mu=0.1"])
    styles = method_styles(["a: fedavg", "b: fedprox mu=0.1"])
    assert [*styles.values()] == [*alone.values()]
    styles = method_styles(["a: fedavg", "b: fedavg", "a: fedprox", "fedavg"])
    assert len(set(styles.values())) == 4
    assert {styles[label].colour for label in styles if "fedavg" in label} == {"#000000"}
    assert styles["fedavg"] == alone["fedavg"]
    assert len(colours(["a: fedavg", "b: fedavg"])) == 2


@pytest.mark.parametrize(
    ("label", "algorithm"),
    [
        ("fedavg", "fedavg"),
        ("FedAvg, tuned", "fedavg"),
        ("iid: FEDAVG-2", "fedavg"),
        ("Per-FedAvg alpha=0.1", "perfedavg"),
        ("fedavgs", None),
        ("my fedavg", None),
    ],
)
def test_the_algorithm_of_a_label(label, algorithm):
    assert algorithm_of(label) == algorithm


def test_display_names_by_label():
    labels = ["fedavg", "fedprox mu=0.1", "a: fedgbo sgdm", "mine", "fedavgs 2", "perfedavg"]
    shown = ["FedAvg", "FedProx mu=0.1", "a: FedGBO sgdm", "mine", "fedavgs 2", "Per-FedAvg"]
    assert display_names(labels) == dict(zip(labels, shown, strict=True))
    assert display_names(labels[:2], {"fedavg": "A", "z": "Z"})["fedavg"] == "A"
    wrapped = "fedavg+topk topk", "fedavg+topk topk:fraction=0.1", "fedavg+a+b a+b:c=1"
    shown = ["FedAvg+topk", "FedAvg+topk fraction=0.1", "FedAvg+a+b a+b:c=1"]
    assert [*display_names(wrapped).values()] == shown
    assert display_names(["fedavg", "FedAvg"]) == {"fedavg": "fedavg", "FedAvg": "FedAvg"}
    with pytest.raises(ValueError, match="'fedavg' and 'mine' would have the same label 'mine'"):
        display_names(labels, {"fedavg": "mine"})
