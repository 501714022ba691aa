"""The columns of a row of metrics; the summary of a comparison, and its pairs."""

import numpy as np
import pytest
from summary_helpers import ALL_DIVERGED, FIRST, HALF_DIVERGED, NAN, OTHER, rows

from fedjax_algos.analysis import metrics_row
from fedjax_algos.analysis.statistics import check_target_metric
from fedjax_algos.analysis.summary import summarise, summarise_pairs


def test_the_target_is_the_first_method_s_best_on_the_same_seed():
    first = [[0.1, 0.5, 0.4], [0.1, 0.3, 0.8], [0.1, 0.6, 0.6], [0.1, 0.2, 0.9]]
    other = [[0.5, 0.9, 0.9], [0.1, 0.8, 0.7], [0.1, 0.2, 0.5], [0.1, 0.2, 0.3]]
    worse = [[0.1, 0.1, 0.5], *[[0.0, 0.0, 0.0]] * 3]
    measured = rows("first", first) + rows("other", other) + rows("worse", worse)
    a, b, c = summarise(measured)
    assert (a.label, b.label, c.label) == ("first", "other", "worse")
    assert (a.final.values, a.best.values) == ((0.4, 0.8, 0.6, 0.9), (0.5, 0.8, 0.6, 0.9))
    assert a.final.mean == pytest.approx(0.675)
    assert (a.rounds.median, a.seeds_reaching) == (10, 4)  # of 10, 20, 10, 20: the lower median
    # of 0 and 10
    assert (b.rounds.median, b.upload_bytes.median, b.seeds_reaching) == (10, 1000, 2)
    assert (c.rounds.median, c.upload_bytes.median, c.seeds_reaching) == (None, None, 1)
    assert (c.rounds.at_least, c.upload_bytes.at_least) == (20, 2000)
    assert (a.seconds, a.seeds, b.rounds.horizons) == (2.5, 4, (20,) * 4)
    # the reference's best replaces that of the first: .9, .8, .5 and .3 are reached at
    a, b, c = summarise(measured, reference="other")
    assert (b.seeds_reaching, b.rounds.costs) == (4, (10, 10, 20, 20))
    assert a.rounds.costs == (np.inf, 20, 10, 20)


def test_a_given_target_replaces_the_first_method_s_best():
    measured = rows("first", FIRST) + rows("other", OTHER)
    for target, reached in {
        None: [(10, 2), (20, 2)],  # of 20 and 10
        0.65: [(10, 1), (20, 2)],
        0.85: [(None, 0), (20, 1)],
    }.items():
        found = summarise(measured, target=target)
        assert [(line.rounds.median, line.seeds_reaching) for line in found] == reached
    (first,) = summarise(rows("first", [[0.1, float(np.float32(0.9))]]), target=0.9)
    assert first.seeds_reaching == 1  # rounded to float32 it is below .9


def test_flops_to_the_target_are_those_that_were_measured():
    first, other = summarise(rows("first", FIRST, flops=3.14e11) + rows("other", OTHER))
    assert (first.flops.median, other.flops) == (3.14e12, None)
    assert summarise(rows("first", FIRST))[0].flops is None
    first, other = summarise(rows("first", FIRST, flops=1) + rows("other", OTHER), target=2)
    assert (first.flops.at_least, other.flops) == (20, None)


def test_diverged_runs_are_counted_and_named():
    measured = rows("half", HALF_DIVERGED) + rows("all", ALL_DIVERGED) + rows("fine", OTHER)
    half, everywhere, fine = summarise(measured)
    assert (half.seeds_diverged, everywhere.seeds_diverged, fine.seeds_diverged) == (1, 2, 0)
    assert half.best.mean == pytest.approx(0.5)  # before it diverged
    # the reference's best on seed 0 is that of a model that diverged: no target for any method
    assert [line.seeds_without_target for line in (half, everywhere, fine)] == [(0,)] * 3
    assert (half.rounds.costs, half.seeds_reaching, half.seeds_with_target) == ((20,), 1, 1)
    # a diverged run never reaches the target, so its length is no horizon
    assert (everywhere.rounds.costs, everywhere.rounds.at_least) == ((np.inf,), None)
    half, _, _ = summarise(measured, target=0.7)
    assert (half.seeds_without_target, half.seeds_with_target) == ((), 2)
    assert (half.rounds.median, half.rounds.at_least) == (None, 20)
    everywhere, fine = summarise_pairs(measured)
    assert fine.final.without == fine.best.without == (0,)
    assert fine.best.estimate.values == fine.final.estimate.values == pytest.approx((0.4,))
    assert everywhere.final.without == (0, 1)
    assert (everywhere.rounds_ratio, everywhere.seeds_common) == (None, 0)
    fine = summarise(rows("all", ALL_DIVERGED[:1]) + rows("fine", OTHER[:1]))[1]
    assert (fine.rounds.costs, fine.seeds_reaching) == ((), 0)


def test_a_reference_that_diverges_early_gives_no_target():
    """Its best on three seeds is that of the untrained model, which is reached at round 0."""
    curves = [[0.1, NAN, NAN]] * 3 + [[0.1, 0.5, 0.6]] * 2
    other = [[0.1, 0.6, 0.7]] * 5
    first, second = summarise(rows("first", curves) + rows("other", other))
    assert (first.rounds.costs, second.rounds.costs) == ((20, 20), (10, 10))
    assert (first.seeds_reaching, first.seeds_with_target) == (2, 2)
    assert first.seeds_without_target == second.seeds_without_target == (0, 1, 2)
    (pair,) = summarise_pairs(rows("first", curves) + rows("other", other))
    assert (pair.rounds_ratio, pair.seeds_common, pair.seeds) == (0.5, 2, 5)


def test_pairs_by_hand():
    measured = rows("first", FIRST, flops=1) + rows("other", OTHER, flops=3)
    (pair,) = summarise_pairs(measured)
    assert pair.final.estimate.values == pytest.approx((0.2, 0.3))
    assert pair.best.estimate.values == pytest.approx((0.2, 0.2))
    # first reaches its best after 20 and 10 rounds, other after 20 and 20
    assert (pair.rounds_ratio, pair.upload_bytes_ratio) == (4 / 3, 4 / 3)
    assert (pair.flops_ratio, pair.simulated_seconds_ratio) == (4, None)
    assert (pair.label, pair.seeds, pair.seeds_common) == ("other", 2, 2)
    (pair,) = summarise_pairs(measured, target=0.65)  # first: never, 10; other: 20, 20
    assert (pair.rounds_ratio, pair.seeds_common) == (2, 1)
    (pair,) = summarise_pairs(measured, target=0.65, reference="other")
    assert (pair.label, pair.rounds_ratio, pair.seeds_common) == ("first", 0.5, 1)
    assert pair.final.estimate.values == pytest.approx((-0.2, -0.3))
    assert summarise_pairs(rows("first", FIRST)) == []


# a Dice score that falls as the accuracy rises
DICE = rows("first", FIRST) + rows("other", OTHER)
DICE = [row | {"test_dice_score": 1 - row["test_accuracy"]} for row in DICE]


def test_the_quality_may_be_another_metric():
    """First's Dice scores are .9, .5, .4 and .9, .3, .4; other's are .9, .8, .2 and .9, .8, .1."""
    check_target_metric("dice_score")
    first, other = summarise(DICE, target=0.6, metric="test_dice_score")
    assert first.final.values == pytest.approx((0.4, 0.4))
    assert other.best.values == pytest.approx((0.9, 0.9))
    assert (first.rounds.costs, first.seeds_reaching) == ((0, 0), 2)
    assert summarise(DICE, target=0.6)[0].rounds.costs == (20, 10)
    (pair,) = summarise_pairs(DICE, metric="test_dice_score")
    assert pair.final.estimate.values == pytest.approx((-0.2, -0.3))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: summarise(DICE, metric="test_dice"), "'dice' is not .* accuracy or dice_score"),
        (lambda: summarise(DICE, metric="test_loss"), "'loss' is lower"),
        (lambda: summarise(DICE, reference="frist"), "reference='frist' .* first or other"),
        (lambda: check_target_metric("word_error"), "'word_error' is lower"),
        (lambda: check_target_metric("glossiness", ["loss"]), "'glossiness' is not measured"),
    ],
)
def test_wrong_metrics_and_references(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_columns_have_one_order():
    metrics = {"train_loss": 0.3, "test_loss": 0.2, "test_accuracy": 0.9}
    costs = {"download_bytes": 4, "upload_bytes": 2, "flops": 1.5, "wall_seconds": 0.1}
    row = metrics_row(7, metrics, **costs)
    assert list(row.items()) == [("round", 7), *metrics.items(), *costs.items()]
    row = metrics_row(0, metrics, simulated_seconds=0.0, arrivals=0, lost=0, **costs)
    clock, events = ("simulated_seconds", 0.0), [("arrivals", 0), ("lost", 0)]
    assert list(row.items()) == [("round", 0), clock, *metrics.items(), *events, *costs.items()]
