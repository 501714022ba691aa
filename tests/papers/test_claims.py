"""Claims of papers: what is read, what is checked, and the verdict."""

import math

import numpy as np
import pytest
from claim_files import verdicts
from claim_files.measured import Quantity, read_measured, write_measured
from claim_files.reading import read_claim
from claim_files.verdicts import IN_ORDER, OPEN, REPRODUCED, judge, read_claims
from claim_helpers import CLAIM, HALF, NOT_RUN, ROUNDS, write_claim, write_paper
from scipy import stats

BEST, ORDER = "best accuracy (%)", CLAIM["orders"][0]


def verdict(path):
    return judge(read_claim(path).rows[0]).verdict


def half_width(values):
    return stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)


def test_what_is_written_is_read(tmp_path):
    given = [("K = 5", "a", ["50", ">200", ""]), ("", 'b, "c"', [100, 3, 4.5])]
    given.append(("", "d", ["100", ">200", "150"]))
    rows = [(c, m, ROUNDS, seed, value) for c, m, own in given for seed, value in enumerate(own, 3)]
    write_measured(tmp_path / "a.csv", rows)
    found = read_measured(tmp_path / "a.csv")
    own = found[Quantity(ROUNDS, "K = 5", "a")]
    assert own.seeds == (3, 4, 5)
    np.testing.assert_array_equal(own.values, [50, 200, math.nan])
    np.testing.assert_array_equal(own.censored, [False, True, False])
    assert [quantity.text() for quantity in found.values()] == [
        "1/3 diverged",
        f"35.83 ± {half_width([100, 3, 4.5]):.2g}",
        f"> 150 ± {half_width([100, 200, 150]):.2g} (2/3 reached)",
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (HALF, REPRODUCED),  # 2.09 against 1.93
        ({"a": [50, 60, 55], "b": [55, 50, 120]}, OPEN),  # the interval contains 0
        ({"a": [110, 115, 120], "b": [50, 60, 55]}, OPEN),  # the other way round
        ({"a": [50, 60, ""], "b": [110, 115, 120]}, OPEN),  # a has diverged
        ({"a": [50, 60, 55, 56], "b": [110, 115, 120, ""]}, REPRODUCED),  # b has diverged
        ({"a": [50, 60, 55, 56], "b": [50, 61, 54, ""]}, OPEN),  # no difference on the others
        ({"a": [50, 60, 55], "b": ["", "", ""]}, IN_ORDER),  # of unknown size
        # runs that end before the target: an order at most
        ({"a": [50, 60, 55], "b": [">110", ">110", ">110"]}, IN_ORDER),
        ({"a": [">200", 60, 55], "b": [">200", 115, 120]}, OPEN),  # two decided seeds
        ({"a": [">200", *[50] * 6], "b": [">200", *[110] * 5, ">200"]}, IN_ORDER),  # six of six
        ({"a": [">200", *[50] * 7], "b": [199, *[110] * 7]}, OPEN),  # seven of eight
        ({"a": [">200", *[50] * 8], "b": [199, *[110] * 8]}, IN_ORDER),  # eight of nine
        ({"a": [">90", *[50] * 6], "b": [199, *[110] * 6]}, IN_ORDER),  # the first says nothing
    ],
)
def test_the_verdict_on_an_order(tmp_path, values, expected):
    assert verdict(write_claim(tmp_path, values=values)) == expected


SWAPPED = {"a": HALF["b"], "b": HALF["a"]}
CASES = {"x": HALF, "y": SWAPPED}
STAND_IN, CHANGED = {"stand_ins": ["digits for MNIST"]}, {"changed": "The rate."}
OWN = {"own": True, "printed": "A claim of our own."}
CLOSE = {"a": [80.0, 81, 82], "b": [80.2, 80.8, 82.6]}  # .2 +- .9
CLEAR = {"a": [80.3, 81.2, 82.25], "b": [80.0, 81, 82]}  # .25 +- .12
NOT_REACHED = {"a": [">200", 90, 80], "b": [">200", 91, 80]}


def printed(a, b):
    return [{"measure": ROUNDS, "values": {"a": a, "b": b}}]


def ratio(factor):
    """Costs of b in units of a's, where the paper's is 1.2: from 1.13 to 1.31 is the same size."""
    values = {"a": [50, 60, 55], "b": [50 * factor, 60 * factor, 55 * factor]}
    return {"values": values, "paper": printed(100, 120)}


def tie(values, margin, measure=BEST, **more):
    own = {"measure": measure, "methods": ["a", "b"], "margin": margin, **more}
    return {"values": values, "measure": measure, "orders": None, "ties": [own], "paper": None}


def equal(value):
    own = {"measure": "FLOPs", "relative": 0.005}
    paper = [{"measure": "FLOPs", "values": {"a": 120}}]
    given = {"values": {"a": [value]}, "measure": "FLOPs", "orders": None}
    return {**given, "equals": [own], "paper": paper}


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (ratio(1.125), IN_ORDER),
        (ratio(1.135), REPRODUCED),
        (ratio(1.31), REPRODUCED),
        (ratio(1.32), IN_ORDER),
        ({"values": HALF, "paper": None}, IN_ORDER),  # of no size
        *(({"values": HALF, "paper": printed(60, b)}, OPEN) for b in (60, 59)),  # not this order
        # a stand-in or a change is never reproduced
        ({"values": HALF, **STAND_IN}, "in order, on a stand-in"),
        ({"values": HALF, **CHANGED}, "in order, after a change"),
        ({"values": HALF, **STAND_IN, **CHANGED}, "in order, on a stand-in, after a change"),
        ({"values": SWAPPED, **CHANGED}, OPEN),
        ({"values": SWAPPED, **STAND_IN, **CHANGED}, "open, on a stand-in"),
        # what the paper leaves open was chosen here
        ({"values": HALF, "chosen": ["the rate"]}, IN_ORDER),
        # no paper claims it
        ({"values": HALF, **OWN}, "holds"),
        ({"values": HALF, **OWN, **CHANGED}, "holds, after a change"),
        ({"values": SWAPPED, **OWN}, "does not hold"),
        ({"values": SWAPPED, **OWN, **STAND_IN}, "does not hold, on a stand-in"),
        # in all cases, unless some are named
        ({"values": CASES, "paper": None}, OPEN),
        ({"values": CASES, "paper": None, "orders": [{**ORDER, "cases": ["x"]}]}, IN_ORDER),
        # the whole interval of a tie is inside the margin
        (tie(CLOSE, 2.0), REPRODUCED),
        (tie(CLOSE, 1.0), OPEN),
        (tie(CLEAR, 0.5), OPEN),
        (tie(CLEAR, 0.5, small_difference=True), REPRODUCED),
        (tie(NOT_REACHED, 5, ROUNDS), OPEN),
        (equal(119.4), REPRODUCED),
        (equal(119.3), OPEN),
        ({"values": HALF, "stand_ins": None, "trains": False}, REPRODUCED),
        ({"needs": "a GPU for a day", **NOT_RUN}, verdicts.NOT_RUN),
    ],
)
def test_the_verdict_on_a_claim(tmp_path, claim, expected):
    assert verdict(write_claim(tmp_path, **claim)) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stand_ins": None}, "lacks stand_ins"),
        ({"needs": "a GPU"}, "has needs, because it was not run"),
        ({"orders": None}, "has no orders, ties or equals"),
        ({"program": None}, "needs either settings or a program"),
        ({"reason": "The rate."}, "needs both reason and shown_by, or neither"),
        ({"open": "No experiment."}, "open says why a reason is not shown, but there is none"),
        ({"own": True}, "its printed has to say that the claim is our own"),
        ({"sen": "x"}, "has unknown keys {'sen'}"),
        ({"orders": [{"measure": ROUNDS, "than": ["b"]}]}, "has lower or higher, and not both"),
        ({"orders": [{"measure": ROUNDS, "lower": "a", "then": []}]}, "orders has {'then'}"),
        # nothing is compared, or what was not measured
        ({"orders": [{**ORDER, "than": []}]}, "compares nothing"),
        (tie(HALF, 1, ROUNDS, methods=["a"]), "compares nothing"),
        ({"orders": None, "equals": [{"measure": "FLOPs", "relative": 0.1}]}, "compares nothing"),
        ({"orders": [{**ORDER, "than": ["c"]}]}, "of 'c' in case '' was not measured"),
        ({"values": {"a": [50, 60], "b": [110, 115]}}, "the same seeds are needed, at least 3"),
        ({"seeds": 2}, r"seeds \(0, 1, 2\), not \(0, 1\)"),  # those that were fixed
        ({"values": {"a": ["inf", 1, 2], "b": [3, 4, 5]}}, "'inf' is not a finite number"),
        ({"values": {"a": [0, 1, 2], "b": [3, 4, 5]}}, "compares ratios of costs, and one is not"),
    ],
)
def test_wrong_claims(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        verdict(write_claim(tmp_path, **{"values": HALF, **changes}))


def test_costs_are_compared_by_their_ratios_on_each_seed(tmp_path):
    one, two = [50, 800, 20], [65, 1000, 27]  # far apart over seeds
    (check,) = judge(read_claim(write_claim(tmp_path, values={"a": one, "b": two})).rows[0]).checks
    logs = np.log(np.divide(two, one))
    ends = np.exp(logs.mean() + np.array([0, -1, 1]) * half_width(logs))
    shown = "ratio {:.3g} from {:.3g} to {:.3g}".format(*ends)
    assert check.holds
    assert check.seen.endswith(f"{shown}; the paper's 1.93")
    assert check.effect == pytest.approx(logs.mean())
    assert check.paper_effect == pytest.approx(math.log(116 / 60))


def test_higher_compares_differences_also_of_cases_of_one_method(tmp_path):
    order = {"measure": BEST, "higher": "x", "than": ["y"], "method": "a"}
    values = {"x": {"a": [49, 50, 51]}, "y": {"a": [41, 42, 42.5]}}
    cases = {"x": 50, "y": 40}.items()
    paper = [{"measure": BEST, "case": case, "values": {"a": value}} for case, value in cases]
    path = write_claim(tmp_path, values=values, measure=BEST, orders=[order], paper=paper)
    (check,) = judge(read_claim(path).rows[0]).checks
    assert check.text == f"{BEST}, a: x > y"
    assert (check.effect, check.paper_effect) == (pytest.approx(50 - 125.5 / 3), 10)
    half = half_width(np.subtract(values["x"]["a"], values["y"]["a"]))
    assert check.seen.endswith(f"difference +{50 - 125.5 / 3:.3g} ± {half:.2g}; the paper's 10")


@pytest.mark.parametrize(
    ("shown", "still_open", "expected"),
    [
        (HALF, None, verdicts.NOT_REPRODUCED),
        (SWAPPED, None, OPEN),  # the experiment does not hold
        (HALF, "The experiment trains nothing.", OPEN),
    ],
)
def test_an_experiment_that_holds_shows_a_reason(tmp_path, shown, still_open, expected):
    said = {"reason": "The rate.", "shown_by": ["why_table_1"], "open": still_open}
    path = write_claim(tmp_path, values=SWAPPED, **said)
    write_claim(tmp_path, "why_table_1", of="table_1", values=shown)
    assert verdict(path) == expected
    assert [each.row.of for each in judge(read_claim(path).rows[0]).shown_by] == ["table_1"]
    path = write_claim(tmp_path, values=HALF, **said)
    with pytest.raises(ValueError, match="no reason"):
        verdict(path)


SETTINGS = {"rounds": 5, "cohort": 2, "seeds": 4}
ROWS = [
    {"name": "first", "settings": {"rounds": 9}, "labels": {"x": "y"}},
    {"name": "second", "values": "first", "claim": "B."},
    {"name": "third", "changed": "The rate."},
    {"name": "fourth", "program": "fourth.py"},
    {"name": "fifth", "needs": "a GPU", "orders": [], "seen": ""},
]


def test_a_row_takes_what_it_does_not_say_from_its_claim(tmp_path):
    given = {"program": None, "settings": SETTINGS, "cases": [{"name": "K = 5"}], "seeds": 3}
    claim = read_claim(write_claim(tmp_path, rows=ROWS, **given))
    first, second, third, fourth, fifth = claim.rows
    assert first.settings == second.settings == {"rounds": 9, "cohort": 2, "seeds": 4}
    assert (third.settings, fourth.settings, fifth.settings) == (SETTINGS, {}, {})
    assert [row.csv.stem for row in claim.rows[:4]] == ["first", "first", "table_1", "fourth"]
    assert [row.claim for row in (first, second)] == [CLAIM["claim"], "B."]
    assert [row.num_seeds for row in (first, third, fourth)] == [4, 4, 3]
    assert (first.cases, second.labels, fourth.cases) == (
        [{"name": "K = 5"}],
        {"x": "y"},
        ({"name": ""},),
    )
    assert ([row.changed for row in claim.rows[2:4]], second.stand_ins) == (["The rate.", ""], [])
    assert [row.name for row in claim.runs] == ["first", "third", "fourth"]
    assert claim.minutes == 6


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"name": "a"}, {"name": "a"}], "each row needs a name of its own"),
        ([{"claim": "A."}], "each row needs a name of its own"),
        ([{"name": "a", "values": "b"}], "a has the values of 'b'"),
        ([ROWS[3], ROWS[3] | {"name": "b", "values": "fourth"}], "b has the values of 'fourth'"),
        ([{"name": "a", "orders": []}], "table_1.toml, a has no orders, ties or equals"),
        ([{"name": "a"}, {"name": "table_1"}], r"more than one .* has the name \['table_1'\]"),
    ],
)
def test_wrong_rows(tmp_path, rows, message):
    one = write_paper(tmp_path)
    write_claim(one, values=HALF, rows=rows)
    with pytest.raises(ValueError, match=message):
        read_claims(tmp_path)


def test_the_verdict_on_a_claim_counts_its_rows(tmp_path):
    swapped = {"orders": [{"measure": ROUNDS, "lower": "b", "than": ["a"]}], "paper": []}
    needs = {"needs": "a GPU", "orders": [], "seen": "", "program": ""}
    one, two, lost = {"name": "1"}, {"name": "2"} | swapped, {"name": "3"} | needs
    own, other = OWN | {"name": "4"}, OWN | {"name": "5"} | swapped
    path = write_paper(tmp_path) / "table_1.toml"
    for rows, changes, expected in (
        ([one, one | {"name": "4"}], {}, "reproduced (2 rows)"),
        ([one, two], {}, "1 of 2 rows hold"),
        ([one, two, lost], STAND_IN, "1 of 2 rows hold, on a stand-in; 1 not run"),
        ([one, two | STAND_IN], {}, "1 of 2 rows hold"),  # what does not hold adds nothing
        (
            [two, two | {"name": "6", "stand_ins": []}],
            STAND_IN,
            "0 of 2 rows hold, 1 on a stand-in",
        ),
        ([one | CHANGED, two], STAND_IN, "1 of 2 rows hold, on a stand-in, after a change"),
        (
            [one, one | STAND_IN | {"name": "6"}, two | CHANGED],
            {},
            "2 of 3 rows hold, 1 on a stand-in",
        ),
        ([one, two, own | STAND_IN, other], {}, "1 of 2 rows hold; of our own 1 of 2"),
        ([one, own, lost], {}, "1 of 1 rows hold; of our own 1 of 1; 1 not run"),
        ([own | CHANGED, other], {}, "1 of 2 rows hold, after a change"),
        ([one, lost], {}, "reproduced; 1 not run"),
    ):
        write_claim(path.parent, values=HALF, rows=rows, **changes)
        assert read_claims(tmp_path)[0].claims[0].verdict == expected


def test_wrong_values(tmp_path):
    path = write_claim(tmp_path)
    twice = "case,method,measure,seed,value\n" + 2 * ",a,m,0,3\n"
    for text, named in {"a,b\n": r"begins with \['a', 'b'\]", twice: "line 3: seed 0"}.items():
        path.with_suffix(".csv").write_text(text)
        with pytest.raises(ValueError, match=named):
            verdict(path)


def test_a_paper_has_authors_and_a_subject_sources(tmp_path):
    nobody, sources = {"authors": "", "year": 0, "link": ""}, ["A (2020)", "B (2021)"]
    write_paper(tmp_path, "paper")
    write_paper(tmp_path, "subject", sources=sources, **nobody)
    paper, subject = read_claims(tmp_path)
    assert (paper.paper.name, subject.paper.name) == ("paper", "subject")
    assert paper.paper.source == "A. Author, 2024. <https://example.org>"
    assert subject.paper.source == "A (2020); B (2021)"
    assert [each.claim.item for each in paper.claims] == ["Table I", "Figure 2"]  # its own order
    for number, wrong in enumerate((nobody, {"link": ""}, {"sources": sources})):
        write_paper(tmp_path / str(number), **wrong)
        with pytest.raises(ValueError, match="either authors, year and link, or sources"):
            read_claims(tmp_path / str(number))


def test_items_claims_and_experiments_belong_together(tmp_path):
    folder = write_paper(tmp_path)
    why = write_claim(folder, "why", values=HALF, of="table_1")
    with pytest.raises(ValueError, match=r"no claim names these experiments.*why"):
        read_claims(tmp_path)
    why.unlink()
    figure = write_claim(folder, "figure_2", values=HALF, item="Figure 3")
    with pytest.raises(ValueError, match=r"\['Figure 2', 'Figure 3'\]"):
        read_claims(tmp_path)
    figure.unlink()
    with pytest.raises(ValueError, match=r"only one of .* and the claims has \['Figure 2'\]"):
        read_claims(tmp_path)
