"""Search spaces: what texts mean, which settings they give, and equal budgets."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.runs.studies.method import methods_of
from fedjax_algos.runs.studies.search_space import Interval, SearchSpace, parse_spaces
from fedjax_algos.runs.studies.settings import Settings

SETTINGS = Settings()
SPECS = ("fedavg", "fedprox:weighting=uniform", "fedgbo:optimizer=sgdm", "fedgbo:optimizer=adam")


def parse(*texts, specs=SPECS, trials=None, shared=SETTINGS):
    return parse_spaces(texts, methods_of(specs, shared), specs, shared, trials)


def values(*texts, **options):
    return {space.method.label: space.values for space in parse(*texts, **options)}


def test_a_text_is_for_all_methods_with_the_option_or_for_one_algorithm():
    grids = "client-learning-rate=0.1,1", "fedprox:mu=0.5,1e-2,2", "beta=0.9,0.5,0.1"
    rates, betas = [0.1, 1.0], [0.9, 0.5, 0.1]
    assert values(*grids, "fedavg:server_learning_rate=1,2,0.5") == {
        "fedavg": {"client_learning_rate": rates, "server_learning_rate": [1.0, 2.0, 0.5]},
        "fedprox": {"client_learning_rate": rates, "mu": [0.5, 0.01, 2.0]},
        "fedgbo sgdm": {"client_learning_rate": rates, "beta": betas},
        "fedgbo adam": {"client_learning_rate": rates, "beta": betas},
    }


def test_an_algorithm_in_a_file_may_be_named_as_tables_show_it(tmp_path):
    names = [f"{tmp_path}/{name}.py:f" for name in ("one", "two")]
    for name in names:
        Path(name.removesuffix(":f")).write_text("def f(problem, local, *, q=0.1): ...\n")
    for grid in ("f:q=1,2", f"{names[0]}:q=1,2"):
        assert values(grid, specs=names[:1]) == {"f": {"q": [1.0, 2.0]}}
    with pytest.raises(ValueError, match=r"unknown method 'f'; choose .*one\.py:f or .*two\.py:f"):
        parse("f:q=1,2", specs=names)


def test_all_settings_of_a_grid_come_in_its_order():
    (space,) = parse("client_learning_rate=0.1,1", "mu=2,3,4", specs=("fedprox",))
    points = [(each["client_learning_rate"], each["mu"]) for each in space.points(None, 0)]
    assert points == [(0.1, 2), (0.1, 3), (0.1, 4), (1, 2), (1, 3), (1, 4)]
    method = space.methods(None, 0)[3]
    assert method.label == "fedprox client_learning_rate=1 mu=2"
    assert method.hyperparameters == {"mu": 2.0}
    assert method.client_learning_rate == method.local(SETTINGS).learning_rate(7) == 1.0


SERVER = "server_learning_rate=1"


@pytest.mark.parametrize(
    ("rates", "trials", "others"),
    [
        ("0.1,0.3,1", 6, (f"fedavg:{SERVER},2", "fedprox:mu=1,2,3,4")),
        ("0.1,0.3,1,3", 7, (f"fedavg:{SERVER},2", "fedprox:mu=1,2,3,4")),
        ("0.1,0.3,1", 9, (f"fedavg:{SERVER}..2", "fedprox:mu=1,2,3")),
        ("0.1,0.3,1", 11, (f"fedavg:{SERVER}..2", "fedprox:mu=1,2", f"fedprox:{SERVER},2")),
        ("1..1.02", 7, (f"{SERVER},2,3", "fedprox:mu=1,2")),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_methods_try_each_client_rate_equally_often(rates, trials, others, seed):
    grid = (f"client_learning_rate={rates}", *others)
    spaces = parse(*grid, specs=SPECS[:2], trials=trials)
    drawn = [space.points(trials, seed) for space in spaces]
    assert [len({tuple(point.values()) for point in points}) for points in drawn] == [trials] * 2
    first, second = ([p["client_learning_rate"] for p in points] for points in drawn)
    assert sorted(first) == sorted(second)
    if trials < spaces[0].size and trials < spaces[1].size:
        assert first == second
    assert drawn[0] != spaces[0].points(trials, seed + 5) or trials == spaces[0].size
    if ".." not in rates:
        assert max(map(first.count, first)) - min(map(first.count, first)) <= 1


NUMBERS = st.integers(1, 4), st.integers(1, 20), st.integers(0, 2**31 - 1)


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-6, 1), st.floats(1.5, 1e6), *NUMBERS)
def test_drawn_settings_differ_and_lie_in_the_interval(low, factor, listed, trials, seed):
    (method,) = methods_of(("fedprox",), SETTINGS)
    interval, others = Interval(low, low * factor), [float(i) for i in range(listed)]
    space = SearchSpace(method, {"client_learning_rate": interval, "mu": others})
    points = space.points(trials, seed)
    assert len({tuple(point.values()) for point in points}) == trials
    assert all(low <= each["client_learning_rate"] <= low * factor for each in points)
    assert points == space.points(trials, seed)
    grid = SearchSpace(method, {"mu": others})
    assert [each["mu"] for each in grid.points(listed, seed)] == others
    narrow = SearchSpace(method, {"client_learning_rate": Interval(1.0, 1.01)})
    with pytest.raises(ValueError, match="fedprox has fewer than trials=5 settings"):
        narrow.points(5, seed)


def test_an_interval_is_logarithmic_and_rounded_to_three_digits():
    places = [Interval(0.001, 10.0).at(share) for share in (0, 0.25, 0.5, 0.6, 1)]
    assert places == [0.001, 0.01, 0.1, 0.251, 10]
    assert Interval(1.23456, 2.0).at(0) == 1.23456
    assert Interval(1.0, 1.99999).at(1) == 1.99999


def test_the_edges_of_what_was_tried():
    method = parse("client_learning_rate=1,2", specs=("fedprox",))[0].method
    lists = {"client_learning_rate": [3.0, 1.0, 2.0], "mu": [0.5], "weighting": ["uniform", ""]}
    others = {"mu": 0.5, "weighting": "uniform"}
    for rate, edges in ((1.0, ["1.0"]), (2.0, []), (3.0, ["3.0"])):
        found = SearchSpace(method, lists).edges({"client_learning_rate": rate} | others)
        assert found == [f"client_learning_rate={edge}" for edge in edges]
    drawn = SearchSpace(method, {"mu": Interval(0.01, 100.0)})  # 5% of four powers of ten: 10^0.2
    for mu, edges in ((0.0158, ["mu=0.0158"]), (0.0159, []), (63.0, []), (63.2, ["mu=63.2"])):
        assert drawn.edges({"mu": mu}) == edges


def test_a_grid_of_one_method_prevails_over_that_of_all():
    texts = "fedprox:client_learning_rate=3,4", "client_learning_rate=1,2"
    for both in (texts, texts[::-1]):
        rates = [own["client_learning_rate"] for own in values(*both, specs=SPECS[:2]).values()]
        assert rates == [[1.0, 2.0], [3.0, 4.0]]


RATE, GIVEN = "client_learning_rate", Settings(client_learning_rate=0.1)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["mu"], {}, "grid='mu' has no values"),
        (["muu=1,2"], {}, "all methods: unknown option 'muu'"),
        (["fedavg:mu=1,2"], {}, "fedavg: unknown option 'mu'"),
        (["fedpro:mu=1,2"], {}, "unknown method 'fedpro'"),
        (["mu=1,2"], {}, "fedavg has nothing to tune; give --grid"),
        ([f"{RATE}=1,2", "mu=1,2"], {}, "fedavg has 2 settings, but each method needs 4"),
        ([f"{RATE}=1..2"], {}, "an interval needs a number of draws; give trials=N"),
        (
            [f"{RATE}=1,2"],
            {"trials": 3},
            "fedavg has 2 settings, but .* needs 3; give grids of one",
        ),
        ([f"{RATE}=2..1"], {"trials": 3}, "is not an interval of real numbers above 0"),
        (["weighting=1..2"], {}, "weighting='1..2' is unknown"),
        ([f"{RATE}=0..1"], {"trials": 3}, f"{RATE}=0 is out of range"),
        ([f"{RATE}=1,1"], {}, f"{RATE}=1 is twice in the grid"),
        ([f"{RATE}=1", f"{RATE}=2"], {}, "is in two grids"),
        (["fedprox:mu=1", "mu=2"], {}, "grid='mu=2': no method uses it"),
        ([f"{RATE}=1,2"], {"shared": GIVEN}, f"{RATE}=0.1 is given beside the grid's values"),
        (["weighting=uniform,examples"], {}, "weighting=uniform is given beside the grid's values"),
    ],
)
def test_wrong_texts(texts, options, message):
    with pytest.raises(ValueError, match=message):
        parse(*texts, **options)


def test_two_dots_in_a_text_are_no_interval(tmp_path, monkeypatch):
    source = "import optax\n\ndef mine(*, decay: float = 0.9):\n    return optax.trace(decay)\n"
    (tmp_path / "mine.py").write_text(source)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    listed = values("client_optimizer=../mine.py:mine,sgd", specs=("fedavg",))
    assert listed == {"fedavg": {"client_optimizer": ["../mine.py:mine", "sgd"]}}
