"""The papers' summaries, by hand on a few evaluations."""

import numpy as np
import pytest
from paper_measures.fedcompass import time_to_target
from paper_measures.fedgbo import maximum_and_cost
from paper_measures.fedlga import rounds_to_target
from paper_measures.ghbm import final_quality

NAN = float("nan")


def run(method, seed, qualities, every=10, upload=4, seconds=2.0, **columns):
    """One run's rows; costs are given for one round."""
    return [
        {
            "method": method,
            "seed": seed,
            "round": round_number,
            "test_accuracy": quality,
            "download_bytes": 6 * round_number,
            "upload_bytes": upload * round_number,
            "wall_seconds": seconds * round_number,
            **{name: per_round * round_number for name, per_round in columns.items()},
        }
        for round_number, quality in zip(range(0, 10**6, every), qualities, strict=False)
    ]


def runs(method, by_seed, *given, **columns):
    """The rows of several seeds, from 0."""
    return [r for s, own in enumerate(by_seed) for r in run(method, s, own, *given, **columns)]


def by_label(lines):
    return {line.label: line for line in lines}


FEDAVG = runs("fedavg", [[0.1, 0.5, 0.4, 0.6], [0.1, 0.3, 0.6, 0.5]], flops=7)
FASTER = runs("faster", [[0.1, 0.55, 0.7, 0.6], [0.1, 0.57, 0.9, 0.6]], upload=8, flops=9)
SLOWER = runs("slower", [[0.1, 0.2, 0.5, 0.5], [0.1, 0.2, 0.4, 0.4]])


def test_maximum_of_the_mean_curve_and_its_cost():
    """FedAvg's mean curve is .1, .4, .5, .55; the maxima of its seeds are .6 and .6."""
    lines = by_label(maximum_and_cost(FEDAVG + FASTER + SLOWER))
    fedavg, faster, slower = lines["fedavg"], lines["faster"], lines["slower"]
    assert [line.best.mean for line in lines.values()] == pytest.approx([0.55, 0.8, 0.45])
    assert fedavg.best_of_seeds == pytest.approx(0.6)
    assert (fedavg.best.values, faster.best.values) == ((0.6, 0.5), (0.7, 0.9))
    assert fedavg.cost == fedavg.reference_cost == (30, 120, 210)
    assert faster.cost == (20, 160, 180)
    assert faster.reference_cost == (10, 80, 90)
    assert slower.cost == (20, 80, None)
    assert slower.reference_cost is None
    other = by_label(maximum_and_cost(FEDAVG + FASTER + SLOWER, "slower"))
    assert other["fedavg"].reference_cost == (20, 80, 140)


def test_a_run_that_ended_early_has_diverged():
    early = runs("half", [[0.1, 0.8, NAN], [0.1, 0.6, 0.7, 0.8]])
    (_, half) = maximum_and_cost(FEDAVG + early)
    assert (half.best.mean, half.cost.rounds, half.seeds_diverged) == (pytest.approx(0.7), 10, 1)
    (_, half) = final_quality(FEDAVG + early, last=10)
    assert np.isnan(half.final.mean)
    assert half.seeds_diverged == 1


def test_a_reference_without_a_finite_value_is_never_reached():
    gone = run("gone", 0, [NAN, NAN])
    lines = by_label(maximum_and_cost(gone + FASTER, "gone"))
    assert np.isnan(lines["gone"].best.mean)
    assert lines["gone"].cost is lines["faster"].reference_cost is None
    assert lines["faster"].best.mean == pytest.approx(0.8)


def test_rows_without_an_evaluation_are_ignored():
    rows = run("fedavg", 0, [0.1, 0.5, 0.4])
    between = [{"method": "fedavg", "seed": 0, "round": 5, "train_loss": 0.1}]
    mixed = rows[:1] + between + rows[1:]
    assert rounds_to_target(mixed, 0.5) == rounds_to_target(rows, 0.5)


def test_rounds_and_seconds_to_a_target():
    """The mean is over the seeds that reach the target, if they are at least half."""
    rows = [
        *run("all", 0, [0.1, 0.6, 0.2]),
        *run("all", 1, [0.1, 0.2, 0.7], seconds=3),
        *runs("half", [[0.1, 0.2, 0.3], [0.1, 0.2, 0.6]]),
        *runs("few", [[0.1, 0.6, 0.6], [0.1, 0.2, NAN], [0.1, 0.2, 0.4]]),
    ]
    lines = by_label(rounds_to_target(rows, 0.6))
    assert lines["all"] == ("all", 15, 40, 2.5, ((0.6, 0.7),), 2, 0, 2)
    assert lines["half"] == ("half", 20, 40, 2, ((0.3, 0.6),), 1, 0, 2)
    assert lines["few"] == ("few", None, None, 2, ((0.6, 0.2, 0.4),), 1, 1, 3)


def test_seconds_may_be_missing():
    rows = [
        {"method": "a", "seed": 0, "round": r, "dice": q, "wall_seconds": None}
        for r, q in enumerate([0.2, 0.8])
    ]
    (line,) = rounds_to_target(rows, 0.5, metric="dice")
    assert line == ("a", 1, None, None, ((0.8,),), 1, 0, 1)
    for row in rows:
        del row["wall_seconds"]
    assert rounds_to_target(rows, 0.5, metric="dice") == [line]


GHBM_ROWS = [
    # every 50 rounds to 200: the last 100 are at 150 and 200
    # FedAvg's second seed is above .45 early, but charged in full
    *runs("fedavg", [[0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.2, 0.5, 0.6, 0.3]], 50),
    *runs("ghbm", [[0.1, 0.5, 0.6, 0.7, 0.8], [0.1, 0.3, 0.6, 0.8, 0.9]], 50, upload=9, seconds=3),
    *runs("never", [[0.1, 0.2, 0.2, 0.3, 0.3], [0.1, 0.2, 0.5, 0.3, 0.3]], 50, upload=24),
]


def test_final_quality_and_the_cost_to_reach_fedavgs():
    lines = by_label(final_quality(GHBM_ROWS))
    fedavg, ghbm, never = lines["fedavg"], lines["ghbm"], lines["never"]
    assert [line.final.mean for line in lines.values()] == pytest.approx([0.45, 0.8, 0.3])
    assert ghbm.final.values == pytest.approx((0.75, 0.85))
    assert {line.evaluations for line in lines.values()} == {2}
    # ghbm reaches .45 at 50 and 100; never's first seed never, its second at 100
    assert [fedavg.rounds, ghbm.rounds, never.rounds] == [200, 75, 150]
    assert [fedavg.overhead, ghbm.overhead, never.overhead] == [1, 1.5, 3]
    assert [fedavg.total_bytes, ghbm.total_bytes, never.total_bytes] == [2000, 1125, 4500]
    assert [fedavg.bytes_reduction, ghbm.bytes_reduction] == pytest.approx([0, 1 - 1125 / 2000])
    assert never.bytes_reduction == -1.25
    assert [fedavg.seconds, ghbm.seconds, never.seconds] == [400, 225, 300]
    assert ghbm.seconds_reduction == pytest.approx(1 - 225 / 400)
    assert [fedavg.seeds_reaching, ghbm.seeds_reaching, never.seeds_reaching] == [2, 2, 1]


def test_shorter_windows_budgets_and_given_overheads():
    lines = by_label(final_quality(GHBM_ROWS, last=50))
    assert lines["fedavg"].final.mean == pytest.approx(0.4)
    assert lines["never"].evaluations == 1
    lines = by_label(final_quality(GHBM_ROWS, last=500, budget=100))
    mean = lines["fedavg"].final.mean
    assert mean == pytest.approx(0.3)  # of rounds 50 and 100, not of the start
    assert lines["fedavg"].total_bytes == 1000
    assert lines["ghbm"].rounds == 50
    given = {"fedavg": 2, "ghbm": 4, "never": 1}
    lines = by_label(final_quality(GHBM_ROWS, overheads=given))
    assert [lines[name].overhead for name in given] == [1, 2, 0.5]
    assert lines["ghbm"].total_bytes == 75 * 20
    assert lines["ghbm"].bytes_reduction == pytest.approx(1 - 75 * 2 / 200)


def test_divergence_does_not_affect_other_methods():
    gone = runs("gone", [[0.1, 0.5, NAN, NAN, NAN], [0.1] + [NAN] * 4], 50)
    lines = by_label(final_quality(GHBM_ROWS + gone))
    assert np.isnan(lines["gone"].final.mean)
    assert lines["gone"][3:7] == (125, 1, 1250, 1 - 1250 / 2000)  # at 50, and never
    assert lines["gone"][-3:] == (1, 2, 2)
    alone = by_label(final_quality(GHBM_ROWS))
    assert all(lines[label] == alone[label] for label in alone)
    lost = by_label(final_quality(GHBM_ROWS + gone, "gone"))
    assert lost["ghbm"].final.mean == pytest.approx(0.8)
    assert lost["ghbm"].rounds is lost["ghbm"].total_bytes is lost["ghbm"].seconds is None
    assert lost["ghbm"].bytes_reduction is lost["gone"].rounds is None


def test_first_times_relative_to_a_method():
    rows = [
        *run("fedcompass", 0, [0.1, 0.6, 0.7], 1, clock=10),
        *run("fedcompass", 1, [0.1, 0.6, 0.9], 1, clock=30),
        *runs("fedavg", [[0.1, 0.2, 0.6], [0.1, 0.2, 0.4]], 1, clock=25),
        *runs("fedasync", [[0.1, NAN, NAN], [0.1, 0.5, 0.5]], 1, clock=5),
    ]
    lines = by_label(time_to_target(rows, 0.6, "fedcompass", clock="clock"))
    assert lines["fedcompass"][1:4] == (20, 1, 2)
    assert lines["fedcompass"].best == pytest.approx(0.8)
    assert lines["fedcompass"].best_deviation == pytest.approx(np.sqrt(0.02))
    # only seed 0 is common: 50 / 10; 50 divided by the mean 20 of two seeds would be half of it
    assert lines["fedavg"][1:4] == (50, 5, 1)
    assert lines["fedasync"][1:4] == (None, None, 0)
    assert lines["fedasync"].best == pytest.approx(0.3)
    assert [line.seeds_reaching for line in lines.values()] == [2, 1, 0]
    assert [line.seeds_diverged for line in lines.values()] == [0, 0, 1]
    assert [line.seeds for line in lines.values()] == [2, 2, 2]
    lines = by_label(time_to_target(rows, 0.6, "fedasync", clock="clock"))
    assert lines["fedavg"][1:4] == (50, None, 0)
    (one,) = time_to_target(rows[:3], 0.6, "fedcompass", clock="clock")
    assert np.isnan(one.best_deviation)


def test_reductions_are_over_the_seeds_that_both_methods_have():
    """The reference's third seed is at .9, so that the target is .6, and costs nothing."""
    third = run("fedavg", 2, [0.9, 0.9, 0.9, 0.9, 0.9], 50, upload=0)
    fedavg, ghbm, _ = final_quality(GHBM_ROWS + third)
    assert fedavg.final.mean == pytest.approx(0.6)
    assert fedavg.total_bytes == pytest.approx(200 * (10 + 10 + 6) / 3)
    assert (ghbm.rounds, ghbm.total_bytes) == (100, 1500)
    assert (fedavg.bytes_reduction, ghbm.bytes_reduction) == (0, 1 - 1500 / 2000)
    other = [row | {"seed": 5} for row in GHBM_ROWS[10:15]]
    assert final_quality(GHBM_ROWS[:10] + other)[1].bytes_reduction is None


def without(rows, column):
    return [{name: value for name, value in row.items() if name != column} for row in rows]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: maximum_and_cost([]), "there are 0 rows"),
        (lambda: maximum_and_cost(FEDAVG + FASTER, "fedagv"), "'fedagv' is unknown"),
        (lambda: maximum_and_cost(FEDAVG[:-1]), "different rounds on seeds 0 and 1"),
        (lambda: maximum_and_cost(without(FEDAVG, "seed")), "lacks 'seed'"),
        (lambda: maximum_and_cost(without(FEDAVG, "test_accuracy")), "on seed 0 has 'test_accur"),
        (lambda: rounds_to_target(FEDAVG[:4] * 2, 0.5), "goes from round 30 back to 0"),
        (lambda: rounds_to_target(FEDAVG, NAN), "target=nan is out of range"),
        (lambda: final_quality(FEDAVG + GHBM_ROWS[10:]), "no evaluation in rounds 101 to 200"),
        (lambda: final_quality(FEDAVG, last=0), "last=0 and budget=30 must be at least 1"),
        (lambda: final_quality(GHBM_ROWS, overheads={"fedavg": 1, "ghbm": 1.5}), "lack 'never'"),
        (lambda: final_quality(without(FEDAVG, "upload_bytes")), "lack the bytes of its rounds"),
        (lambda: time_to_target(FEDAVG, 0.5, "fedavg"), "clock='simulated_seconds' is unknown"),
    ],
)
def test_errors_name_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()
