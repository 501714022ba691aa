"""The figures of plans: bars, marks, colours and legends; idle time and counts by hand."""

from fractions import Fraction

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from plan_helpers import plan_by_hand, plan_of_figure_1, plan_without_server_steps, trace_by_hand

from fedjax_algos.analysis.pictures import draw_staleness, draw_timeline, idle_share, summarise_plan
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


def rows_of(figure):
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def colours(figure, label):
    return [to_hex(colour) for colour in collections(figure)[label].get_facecolors()]


def test_bars_and_marks_by_hand():
    figure = draw_timeline(plan_by_hand())
    # a third one in no server step starts at the end; an arrival is in the buffer
    bars = {"dispatch": 3, "in no server step yet": 2, "lost dispatch": 1}
    assert counts(figure) == bars | {"server step": 2, "arrival": 4, "client leaves": 1}
    (axes,) = figure.axes
    title = "3 clients, 2 server steps, 4 arrivals, 1 lost dispatch; numbers: local steps"
    assert axes.get_title() == title
    assert rows_of(figure) == ["0", "1", "2"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # client 0 is above
    assert legend(figure) == set(counts(figure))
    assert len(axes.texts) == 5  # none in the lost dispatch
    assert collections(figure)["lost dispatch"].get_hatch()


def spans(figure, label):
    """Where bars begin and end, and the row of each."""
    boxes = [path.get_extents() for path in collections(figure)[label].get_paths()]
    return [(box.x0, box.x1, round((box.y0 + box.y1) / 2)) for box in boxes]


def test_bars_are_where_clients_train_in_an_interval():
    figure = draw_timeline(plan_by_hand(), clients=[2, 0], end=10)
    assert spans(figure, "dispatch") == [(0, 4, 1), (4, 8, 1)]
    assert spans(figure, "lost dispatch") == [(0, 2, 0)]
    assert spans(figure, "in no server step yet") == [(5, 10, 0), (8, 10, 1)]
    figure = draw_timeline(plan_by_hand(), start=3, end=6.5)
    assert spans(figure, "dispatch") == [(3, 4, 0), (3, 6, 1), (4, 6.5, 0)]
    assert (counts(figure)["server step"], counts(figure)["arrival"]) == (1, 2)
    assert figure.axes[0].get_xlim() == (3, 6.5)


def test_late_arrivals_and_arrival_groups():
    figure = draw_timeline(plan_by_hand()._replace(trace=trace_by_hand()), end=10)
    assert (counts(figure)["late arrival"], counts(figure)["arrival"]) == (1, 3)
    (late,) = (line for line in figure.axes[0].lines if line.get_label() == "late arrival")
    assert late.get_xydata().tolist() == [[8, 0]]
    assert {"group 1", "group 2", "first dispatches"} <= legend(figure)
    assert "dispatch" not in legend(figure)
    first, alike, group_1 = colours(figure, "dispatch")
    assert first == alike != group_1
    assert len(set(colours(figure, "in no server step yet"))) == 2


def test_groups_of_server_steps():
    """More of them than colours share some."""
    figure = draw_timeline(plan_by_hand(groups=(0, 1)))
    first, second, third = colours(figure, "dispatch")
    assert first != second == third
    assert {"group 0", "group 1"} <= legend(figure)
    assert "first dispatches" not in legend(figure)
    system = FixedSystem(list(range(1, 12)))  # a tier each
    figure = draw_timeline(tiers(steps=1, ratio=1)(system, 11, seconds=30))
    assert {"group 0, 7", "group 3, 10", "group 6"} <= legend(figure)


def test_the_papers_figure():
    plan = plan_of_figure_1()
    figure = draw_timeline(plan, end=2700)
    unused = {"in no server step yet": 5}
    assert counts(figure) == {"dispatch": 23, **unused, "server step": 9, "arrival": 23}
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_xlim()) == ("simulated minutes", (0, 45))
    (lines,) = (found for found in axes.collections if isinstance(found, LineCollection))
    times = [path.vertices[0, 0] for path in lines.get_paths()]
    np.testing.assert_allclose(times, [2, 4, 5, 8, 10, 12, 22, 32, 42])
    assert len(set(colours(figure, "dispatch"))) == 5
    assert sorted(int(text.get_text()) for text in axes.texts) == sorted(plan.num_steps)
    # up to the last event, without dispatches that have only begun
    assert draw_timeline(plan).axes[0].get_xlim() == (0, 42)


def test_numbers_are_left_out_where_bars_are_short():
    plan = immediate(steps=10)(FixedSystem([0.1, 10.0]), 2, seconds=200)
    assert [text.get_position()[1] for text in draw_timeline(plan).axes[0].texts] == [1, 1]


@pytest.mark.parametrize("num_clients", [5, 100])
def test_rows_have_a_minimum_height(num_clients):
    plan = barrier(steps=1)(simulated()(0), num_clients, arrivals=num_clients)
    figure = draw_timeline(plan)
    width, height = figure.get_size_inches()
    assert (width, len(rows_of(figure))) == (10, num_clients)
    assert 0.14 <= (height - 1.6) / num_clients <= 0.45 + 1e-9


def test_rows_without_bars_and_plans_without_server_steps():
    figure = draw_timeline(plan_by_hand(), clients=[0, 7])
    assert (rows_of(figure), counts(figure)["dispatch"]) == (["0", "7"], 2)
    assert "server step" not in counts(draw_timeline(plan_without_server_steps()))


def test_staleness_by_hand():
    """Many values share bars."""
    (axes,) = draw_staleness(plan_by_hand()).axes
    assert axes.get_title() == "3 contributions, staleness: mean 0.333, maximum 1"
    assert [bar.get_height() for bar in axes.patches] == [2, 1]
    plan = plan_by_hand(contributions=((0, 0, 0), (1, 49, 1), (3, 120, 1)))
    (axes,) = draw_staleness(plan).axes
    assert axes.get_xlabel() == "staleness, server steps (3 values per bar)"
    centres = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches if bar.get_height()]
    np.testing.assert_allclose(centres, [1, 49, 121])


SYSTEM = FixedSystem([Fraction(1), Fraction(2), Fraction(5)])
AWAY = FixedSystem([1, 1], {(0, 0): (Fraction(1, 4), 3)})  # from 1 s to 4 s


@pytest.mark.parametrize(
    ("plan", "clients", "end", "expected"),
    [
        # until 8 s: client 1 trains 6 s and 1 s, client 2 trains 2 s and 3 s
        (plan_by_hand(), 4, None, [0, 1 / 8, 3 / 8, 1]),
        (plan_by_hand(), 3, 5, [0, 0, 3 / 5]),
        (plan_without_server_steps(), 3, 8.0, [0, 1 / 8, 3 / 8]),
        (barrier(steps=3)(SYSTEM, 3, arrivals=12), 3, None, [0.8, 0.6, 0]),
        # server steps at 4, 8 and 8 s; a lost dispatch counts until the client leaves
        (immediate(steps=4)(AWAY, 2, arrivals=3), 2, None, [3 / 8, 0]),
    ],
)
def test_idle_share(plan, clients, end, expected):
    share = idle_share(plan, clients, end)
    assert share.dtype == np.float64
    np.testing.assert_allclose(share, expected, rtol=1e-15)


def test_the_summary_by_hand():
    summary = summarise_plan(plan_by_hand(), 3)
    assert summary == (2, 3, 1, 3, 1 / 3, 1, (0 + 1 / 8 + 3 / 8) / 3, 8.0)
    assert {type(value) for value in summary} == {int, float}


BY_HAND, EMPTY = plan_by_hand(), plan_without_server_steps()
OF_101 = barrier(steps=1)(simulated()(0), 101, arrivals=101)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: idle_share(BY_HAND, 2), "num_clients=2 is out of range; .* at least 3"),
        (lambda: summarise_plan(BY_HAND, 2), "num_clients=2 is out of range"),
        (lambda: idle_share(BY_HAND, 3, 0), "end=0 is out of range"),
        (lambda: summarise_plan(EMPTY, 3), "end=0.0 .* a plan with server steps"),
        (lambda: draw_staleness(EMPTY), "plan more arrivals or seconds"),
        (lambda: draw_timeline(OF_101), "the 101 rows .* give 1 to 100"),
        (lambda: draw_timeline(BY_HAND, clients=[]), r"clients=\[\] cannot"),
        (lambda: draw_timeline(BY_HAND, clients=[1, 1]), r"clients=\[1, 1\] cannot"),
        (lambda: draw_timeline(BY_HAND, start=9), "from start=9 to end=8.0; give 0 <= start < end"),
        (lambda: draw_timeline(BY_HAND, clients=[2], start=2.5, end=4), "none of the 1 client"),
    ],
)
def test_errors(call, named):
    with pytest.raises(ValueError, match=named):
        call()
