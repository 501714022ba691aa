"""FedScale's devices: times by hand, sessions, and its files, which may be pickles."""

import collections
import json
import math
import pickle
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.asynchrony import barrier, fedscale, immediate, system_of
from fedjax_algos.participation.systems.fedscale import Device
from fedjax_algos.participation.systems.plain_pickle import read_plain_pickle
from fedjax_algos.participation.systems.system_model import Sessions

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
    expected = [120 * c + 32 / b for c, b in ((0.125, 512), (0.5, 2048), (0.25, 1024))]
    assert [system.seconds(i, 5, 10) for i in range(4)] == expected + expected[:1]  # from the start
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
    ({"computation": 1.0}, "has no communication"),
    ([1.0, 2.0], "is [1.0, 2.0], not a dictionary"),
]
WRONG_SESSIONS = [
    ({"finish_time": 0}, "finish_time=0"),
    ({"active": [0, 9], "inactive": [8]}, "2 times in active and 1 in inactive; give as"),
    ({"active": [], "inactive": []}, "no lists active and inactive"),
    ({"active": 3}, "no lists active and inactive"),
    ({"active": [0, 7]}, "the time 7 after 8"),
    ({"inactive": [8, 41]}, "the time 41 after 20"),
    ({"active": [-1, 20]}, "the time -1 after 0"),
    ({"active": ["now", 20]}, "the time now after 0"),
]
BROKEN = [
    ('{"1": {"computation": 1 "communication": 2}}', "line 1 column 25"),
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
        refuse(files({3: SPEEDS, 5: device}, protocol=protocol), "devices", f"device 5 {message}")
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


# Pickles of plain values are read as Python reads them, and nothing else is read or run.

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
SHARED = {"computation": 1.5}
# pickles are written in parts of 1,000 items, and refer to what they have already
VALUE = {str(i): [SHARED, [i - 700], -(2**200), None, True] for i in range(1500)}
VALUE |= {"": list(range(-2000, 2000)), "é\n'": "\\\u202e\ud800", "floats": [1e-300, float("inf")]}
TYPES = ["<f2", "<f4", "<f8", ">f8", "<i8", ">i4", "i2", "u1", "i1", "<u8"]
SCALARS = [number for kind in TYPES for number in np.array([0, 3, 77], kind)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_are_read_as_python_reads_them(protocol):
    written = VALUE | {7: (1, 2), "numbers": SCALARS}
    found = json.loads(read_plain_pickle(pickle.dumps(written, protocol)))
    assert found == VALUE | {"7": [1, 2], "numbers": [0, 3, 77] * len(TYPES)}
    assert [type(each) for each in found["numbers"]] == [type(each.item()) for each in SCALARS]


class Evil:
    def __reduce__(self):
        return open, ("made", "w")


OTHERS = [{2, 3}, np.ones(2), b"bytes", np.datetime64(3, "s"), collections.OrderedDict(a=1)]
OTHERS += [{(1, 2): 3}, np.dtype("f8")]


def test_other_values_are_refused_and_nothing_is_run(here):
    written = [pickle.dumps([Evil()], protocol) for protocol in PROTOCOLS]
    written += [b"}.}", b"}r\xff\xff\xff\xff."]  # more than one value; the last index of a memo
    for content in written + [pickle.dumps(value) for value in OTHERS]:
        with pytest.raises(ValueError, match=r"^\w+:") as caught:
            read_plain_pickle(content)
        assert str(caught.value).isprintable()
    assert not [*here.iterdir()]


def nested(end):
    """A pickle with a tuple that holds one tuple twice, and so on: 2^60 in all."""
    return b")q\x00" + b"".join(b"h%c\x86q%c" % (i, i + 1) for i in range(60)) + end


@pytest.mark.nightly
@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Psome\n.", "UnpicklingError: refers to what is not"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x0f.", "UnpicklingError|MemoryError"),  # long bytes
        (b"]" * 10**6 + b"a" * (10**6 - 1) + b".", "RecursionError"),
        (nested(b"."), "MemoryError|time or memory"),
        (b"}" + nested(b"K\x01s."), "time or memory"),
    ],
)
def test_hostile_pickles_end_in_one_line(content, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_plain_pickle(content)
    assert str(caught.value).isprintable()
