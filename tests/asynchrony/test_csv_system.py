"""Times in a CSV file: a timeline that is counted by hand, and what is refused."""

import pytest

from fedjax_algos.asynchrony import immediate, system_models

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
    dispatches = list(zip(plan.client, plan.started, plan.ended, strict=True))
    by_client = [[times for i, *times in dispatches if i == client] for client in (0, 1)]
    assert by_client[0] == [[0, 3], [3, 8], [8, 17], [17, 218]]
    assert by_client[1] == [[0, 3], [6, 10], [10, 211]]


def test_one_time_of_each_client_and_bytes(system):
    factory = system(
        "\ufeffclient, seconds_per_step\r\n1,3\r\n0,0.5\r\n\r\n", ",bytes_per_second=10"
    )
    made = factory(0, download_bytes=20, upload_bytes=10)
    assert [made.seconds(client, 7, 2) for client in (0, 1)] == [4.0, 9.0]
    assert [made.expected_seconds_per_step(client) for client in (0, 1)] == [0.5, 3.0]
    with pytest.raises(ValueError, match="client 2 has no time"):
        made.seconds(2, 0, 1)


WRONG = {
    "": "cannot be read .*; give a CSV file with the columns client and seconds_per_step",
    "client,seconds_per_step\n": "times.csv has no line of client 0; number clients from 0",
    "client,seconds\n0,1\n": "the columns are client,seconds; give client,seconds_per_step",
    "client,seconds_per_step,lost_after\n": "give client,dispatch,seconds_per_step,lost_after,sec",
    "client,client,seconds_per_step\n": "line 1: the columns are client,client,",
    "client,seconds_per_step\n0,1\n2,1\n": "times.csv has no line of client 1; number clients",
    "client,seconds_per_step\n0,1\n0,1\n": "line 3: client 0 has a line before; give each client",
    "client,seconds_per_step\n0,1,2\n": "line 2: there are 3 cells for 2 columns; give one each",
    "client,seconds_per_step\n-1,1\n": "line 2: client='-1' is no whole number; give 0, 1, 2",
    "client,seconds_per_step\n0,fast\n": "line 2: seconds_per_step='fast' is out of range; give a",
    "client,seconds_per_step\n0,inf\n": "line 2: seconds_per_step='inf' is out of range; give a",
    "client,dispatch,seconds_per_step\n0,1,1\n": "line 2: dispatch=1 of client 0 follows 0 lines",
    TIMES + "1,3,1,0,0\n": "line 9: lost_after='0' and seconds_away='0'; give a share of the disp",
    TIMES + "1,3,1,2,1\n": "line 9: lost_after='2' and seconds_away='1'; give a share of the disp",
    TIMES + "1,3,1,,1\n": "line 9: lost_after='' and seconds_away='1'; give a share of the dispat",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_refused(text, system):
    with pytest.raises(ValueError, match=WRONG[text]):
        system(text)


def test_a_missing_file_is_refused():
    with pytest.raises(ValueError, match=r"nothing.csv cannot be read \(No such file"):
        system_models.make("csv:file=nothing.csv")
    with pytest.raises(ValueError, match="csv needs file; give csv:file="):
        system_models.make("csv")
