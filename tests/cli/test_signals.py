"""Ctrl-C on several CPU devices, in processes of their own: how they end is what is tested."""

import json
import os
import subprocess
import sys

import pytest

MOMENTS = 10
# The processes are forked from one that has imported everything, and started nothing.
PROGRAM = f"""
import json, os, signal, time
import matplotlib.pyplot, sklearn.datasets
import fedjax_algos.runs.simulation
from fedjax_algos.cli import main

COMMAND = (
    "run scaffold --devices 2 --model linear --clients 8 --batch-size 4 --local-steps 2 --cohort 4 "
    "--rounds 4000 --eval-every 20 --out out"
)

def end(number):
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.dup2(writing, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.close(reading), os.close(writing)
        main((COMMAND + str(number)).split())
        raise SystemExit
    os.close(writing)
    with os.fdopen(reading) as errors:
        first = errors.readline()
        time.sleep(0.1 * number)
        os.kill(process, signal.SIGINT)
        last = errors.read().strip().splitlines()[-1]
    return first, last, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

print(json.dumps([end(number) for number in range({MOMENTS})]))
"""


@pytest.mark.slow
def test_ctrl_c_never_ends_in_a_crash(here):
    """At ten moments from the first line that a run prints, the compilation of its rounds on."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, stdout=subprocess.PIPE, env=variables
    ).stdout
    ends = json.loads(output)
    assert len(ends) == MOMENTS
    for number, (first, last, code) in enumerate(ends):
        assert first.startswith("digits, linear")
        assert last.startswith("interrupted (SIGINT); go on with: fedjax-algos run scaffold ")
        assert code == 130
        assert not json.loads((here / f"out{number}" / "config.json").read_text())["complete"]
