"""Three recorded runs do not change: in rounds, on the virtual clock, and in a sweep.

`recorded_runs.json` has their numbers in the format of `float.hex`. The test allows for rounding;
`python tests/runs/loops/test_recorded_runs.py` counts the numbers that differ in any bit, and
`--record` writes the file again after an intended change.
"""

import itertools
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import Case, small_network

import fedjax_algos as fa
from fedjax_algos import asynchrony, participation
from fedjax_algos.runs import Run, run_batched

pytestmark = pytest.mark.usefixtures("x64")

RECORDED = Path(__file__).with_name("recorded_runs.json")
LOCAL = fa.Local(batch_size=3, learning_rate=0.05, steps=4)
METHODS = {"fedavg": {}, "fedgbo": {"optimizer": "adam"}, "scaffold": {}, "ghbm": {"tau": 2}}
SHAPES = {"x": (5, (6, 3)), "y": (6, 6)}
HELD_OUT = {n: np.random.default_rng(seed).normal(size=size) for n, (seed, size) in SHAPES.items()}


def in_rounds():
    toy, work = small_network(), participation.partial(share=0.5)
    options = {"cohort_size": 3, "rounds": 5, "eval_every": 2, "work": work}
    for name, hyperparameters in METHODS.items():
        engine = fa.make_engine(Case(name, hyperparameters).build(toy.problem, LOCAL), 2)
        yield from fa.simulate(engine, toy.data, seed=3, test=HELD_OUT, **options)[1]


def on_the_clock():
    toy = small_network()
    runs = {"fedasync": "immediate:steps=4", "fedbuff": "buffered:size=2,steps=4"}
    runs |= {"fedcompass": "compass:min_steps=2,max_steps=8"}
    system = asynchrony.simulated(speeds="exponential", dropout=0.1, bytes_per_second=1e4)
    options = {"seconds": 8, "evaluations": 3, "seed": 3, "test": HELD_OUT}
    for name, spec in runs.items():
        executor = fa.make_executor(Case(name, {}).build(toy.problem, LOCAL), slots=2)
        how = toy.data, asynchrony.planners.make(spec), system
        yield from fa.simulate_async(executor, *how, **options).rows


def in_a_sweep():
    toy = small_network()
    runs = [
        Run(f"mu={mu}", seed, toy.data, LOCAL, {"mu": mu}, {"mu": mu})
        for mu, seed in itertools.product((0.01, 0.3), (0, 3))
    ]
    options = {"cohort_size": 2, "rounds": 4, "eval_every": 2, "test": HELD_OUT}
    yield from run_batched(fa.algorithms.fedprox, toy.problem, runs, **options).rows


RUNS = {"in rounds": in_rounds, "on the virtual clock": on_the_clock, "in a sweep": in_a_sweep}


def measured(name):
    return [
        {
            key: value if isinstance(value, str) else float(value).hex()
            for key, value in row.items()
            if key not in ("wall_seconds", "excluded_updates", "participation_gini")
        }
        for row in RUNS[name]()
    ]


PARAMS = [pytest.param(name, marks=pytest.mark.all) for name in list(RUNS)[:2]]


@pytest.mark.parametrize("name", [*PARAMS, "in a sweep"])
def test_a_recorded_run_is_repeated(name):
    rows, recorded = measured(name), json.loads(RECORDED.read_text())[name]
    assert [list(row) for row in rows] == [list(row) for row in recorded]
    for row, before in zip(rows, recorded, strict=True):
        assert row.pop("method", None) == before.pop("method", None)
        for key, value in row.items():
            now, then = float.fromhex(value), float.fromhex(before[key])
            # jax 0.12 differentiates tanh with fewer operations than jax 0.10, which recorded
            fewer = key == "flops" and jax.__version_info__ >= (0, 11)
            assert now == pytest.approx(then, rel=0.05 if fewer else 1e-12, abs=0), key


if __name__ == "__main__":
    import conftest  # noqa: F401 (the compiler's flags of the tests)

    jax.config.update("jax_enable_x64", True)
    text = json.dumps({name: measured(name) for name in RUNS}, indent=0) + "\n"
    if "--record" in sys.argv:
        RECORDED.write_text(text)
    lines = zip(text.splitlines(), RECORDED.read_text().splitlines(), strict=True)
    print(f"{sum(now != then for now, then in lines)} values differ")
