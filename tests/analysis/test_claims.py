"""Claims of papers: what is read, what is checked, and the verdict."""

import math

import numpy as np
import pytest
from claim_helpers import CLAIM, HALF, ROUNDS, write_claim, write_paper
from claim_helpers import NOT_RUN as NOT_RUN_KEYS
from scipy import stats

from fedjax_algos.analysis.claims import (
    NOT_REPRODUCED,
    NOT_RUN,
    OPEN,
    REPRODUCED,
    REPRODUCED_IN_ORDER,
    Quantity,
    check_claim,
    judge,
    read_claim,
    read_claims,
    read_measured,
    write_measured,
)

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
        ({"a": [50, 60, 55], "b": [60, 70, 66]}, REPRODUCED_IN_ORDER),  # 1.19: another size
        ({"a": [5, 6, 5], "b": [60, 70, 66]}, REPRODUCED_IN_ORDER),  # 12: another size
        ({"a": [50, 60, 55], "b": [55, 50, 120]}, OPEN),  # the interval contains 0
        ({"a": [110, 115, 120], "b": [50, 60, 55]}, OPEN),  # the other way round
        ({"a": [50, 60, ""], "b": [110, 115, 120]}, OPEN),  # a has diverged
        ({"a": [50, 60, 55, 56], "b": [110, 115, 120, ""]}, REPRODUCED),  # b has diverged
        ({"a": [50, 60, 55, 56], "b": [50, 61, 54, ""]}, OPEN),  # no difference on the others
        ({"a": [50, 60, 55], "b": [110, "", ""]}, REPRODUCED),
        ({"a": [50, 60, 55], "b": [49, "", ""]}, OPEN),
        ({"a": [50, 60, 55], "b": ["", "", ""]}, REPRODUCED_IN_ORDER),  # of unknown size
        ({"a": [50, "", 55], "b": ["", "", ""]}, OPEN),
        ({"a": [50, 60, 55], "b": [">110", ">110", ">110"]}, REPRODUCED),
        ({"a": [">200", 60, 55], "b": [110, 115, 120]}, OPEN),
        ({"a": [">200"] * 3, "b": [">200"] * 3}, OPEN),
    ],
)
def test_the_verdict_on_an_order(tmp_path, values, expected):
    assert verdict(write_claim(tmp_path, values=values)) == expected


def test_an_order_without_values_of_the_paper_has_no_size(tmp_path):
    assert verdict(write_claim(tmp_path, values=HALF, paper=None)) == REPRODUCED_IN_ORDER


def test_costs_are_compared_by_their_ratios_on_each_seed(tmp_path):
    one, two = [50, 800, 20], [65, 1000, 27]  # far apart over seeds
    path = write_claim(tmp_path, values={"a": one, "b": two})
    (check,) = check_claim(read_claim(path), read_measured(path.with_suffix(".csv")))
    assert check.holds
    logs = np.log(np.divide(two, one))
    ends = [math.exp(logs.mean() + part * half_width(logs)) for part in (0, -1, 1)]
    assert check.seen.endswith("ratio {:.3g} from {:.3g} to {:.3g}".format(*ends))
    assert check.effect == pytest.approx(stats.gmean(np.divide(two, one)))
    assert check.paper_effect == pytest.approx(116 / 60)


def test_a_cost_is_above_0(tmp_path):
    with pytest.raises(ValueError, match="compares a cost that is not above 0"):
        verdict(write_claim(tmp_path, values={"a": [0, 1, 2], "b": [3, 4, 5]}))


def test_higher_compares_differences(tmp_path):
    order = {"measure": BEST, "higher": "a", "than": ["b"]}
    paper = [{"measure": BEST, "values": {"a": 50, "b": 40}}]
    values = {"a": [49, 50, 51], "b": [41, 42, 42.5]}
    path = write_claim(tmp_path, values=values, measure=BEST, orders=[order], paper=paper)
    (check,) = judge(read_claim(path)).checks
    assert (check.effect, check.paper_effect) == (pytest.approx(50 - 125.5 / 3), 10)
    half = half_width(np.subtract(*values.values()))
    assert check.seen.endswith(f"difference +{50 - 125.5 / 3:.3g} ± {half:.2g}")
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
    assert verdict(path) == REPRODUCED_IN_ORDER


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
    path = write_claim(tmp_path, needs="a GPU for a day", **NOT_RUN_KEYS)
    assert verdict(path) == NOT_RUN
    (tmp_path / "table_1.csv").write_text("case,method,measure,seed,value\n")
    with pytest.raises(ValueError, match=r"was not run, but there is table_1\.csv"):
        verdict(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"item": None}, "lacks item"),
        ({"printed": None}, "lacks printed"),
        ({"command": None, "minutes": None}, "lacks command, minutes"),
        (
            {"needs": "a GPU"},
            r"has needs, because it was not run, and also command, minutes, orders",
        ),
        ({"orders": None}, "has no orders, ties or equals; say what to check"),
        ({"reason": "The rate."}, "needs both reason and shown_by, or neither"),
        ({"sen": "x"}, "unknown key 'sen'.*seen"),
        ({"minutes": "2"}, "minutes='2' is no number"),
        ({"minutes": True}, "minutes=True is no number"),
        ({"differences": [1]}, r"differences=\[1\] is no list of texts"),
        ({"orders": [{"measure": ROUNDS, "than": ["b"]}]}, "has to have lower or higher, not both"),
        ({"orders": [{"measure": ROUNDS, "lower": "a"}]}, "lacks than"),
        (
            {"orders": [{"measure": ROUNDS, "lower": "a", "then": []}]},
            "unknown key in orders 'then'",
        ),
        ({"orders": ["a < b"]}, r"orders has 'a < b'; write a table \[\[orders\]\]"),
        (
            {"paper": [{"measure": ROUNDS, "values": {"a": "60"}}]},
            "paper has a='60'; give a number",
        ),
        ({"paper": [{"values": {"a": 60}}]}, "lacks measure"),
        ({"paper": CLAIM["paper"] * 2}, r"paper has \('rounds to 65%', '', 'a'\) twice"),
        ({"ties": [{"measure": ROUNDS, "methods": ["a", "b"]}]}, "lacks margin"),
    ],
)
def test_wrong_claims(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        verdict(write_claim(tmp_path, values=HALF, **changes))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({"measure": "rounds to 70%"}, "unknown measure 'rounds to 70%'"),
        ({"than": ["c"]}, r"'rounds to 65%' of 'c' in case '' was not measured; see table_1\.csv"),
        ({"cases": ["z"]}, "'rounds to 65%' of 'a' in case 'z' was not measured"),
    ],
)
def test_what_was_not_measured_cannot_be_checked(tmp_path, order, message):
    with pytest.raises(ValueError, match=message):
        verdict(write_claim(tmp_path, values=HALF, orders=[{**CLAIM["orders"][0], **order}]))


@pytest.mark.parametrize("values", [{"a": [50, 60], "b": [110, 115]}, {"a": [5] * 3, "b": [9] * 4}])
def test_differences_need_the_same_seeds_and_three_of_them(tmp_path, values):
    with pytest.raises(ValueError, match="the same seeds are needed, at least 3"):
        verdict(write_claim(tmp_path, values=values))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("a,b\n", r"begins with \[\['a', 'b'\]\], not with"),
        ("x,a,m,0\n", "line 2 has 4 cells, but there are 5 columns"),
        ("x,a,m,-1,3\n", "line 2: seed '-1' is no number from 0, or is there twice"),
        ("x,a,m,0,3\nx,a,m,0,3\n", "line 3: seed '0' is no number from 0, or is there twice"),
        ("x,a,m,0,many\n", "line 2: 'many' is no value"),
        ("x,a,m,0,inf\n", "line 2: 'inf' is no value"),
        ("x,a,m,0,>\n", "line 2: '>' is no value"),
    ],
)
def test_wrong_values(tmp_path, text, message):
    path = write_claim(tmp_path)
    if text is not None:
        header = "" if text.startswith("a,b") else "case,method,measure,seed,value\n"
        path.with_suffix(".csv").write_text(header + text)
    with pytest.raises(ValueError, match=message):
        verdict(path)


def test_claims_stand_in_the_order_of_the_paper(tmp_path):
    folder = write_paper(tmp_path)
    for given in (tmp_path, folder):
        (found,) = read_claims(given)
        assert found.paper.name == "one"
        assert [each.claim.item for each in found.claims] == ["Table I", "Figure 2"]
    assert read_claims(tmp_path, "one")[0].paper.title == "A paper"


def test_every_item_has_a_claim_and_every_claim_an_item(tmp_path):
    folder = write_paper(tmp_path)
    (folder / "figure_2.toml").unlink()
    with pytest.raises(ValueError, match="has items without a claim: Figure 2"):
        read_claims(tmp_path)
    write_claim(folder, "figure_2", item="Figure 3", values=HALF)
    with pytest.raises(ValueError, match="unknown item 'Figure 3'"):
        read_claims(tmp_path)


def test_every_experiment_is_named_by_its_claim(tmp_path):
    write_claim(write_paper(tmp_path), "why_table_1", values=HALF, of="table_1")
    with pytest.raises(
        ValueError, match="no claim names it in shown_by; add 'why_table_1' to table_1"
    ):
        read_claims(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"year": "2024"}, "year='2024' is no whole number"),
        ({"with_results": {"Table I": 3}}, "with_results has a value that is no text"),
        ({"doi": "x"}, "unknown key 'doi'"),
    ],
)
def test_wrong_papers(tmp_path, changes, message):
    write_paper(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        read_claims(tmp_path)


def test_folders_without_papers(tmp_path):
    with pytest.raises(ValueError, match=r"has no paper\.toml in its folders; name a folder"):
        read_claims(tmp_path)
    write_paper(tmp_path)
    with pytest.raises(ValueError, match="unknown paper 'two'"):
        read_claims(tmp_path, "two")
