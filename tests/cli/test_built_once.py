"""A comparison builds each algorithm, engine and plan once, and a search each setting's."""

import functools
from collections import Counter

import pytest
from helpers import Compilations

from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import planners
from fedjax_algos.cli import main
from fedjax_algos.runs.studies import experiment

METHODS = "fedavg", "fedbuff", "scaffold"
RATES = "--evaluations 1 --grid client_learning_rate=0.1,0.3"
SMALL = "--model linear --clients 2 --local-steps 1 --batch-size 2 --seeds 2"


@pytest.mark.all
@pytest.mark.parametrize(
    ("command", "options", "times", "engines"),
    [
        ("compare", "--cohort 1 --rounds 2", 1, {"make_engine": 3}),
        ("compare", "--seconds 9", 1, {"make_executor": 3, "barrier": 2 * 2, "buffered": 2}),
        # a search also plans each run of its two settings
        ("tune", f"--seconds 9 {RATES}", 2, {"make_executor": 3, "barrier": 12, "buffered": 6}),
    ],
)
def test_everything_is_built_once(command, options, times, engines, here, monkeypatch, capsys):
    made = Counter()

    def counted(name, function):
        @functools.wraps(function)
        def counting(*given, **options):
            made[name] += 1
            return function(*given, **options)

        return counting

    def planner_of(name, factory):
        return functools.wraps(factory)(lambda **given: counted(name, factory(**given)))

    for name in METHODS:
        monkeypatch.setitem(algorithms, name, counted(name, algorithms[name]))
    for name, factory in planners.items():
        monkeypatch.setitem(planners, name, planner_of(name, factory))
    for name in ("make_engine", "make_executor"):
        monkeypatch.setattr(experiment, name, counted(name, getattr(experiment, name)))
    main([command, *METHODS, *SMALL.split(), *options.split()])
    assert made == dict.fromkeys(METHODS, times) | engines


@pytest.mark.all
def test_rounds_are_compiled_once_and_before_the_first_run(here):
    with Compilations() as compiled:
        main(["compare", *METHODS, *SMALL.split(), "--cohort", "1", "--rounds", "2"])
    rounds = [n for n, name in enumerate(compiled.names) if name == "jit(run_rounds)"]
    assert len(rounds) == len(METHODS)
    assert rounds[-1] < compiled.names.index("jit(initial_state)")
