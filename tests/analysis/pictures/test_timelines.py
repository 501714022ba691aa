"""The figures of plans: bars, marks, colours and legends; idle time and counts by hand."""

import re
from fractions import Fraction

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from plan_helpers import plan_by_hand, plan_of_figure_1, plan_without_server_steps, trace_by_hand

from fedjax_algos.analysis.pictures import (
    PlanSummary,
    draw_staleness,
    draw_timeline,
    idle_share,
    summarise_plan,
)
from fedjax_algos.asynchrony import FixedSystem, simulated
from fedjax_algos.asynchrony.planning import barrier, immediate, tiers


def collections(figure):
    (axes,) = figure.axes
    return {collection.get_label(): collection for collection in axes.collections}


def counts(figure):
    """The number of bars, lines and marks of each kind."""
    (axes,) = figure.axes
    bars = {label: len(found.get_paths()) for label, found in collections(figure).items()}
    return bars | {line.get_label(): len(line.get_xdata()) for line in axes.lines}


def legend(figure):
    return {text.get_text() for text in figure.legends[0].get_texts()}


def test_bars_and_marks_by_hand():
    figure = draw_timeline(plan_by_hand())
    assert counts(figure) == {
        "dispatch": 3,
        "in no server step yet": 2,  # the third starts at the end
        "lost dispatch": 1,
        "server step": 2,
        "arrival": 4,  # one is in the buffer
        "client leaves": 1,
    }
    (axes,) = figure.axes
    assert axes.get_title() == (
        "3 clients, 2 server steps, 4 arrivals, 1 lost dispatch; numbers: local steps"
    )
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # client 0 is above
    assert legend(figure) == set(counts(figure))
    assert len(axes.texts) == 5  # none in the lost dispatch
    assert collections(figure)["lost dispatch"].get_hatch()


def test_bars_are_where_clients_train():
    bars = collections(draw_timeline(plan_by_hand(), clients=[2, 0], end=10))
    extents = [path.get_extents() for path in bars["dispatch"].get_paths()]
    assert [(box.x0, box.x1, round(box.y0 + box.y1)) for box in extents] == [(0, 4, 2), (4, 8, 2)]
    (lost,) = (path.get_extents() for path in bars["lost dispatch"].get_paths())
    assert (lost.x0, lost.x1, lost.y0 + lost.y1) == (0, 2, 0)
    unused = [path.get_extents() for path in bars["in no server step yet"].get_paths()]
    assert [(box.x0, box.x1) for box in unused] == [(5, 10), (8, 10)]


def test_an_interval_cuts_bars():
    figure = draw_timeline(plan_by_hand(), start=3, end=6.5)
    assert counts(figure) == {
        "dispatch": 3,
        "in no server step yet": 2,
        "server step": 1,
        "arrival": 2,
    }
    extents = [path.get_extents() for path in collections(figure)["dispatch"].get_paths()]
    assert [(box.x0, box.x1) for box in extents] == [(3, 4), (3, 6), (4, 6.5)]
    assert figure.axes[0].get_xlim() == (3, 6.5)


def test_late_arrivals_and_arrival_groups():
    figure = draw_timeline(plan_by_hand()._replace(trace=trace_by_hand()), end=10)
    assert counts(figure)["late arrival"] == 1
    assert counts(figure)["arrival"] == 3
    (late,) = (line for line in figure.axes[0].lines if line.get_label() == "late arrival")
    assert (late.get_xdata().tolist(), late.get_ydata().tolist()) == ([8], [0])
    assert {"group 1", "group 2", "first dispatches"} <= legend(figure)
    assert "dispatch" not in legend(figure)
    first, alike, group_1 = map(to_hex, collections(figure)["dispatch"].get_facecolors())
    assert first == alike != group_1
    unused = collections(figure)["in no server step yet"].get_facecolors()
    assert len(set(map(to_hex, unused))) == 2


def test_groups_of_server_steps():
    figure = draw_timeline(plan_by_hand(groups=(0, 1)))
    first, second, third = map(to_hex, collections(figure)["dispatch"].get_facecolors())
    assert first != second == third
    assert {"group 0", "group 1"} <= legend(figure)
    assert "first dispatches" not in legend(figure)


def test_more_groups_than_colours():
    system = FixedSystem(list(range(1, 12)))  # a tier each
    figure = draw_timeline(tiers(steps=1, ratio=1)(system, 11, seconds=30))
    assert {"group 0, 7", "group 3, 10", "group 6"} <= legend(figure)


def test_the_papers_figure():
    plan = plan_of_figure_1()
    figure = draw_timeline(plan, end=2700)
    assert counts(figure) == {
        "dispatch": 23,
        "in no server step yet": 5,
        "server step": 9,
        "arrival": 23,
    }
    (axes,) = figure.axes
    assert axes.get_xlabel() == "simulated minutes"
    assert axes.get_xlim() == (0, 45)
    (lines,) = (found for found in axes.collections if isinstance(found, LineCollection))
    times = [path.vertices[0, 0] for path in lines.get_paths()]
    np.testing.assert_allclose(times, [2, 4, 5, 8, 10, 12, 22, 32, 42])
    assert len({to_hex(colour) for colour in collections(figure)["dispatch"].get_facecolors()}) == 5
    written = [text.get_text() for text in axes.texts]
    assert sorted(map(int, written)) == sorted(plan.num_steps)
    # up to the last event, without dispatches that have only begun
    assert draw_timeline(plan).axes[0].get_xlim() == (0, 42)


def test_numbers_are_left_out_where_bars_are_short():
    plan = immediate(steps=10)(FixedSystem([0.1, 10.0]), 2, seconds=200)
    written = [text.get_position() for text in draw_timeline(plan).axes[0].texts]
    assert [y for _, y in written] == [1, 1]


@pytest.mark.parametrize("num_clients", [5, 20, 50, 100])
def test_rows_have_a_minimum_height(num_clients):
    plan = barrier(steps=1)(simulated()(0), num_clients, arrivals=2 * num_clients)
    figure = draw_timeline(plan)
    width, height = figure.get_size_inches()
    assert width == 10
    assert 0.14 <= (height - 1.6) / num_clients <= 0.45 + 1e-9
    assert len(figure.axes[0].get_yticks()) == num_clients


def test_a_client_without_dispatches_has_an_empty_row():
    figure = draw_timeline(plan_by_hand(), clients=[0, 7])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0", "7"]
    assert counts(figure)["dispatch"] == 2


def test_a_plan_without_server_steps_has_a_timeline():
    assert "server step" not in counts(draw_timeline(plan_without_server_steps()))


def test_staleness_by_hand():
    figure = draw_staleness(plan_by_hand())
    (axes,) = figure.axes
    assert axes.get_title() == "3 contributions, staleness: mean 0.333, maximum 1"
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in axes.patches]
    np.testing.assert_allclose(bars, [(0, 2), (1, 1)], atol=1e-12)


def test_many_values_of_staleness_share_bars():
    plan = plan_by_hand(contributions=((0, 0, 0), (1, 49, 1), (3, 120, 1)))
    (axes,) = draw_staleness(plan).axes
    assert axes.get_xlabel() == "staleness, server steps (3 values per bar)"
    heights = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in axes.patches}
    assert {centre: height for centre, height in heights.items() if height} == {
        1: 1,
        49: 1,
        121: 1,
    }


def test_idle_share_by_hand():
    # until 8 s: client 1 trains 6 s and 1 s, client 2 trains 2 s and 3 s
    share = idle_share(plan_by_hand(), 4)
    assert share.dtype == np.float64
    np.testing.assert_array_equal(share, [0, 1 / 8, 3 / 8, 1])


@pytest.mark.parametrize(
    ("end", "expected"),
    [(2, [0, 0, 0]), (5, [0, 0, 3 / 5]), (16, [6 / 16, 9 / 16, 7 / 16])],
)
def test_idle_share_until_another_end(end, expected):
    np.testing.assert_allclose(idle_share(plan_by_hand(), 3, end), expected, rtol=1e-15)


def test_idle_share_of_schedules():
    system = FixedSystem([Fraction(1), Fraction(2), Fraction(5)])
    np.testing.assert_array_equal(idle_share(immediate(steps=3)(system, 3, arrivals=40), 3), 0)
    waiting = idle_share(barrier(steps=3)(system, 3, arrivals=12), 3)
    np.testing.assert_allclose(waiting, [0.8, 0.6, 0], rtol=1e-15)
    np.testing.assert_array_equal(idle_share(plan_of_figure_1(), 5), 0)


def test_lost_dispatches_count_until_the_client_leaves():
    system = FixedSystem([1, 1], {(0, 0): (Fraction(1, 4), 3)})  # away from 1 s to 4 s
    plan = immediate(steps=4)(system, 2, arrivals=3)
    np.testing.assert_array_equal(plan.time, [4, 8, 8])
    np.testing.assert_array_equal(idle_share(plan, 2), [3 / 8, 0])


def test_the_summary_by_hand():
    summary = summarise_plan(plan_by_hand(), 3)
    assert summary == PlanSummary(2, 3, 1, 3, 1 / 3, 1, (0 + 1 / 8 + 3 / 8) / 3, 8.0)
    assert {type(value) for value in summary} == {int, float}


def test_a_plan_without_server_steps_has_idle_time_until_an_end():
    np.testing.assert_array_equal(
        idle_share(plan_without_server_steps(), 3, 8.0), [0, 1 / 8, 3 / 8]
    )


ERRORS = {
    "num_clients=2; give": lambda: idle_share(plan_by_hand(), 2),
    "dispatches client 2": lambda: summarise_plan(plan_by_hand(), 2),
    "end=0 is out of range": lambda: idle_share(plan_by_hand(), 3, 0),
    "or give end": lambda: idle_share(plan_without_server_steps(), 3),
    "the plan has no server step": lambda: summarise_plan(plan_without_server_steps(), 3),
    "choose up to 100, such as clients=range(100)": lambda: draw_timeline(
        barrier(steps=1)(simulated()(0), 101, arrivals=101)
    ),
    "101 clients are too many": lambda: draw_timeline(plan_by_hand(), clients=range(101)),
    "clients=[] cannot be drawn": lambda: draw_timeline(plan_by_hand(), clients=[]),
    "clients=[-1] cannot be drawn": lambda: draw_timeline(plan_by_hand(), clients=[-1]),
    "clients=[0.5] cannot be drawn": lambda: draw_timeline(plan_by_hand(), clients=[0.5]),
    "clients=[1, 1] contains clients twice": lambda: draw_timeline(plan_by_hand(), clients=[1, 1]),
    "start=9 and end=8.0 are no interval": lambda: draw_timeline(plan_by_hand(), start=9),
    "start=-1 and end=8.0": lambda: draw_timeline(plan_by_hand(), start=-1),
    "none of the 1 client trains from start=2.5 to end=4": lambda: draw_timeline(
        plan_by_hand(), clients=[2], start=2.5, end=4
    ),
    "plan more arrivals or seconds": lambda: draw_staleness(plan_without_server_steps()),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ERRORS[message]()
