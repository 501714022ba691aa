"""Wrong command lines and settings: one line that names the value and the fix, and exit code 2."""

import contextlib
import json

import pytest
from bad_input_helpers import UNLIKELY, WRONG, quick
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_algos.cli.commands import REGISTRIES, registry_of
from fedjax_algos.cli.options import settings_of
from fedjax_algos.core.options import options
from fedjax_algos.core.specs import spec_of
from fedjax_algos.runs.studies.method import Method
from fedjax_algos.runs.studies.settings import Settings, parse_setting

LINES = """
run fedavgg | unknown algorithm 'fedavgg'; did you mean fedavg?
run fedavg --roundz 3 | No such option
run fedavg --rounds | '--rounds' requires an argument
run fedavg --system simulated | --system simulated is for the virtual clock
run fedavg --seconds 3 --rounds 3 | --rounds 3 is for rounds
run fedavg --held-out 0.1 | --held-out 0.1 is for --evaluate-clients held_out
run fedprox:mu=0.1 --mu 0.2 | --mu is given beside fedprox:mu=0.1; give mu once
run fedavg --cohort 200 | cohort=200 is out of range
run fedavg --cohort 1.0 | cohort=1.0 may mean one client or all; give a whole number from 1 to 100
run fedavg --sampler available:mode=homogeneous,beta=0.9999999 | no update arrives in
run fedavg --sampler poisson:mean=1e-30 | no update arrives in
run fedavg --failures late:seconds=1e-9 | no update arrives in
run fedavg --sampler on_off:leave=0.5,join=1e-45 | no update arrives in
run fedavg --cohort 0 | cohort=0 is out of range; give a number above 0
run scaffold --rate-schedule inverse --rate-by step | scaffold does not take rate_by='step', becau
run fedavg --rate-schedule step:0.5 | step needs every
run fedavg --rate-schedule exponential:1e-30 | the client learning rate is 0.0
run fedavg --examples sharded --seconds 9 | 'sharded' is not for the virtual clock
run fedavg --client-state host --seconds 9 | 'host' is not for the virtual clock
run fedavg --local-steps 2 --local-epochs 1 | steps=2 and epochs=1.0; give exactly one
run fedavg --layout wide | layout='wide' is unknown; give auto, vmapped, sequential
run fedavg --seeds x | seeds='x' is not a seed count
run fedavg --seeds 3,3 | seeds=(3, 3) is out of range
run fedavg --seeds 2147483648, | seed=2147483648 is out of range
run fedavg --client-optimizer sgd:momentum=0.9,nesterov | sgd: nesterov has no value
run fedavg --rounds=5 --clients 3 --rounds 5 | --rounds is given twice
run fedavg --resume | resume needs the folder that the runs are in
run fedavg --share 1/2 | share='1/2' needs the folder
run fedavg --share 0/4 --out x | share='0/4' is not a part
run fedavg --share 5/4 --out x | share='5/4' is not a part
run fedavg --share 1/7 --seeds 6 --model linear --out x | share='1/7': there are only 6 runs
run fedlga+mean | fedlga: mean does not fit this algorithm
compare fedprox mu=0.1 | unknown algorithm 'mu=0.1'; options follow a name and a colon
compare fedavg: | 'fedavg:' has no options after the colon
compare fedavg fedprox --reference fedpro | reference='fedpro' is unknown; choose fedavg or fedprox
compare fedavg+topk fedavg+topk:fraction=0.01 | fedavg+topk:fraction=0.01 are the same; leave one
compare fedbuff fedbuff@buffered:size=10 --seconds 9 | are the same; leave one out
compare fedprox:1,mu=1 | fedprox: mu is given twice
run fedavg --dataset csv:path=a,b.csv,label=y | write a comma in a value as \\,, as before 'b.csv'
compare --track tensorbord | unknown tracker 'tensorbord'; did you mean tensorboard?
compare --track wandb:mode=x | mode='x' is unknown; choose online
compare --track tensorboard --track tensorboard | are not different names
sweep fedprox --grid mu=1 --evaluate-clients train | No such option
compare --evaluate-clients-at evaluations | has no examples; give evaluate_clients
compare --target-metric client_accuracy_worst_decile | is not measured; give evaluate_clients
compare --evaluate-clients train --target-metric client_accuracy_worst | is unknown; choose client
compare --evaluate-clients train --target-metric client_accuracy_standard_deviation | is lower
compare --evaluate-clients held_out --held-out 1e-6 | held_out=1e-06 of the examples
run fedbuff --seconds 9 --evaluate-clients train --evaluate-clients-at evaluations | is not for the
compare fedavg+ | 'fedavg+' has a plus without a wrapper
compare fedavg+term --seconds 9 | reduce="stack"
compare fedavg+power_of_choice:candidates=9 --cohort 20 | chosen among 180 candidates
list algorithm | 'algorithm' is not one of 'algorithms', 'client_optimizers',
run fedasync --seconds 3 --system simulated:dropout=0.9999999 | dispatches are lost
lisst | No such command 'lisst'
costs | costs needs a method; give one such as fedavg, or --config
plot nowhere --facet folder | 'folder' is not one of 'results', 'method', 'seed'
table | no results folder is given
report nowhere | there is no such file
sweep fedprox --grid mu=1 --grid mu=2 | mu is given twice; give all
sweep fedprox --grid mu=1,1.0 | mu=1 is twice in the grid
sweep fedprox --grid model=mlp | unknown option 'model'
sweep fedprox --grid local-steps=5 --local-steps 3 | local_steps is given twice; give all
sweep fedprox --grid local_epochs=1,2 --local-steps 3 | steps=3 and epochs=1.0; give exactly one
sweep fedprox --grid fedprox:mu=1 | names a method; leave fedprox: out
sweep fedprox --grid mu=1 --seconds 3 | seconds=3.0 is not for sweeps
sweep fedprox --grid mu=1 --client-state host | client_state='host' is not for sweeps
tune fedavg --grid client_learning_rate=1,2 --halving 1 | halving=1 is out of range
tune fedavg --grid client_learning_rate=1,2 --validation 1 | validation=1 is out of
tune fedavg --grid client_learning_rate=1 --track tensorboard | No such option
tune fedavg --grid q=1 --halving 2 --share 1/2 --out x | halving=2 needs the scores of all trials
run fedavg --batch-size 2000000000 --model linear | batch_size=2000000000
tune fedavg --grid client_learning_rate=1 --batch-size 2000000000 --model linear | batch_size=20
sweep fedprox --grid mu=0.1 --batch-size 2000000000 --model linear | batch_size=2000000000
sweep fedprox --grid mu=0.1 --memory 1 --model linear --clients 12 | memory=1
"""


@pytest.mark.parametrize("case", LINES.strip().splitlines())
def test_a_mistake_is_one_line(refused, case):
    line, message = case.split(" | ")
    assert message in refused(*line.split())


USAGE = ["-x", "run -x", "run --mu 1 fedprox", "list models x", "compare -9", "compare --config"]
USAGE += ["run x --nu 1", "plot -o x", "run fedavg --grid mu=1", "run fedavg --resume=1 --out x"]
USAGE += ["sweep fedavg fedprox", "sweep fedavg --grid", "run fedavg --out --resume"]
USAGE = [line.split() for line in USAGE]
USAGE += [[""], *([name, ""] for name in ("run", "compare", "list", "plot", "table", "sweep"))]


@pytest.mark.parametrize("line", USAGE, ids=" ".join)
def test_wrong_usage(refused, line):
    refused(*line)


def test_what_a_choice_may_be_is_listed(command):
    for what in REGISTRIES:
        registry = registry_of(what)
        listed = json.loads(command("list", what, "--json"))
        assert list(listed) == sorted(registry)
        assert all(entry["description"] for entry in listed.values())
        shown = command("list", what)
        assert all(name in shown for name in registry if ":" not in name)  # others may be divided
    mu = {"type": "float", "values": "a number of at least 0", "needed": False, "default": 0.01}
    assert json.loads(command("list", "algorithms", "--json"))["fedprox"]["options"]["mu"] == mu


SEEDS = {
    "1": [0], "2": [0, 1], "01": [0], "3,7": [3, 7], "3,": [3], ",3": [3], "3,,4": [3, 4],
    "5-6": [5, 6], " 1": [0], "2147483646-2147483647": [2147483646, 2147483647],
}  # fmt: skip
WRONG_SEEDS = [
    *("0", "-1", "-5--1", "5-3", "1-2-3", "--", "-", "1-", "-1-", ",", ",,", "1,x", "x-3", "3-x"),
    *("1.5", "1.5,2", "1e3", "0,-1", "0-10000"),
    *("1000000000000", "0-1000000000000", "9" * 5000, f"0-{'9' * 30}", "0,1;2", "[0]", "(0, 1)"),
]  # fmt: skip


def test_seeds():
    for text, seeds in SEEDS.items():
        assert [*settings_of({"seeds": text}, "9").seeds] == seeds
    for text in WRONG_SEEDS:
        with pytest.raises(ValueError, match="seeds="):
            settings_of({"seeds": text}, "9")


@settings(quick, max_examples=100)
@given(
    st.sampled_from([*options(Settings)]), st.sampled_from(WRONG + UNLIKELY) | st.text(max_size=9)
)
def test_any_text_of_a_setting_is_refused_or_read_back(name, text):
    with contextlib.suppress(ValueError):
        value = parse_setting(name, text)
        again = "".join(f"{seed}," for seed in value) if name == "seeds" else str(value)
        assert parse_setting(name, again) == value
        settings_of({name: text}, "1")


PIECES = [
    *("", ":", "=", ",", "@", "::", ",,", "==", "@@", "/", ".", "..", ".py", "é", "\x1b", " "),
    *("[red]", "own.py:f", "math:sin", "builtins:dict", "__main__:x", "None", "false", "nan"),
    *("inf", "1e400", "-1", "0", "1", "0.5", "1e-300", ".x:y", "True", "seed=", "x" * 999, "a\\,"),
]  # fmt: skip


@st.composite
def specs(draw, registry):
    """A registered name, wrong or right, with options, wrong or right."""
    name = draw(st.sampled_from(sorted(name for name in registry if ":" not in name)))
    option = st.sampled_from([*options(registry[name])] or ["x"])
    piece = st.sampled_from(PIECES)
    pairs = st.lists(st.builds("{}={}".format, option, piece | option), min_size=1).map(",".join)
    forms = st.sampled_from([f"{name}:{{1}}", f"{{0}}{name}{{0}}", f"{name}:{{1}}@{{0}}"])
    any_order = st.lists(piece | option | st.just(name), min_size=1).map("".join)
    return draw(st.builds(str.format, forms, piece, pairs) | any_order)


@settings(quick, max_examples=100)
@given(st.data(), st.sampled_from([*REGISTRIES]))
def test_any_spec_is_refused_or_read_back(data, kind):
    """As a method it has wrappers and a planner, too."""
    spec = data.draw(specs(registry_of(kind)))
    with contextlib.suppress(ValueError):
        name, values = registry_of(kind).parse(spec)
        assert registry_of(kind).parse(spec_of(name, values)) == (name, values)
    for clock in ({"seconds": 1.0}, {}) if kind in ("algorithms", "planners", "wrappers") else ():
        text = {"planners": f"fedbuff@{spec}", "wrappers": f"fedavg+{spec}"}.get(kind, spec)
        with contextlib.suppress(ValueError):
            method = Method.of(text, Settings(**clock))
            assert Method.of(method.spec, Settings(**clock)) == method
