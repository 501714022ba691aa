"""About 1,400 bad command lines: each is one line and exit code 2, or reaches its training."""

import pytest
from bad_input_helpers import SMALL, quick, small
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.cli import cli
from fedjax_algos.cli.registries import REGISTRIES
from fedjax_algos.core.options import options

COMMANDS = {
    "run": ["run", "fedprox"],
    "compare": ["compare", "fedavg"],
    "sweep": ["sweep", "fedprox", "--grid", "mu=0.1"],
}
PATHS = ("--out", "--compilation-cache")
LONG = "x" * 10**5
WRONG = [  # values that no option has, except for paths
    *("", " ", "\t", "x", "é", "\u202e", "\x1b[31m", "a\nb", "\0", "\udcff", "[red]x[/red]", "$^$"),
    *("-1", "-inf", "nan", "inf", "1e400", "9" * 5000, "0x10", "1,", "1;2", "½", "²", "1+2j", LONG),
    *("--", "--rounds", "-x", "None", "True", "a=b", "a:b", "a@b", ":", "=", "@", ",", "/", "{}"),
]  # fmt: skip
UNLIKELY = ["0", "-0", "1_000", "1e-400", "1.5", "٣", "1,2", "1-2", "2-1", "-"]  # some have these
WRONG_PATHS = ["", "--resume", "a\0b", "x" * 300, LONG, "file", "file/below", "/dev/null", "loop"]


@pytest.mark.all
@pytest.mark.parametrize("name", COMMANDS)
def test_values_of_every_option(attempt, name):
    context = cli.make_context("fedjax-algos", [name], resilient_parsing=True)
    command = cli.get_command(context, name)
    if name == "run":
        command = command.get_command(context, "fedprox")
    flags = [p.opts[0] for p in command.params if p.opts[0].startswith("--") and not p.is_flag]
    assert len(flags) > 30
    step = 12  # the commands share these options, and have different values
    for number, flag in enumerate(flags, list(COMMANDS).index(name)):
        line = COMMANDS[name] if flag != "--grid" else ["sweep", "fedprox"]
        rest = [text for pair in SMALL.items() if flag not in pair for text in pair]
        wrong = WRONG_PATHS if flag in PATHS else WRONG
        for value in wrong[number % step :: step]:
            if (flag, value) == ("--seeds", "1,"):
                continue  # a list of one seed
            assert attempt(*line, *rest, flag, value) == "refused", (flag, value[:100])
        for value in UNLIKELY[number % step :: step]:
            attempt(*line, *rest, flag, value)
        assert attempt(*line, *rest, flag) == "refused"


FLAGS = {
    "datasets": "--dataset",
    "models": "--model",
    "partitions": "--partition",
    "samplers": "--sampler",
    "failures": "--failures",
    "local_works": "--work",
    "rate_schedules": "--rate-schedule",
    "system_models": "--system",
}
PIECES = [
    *("", ":", "=", ",", "@", "::", ",,", "==", "@@", "/", ".", "..", ".py", "é", "\x1b", " "),
    *("[red]", "own.py:f", "own.py:none", "own.py:number", "own:f", "math:sin", "builtins:dict"),
    *("__main__:x", "None", "false", "nan", "inf", "1e400", "-1", "0", "1", "0.5", "1e-300"),
    *(".x:y", "True", "path=nowhere", "seed=", "x" * 1000),
    *("client_learning_rate=", "client_learning_rate=0"),
]  # fmt: skip


@st.composite
def specs(draw, kind):
    """A name of a registry, wrong or right, with options, wrong or right."""
    factories = {name: f for name, f in REGISTRIES[kind].items() if ":" not in name}
    name = draw(st.sampled_from(sorted(factories)))
    option = st.sampled_from(list(options(factories[name])) or ["x"])
    piece = st.sampled_from(PIECES)
    pair = st.builds("{}={}".format, option, st.one_of(piece, option))
    return draw(
        st.one_of(
            st.builds("{}:{}".format, st.just(name), st.lists(pair, min_size=1).map(",".join)),
            st.builds("{}{}{}".format, piece, st.just(name), piece),
            st.builds("{}:{}@{}".format, st.just(name), pair, piece),
            st.lists(st.one_of(piece, option, st.just(name)), min_size=1).map("".join),
        )
    )


@pytest.mark.all
@pytest.mark.parametrize("kind", [*FLAGS, "algorithms", "planners"])
def test_specs(attempt, here, kind):
    (here / "own.py").write_text("number = 3\ndef f(): pass\ndef none(*anything): pass\n")

    @settings(quick, max_examples=40)
    @given(specs(kind), st.sampled_from(["run", "compare", "sweep"]))
    def check(spec, command):
        clock = {"seconds": "1"} if kind in ("planners", "system_models") else {}
        if kind in FLAGS:
            attempt("run", "fedavg", FLAGS[kind], spec, *small(**clock, **{FLAGS[kind][2:]: None}))
        elif kind == "algorithms":
            attempt(command, spec, *small())
        else:
            attempt("run", f"fedbuff@{spec}", *small(**clock))

    check()


WRONG_SEEDS = [
    *("0", "-1", "-5--1", "5-3", "1-2-3", "--", "-", "1-", "-1-", ",", ",,", "1,x", "x-3", "3-x"),
    *("1.5", "1.5,2", "1e3", "3,3", "0,-1", "2147483648-2147483649", "4294967296,", "0-10000"),
    *("1000000000000", "0-1000000000000", "9" * 5000, f"0-{'9' * 30}", "0,1;2", "[0]", "(0, 1)"),
]  # fmt: skip
RIGHT_SEEDS = ["1", "2", "01", "3,7", "3,", ",3", "3,,4", "5-6", " 1", "2147483646-2147483647"]
WRONG_GRIDS = [
    *("mu", "mu=", "=", "=1", "mu==1", "mu=,", "mu=1,", "mu=1,1", "mu=1,1.0", "mu=x", "mu=-1", ","),
    *("mu=nan", "mu=inf", "mu=1e400", "nu=1", "mu=1=2", "mu:1", "mu=1;2", "seeds=1", "rounds=1"),
    *("model=mlp", "local_steps=1.5", "local_steps=0", "batches=all", "x" * 999),
    *("rate_schedule=step", "rate_schedule=", "client-learning-rate=0", "mu=1 2", "mu=\x1b", "é=1"),
]  # fmt: skip


def test_seeds_and_grids(attempt):
    for text in WRONG_SEEDS:
        assert attempt("run", "fedavg", *small(seeds=None), "--seeds", text) == "refused", text
    for text in RIGHT_SEEDS:
        assert attempt("run", "fedavg", *small(seeds=None), "--seeds", text) == "trained", text
    for text in WRONG_GRIDS:
        assert attempt("sweep", "fedprox", "--grid", text, *small()) == "refused", text
    twice = [["--grid", "mu=1", "--grid", "mu=2"], ["--grid", "mu=1", "--mu", "1"]]
    twice += [["--grid", "local_steps=1,2", "--local-steps", "1"], ["--seconds", "1"]]
    for more in twice:
        assert attempt("sweep", "fedprox", *more, *small()) == "refused", more
    assert attempt("sweep", "fedprox:mu=1", "--grid", "mu=1", *small()) == "refused"


USAGE = [
    *("", "x", "-x", "--x", "run ''", "run -1", "run -x", "run --mu 1 fedprox", "run x y"),
    *("compare -9", "compare ''", "compare fedavg fedavg", "compare --config"),
    *("sweep", "sweep ''", "sweep fedavg fedprox", "sweep fedavg --grid", "run fedavg --grid mu=1"),
    *("list", "list ''", "list x", "list models x", "list --json", "list models --jsn", "list -1"),
    *("plot", "plot ''", "plot --metric", "plot -o x", "table", "table x y", "table --x"),
    *("run fedavg --config x", "run fedavg --resume", "run fedprox --mu", "run x --nu 1"),
    "run fedavg --resume=1 --out x",
]  # fmt: skip


def test_usage(attempt):
    for line in USAGE:
        assert attempt(*(text.strip("'") for text in line.split(" "))) == "refused", line
    assert attempt("run", "fedavg", *small(), "--out", "--resume") == "refused"
    for name in REGISTRIES:
        assert attempt("list", name) == attempt("list", name, "--json") == "done"
