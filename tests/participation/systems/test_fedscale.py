"""FedScale's devices: times by hand, sessions, and its files."""

import json
import math
import pickle
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.asynchrony import barrier, fedscale, immediate, system_of
from fedjax_algos.participation.systems.fedscale import Device, Sessions

# as in FedScale's client_device_capacity: ms for an example, and kbit/s
CAPACITY = {
    1: {"computation": 125.0, "communication": 512.0},
    2: {"computation": 500, "communication": 2048.0},
    0: {"computation": 250.0, "communication": 1024},
}
# as in client_behave_trace: the second client's sessions touch and go on in the next period
BEHAVIOUR = {
    7: {"duration": 15, "active": [0, 20], "inactive": [8, 27], "finish_time": 40, "model": "A"},
    8: {"active": [0, 20, 30], "inactive": [5, 30, 40], "finish_time": 40},
    9: {"active": [0], "inactive": [40], "finish_time": 40},
}


@pytest.fixture
def files(tmp_path):
    """Writes the devices and the sessions as JSON; returns their paths."""

    def write(capacity=CAPACITY, behaviour=BEHAVIOUR):
        paths = {name: str(tmp_path / name) for name in ("devices", "behaviour")}
        for path, content in zip(paths.values(), (capacity, behaviour), strict=True):
            Path(path).write_text(json.dumps(content, indent=2))
        return paths

    return write


@pytest.mark.parametrize("protocol", [0, 4, None])
def test_files_and_what_becomes_of_pickles(files, protocol, monkeypatch, tmp_path):
    """By the lines of the page; FedScale's pickles also have numbers of NumPy."""
    paths = files()
    if protocol is not None:
        capacity = {k: {n: np.float32(v) for n, v in own.items()} for k, own in CAPACITY.items()}
        for name, content in ("device_capacity", capacity), ("behave_trace", BEHAVIOUR):
            (tmp_path / f"client_{name}").write_bytes(pickle.dumps(content, protocol))
        page = (ROOT / "docs/asynchronous.md").read_text()
        monkeypatch.chdir(tmp_path)
        for line in re.findall(r"^python (-c (?:.*\\\n)*.*)", page, re.MULTILINE):
            subprocess.run(f"{sys.executable} {line}", shell=True, check=True)
        paths = {name: f"{name}.json" for name in paths}
    system = fedscale(**paths, batch_size=1)(0)
    assert system.devices == (Device(125, 512), Device(500, 2048), Device(250, 1024))
    assert system.sessions == (
        Sessions((0, 20), (8, 27), 40),
        Sessions((0, 20), (5, 40), 40),
        Sessions((0,), (40,), 40),
    )


def test_durations_are_those_of_fedscale(files):
    """3 B Q c / 1000 + (download + upload) in kbit / b."""
    make = fedscale(devices=files()["devices"], batch_size=4, order="file")
    system = make(0, download_bytes=1024, upload_bytes=3 * 1024)  # 32 kbit
    expected = [120 * c + 32 / b for c, b in ((0.125, 512), (0.5, 2048), (0.25, 1024))]
    assert [system.seconds(i, 5, 10) for i in range(4)] == expected + expected[:1]  # from the start
    assert [system.expected_seconds_per_step(i) for i in range(3)] == [1.5, 6, 3]
    assert make(0).seconds(1, 0, 1) == 6
    assert system.unavailability_at(0, 3, 1e9) is None
    # a changed file is read again
    devices = files({1: {"computation": 1000.0, "communication": 1.0}})["devices"]
    assert fedscale(devices=devices, batch_size=1)(0).seconds(0, 0, 1) == 3


def test_an_exact_timeline(files):
    """Four steps of one example take 1.5, 6 and 3 s, and 0.5, 0.125 and 0.25 s of communication.

    Client 0 is there at [0, 8] and [20, 27], client 1 at [0, 5] and [20, 45], client 2 always; all
    with the period 40.
    """
    make = fedscale(**files(), batch_size=1, order="file")
    system = make(3, download_bytes=16 * 1024, upload_bytes=16 * 1024)  # 256 kbit
    plan = immediate(steps=4)(system, 3, seconds=30)
    fates = [" ?L"[fate] for fate in plan.fate]
    assert sorted(zip(plan.client, plan.started, plan.ended, fates, strict=True)) == [
        *((0, start, start + 2, " ") for start in (0, 2, 4, 6)),  # to the session's last moment
        (0, 8, 8, "L"),
        *((0, start, start + 2, " ") for start in (20, 22, 24)),
        (0, 26, 27, "L"),
        (1, 0, 5, "L"),  # it would need until 6.125
        (1, 20, 26.125, " "),
        (1, 26.125, 32.25, "?"),
        *((2, 3.25 * k, 3.25 * (k + 1), " ") for k in range(9)),
        (2, 29.25, 32.5, "?"),
    ]
    rounds = barrier(steps=4)(system, 3, seconds=30)
    assert rounds.time[0] == 5  # the round ends where client 1 leaves
    assert rounds.fate[rounds.client == 1][0] == 2


def test_a_seed_permutes_devices_and_sessions(files):
    capacity = {i: {"computation": 1.0 + i, "communication": 1.0} for i in range(50)}
    behaviour = {i: BEHAVIOUR[7] | {"inactive": [8, 21 + i / 10]} for i in range(30)}
    make = fedscale(**files(capacity, behaviour), batch_size=1)
    orders = [[make(seed).seconds(i, 0, 1000) / 3 - 1 for i in range(75)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    for order in orders:
        assert sorted(order[:50]) == list(range(50))  # no device is used twice before all are used
        assert order[50:] == order[:25]
    ends = [round(1000 * make(0).unavailability_at(i, 20, 100)[0]) - 10 for i in range(30)]
    assert sorted(ends) == list(range(30)) != ends != orders[0][:30]


@st.composite
def traces(draw):
    period = draw(st.integers(2, 30))
    moments = st.lists(st.integers(0, period), min_size=2, max_size=8)
    times = sorted(draw(moments.filter(lambda t: len(t) % 2 == 0)))
    return {"active": times[::2], "inactive": times[1::2], "finish_time": period}


@settings(max_examples=50)
@given(traces(), st.fractions(0, 200, max_denominator=3), st.fractions(Fraction(1, 9), 100))
def test_sessions_are_those_of_fedscale(trace, now, seconds):
    """A client is there in a session, both ends included; sessions that touch are one."""
    period, sessions = trace["finish_time"], []
    for first in range(0, 400, period):  # of all periods
        for start, end in zip(trace["active"], trace["inactive"], strict=True):
            if sessions and sessions[-1][1] == first + start:
                sessions[-1][1] = first + end
            elif start < period:
                sessions.append([first + start, first + end])
    back = min((start for start, _ in sessions if start > now), default=math.inf)
    ends = [end for start, end in sessions if start <= now <= end]
    end = ends[0] if ends else now
    stays = ends and now + seconds <= end
    leaves = Sessions.of(trace["active"], trace["inactive"], period).unavailability(now, seconds)
    assert leaves == (None if stays else ((end - now) / seconds, back - end))


def test_a_client_that_is_back_is_available_in_spite_of_rounding():
    sessions, now = Sessions.of([0.1, 0.7], [0.2, 0.9], 1.1), 0.0
    for _ in range(2000):
        share, away = sessions.unavailability(now, 0.6)
        later = now + share * 0.6 + away
        assert later > now
        now = later
    assert now == pytest.approx(1000 * 1.1, rel=1e-2)


SPEEDS = {"computation": 1.0, "communication": 2.0}
WRONG_DEVICES = [
    (SPEEDS | {"computation": -1.0}, "has computation=-1"),
    (SPEEDS | {"communication": math.inf}, "has communication=inf"),
    (SPEEDS | {"communication": 10**400}, "has communication=10000"),
    (SPEEDS | {"computation": True}, "has computation=True"),
    ({"computation": 1.0}, "has communication=None"),
]
WRONG_SESSIONS = [
    ({"finish_time": 0}, "finish_time=0"),
    ({"active": [0, 9], "inactive": [8]}, "active=[0, 9] and inactive=[8]; give lists of equal"),
    ({"active": [], "inactive": []}, "active=[] and inactive=[]; give"),
    ({"active": 3}, "active=3 and inactive="),
    ({"active": [0, 7]}, "the time 7 after 8"),
    ({"inactive": [8, 41]}, "the time 40 after 41"),
    ({"active": [-1, 20]}, "the time -1 after 0"),
    ({"active": ["now", 20]}, "the time now after 0"),
]
BROKEN = [
    ('{"1": {"computation": 1 "communication": 2}}', "line 1 column 25"),
    ("", "line 1 column 1 (char 0)"),
    ("cos\nsystem\n(S'true'\ntR.", "docs/asynchronous.md makes it of a pickle"),
    ("[]", "it is not a dictionary of devices"),
    ('{"5": [1.0, 2.0]}', "it is not a dictionary of devices, which are dictionaries"),
]


def test_wrong_files(files, tmp_path):
    def refuse(paths, place, message):
        start = f"{paths[place]}: not a file of devices: "
        with pytest.raises(ValueError, match=f"^{re.escape(start)}.*{re.escape(message)}"):
            fedscale(**paths, batch_size=1)

    for device, message in WRONG_DEVICES:
        refuse(files({3: SPEEDS, 5: device}), "devices", f"device 5 {message}")
    for changes, message in WRONG_SESSIONS:
        refuse(files(behaviour={7: BEHAVIOUR[7] | changes}), "behaviour", f"device 7 has {message}")
    paths = files()
    for content, message in BROKEN:
        Path(paths["devices"]).write_text(content)
        refuse(paths, "devices", message)
    with pytest.raises(ValueError, match="there is no such file"):
        fedscale(devices=str(tmp_path / "nothing"), batch_size=1)


def test_a_system_has_the_batch_size_of_the_run_unless_it_is_given(files):
    spec = f"fedscale:devices={files()['devices']},order=file"
    assert system_of(spec, 8)(0).expected_seconds_per_step(0) == 3
    assert system_of(f"{spec},batch_size=2", 8)(0).expected_seconds_per_step(0) == 0.75
    assert system_of("simulated:seconds_per_step=2,speeds=homogeneous", 8)(0).seconds(0, 0, 3) > 5
    with pytest.raises(ValueError, match="seed=-1"):
        system_of(spec, 8)(-1)
    with pytest.raises(ValueError, match="upload_bytes=-1"):
        system_of(spec, 8)(0, upload_bytes=-1)
