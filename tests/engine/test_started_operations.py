"""What XLA starts in the smallest rounds; one that costs more says in which loop.

If a change adds operations on purpose, write the new numbers here, and measure the change with
`benchmarks/against.py`.
"""

import platform
import re

import jax
import numpy as np
import pytest
from helpers import stored

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import buffered, plan_dispatches, simulated
from fedjax_algos.engine.asynchronous.executor import make_executor
from fedjax_algos.participation import Cohorts

COUNTED = "0.10.2", "x86_64"  # jax and the machine
pytestmark = [
    pytest.mark.usefixtures("optimised"),
    pytest.mark.skipif(
        (jax.__version__, platform.machine()) != COUNTED,
        reason=f"the numbers are those of jax {COUNTED[0]} on {COUNTED[1]}",
    ),
]
ORDER = "order of the examples", "network of the order"
LOOPS = {
    "_run_rounds": ["entry", "round", "client", "local step"],
    "_run_waves": ["entry", "wave", "dispatch, server step, sums", "local step, sums", *ORDER],
}
KEYS = [16] * 5
EXPECTED = {
    # the batches of a round are drawn with the keys
    "fedavg": {"entry": 22, "round": [82], "client": [28], "local step": [24], "scatter": [4]}
    | {"draws for all": [*KEYS, 4, 9], "bytes of temporaries": 5224},
    "scaffold": {"entry": 22, "round": [104], "client": [41], "local step": [24]}
    | {"scatter": [4, 5, 5, 3], "draws for all": [*KEYS, 4, 9], "bytes of temporaries": 6544},
    "fedbuff": {"entry": 20, "wave": [58], "dispatch, server step, sums": [33, 21, 14]}
    | {"local step, sums": [32, 14], "scatter": [4], "bytes of temporaries": 6240}
    | {"draws for all": KEYS, ORDER[0]: [6], ORDER[1]: [4]},
}
FREE = {"parameter", "get-tuple-element", "tuple", "constant", "bitcast", "call"}
OPERATION = re.compile(r" = (?:\(.*?\)|\S+) ([\w-]+)\(.*?(?:op_name=\"([^\"]*)\"|$)")
CALLED = re.compile(r"(?:body|to_apply)=%?([\w.-]+)|branch_computations=\{([^}]*)\}")


def started(text, loops):
    """The operations of each loop's body and its branches; `loops` names them by their depth."""
    computations: dict = {}
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%?([\w.-]+) \(.*\{$", line)
        if head:
            lines = computations["entry" if head[1] else head[2]] = []
        elif " = " in line:
            lines.append(line)
    found: dict = {}

    def count(name, depth):
        total = 0
        for line in computations[name]:
            operation, origin = OPERATION.search(line).groups()
            total += operation not in FREE
            if operation not in ("while", "call", "conditional"):
                continue
            one, branches = CALLED.search(line).groups()
            for called in [one] if one else branches.replace("%", "").split(", "):
                if operation != "while":
                    total += count(called, depth)
                    continue
                special = re.search("vmap|scatter", origin)
                loop = special[0].replace("vmap", "draws for all") if special else loops[depth + 1]
                found.setdefault(loop, []).append(count(called, depth + 1))
        return total

    return {"entry": count("entry", 0), **found}


def run_smallest(name):
    """Runs a small round or plan by an engine whose program is kept: the program and its loops."""
    x, y = np.ones((6, 5), np.float32), np.arange(6, dtype=np.int32) % 3
    data, local = stored([{"x": x, "y": y}] * 4), fa.Local(2, 0.1, steps=2)
    algorithm = algorithms[name](fa.models.linear((5,), 3), local)
    sizes, programs = data.counts(), []

    def keep_program(owner, attribute):
        function = getattr(owner, attribute)

        def run(*arguments):
            programs.append((function.lower(*arguments).compile(), LOOPS[attribute]))
            return programs[-1][0](*arguments)

        setattr(owner, attribute, run)
        return owner.init(0, fa.Population(4, 2, 24))

    if name == "fedbuff":
        plan = buffered(steps=2, size=2)(simulated()(0), 4, seconds=5)
        executor = make_executor(algorithm, slots=2, layout="sequential")
        state = keep_program(executor, "_run_waves")
        list(executor.run(state, data, plan, plan_dispatches(plan, sizes, local)))
    else:
        engine = fa.make_engine(algorithm, "sequential")
        state = keep_program(engine, "_run_rounds")
        engine.rounds(state, data, Cohorts(sizes, local, cohort_size=2, seed=0).dispatches(2))
    return programs[0]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_operations_of_the_smallest_rounds(name):
    program, loops = run_smallest(name)
    counted = started(program.as_text(), loops)
    counted["bytes of temporaries"] = program.memory_analysis().temp_size_in_bytes
    assert counted == EXPECTED[name]
