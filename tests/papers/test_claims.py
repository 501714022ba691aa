"""Claims of papers: what is read, what is checked, and the verdict."""

import math

import numpy as np
import pytest
from claim_files.checks import check_claim
from claim_files.measured import Quantity, read_measured, write_measured
from claim_files.reading import read_claim
from claim_files.verdicts import (
    AFTER_CHANGE,
    IN_ORDER,
    NOT_REPRODUCED,
    NOT_RUN,
    ON_STAND_IN,
    OPEN,
    REPRODUCED,
    judge,
    read_claims,
)
from claim_helpers import CLAIM, HALF, ROUNDS, write_claim, write_paper
from claim_helpers import NOT_RUN as NOT_RUN_KEYS
from scipy import stats

BEST = "best accuracy (%)"


def verdict(path):
    return judge(read_claim(path)).verdict


def test_values_are_read_with_what_was_not_reached(tmp_path):
    write_claim(tmp_path, values={"a": ["50", ">200", ""], "b": ["1e2", "3", "4"]})
    found = read_measured(tmp_path / "table_1.csv")
    own = found[Quantity(ROUNDS, "", "a")]
    assert own.seeds == (0, 1, 2)
    np.testing.assert_array_equal(own.values, [50, 200, math.nan])
    np.testing.assert_array_equal(own.censored, [False, True, False])
    assert own.text() == "1/3 diverged"
    assert found[Quantity(ROUNDS, "", "b")].text() == f"35.67 ± {half_width([100, 3, 4]):.2g}"


def test_what_is_written_is_read(tmp_path):
    rows = [("K = 5", "a", ROUNDS, 0, ">200"), ("K = 5", 'b, "c"', ROUNDS, 3, 1.5)]
    write_measured(tmp_path / "a.csv", rows)
    found = read_measured(tmp_path / "a.csv")
    first, second = found[Quantity(ROUNDS, "K = 5", "a")], found[Quantity(ROUNDS, *rows[1][:2])]
    assert (first.seeds, first.values.tolist(), first.censored.tolist()) == ((0,), [200], [True])
    assert (second.seeds, second.values.tolist()) == ((3,), [1.5])


def half_width(values):
    return stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)


def test_the_text_says_how_many_seeds_reach_the_target(tmp_path):
    write_claim(tmp_path, values={"a": ["100", ">200", "150"], "b": ["1", "2", "3"]})
    own = read_measured(tmp_path / "table_1.csv")[Quantity(ROUNDS, "", "a")]
    assert own.text() == f"> 150 ± {half_width([100, 200, 150]):.2g} (2/3 reached)"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (HALF, REPRODUCED),  # 2.09 against 1.93
        ({"a": [50, 60, 55], "b": [60, 70, 66]}, IN_ORDER),  # 1.19: another size
        ({"a": [5, 6, 5], "b": [60, 70, 66]}, IN_ORDER),  # 12: another size
        ({"a": [50, 60, 55], "b": [55, 50, 120]}, OPEN),  # the interval contains 0
        ({"a": [110, 115, 120], "b": [50, 60, 55]}, OPEN),  # the other way round
        ({"a": [50, 60, ""], "b": [110, 115, 120]}, OPEN),  # a has diverged
        ({"a": [50, 60, 55, 56], "b": [110, 115, 120, ""]}, REPRODUCED),  # b has diverged
        ({"a": [50, 60, 55, 56], "b": [50, 61, 54, ""]}, OPEN),  # no difference on the others
        ({"a": [50, 60, 55], "b": [110, "", ""]}, REPRODUCED),
        ({"a": [50, 60, 55], "b": [49, "", ""]}, OPEN),
        ({"a": [50, 60, 55], "b": ["", "", ""]}, IN_ORDER),  # of unknown size
        ({"a": [50, "", 55], "b": ["", "", ""]}, OPEN),
        # runs that end before the target: an order at most
        ({"a": [50, 60, 55], "b": [">110", ">110", ">110"]}, IN_ORDER),
        ({"a": [50, 60, 55], "b": [110, 115, ">120"]}, IN_ORDER),
        ({"a": [">200", 60, 55], "b": [">200", 115, 120]}, OPEN),  # two decided seeds
        ({"a": [">200"] * 3, "b": [">200"] * 3}, OPEN),
        ({"a": [">200", *[50] * 6], "b": [">200", *[110] * 5, ">200"]}, IN_ORDER),  # six of six
        ({"a": [">200", *[50] * 7], "b": [199, *[110] * 7]}, OPEN),  # seven of eight
        ({"a": [">200", *[50] * 8], "b": [199, *[110] * 8]}, IN_ORDER),  # eight of nine
        ({"a": [">90", *[50] * 6], "b": [199, *[110] * 6]}, IN_ORDER),  # the first says nothing
    ],
)
def test_the_verdict_on_an_order(tmp_path, values, expected):
    assert verdict(write_claim(tmp_path, values=values)) == expected


def test_sizes_of_ratios_are_compared_by_their_logarithms(tmp_path):
    """The logarithm of the paper's 1.2 is .18; from .12 to .27 are 1.13 to 1.31."""
    paper = [{"measure": ROUNDS, "values": {"a": 100, "b": 120}}]
    costs = [50, 60, 55]
    sizes = {1.125: IN_ORDER, 1.135: REPRODUCED, 1.31: REPRODUCED, 1.32: IN_ORDER}
    for factor, expected in sizes.items():
        values = {"a": costs, "b": [factor * cost for cost in costs]}
        assert verdict(write_claim(tmp_path, values=values, paper=paper)) == expected


@pytest.mark.parametrize("b", [60, 59])
def test_an_order_that_the_paper_does_not_print_never_holds(tmp_path, b):
    paper = [{"measure": ROUNDS, "values": {"a": 60, "b": b}}]
    path = write_claim(tmp_path, values=HALF, paper=paper)
    (check,) = judge(read_claim(path)).checks
    assert not check.holds
    assert "which is not this order" in check.seen


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"stand_ins": ["digits for MNIST"]}, ON_STAND_IN),
        ({"changed": "The rate."}, AFTER_CHANGE),
        ({"stand_ins": ["digits for MNIST"], "changed": "The rate."}, AFTER_CHANGE),
    ],
)
def test_a_stand_in_or_a_change_is_never_reproduced(tmp_path, changes, expected):
    assert verdict(write_claim(tmp_path, values=HALF, **changes)) == expected
    swapped = {"a": HALF["b"], "b": HALF["a"]}
    assert verdict(write_claim(tmp_path, values=swapped, **changes)) == OPEN


def test_the_seeds_are_those_that_were_fixed(tmp_path):
    path = write_claim(tmp_path, values=HALF, seeds=2)
    with pytest.raises(ValueError, match=r"has seeds \(0, 1, 2\), not \(0, 1\)"):
        verdict(path)
    more = tmp_path / "more.csv"
    more.write_text(path.with_suffix(".csv").read_text())
    assert judge(read_claim(path), more).verdict == REPRODUCED


def test_an_order_without_values_of_the_paper_has_no_size(tmp_path):
    assert verdict(write_claim(tmp_path, values=HALF, paper=None)) == IN_ORDER


def test_costs_are_compared_by_their_ratios_on_each_seed(tmp_path):
    one, two = [50, 800, 20], [65, 1000, 27]  # far apart over seeds
    path = write_claim(tmp_path, values={"a": one, "b": two})
    (check,) = check_claim(read_claim(path), read_measured(path.with_suffix(".csv")))
    assert check.holds
    logs = np.log(np.divide(two, one))
    ends = [math.exp(logs.mean() + part * half_width(logs)) for part in (0, -1, 1)]
    shown = "ratio {:.3g} from {:.3g} to {:.3g}".format(*ends)
    assert check.seen.endswith(f"{shown}; the paper's 1.93")
    assert check.effect == pytest.approx(math.log(stats.gmean(np.divide(two, one))))
    assert check.paper_effect == pytest.approx(math.log(116 / 60))


def test_a_cost_is_above_0(tmp_path):
    with pytest.raises(ValueError, match="lower compares ratios of costs, and one is not above 0"):
        verdict(write_claim(tmp_path, values={"a": [0, 1, 2], "b": [3, 4, 5]}))


def test_higher_compares_differences(tmp_path):
    order = {"measure": BEST, "higher": "a", "than": ["b"]}
    paper = [{"measure": BEST, "values": {"a": 50, "b": 40}}]
    values = {"a": [49, 50, 51], "b": [41, 42, 42.5]}
    path = write_claim(tmp_path, values=values, measure=BEST, orders=[order], paper=paper)
    (check,) = judge(read_claim(path)).checks
    assert (check.effect, check.paper_effect) == (pytest.approx(50 - 125.5 / 3), 10)
    half = half_width(np.subtract(*values.values()))
    assert check.seen.endswith(f"difference +{50 - 125.5 / 3:.3g} ± {half:.2g}; the paper's 10")
    assert verdict(path) == REPRODUCED


def test_cases_of_one_method_are_compared(tmp_path):
    order = {"measure": ROUNDS, "method": "a", "lower": "tau = 1", "than": ["tau = 3"]}
    values = {"tau = 1": {"a": [29, 30, 31]}, "tau = 3": {"a": [60, 61, 59]}}
    path = write_claim(tmp_path, values=values, orders=[order], paper=None)
    (check,) = judge(read_claim(path)).checks
    assert check.holds
    assert check.text == f"{ROUNDS}, a: tau = 1 < tau = 3"


def test_an_order_is_checked_in_all_cases_unless_some_are_named(tmp_path):
    values = {"x": HALF, "y": {"a": HALF["b"], "b": HALF["a"]}}
    assert verdict(write_claim(tmp_path, values=values, paper=None)) == OPEN
    order = {**CLAIM["orders"][0], "cases": ["x"]}
    path = write_claim(tmp_path, values=values, paper=None, orders=[order])
    assert verdict(path) == IN_ORDER


@pytest.mark.parametrize(("margin", "expected"), [(2.0, REPRODUCED), (1.0, OPEN)])
def test_a_tie_needs_the_whole_interval_inside_the_margin(tmp_path, margin, expected):
    one, two = [80.0, 81, 82], [80.2, 80.8, 82.6]
    difference = np.subtract(one, two)
    assert 1.0 < abs(difference.mean()) + half_width(difference) < 2.0
    tie = {"measure": BEST, "methods": ["a", "b"], "margin": margin}
    path = write_claim(
        tmp_path, values={"a": one, "b": two}, measure=BEST, orders=None, ties=[tie], paper=None
    )
    assert verdict(path) == expected


def test_a_clear_difference_is_no_tie_unless_a_small_one_is_claimed(tmp_path):
    values = {"a": [80.3, 81.2, 82.25], "b": [80.0, 81, 82]}  # .25 ± .12
    tie = {"measure": BEST, "methods": ["a", "b"], "margin": 0.5}
    given = {"values": values, "measure": BEST, "orders": None, "paper": None}
    assert verdict(write_claim(tmp_path, ties=[tie], **given)) == OPEN
    tie["small_difference"] = True
    assert verdict(write_claim(tmp_path, ties=[tie], **given)) == REPRODUCED


def test_targets_that_were_not_reached_are_no_tie(tmp_path):
    tie = {"measure": ROUNDS, "methods": ["a", "b"], "margin": 5}
    values = {"a": [">200", 90, 80], "b": [">200", 91, 80]}
    assert verdict(write_claim(tmp_path, values=values, orders=None, ties=[tie])) == OPEN


@pytest.mark.parametrize(
    "changes",
    [
        {"orders": [{**CLAIM["orders"][0], "than": []}]},
        {"orders": [{**CLAIM["orders"][0], "cases": []}]},
        {"orders": None, "ties": [{"measure": ROUNDS, "methods": ["a"], "margin": 1}]},
        {"orders": None, "equals": [{"measure": "FLOPs", "relative": 0.1}]},
        {"orders": None, "equals": [{"measure": ROUNDS, "relative": 9, "cases": ["x"]}]},
    ],
)
def test_a_claim_does_not_hold_because_nothing_is_compared(tmp_path, changes):
    with pytest.raises(ValueError, match="compares nothing"):
        verdict(write_claim(tmp_path, values=HALF, **changes))


@pytest.mark.parametrize(("seen", "expected"), [(119.4, REPRODUCED), (119.3, OPEN)])
def test_equal_values(tmp_path, seen, expected):
    equal = {"measure": "FLOPs", "relative": 0.005}
    paper = [{"measure": "FLOPs", "values": {"a": 120}}]
    path = write_claim(
        tmp_path, values={"a": [seen]}, measure="FLOPs", orders=None, equals=[equal], paper=paper
    )
    assert verdict(path) == expected


def test_a_reason_that_is_not_shown_leaves_the_claim_open(tmp_path):
    swapped = {"a": HALF["b"], "b": HALF["a"]}
    given = {"values": swapped, "reason": "The rate.", "shown_by": ["why_table_1"]}
    path = write_claim(tmp_path, open="The experiment trains nothing.", **given)
    write_claim(tmp_path, "why_table_1", values=HALF, of="table_1")
    assert verdict(path) == OPEN


def test_a_claim_that_holds_needs_no_reason(tmp_path):
    path = write_claim(tmp_path, values=HALF, reason="The rate.", shown_by=["why_table_1"])
    write_claim(tmp_path, "why_table_1", values=HALF, of="table_1")
    with pytest.raises(ValueError, match="holds, so there is no reason to give"):
        verdict(path)


@pytest.mark.parametrize(
    ("shown", "expected"), [(HALF, NOT_REPRODUCED), ({**HALF, "a": HALF["b"]}, OPEN)]
)
def test_a_reason_has_to_be_shown_by_an_experiment_that_holds(tmp_path, shown, expected):
    swapped = {"a": HALF["b"], "b": HALF["a"]}
    path = write_claim(tmp_path, values=swapped, reason="The rate.", shown_by=["why_table_1"])
    write_claim(tmp_path, "why_table_1", values=shown, of="table_1")
    assert verdict(path) == expected
    assert [each.claim.of for each in judge(read_claim(path)).shown_by] == ["table_1"]


def test_a_claim_that_was_not_run(tmp_path):
    assert verdict(write_claim(tmp_path, needs="a GPU for a day", **NOT_RUN_KEYS)) == NOT_RUN


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"printed": None}, "lacks printed"),
        ({"minutes": None}, "lacks minutes"),
        ({"stand_ins": None}, "lacks stand_ins"),
        ({"needs": "a GPU"}, "has needs, because it was not run; leave the rest out"),
        ({"orders": None}, "has no orders, ties or equals; say what to check"),
        ({"program": None}, "needs either settings or a program"),
        ({"settings": {"rounds": 3}}, "needs either settings or a program"),
        ({"reason": "The rate."}, "needs both reason and shown_by, or neither"),
        ({"open": "No experiment."}, "open says why a reason is not shown, but there is none"),
        ({"sen": "x"}, "has unknown keys {'sen'}"),
        ({"orders": [{"measure": ROUNDS, "than": ["b"]}]}, "has lower or higher, and not both"),
        ({"orders": [{"measure": ROUNDS, "lower": "a", "then": []}]}, "orders has {'then'}"),
    ],
)
def test_wrong_claims(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        verdict(write_claim(tmp_path, values=HALF, **changes))


def test_a_claim_that_trains_nothing_has_no_stand_ins(tmp_path):
    assert verdict(write_claim(tmp_path, values=HALF, stand_ins=None, trains=False)) == REPRODUCED


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({"measure": "rounds to 70%"}, "compares nothing"),
        ({"than": ["c"]}, "'rounds to 65%' of 'c' in case '' was not measured"),
        ({"cases": ["z"]}, "'rounds to 65%' of 'a' in case 'z' was not measured"),
    ],
)
def test_what_was_not_measured_cannot_be_checked(tmp_path, order, message):
    with pytest.raises(ValueError, match=message):
        verdict(write_claim(tmp_path, values=HALF, orders=[{**CLAIM["orders"][0], **order}]))


def test_differences_need_three_seeds(tmp_path):
    with pytest.raises(ValueError, match="the same seeds are needed, at least 3"):
        verdict(write_claim(tmp_path, values={"a": [50, 60], "b": [110, 115]}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", r"begins with \['a', 'b'\], not with"),
        (",a,m,0,3\n,a,m,0,3\n", "line 3: seed 0 is there twice"),
        (",a,m,0,inf\n", "line 2: 'inf' is no finite number"),
        (",a,m,0,>\n", "line 2: '>' is no finite number"),
    ],
)
def test_wrong_values(tmp_path, text, message):
    path = write_claim(tmp_path)
    header = "" if text.startswith("a,b") else "case,method,measure,seed,value\n"
    path.with_suffix(".csv").write_text(header + text)
    with pytest.raises(ValueError, match=message):
        verdict(path)


def test_claims_stand_in_the_order_of_the_paper(tmp_path):
    write_paper(tmp_path)
    (found,) = read_claims(tmp_path)
    assert found.paper.name == "one"
    assert [each.claim.item for each in found.claims] == ["Table I", "Figure 2"]


def test_every_item_has_a_claim_and_every_claim_an_item(tmp_path):
    folder = write_paper(tmp_path)
    (folder / "figure_2.toml").unlink()
    with pytest.raises(ValueError, match=r"only one of .* and the claims has \['Figure 2'\]"):
        read_claims(tmp_path)
    write_claim(folder, "figure_2", item="Figure 3", values=HALF)
    with pytest.raises(ValueError, match=r"\['Figure 2', 'Figure 3'\]"):
        read_claims(tmp_path)


def test_every_experiment_is_named_by_its_claim(tmp_path):
    write_claim(write_paper(tmp_path), "why_table_1", values=HALF, of="table_1")
    with pytest.raises(ValueError, match=r"no claim names these experiments.*why_table_1"):
        read_claims(tmp_path)
