"""Given times: exact numbers, times in arrays, and times in a CSV file."""

import math
import re
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from fedjax_algos.asynchrony import FixedSystem, immediate, system_models, traced


def test_traced_systems():
    make = traced(np.array([[1, 2, 3], [4, 5, 6]]), {(1, 0): (0.5, 7.0)})
    for system in (make(0), make(1)):
        assert [system.seconds(0, number, 10) for number in range(3)] == [10, 20, 30]
        assert system.seconds(1, 2, 10) == 60
        assert system.unavailability(1, 0) == (0.5, 7)
        assert system.unavailability(0, 0) is None
        assert system.expected_seconds_per_step(1) == 5
    with pytest.raises(ValueError, match="dispatch 3 of client 1 has no time"):
        system.seconds(1, 3, 10)
    assert traced([1.0, 2.0])(0).seconds(1, 10**9, 3) == 6
    slow = traced([1.0, 2.0], communication_seconds=1, bytes_per_second=10)
    assert slow(0, upload_bytes=20).seconds(1, 0, 3) == 9


def test_fixed_systems_are_exact_and_may_be_ragged():
    third = Fraction(1, 3)
    system = FixedSystem([third, [third, 2 * third]], communication_seconds=Fraction(1, 7))
    assert system.seconds(0, 5, 3) == Fraction(8, 7)
    assert system.seconds(1, 1, 3) == Fraction(15, 7)
    assert system.expected_seconds_per_step(1) == Fraction(1, 2)


WRONG_CALLS = [
    *((partial(traced, times), "has shape") for times in (3.0, [], np.ones((2, 2, 2)))),
    (lambda: traced([1, 0]), "client 1 has seconds_per_step=0.0; give"),
    (lambda: traced([[1, 2], [3, math.nan]]), r"client 1 has seconds_per_step=\(3.0, nan\)"),
    (lambda: traced([1], communication_seconds=-1), "communication_seconds=-1"),
    (lambda: traced([1], bytes_per_second=0), "bytes_per_second=0"),
    (lambda: traced([1])(0, download_bytes=-2), "download_bytes=-2"),
    (lambda: FixedSystem([]), r"client 0 has seconds_per_step=\(\); give"),
    (lambda: FixedSystem([1, []]), "client 1 has seconds_per_step="),
    (lambda: FixedSystem([1], communication_seconds=math.inf), "communication_seconds=inf"),
    (lambda: FixedSystem([1]).expected_seconds_per_step(2), "dispatch 0 of client 2 has no"),
    (lambda: FixedSystem([1], {(1, 0): (0, 1)}), "dispatch 0 of client 1; .* clients of 0 to 0"),
    (lambda: FixedSystem([1], {(0, -1): (0, 1)}), "dispatch -1 of client 0"),
]


def test_wrong_calls():
    for make, message in WRONG_CALLS:
        with pytest.raises(ValueError, match=message):
            make()
    FixedSystem([1], {(0, 0): (0, math.inf)})  # a client may leave for good
    for leaves in ((1.5, 1), (0.5, -1), (0, 0), (math.nan, 1)):
        text = f"dispatch 2 of client 0 has unavailability={leaves}"
        with pytest.raises(ValueError, match=re.escape(text)):
            FixedSystem([1], {(0, 2): leaves})


TIMES = """client,dispatch,seconds_per_step,lost_after,seconds_away
0,0,1,,
0,1,2,,
1,0,2.5,0.5,3
0,2,4,,
1,1,1.5,,
1,2,100,,
0,3,100,,
"""


@pytest.fixture
def system(tmp_path):
    """The system model of a text, and its options."""

    def make(text, options=""):
        (tmp_path / "times.csv").write_text(text)
        return system_models.make(f"csv:file={tmp_path}/times.csv{options}")

    return make


def test_a_timeline_by_hand(system):
    """Two steps in a dispatch and one second of communication: 2 t + 1 seconds.

    Client 0 arrives after 3, 3 + 5 and 8 + 9 seconds. Client 1 is lost after half of its 6 seconds,
    is back 3 seconds later, at 6, and arrives 4 seconds later.
    """
    plan = immediate(steps=2)(system(TIMES, ",communication_seconds=1")(5), 2, seconds=20)
    assert plan.time.tolist() == [3, 8, 10, 17]
    dispatches = sorted(zip(plan.client, plan.started, plan.ended, strict=True))
    assert dispatches[:4] == [(0, 0, 3), (0, 3, 8), (0, 8, 17), (0, 17, 218)]
    assert dispatches[4:] == [(1, 0, 3), (1, 6, 10), (1, 10, 211)]


def test_one_time_of_each_client_and_bytes(system):
    text = "\ufeffclient, seconds_per_step\r\n1,3\r\n0,0.5\r\n\r\n"
    made = system(text, ",bytes_per_second=10")(0, download_bytes=20, upload_bytes=10)
    assert [made.seconds(client, 7, 2) for client in (0, 1)] == [4.0, 9.0]
    assert [made.expected_seconds_per_step(client) for client in (0, 1)] == [0.5, 3.0]


WRONG = {
    "": "line 1: the columns are ; give client,",
    "client,seconds_per_step\n": "client 0 has seconds_per_step=",
    "client,seconds\n0,1\n": "the columns are client,seconds; give client,seconds_per_step",
    "client,seconds_per_step,lost_after\n": "give client,dispatch,seconds_per_step,lost_after,sec",
    "client,client,seconds_per_step\n": "line 1: the columns are client,client,",
    "client,seconds_per_step\n0,1\n2,1\n": "client 1 has seconds_per_step=",
    "client,seconds_per_step\n0,1\n0,1\n": "line 3 has dispatch 0, not 1, of client 0",
    "client,seconds_per_step\n0,1,2\n": "line 2 has 3 cells for 2 columns",
    "client,seconds_per_step\n-1,1\n": r"line 2: \['-1', '0'\]",
    "client,seconds_per_step\n0,fast\n": "line 2: 'fast'",
    "client,dispatch,seconds_per_step\n0,1,1\n": "line 2 has dispatch 1, not 0, of client 0",
    TIMES + "1,3,1,0,0\n": r"dispatch 3 of client 1 has unavailability=\(0.0, 0.0\)",
    TIMES + "1,3,1,,1\n": "line 9: ''",
}


def test_wrong_files(system):
    for text, message in WRONG.items():
        with pytest.raises(ValueError, match=message):
            system(text)
    with pytest.raises(ValueError, match=r"nothing.csv: there is no such file"):
        system_models.make("csv:file=nothing.csv")
