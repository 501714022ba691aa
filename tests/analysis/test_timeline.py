"""Timelines: idle time and counts by hand, and what is in the pictures."""

import re
from fractions import Fraction

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.image import imread

from fedjax_algos.analysis.timeline import (
    PlanSummary,
    draw_staleness,
    draw_timeline,
    idle_share,
    plot_staleness,
    plot_timeline,
    summarise_plan,
)
from fedjax_algos.asynchrony.arrival_groups import CompassTrace
from fedjax_algos.asynchrony.compass import compass
from fedjax_algos.asynchrony.plan import AGGREGATED, IN_FLIGHT, LOST, Plan
from fedjax_algos.asynchrony.policies import barrier, buffered, immediate, tiers
from fedjax_algos.asynchrony.system_model import Fixed, simulated

# client, visit, version, started, ended, fate; client 1's second update is in a buffer at the end
DISPATCHES = [
    (0, 0, 0, 0, 4, AGGREGATED),
    (1, 0, 0, 0, 6, AGGREGATED),
    (2, 0, 0, 0, 2, LOST),
    (0, 1, 1, 4, 8, AGGREGATED),
    (2, 1, 1, 5, 12, IN_FLIGHT),
    (1, 1, 1, 6, 7, IN_FLIGHT),
    (0, 2, 2, 8, 10, IN_FLIGHT),
]


def by_hand(contributions=((0, 0, 0), (1, 1, 1), (3, 0, 1)), times=(4, 8), groups=(0, 0)):
    client, visit, version, started, ended, fate = np.array(DISPATCHES).T
    dispatch, staleness, step = np.array(contributions, np.int32).reshape(-1, 3).T
    num_steps = np.full(len(client), 10)
    started, ended, time = (np.array(values, float) for values in (started, ended, times))
    facts = client, visit, num_steps, num_steps, version, started, ended, fate.astype(np.int8)
    return Plan(*facts, dispatch, staleness, step, time, np.array(groups, np.int32))


def trace_by_hand():
    group = np.array([0, 0, 0, 1, 1, 2, 2], np.int32)
    unknown = np.full(7, np.nan)
    late = np.arange(7) == 3
    return CompassTrace(by_hand(), group, unknown, unknown, unknown, late, np.array([0, 1]))


def without_server_steps():
    return by_hand(contributions=(), times=(), groups=())


def figure_1():
    """The paper's five clients, 45 minutes."""
    per_minute = ("10", "5", "4", "2.5", "2")
    weather = Fixed([60 / Fraction(number) for number in per_minute])
    return compass(min_steps=20, max_steps=100).trace(weather, 5, seconds=2700)


def collections(figure):
    (axes,) = figure.axes
    return {collection.get_label(): collection for collection in axes.collections}


def counts(figure):
    """How many bars, lines and marks there are of each kind."""
    (axes,) = figure.axes
    bars = {label: len(found.get_paths()) for label, found in collections(figure).items()}
    return bars | {line.get_label(): len(line.get_xdata()) for line in axes.lines}


def legend(figure):
    return {text.get_text() for text in figure.legends[0].get_texts()}


# numbers


def test_idle_share_by_hand():
    # until 8 s: client 1 trains 6 s and 1 s, client 2 trains 2 s and 3 s
    share = idle_share(by_hand(), 4)
    assert share.dtype == np.float64
    np.testing.assert_array_equal(share, [0, 1 / 8, 3 / 8, 1])


@pytest.mark.parametrize(
    ("end", "expected"),
    [(2, [0, 0, 0]), (5, [0, 0, 3 / 5]), (16, [6 / 16, 9 / 16, 7 / 16])],
)
def test_idle_share_until_another_end(end, expected):
    np.testing.assert_allclose(idle_share(by_hand(), 3, end), expected, rtol=1e-15)


def test_idle_share_of_schedules():
    weather = Fixed([Fraction(1), Fraction(2), Fraction(5)])
    np.testing.assert_array_equal(idle_share(immediate(steps=3)(weather, 3, arrivals=40), 3), 0)
    waiting = idle_share(barrier(steps=3)(weather, 3, arrivals=12), 3)
    np.testing.assert_allclose(waiting, [0.8, 0.6, 0], rtol=1e-15)
    np.testing.assert_array_equal(idle_share(figure_1().plan, 5), 0)


def test_idle_share_is_never_negative():
    weather = Fixed([0.1, 0.3, 0.7])
    assert idle_share(immediate(steps=1)(weather, 3, arrivals=2000), 3).min() >= 0


def test_lost_visits_count_until_the_client_leaves():
    weather = Fixed([1, 1], {(0, 0): (Fraction(1, 4), 3)})  # away from 1 s to 4 s
    plan = immediate(steps=4)(weather, 2, arrivals=3)
    np.testing.assert_array_equal(plan.time, [4, 8, 8])
    np.testing.assert_array_equal(idle_share(plan, 2), [3 / 8, 0])


def test_the_summary_by_hand():
    summary = summarise_plan(by_hand(), 3)
    assert summary == PlanSummary(2, 3, 1, 3, 1 / 3, 1, (0 + 1 / 8 + 3 / 8) / 3, 8.0)
    assert {type(value) for value in summary} == {int, float}


def test_the_summary_of_the_papers_figure():
    # 5 first arrivals and the joint ones; staleness 0, 1, 2, 3, 4, then 4, 3, 2, then 0, 0, 0, 2, 1
    summary = summarise_plan(figure_1().plan, 5)
    assert summary[:6] == (9, 23, 0, 5, (10 + 9 + 3) / 23, 4)
    assert summary.seconds == 42 * 60


# timelines


def test_bars_and_marks_by_hand():
    figure = draw_timeline(by_hand())
    assert counts(figure) == {
        "visit": 3,
        "in no server step yet": 2,  # the third starts at the end
        "lost visit": 1,
        "server step": 2,
        "arrival": 4,  # one is in the buffer
        "client leaves": 1,
    }
    (axes,) = figure.axes
    assert axes.get_title() == (
        "3 clients, 2 server steps, 4 arrivals, 1 lost visit; numbers: local steps"
    )
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # client 0 is above
    assert legend(figure) == set(counts(figure))
    assert len(axes.texts) == 5  # none in the lost visit
    assert collections(figure)["lost visit"].get_hatch()


def test_bars_are_where_clients_train():
    bars = collections(draw_timeline(by_hand(), clients=[2, 0], end=10))
    extents = [path.get_extents() for path in bars["visit"].get_paths()]
    assert [(box.x0, box.x1, round(box.y0 + box.y1)) for box in extents] == [(0, 4, 2), (4, 8, 2)]
    (lost,) = (path.get_extents() for path in bars["lost visit"].get_paths())
    assert (lost.x0, lost.x1, lost.y0 + lost.y1) == (0, 2, 0)
    unused = [path.get_extents() for path in bars["in no server step yet"].get_paths()]
    assert [(box.x0, box.x1) for box in unused] == [(5, 10), (8, 10)]


def test_an_interval_cuts_bars():
    figure = draw_timeline(by_hand(), start=3, end=6.5)
    assert counts(figure) == {
        "visit": 3,
        "in no server step yet": 2,
        "server step": 1,
        "arrival": 2,
    }
    extents = [path.get_extents() for path in collections(figure)["visit"].get_paths()]
    assert [(box.x0, box.x1) for box in extents] == [(3, 4), (3, 6), (4, 6.5)]
    assert figure.axes[0].get_xlim() == (3, 6.5)


def test_late_arrivals_and_arrival_groups():
    trace = trace_by_hand()
    figure = draw_timeline(trace.plan, trace=trace, end=10)
    assert counts(figure)["late arrival"] == 1
    assert counts(figure)["arrival"] == 3
    (late,) = (line for line in figure.axes[0].lines if line.get_label() == "late arrival")
    assert (late.get_xdata().tolist(), late.get_ydata().tolist()) == ([8], [0])
    assert {"group 1", "group 2", "first visits"} <= legend(figure)
    assert "visit" not in legend(figure)
    first, alike, group_1 = map(to_hex, collections(figure)["visit"].get_facecolors())
    assert first == alike != group_1
    unused = collections(figure)["in no server step yet"].get_facecolors()
    assert len(set(map(to_hex, unused))) == 2


def test_groups_of_server_steps():
    figure = draw_timeline(by_hand(groups=(0, 1)))
    first, second, third = map(to_hex, collections(figure)["visit"].get_facecolors())
    assert first != second == third
    assert {"group 0", "group 1"} <= legend(figure)
    assert "first visits" not in legend(figure)


def test_more_groups_than_colours():
    weather = Fixed(list(range(1, 12)))  # a tier each
    figure = draw_timeline(tiers(steps=1, ratio=1)(weather, 11, seconds=30))
    assert {"group 0, 9", "group 1, 10", "group 8"} <= legend(figure)


def test_the_papers_figure():
    trace = figure_1()
    figure = draw_timeline(trace.plan, trace=trace, end=2700)
    assert counts(figure) == {
        "visit": 23,
        "in no server step yet": 5,
        "server step": 9,
        "arrival": 23,
    }
    (axes,) = figure.axes
    assert axes.get_xlabel() == "virtual minutes"
    assert axes.get_xlim() == (0, 45)
    (lines,) = (found for found in axes.collections if isinstance(found, LineCollection))
    times = [path.vertices[0, 0] for path in lines.get_paths()]
    np.testing.assert_allclose(times, [2, 4, 5, 8, 10, 12, 22, 32, 42])
    assert len({to_hex(colour) for colour in collections(figure)["visit"].get_facecolors()}) == 5
    written = [text.get_text() for text in axes.texts]
    assert sorted(map(int, written)) == sorted(trace.plan.num_steps)
    # up to the last event, without visits that have only begun
    assert draw_timeline(trace.plan, trace=trace).axes[0].get_xlim() == (0, 42)


def test_numbers_are_left_out_where_bars_are_short():
    plan = immediate(steps=10)(Fixed([0.1, 10.0]), 2, seconds=200)
    written = [text.get_position() for text in draw_timeline(plan).axes[0].texts]
    assert [y for _, y in written] == [1, 1]


@pytest.mark.parametrize("num_clients", [5, 20, 50, 100])
def test_rows_have_room(num_clients):
    plan = barrier(steps=1)(simulated()(0), num_clients, arrivals=2 * num_clients)
    figure = draw_timeline(plan)
    width, height = figure.get_size_inches()
    assert width == 10
    assert 0.14 <= (height - 1.6) / num_clients <= 0.45 + 1e-9
    assert len(figure.axes[0].get_yticks()) == num_clients


def test_a_client_without_visits_has_an_empty_row():
    figure = draw_timeline(by_hand(), clients=[0, 7])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0", "7"]
    assert counts(figure)["visit"] == 2


SCHEDULES = {
    "FedAsync": immediate(steps=20),
    "FedBuff": buffered(steps=20, size=5, concurrency=8),
    "FedAT": tiers(steps=20),
    "FedCompass": compass(),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_all_schedules_have_pictures(name, tmp_path):
    weather = simulated(speeds="exponential", dropout=0.1)(1)
    plan = SCHEDULES[name](weather, 20, seconds=40)
    found = counts(draw_timeline(plan))
    assert found["lost visit"] == found["client leaves"] == summarise_plan(plan, 20).lost > 0
    assert found["visit"] == summarise_plan(plan, 20).arrivals
    assert found["server step"] == len(plan.time)
    for index in range(2):
        plot_timeline(plan, tmp_path / f"{index}.png")
        plot_staleness(plan, str(tmp_path / f"staleness{index}.png"))
    for picture in ("", "staleness"):
        pixels = imread(tmp_path / f"{picture}0.png")
        assert pixels[..., :3].std() > 0.05
        once, again = (tmp_path / f"{picture}{index}.png" for index in range(2))
        assert once.read_bytes() == again.read_bytes()


# staleness


def test_staleness_by_hand():
    figure = draw_staleness(by_hand())
    (axes,) = figure.axes
    assert axes.get_title() == "3 contributions, staleness: mean 0.333, maximum 1"
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in axes.patches]
    np.testing.assert_allclose(bars, [(0, 2), (1, 1)], atol=1e-12)


def test_many_values_of_staleness_share_bars():
    plan = by_hand(contributions=((0, 0, 0), (1, 49, 1), (3, 120, 1)))
    (axes,) = draw_staleness(plan).axes
    assert axes.get_xlabel() == "staleness, server steps (3 values a bar)"
    heights = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in axes.patches}
    assert {centre: height for centre, height in heights.items() if height} == {
        1: 1,
        49: 1,
        121: 1,
    }


# errors

ERRORS = {
    "choose up to 100, such as clients=range(100)": lambda: draw_timeline(
        barrier(steps=1)(simulated()(0), 101, arrivals=101)
    ),
    "101 clients are too many": lambda: draw_timeline(by_hand(), clients=range(101)),
    "clients=[] cannot be drawn": lambda: draw_timeline(by_hand(), clients=[]),
    "clients=[-1] cannot be drawn": lambda: draw_timeline(by_hand(), clients=[-1]),
    "clients=[0.5] cannot be drawn": lambda: draw_timeline(by_hand(), clients=[0.5]),
    "clients=[1, 1] names clients twice": lambda: draw_timeline(by_hand(), clients=[1, 1]),
    "start=9 and end=8.0 are no interval": lambda: draw_timeline(by_hand(), start=9),
    "start=-1 and end=8.0": lambda: draw_timeline(by_hand(), start=-1),
    "none of the 1 client trains from start=2.5 to end=4": lambda: draw_timeline(
        by_hand(), clients=[2], start=2.5, end=4
    ),
    "the trace is of another plan": lambda: draw_timeline(by_hand(), trace=figure_1()),
    "num_clients=2; give": lambda: idle_share(by_hand(), 2),
    "dispatches client 2": lambda: summarise_plan(by_hand(), 2),
    "end=0 is out of range": lambda: idle_share(by_hand(), 3, 0),
    "or give end": lambda: idle_share(without_server_steps(), 3),
    "the plan has no server step": lambda: summarise_plan(without_server_steps(), 3),
    "plan more arrivals or seconds": lambda: draw_staleness(without_server_steps()),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ERRORS[message]()


def test_plans_without_server_steps_have_timelines():
    np.testing.assert_array_equal(idle_share(without_server_steps(), 3, 8.0), [0, 1 / 8, 3 / 8])
    assert "server step" not in counts(draw_timeline(without_server_steps()))
