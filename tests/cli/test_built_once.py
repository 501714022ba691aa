"""A comparison builds each algorithm, engine and plan once."""

import functools
from collections import Counter

import pytest

from fedjax_algos.algorithms import algorithms
from fedjax_algos.asynchrony import planners
from fedjax_algos.cli import main
from fedjax_algos.runs.studies import experiment

METHODS = "fedavg", "fedbuff", "scaffold"
SMALL = "--model linear --clients 2 --local-steps 1 --batch-size 2 --seeds 2"


@pytest.mark.all
@pytest.mark.parametrize(
    ("options", "engines"),
    [
        ("--cohort 1 --rounds 2", {"make_engine": 3}),
        ("--seconds 9", {"make_executor": 3, "barrier": 2 * 2, "buffered": 2}),
    ],
)
def test_everything_is_built_once(options, engines, here, monkeypatch, capsys):
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
    main(["compare", *METHODS, *SMALL.split(), *options.split()])
    assert made == dict.fromkeys(METHODS, 1) | engines
