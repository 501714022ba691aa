"""Two processes of two devices each run one simulation."""

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import Case, small_network

import fedjax_algos as fa

RUNS = ["scaffold device replicated", "scaffold host sharded", "fedlga device replicated"]
PROCESS = """
import sys
import jax
port, number, out = sys.argv[1:]
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=int(number))
import numpy as np
from helpers import Case, small_network
import fedjax_algos as fa
toy = small_network()
lines = []
for run in RUNS:
    name, client_state, examples = run.split()
    algorithm = Case(name, {}).build(toy.problem, fa.Local(3, 0.1, 2))
    engine = fa.make_engine(
        algorithm, client_state=client_state, devices=jax.devices(), examples=examples
    )
    test = {"x": np.ones((5, 3)), "y": np.ones(5)}
    state, rows = fa.simulate(
        engine, toy.data, cohort_size=3, rounds=3, eval_every=2, test=test
    )
    losses = rows[-1]["test_loss"], rows[-1]["train_loss"]
    lines.append(f"{run} {len(jax.devices())} {losses[0]} {losses[1]}\\n")
open(out, "w").writelines(lines)  # printed text could be mixed with other output
"""


@pytest.mark.slow
def test_two_processes_of_two_devices(tmp_path):
    """Both report the results of one process with one device."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    tests = Path(__file__).parents[1]
    files = [tmp_path / str(number) for number in range(2)]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", f"RUNS = {RUNS}{PROCESS}", port, str(n), file], cwd=tests
        )
        for n, file in enumerate(files)
    ]
    assert [process.wait(timeout=300) for process in running] == [0, 0]
    lines = [file.read_text().splitlines() for file in files]
    assert lines[0] == lines[1]
    toy = small_network()
    test = {"x": np.ones((5, 3)), "y": np.ones(5)}
    for line, expected in zip(lines[0], RUNS, strict=True):
        name, *_ = expected.split()
        engine = fa.make_engine(Case(name, {}).build(toy.problem, fa.Local(3, 0.1, 2)))
        _, rows = fa.simulate(engine, toy.data, cohort_size=3, rounds=3, eval_every=2, test=test)
        *head, test_loss, train_loss = line.split()
        assert head == [*expected.split(), "4"]
        assert float(test_loss) == pytest.approx(rows[-1]["test_loss"], rel=1e-6)
        assert float(train_loss) == pytest.approx(rows[-1]["train_loss"], rel=1e-6)
