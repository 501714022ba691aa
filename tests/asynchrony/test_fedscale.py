"""FedScale's devices: times by hand, sessions, and files in FedScale's format."""

import json
import math
import pickle
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.asynchrony import barrier, fedscale, immediate, system_models, system_of
from fedjax_algos.asynchrony.systems.fedscale import Device
from fedjax_algos.asynchrony.systems.system_model import Sessions

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
    """Writes the devices and the sessions as pickles or as JSON; returns their paths."""

    def write(capacity=CAPACITY, behaviour=BEHAVIOUR, protocol=None):
        paths = {name: str(tmp_path / name) for name in ("devices", "behaviour")}
        for path, content in zip(paths.values(), (capacity, behaviour), strict=True):
            text = json.dumps(content, indent=2).encode()
            Path(path).write_bytes(text if protocol is None else pickle.dumps(content, protocol))
        return paths

    return write


@pytest.mark.parametrize("protocol", [0, 4, None])
def test_files_are_read_in_every_form(files, protocol):
    system = fedscale(**files(protocol=protocol), batch_size=1)(0)
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
    assert [system.seconds(i, 5, 10) for i in range(4)] == [
        3 * 4 * 10 * 0.125 + 32 / 512,
        3 * 4 * 10 * 0.5 + 32 / 2048,
        3 * 4 * 10 * 0.25 + 32 / 1024,
        3 * 4 * 10 * 0.125 + 32 / 512,  # the file begins again
    ]
    assert [system.expected_seconds_per_step(i) for i in range(3)] == [1.5, 6, 3]
    assert make(0).seconds(1, 0, 1) == 6
    assert system.unavailability_at(0, 3, 1e9) is None
    assert repr(system) == "FedScaleSystem(devices=3, sessions=0, batch_size=4)"
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
    ends = [make(0).unavailability_at(i, 20, 100)[0] * 100 for i in range(30)]
    numbers = [round(10 * end - 10) for end in ends]
    assert sorted(numbers) == list(range(30)) != numbers != orders[0][:30]


def is_active(sessions, time):
    """FedScale's rule, without its index that is advanced at most once in each question.

    The end of a period is also the moment before the next one.
    """
    period = sessions["finish_time"]
    moments = [time % period, *[period] * (time > 0 and time % period == 0)]
    pairs = zip(sessions["active"], sessions["inactive"], strict=True)
    return any(s <= moment <= end for s, end in pairs for moment in moments if s < period)


@st.composite
def traces(draw):
    period = draw(st.integers(2, 30))
    moments = st.lists(st.integers(0, period), min_size=2, max_size=8)
    times = sorted(draw(moments.filter(lambda t: len(t) % 2 == 0)))
    return {"active": times[::2], "inactive": times[1::2], "finish_time": period}


@settings(max_examples=50)
@given(traces(), st.fractions(0, 200, max_denominator=3), st.fractions(Fraction(1, 9), 100))
def test_sessions_are_those_of_fedscale(trace, now, seconds):
    """A client leaves at the end of the session of its start, and is back when the next starts."""
    sessions = Sessions.of(trace["active"], trace["inactive"], trace["finish_time"])
    leaves = sessions.unavailability(now, seconds)
    grid = [now + seconds * Fraction(k, 7) for k in range(8)]
    if leaves is None:
        assert all(is_active(trace, time) for time in grid)
        return
    share, away = leaves
    if trace["active"][0] == trace["finish_time"]:
        assert leaves == (0, math.inf)
        return
    end = now + share * seconds
    assert 0 <= share < 1
    assert away > 0
    assert is_active(trace, end) or share == 0
    assert is_active(trace, end + away)
    assert not any(is_active(trace, end + away * Fraction(k, 7)) for k in range(1, 7))
    assert all(is_active(trace, time) for time in grid if time <= end and share > 0)


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
    (SPEEDS | {"computation": -1.0}, "device 5 has computation=-1"),
    (SPEEDS | {"communication": math.inf}, "device 5 has communication=inf"),
    (SPEEDS | {"communication": 10**400}, "device 5 has communication=10000"),
    (SPEEDS | {"computation": True}, "device 5 has computation=True"),
    ({"computation": 1.0}, "device 5 has no communication"),
    ([1.0, 2.0], "device 5 is [1.0, 2.0], not a dictionary"),
]
WRONG_SESSIONS = [
    ({"finish_time": 0}, "device 7 has finish_time=0"),
    ({"active": [0, 9], "inactive": [8]}, "device 7 has no lists active and inactive"),
    ({"active": [], "inactive": []}, "device 7 has no lists active and inactive"),
    ({"active": 3}, "device 7 has no lists active and inactive"),
    ({"active": [0, 7]}, "device 7 has the time 7 after 8"),
    ({"inactive": [8, 41]}, "device 7 has the time 41 after 20"),
    ({"active": [-1, 20]}, "device 7 has the time -1 after 0"),
    ({"active": ["now", 20]}, "device 7 has the time now after 0"),
]
BROKEN = [
    ('{"1": {"computation": 1 "communication": 2}}', "line 1 column 25"),
    ('{"1": {"computation": 1, "computation": 2}}', "has the key 'computation' twice"),
    ('{"1": {}, "1": {}}', "it has the key '1' twice"),
    ("", "EOFError"),
    ("cos\nsystem\n(S'true'\ntR.", "names os.system"),
    ("].", "it is no dictionary of devices"),
]


def test_wrong_files(files, tmp_path):
    def refuse(paths, place, message):
        start = f"{paths[place]}: not a file of devices: "
        with pytest.raises(ValueError, match=f"^{re.escape(start)}.*{re.escape(message)}"):
            fedscale(**paths, batch_size=1)

    for device, message in WRONG_DEVICES:
        protocol = 0 if "10000" in message else None  # a text of JSON has no such number
        refuse(files({3: SPEEDS, 5: device}, protocol=protocol), "devices", message)
    for changes, message in WRONG_SESSIONS:
        refuse(files(behaviour={7: BEHAVIOUR[7] | changes}), "behaviour", message)
    paths = files()
    for content, message in BROKEN:
        Path(paths["devices"]).write_text(content)
        refuse(paths, "devices", message)
    for path, message in (("nothing", "there is no such file"), (".", "Is a directory")):
        with pytest.raises(ValueError, match=message):
            fedscale(devices=str(tmp_path / path), batch_size=1)
    with pytest.raises(ValueError, match="fedscale needs devices"):
        system_models.make("fedscale")


def test_the_batch_size_is_that_of_the_run_unless_it_is_given(files):
    spec = f"fedscale:devices={files()['devices']},order=file"
    assert system_of(spec, 8)(0).expected_seconds_per_step(0) == 3
    assert system_of(f"{spec},batch_size=2", 8)(0).expected_seconds_per_step(0) == 0.75
    assert system_of("simulated:seconds_per_step=2,speeds=homogeneous", 8)(0).seconds(0, 0, 3) > 5
    with pytest.raises(ValueError, match="seed=-1"):
        system_of(spec, 8)(-1)
    with pytest.raises(ValueError, match="upload_bytes=-1"):
        system_of(spec, 8)(0, upload_bytes=-1)
