"""Ctrl-C on several CPU devices, in processes of their own: how they end is what is tested."""

import os
import signal
import subprocess
import sys
import time

COMMAND = (
    "run scaffold --devices 2 --model linear --clients 8 --batch-size 4 --local-steps 2 --cohort 4 "
    "--rounds 4000 --eval-every 20 --compilation-cache compiled"
)
MOMENTS = 10


def start(number):
    program = [sys.executable, "-m", "fedjax_algos", *COMMAND.split(), "--out", f"out{number}"]
    path = os.pathsep.join(sys.path)
    return subprocess.Popen(
        program, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )


def test_ctrl_c_never_ends_in_a_crash(here):
    """At ten moments from the first line that a run prints, the compilation of its rounds on."""
    for number in range(MOMENTS):
        with start(number) as process:
            assert process.stderr.readline().startswith("digits, linear")
            time.sleep(0.1 * number)
            process.send_signal(signal.SIGINT)
            line = process.stderr.read().strip().splitlines()[-1]
        assert process.returncode == 130
        assert line.startswith("interrupted (SIGINT); go on with: fedjax-algos run scaffold ")
        assert (here / f"out{number}" / "runs" / "01-scaffold" / "seed-0" / "checkpoints").exists()
