"""The wording of messages: each names the value and the fix in a line, before anything computes."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import with_statistics

import fedjax_algos as fa
from fedjax_algos import asynchrony, data, models, participation
from fedjax_algos.runs.studies.experiment import prepare
from fedjax_algos.runs.studies.settings import Settings

N, CLIENTS, COHORT = 12, 4, 2
X = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
Y = np.arange(N, dtype=np.int32) % 2
EXAMPLES = {"x": X, "y": Y}
FAR, BIG = EXAMPLES | {"y": Y + 1}, EXAMPLES | {"x": np.full((N, 3), 1e300)}
ROWS = np.split(np.arange(N), CLIENTS)
ADAM = optax.adam(0.1)
LOCAL = fa.Local(batch_size=2, learning_rate=0.1, steps=1)
POPULATION, TWO = fa.Population(CLIENTS, COHORT, N), fa.Population(2, 2, 6)
MODEL = fa.Model({"Dense_0": {"kernel": np.zeros((3, 2)), "bias": np.zeros(2)}})
SYSTEM, PLANNER = asynchrony.simulated(), asynchrony.immediate(steps=1)
PLAN = PLANNER(SYSTEM(0), CLIENTS, arrivals=5)
MOST, HALF = 2**31 - 1, "float16"
MANY = Settings(seeds=tuple(range(10**4)), clients=10**9, cohort=1)
ROUND = {"cohort_size": COHORT, "rounds": 1}
rows_of = fa.Partition.of
PROBLEM = models.linear((3,), 2)
NOTHING = lambda: 0  # noqa: E731
ONE_ARRAY = fa.Problem(lambda key: fa.Model(jnp.ones(3)), None, None)


def federated(examples, rows=ROWS):
    return fa.federate(examples, rows_of(rows))


def stored(**changes):
    return federated(EXAMPLES | changes)


STORE = stored()


def algorithm(name="fedavg", local=LOCAL, problem=PROBLEM, **options):
    return fa.algorithms.algorithms[name](problem, local, **options)


@functools.cache
def engine(name="fedavg", place="device", **options):
    return fa.make_engine(algorithm(name, **options), client_state=place)


@functools.cache
def state(name="fedavg", population=POPULATION, place="device", **options):
    return engine(name, place, **options).init(0, population)


@functools.cache
def consumed():
    made = engine().init(0, POPULATION)
    jax.tree.map(lambda leaf: leaf.delete(), made.server)  # as a round does
    return made


def of_local(**changes):
    return algorithm(local=LOCAL._replace(**changes))


def of_population(**changes):
    return engine().init(0, POPULATION._replace(**changes))


def cohorts(counts=(7, 9), rounds=1, size=1, sampler=participation.uniform, **changes):
    own = np.array(counts), LOCAL._replace(**changes)
    drawn = participation.Cohorts(*own, cohort_size=size, seed=0, sampler=sampler)
    return drawn.dispatches(rounds)


def dispatches(rounds=1):
    return cohorts([3] * CLIENTS, rounds, COHORT)


def one(**changes):
    changed = {field: np.asarray(values) for field, values in changes.items()}
    return jax.tree.map(lambda leaf: leaf[0], dispatches())._replace(**changed)


def a_round(before=None, data=STORE, name="fedavg", **changes):
    """A round, in which fields of the dispatches are lists."""
    before = state(name) if before is None else before
    return engine(name).round(before, data, one(**changes))


def simulate(**changes):
    return fa.simulate(**{"engine": engine(), "data": STORE} | ROUND | changes)


def twice(name):
    """A round of a cohort that has a client twice."""
    ones = lambda seed, rounds, *_: np.ones((len(rounds), 2), int)  # noqa: E731
    return simulate(engine=engine(name), sampler=ones)


def simulate_async(**changes):
    arguments = {"seconds": 1.0, "planner": PLANNER, "system": SYSTEM} | changes
    return fa.simulate_async(fa.make_executor(algorithm("fedasync")), STORE, **arguments)


def sweep(algorithm="fedprox", data=STORE, **changes):
    arguments = ROUND | {"grid": {"mu": [0.1]}} | changes
    return fa.sweep(algorithm, PROBLEM, LOCAL, data, **arguments)


OWN = fa.Problem(  # of the user
    init=lambda key: fa.Model({"w": jnp.zeros(3)}),
    apply=lambda model, batch, key, training: (batch["x"] @ model.params["w"], ()),
    loss=lambda prediction, batch: (prediction - batch["y"]) ** 2,
)


def of_problem(base=OWN, data=STORE, test=None, params=None, **functions):
    """Runs a problem of which functions are replaced."""
    made = fa.make_engine(algorithm(problem=base._replace(**functions)))
    return simulate(engine=made, data=data, test=test, params=params)


def indexed(outputs, batch):
    logits = jax.nn.log_softmax(outputs.logits)
    return -logits[jnp.arange(len(logits)), batch["y"]]


def pure(name="fedavg", population=POPULATION, **changes):
    made = fa.pure_round(algorithm(name))
    given = {"state": state(name, population), "data": STORE, "dispatches": one()}
    return made(**given | changes)


def traced(counts=(3,) * CLIENTS, **changes):
    return fa.traced_dispatches(0, counts, LOCAL, **ROUND | changes)


def own(name="fedavg", **functions):
    """An engine of an algorithm of which some fields are replaced."""
    return fa.make_engine(algorithm(name)._replace(**functions))


def returns(name, function, change):
    """Runs an algorithm of which what one of the functions returns is changed."""
    called = getattr(algorithm(name), function)
    made = own(name, **{function: lambda *arguments: change(called(*arguments))})
    return simulate(engine=made)


def of_type(dtype):
    return fa.Model({"w": jnp.zeros(3, dtype)})


def summed(part):
    """A change of what `client_update` returns: the row and the update are its first parts."""
    return lambda made: tuple(
        jax.tree.map(jnp.sum, each) if i == part else each for i, each in enumerate(made)
    )


def evaluate(model=MODEL, **examples):
    return fa.make_evaluate(PROBLEM)(model, EXAMPLES | examples)


def source(**changes):
    example = {"x": jax.ShapeDtypeStruct((3,), np.float32)}
    return data.ClientSource("made", ["a", "b"], np.ones(2, int), example, None)._replace(**changes)


def wrong(function, **options):
    """Calls with one option, for each of its wrong values: the message names option=value."""
    for name, values in options.items():
        for value in values:
            shown = getattr(value, "__name__", repr(value))
            yield functools.partial(function, **{name: value}), f"{name}={shown}"


CARRYING = nn.RNN(nn.GRUCell(2), return_carry=True)

WRONG = [  # (call, what its message names)
    # how clients train
    *wrong(of_local, batch_size=[0, 2.5, 2**31, True], learning_rate=[None, 0.0, np.nan, "0.1"]),
    *wrong(of_local, steps=[2**31], epochs=[0, np.nan, np.inf], batches=["ful"]),
    (lambda: of_local(transform=None), "transform.init=None"),
    *wrong(algorithm, local=[0.1]),
    (lambda: of_local(transform=ADAM), "transform"),
    (lambda: algorithm("fedgbo", optimizer=ADAM, upload="both"), "fedgbo: optimizer"),
    (lambda: algorithm(server_transform=ADAM), "server_transform"),
    (lambda: cohorts(rounds=9, learning_rate=lambda n: np.ones(2)), "shape (2,)"),
    (lambda: cohorts(epochs=1), "steps=1 and epochs=1"),
    (lambda: cohorts(steps=None), "steps=None and epochs=None"),
    (lambda: of_local(reverse=fa.ReverseMode(2, 3, "all")), "policy='all'"),
    (lambda: fa.differentiable(LOCAL, np.ones((3, 2), int)), "int64[3, 2]"),
    (lambda: cohorts(batch_size=8, batches="dropped"), "client 0 has 7"),
    # examples and partitions
    (lambda: stored(y=Y[1:]), "[11]"),
    (lambda: stored(y=Y.tolist()), "13 arrays"),
    (lambda: federated({}), "nothing"),
    (lambda: simulate(data=federated([EXAMPLES] * 2)), "0.x float32"),
    (lambda: federated(EXAMPLES, [[0], [12]]), "example 12"),
    (lambda: federated(EXAMPLES, [[0], []]), "client 1"),
    (lambda: fa.federate(EXAMPLES, ROWS), "partition=<list>"),
    (lambda: fa.federate(EXAMPLES, fa.Partition(Y, np.array([0, 3, 1, 4]))), "offsets"),
    (lambda: rows_of([Y == 0, Y == 1]), "client 0"),
    (lambda: rows_of([3]), "int64[]"),
    (lambda: rows_of([[2**31]]), "client 0 would be 2147483648"),
    (lambda: data.StoredData(source(client_ids="aa")), "'a'"),
    (lambda: data.StoredData(source(example={"x": (3,)})), "(3,)"),
    (lambda: data.divide(X, Y[1:], 0.5), "11 y"),
    (lambda: data.from_arrays(X, Y, X, Y, num_classes=2.5), "num_classes=2.5"),
    # runs in rounds
    *wrong(simulate, engine=["fedavg"], rounds=[0], eval_every=[0], cohort_size=[5, 0.5]),
    *wrong(simulate, seed=[2**32, 0.5], sampler=["uniform", NOTHING], work=["full", NOTHING]),
    *wrong(simulate, failures=[NOTHING], evaluate=["loss", NOTHING], on_evaluation=[NOTHING]),
    *wrong(simulate, measure=[NOTHING]),
    (lambda: simulate(start_round=1), "state=None"),
    (lambda: simulate(measure=lambda state: {"round": 7}), "'round' column"),
    (lambda: simulate(measure=lambda state: None), "measure returned=None"),
    (lambda: simulate(state=state(), start_round=0.5), "start_round=0.5"),
    *wrong(fa.make_engine, algorithm=["fedavg"]),
    (lambda: fa.make_engine(fa.algorithms.fedavg), "algorithm=fedavg"),
    (lambda: simulate(data=EXAMPLES), "data=<dict>"),
    (lambda: simulate(seed=jnp.int32(-1)), "seed=-1"),
    (lambda: simulate(rounds=MOST), "214748365 evaluations"),
    (lambda: simulate(rounds=MOST, eval_every=MOST), "2147483647 rounds"),
    (lambda: simulate(test=[]), "nothing"),
    (lambda: simulate(test=EXAMPLES | {"x": X.astype(np.uint8)}), "x uint8[12, 3]"),
    (lambda: simulate(test={"x": X[:0], "y": Y[:0]}), "x float32[0, 3]"),
    (lambda: simulate(test=FAR), "test examples have label 2"),
    (lambda: simulate(test=STORE), "test examples hold examples.x"),
    (lambda: simulate(data=stored(y=Y + 1)), "label 2"),
    (lambda: simulate(data=stored(y=Y - 1)), "label -1"),
    (lambda: simulate(data=stored(y=Y + 0.5)), "of type float32 in y; give whole"),
    (lambda: simulate(data=stored(x=X[:, :2])), "[2]"),
    (lambda: simulate(data=federated({"x": X})), "hold x"),
    (lambda: simulate(params=jax.tree.map(lambda p: p[:2], MODEL)), "[2, 2]"),
    (lambda: simulate(state=state()), "start_round"),
    (lambda: simulate(state=state(), start_round=0, params=MODEL), "seed=0 and params"),
    (lambda: simulate(state=state(), start_round=0, seed=1), "seed=1"),
    (lambda: simulate(state=state().server, start_round=0), "state=<ServerState>"),
    # a problem of the user's own
    (
        lambda: of_problem(models.classifier(CARRYING, (3, 1)), stored(x=X[..., None])),
        "'tuple' object",
    ),
    (lambda: fa.make_engine(fa.algorithms.fedavg(models.mlp, LOCAL)), "problem=mlp"),
    (lambda: of_problem(metrics=lambda outputs, _: outputs, test=EXAMPLES), "float32[12]"),
    (lambda: of_problem(apply=lambda model, batch, *_: (batch["inputs"], ())), "'inputs'"),
    (lambda: of_problem(apply=lambda model, batch, *_: batch["x"][:, 0]), "float32[2]"),
    (lambda: of_problem(loss=lambda prediction, batch: batch["label"]), "'label'"),
    (lambda: of_problem(loss=lambda prediction, batch: batch["y"]), "int32"),
    (lambda: of_problem(loss=lambda prediction, batch: prediction.mean()), "shape ()"),
    (lambda: of_problem(data=federated((X, Y))), "TypeError"),
    (lambda: of_problem(init=lambda key: {"w": jnp.zeros(3)}), "init(key)={'w'"),
    *[(lambda t=t: of_problem(init=lambda key: of_type(t)), f"type {t}") for t in (HALF, "int32")],
    (lambda: of_problem(params={"w": np.zeros(3, int)}), "type int64"),
    (lambda: of_problem(PROBLEM, apply=lambda *_: indexed), "type function"),
    (lambda: of_local(transform=optax.GradientTransformation(lambda p: (), lambda g: g)), "update"),
    (lambda: of_problem(PROBLEM, loss=lambda outputs, batch: outputs - batch["y"]), "Outputs"),
    (lambda: algorithm("fedrep", problem=ONE_ARRAY, head="*out"), "head='*out'"),
    # numbers that the device cannot hold, and labels that a loss takes for other ones
    (lambda: stored(x=X.astype(np.int64) + 2**31), "['x'] has 2147483648 in example 0"),
    (lambda: stored(x=X.astype(float) * 1e300), "['x'] has 1e+300 in example 0"),
    (lambda: simulate(test=BIG), "['x'] has 1e+300"),
    (lambda: prepare(Settings(model="linear"), [], data.Dataset(BIG, EXAMPLES, 2)), "1e+300"),
    (lambda: of_problem(PROBLEM, stored(y=Y + 7), loss=indexed), "label 7 in ['y']"),
    (lambda: of_problem(PROBLEM, test=FAR, loss=indexed), "test examples have label 2"),
    (lambda: a_round(data=federated(FAR)), "label 2"),
    (lambda: pure(data=federated(FAR)), "label 2"),
    (lambda: evaluate(y=Y + 1), "label 2"),
    (lambda: fa.make_evaluate_personal(PROBLEM, LOCAL)(MODEL, federated(FAR), STORE), "label 2"),
    (lambda: engine().updates(state(), federated(FAR), one()), "label 2"),
    # what a state, data and dispatches are of
    *wrong(traced, cohort_size=[8], rounds=[0], sampler=["cyclic"], failures=[0.3]),
    (lambda: engine().put_data(EXAMPLES), "data=<dict>"),
    (lambda: pure(dispatches=dispatches()), "shape (1, 2)"),
    (lambda: pure("scaffold", TWO), "shape [2, "),
    (lambda: participation.Cohorts(STORE, LOCAL, cohort_size=1, seed=0), "FederatedData"),
    (lambda: traced([3, 5.7, 3]), "5.7 of client 1"),
    (lambda: asynchrony.plan_dispatches(PLAN, [3, 3, 0, 3], LOCAL), "0 of client 2"),
    (lambda: traced(sampler=lambda *_: jnp.zeros(1, jnp.int32)), "int32[1]"),
    # the functions of an engine
    (lambda: engine().transfer(consumed(), STORE, one()), "this state was consumed"),
    *wrong(of_population, num_clients=[0], cohort_size=[5]),
    (lambda: engine().init(0, 4), "population=4"),
    (lambda: engine().init(0, POPULATION, consumed().server.params), "consumed"),
    (lambda: state("scaffold", fa.Population(MOST, 1, MOST)), "2147483647 clients"),
    (lambda: a_round(()), "state=()"),
    (lambda: a_round(consumed()), "this state was consumed"),
    (lambda: a_round(state("fedavgm")), "state"),
    (lambda: engine("ghbm", tau=2).round(state("ghbm", tau=3), STORE, one()), "options"),
    (lambda: a_round(state("scaffold", fa.Population(5, 2, N)), name="scaffold"), "shape [5, "),
    (lambda: a_round(state("scaffold", place="host"), name="scaffold"), "'device'"),
    (lambda: engine().round(state(), STORE, dispatches()), "shape (1, 2)"),
    (lambda: engine().rounds(state(), STORE, dispatches(), 2), "number=2"),
    (lambda: engine().round(state(), STORE, ROWS), "dispatches=<list>"),
    (lambda: a_round(num_examples=[3, 7]), "num_examples=7"),
    (lambda: a_round(client=[0, 4]), "client 4"),
    (lambda: a_round(client=[True, False]), "type bool"),
    (lambda: a_round(number=[0, 0, 0]), "shape (3,)"),
    (lambda: a_round(num_steps=[1, -1]), "num_steps=-1"),
    (lambda: a_round(learning_rate=[np.nan] * 2), "learning_rate=nan"),
    (lambda: twice("fedhbm"), "client 1 is twice in the cohort of round 0"),
    (lambda: a_round(name="scaffold", client=[1, 1]), "client 1"),
    # an algorithm of the user's own
    (lambda: returns("scaffold", "client_update", summed(0)), "['Dense_0']['bias'] is float32[]"),
    (lambda: returns("fedavg", "client_update", summed(1)), "float32[]"),
    (lambda: returns("fedavg", "server_update", lambda s: s._asdict()), "['params']"),
    (lambda: returns("fedavg", "client_update", lambda made: made[:2]), "tuple (tuple, dict)"),
    *wrong(own, decode=[None], prelude=["mime"], traits=["stack"], server_update=[NOTHING]),
    *wrong(lambda **own_traits: own(traits=fa.Traits(**own_traits)), parts=["g"], reduce=["mean"]),
    # what draws, plans and measures
    (lambda: simulate(failures=lambda *_: [True, False]), "failures"),
    (lambda: simulate_async(planner=lambda *_, **__: None), "plan=None"),
    (lambda: simulate_async(system=lambda seed, **_: None), "seconds=None"),
    (lambda: simulate_async(system=SYSTEM(0)), "cannot be called"),
    (lambda: cohorts(sampler=lambda *_: np.arange(2)), "the cohorts are int64[2]"),
    (lambda: engine("scaffold", "cloud"), "'cloud'"),
    # the virtual clock
    *wrong(simulate_async, planner=["compass", NOTHING], seconds=[0, np.inf], evaluations=[0.5]),
    (lambda: simulate_async(seconds=None), "seconds=None"),
    (lambda: simulate_async(evaluations=MOST), "2147483647 evaluations"),
    (lambda: PLANNER(SYSTEM(0), 1, arrivals=MOST), "arrivals=2147483647"),
    (lambda: fa.make_executor(algorithm("mime")), "two exchanges"),
    # sweeps, evaluation and other functions
    *wrong(sweep, grid=[0.1], seeds=[()]),
    (lambda: sweep(grid={"mu": 0.1}), "mu=0.1"),
    (lambda: sweep(data=EXAMPLES), "data=<ndarray>"),
    (lambda: sweep(algorithm()), "algorithm=<Algorithm>"),
    (lambda: sweep(seeds=[0, 0]), "seeds=[0, 0]"),
    (lambda: evaluate(MODEL.params), "model=<dict>"),
    (lambda: fa.make_evaluate(with_statistics(PROBLEM))(MODEL, EXAMPLES), "statistics"),
    (lambda: evaluate(x=X[:0], y=Y[:0]), "examples=0"),
    (lambda: fa.make_evaluate(PROBLEM, 0.5), "batch_size=0.5"),
    (lambda: fa.make_evaluate_clients(PROBLEM)(MODEL, EXAMPLES), "data={'x'"),
    (lambda: fa.make_evaluate_own(algorithm("ditto"))(state("ditto", TWO), STORE), "2 clients"),
    (lambda: fa.summarise_clients(jnp.ones(3), "lowest"), "not of type Mean"),
    (lambda: models.mlp((3,), 2, layers=10**9), "layers=1000000000"),
]

FIXES = "give|use|choose|return|draw|keep|name|rename|make|leave|mend|pad|say|scale|need"
FIXES = rf"[;:] (.*\b)?({FIXES}|there are|did you mean)\b"
SENTENCES = [  # the words of the checks that all share
    (lambda: of_local(steps=0), "steps=0 is out of range; give a whole number of at least 1"),
    (lambda: simulate(seed=2**32), "give a whole number of at least 0 and at most 4294967295"),
    (lambda: of_local(rate_by=1), "Local: rate_by=1 is unknown; choose round, dispatch or step"),
    (lambda: simulate(engine=1), "engine=1 is not of type Engine; give make_engine(algorithm)"),
    (lambda: simulate(evaluate=1), "evaluate=1 cannot be called; give make_evaluate(problem)"),
    (lambda: of_problem(loss=NOTHING), "loss=<lambda> does not take (outputs, batch): too many"),
    (MANY.check, "would need at least 80 TB, but there are 17.2 GB of memory; give fewer seeds"),
    (lambda: cohorts(steps=None, epochs=1e9), "above the 32-bit limit 2147483647; give"),
    (lambda: sweep("fedavg", grid={"rate": [0.1]}), "unknown option 'rate'; did you mean"),
]
CALLS = WRONG + SENTENCES


@pytest.mark.parametrize(("call", "named"), CALLS, ids=[named for _, named in CALLS])
def test_a_message_is_one_line_that_names_the_value_and_then_the_fix(call, named, monkeypatch):
    for place in ("host_memory", "device_memory"):  # so that the sizes do not depend on this one
        monkeypatch.setattr(f"fedjax_algos.base.limits.{place}", lambda device=None: 2**34)
    with pytest.raises((ValueError, TypeError), match=re.escape(named)) as raised:
        call()
    message = str(raised.value)
    assert "\n" not in message
    assert re.search(FIXES, message)
    assert (call, named) in SENTENCES or re.search(FIXES, message[message.index(named) :])
    if re.search(r"=\S+ (is not of type|does not take) ", message):
        assert isinstance(raised.value, TypeError)


def test_a_consumed_state_still_shows_what_it_held():
    assert "kernel float32[3, 2]" in repr(consumed())


@pytest.mark.all
def test_right_calls_pass():
    """The neighbours of the wrong calls above: seeds of 32 bits, and numbers of NumPy."""
    _, rows = simulate(seed=np.uint32(2**32 - 1), rounds=np.int64(1), test=EXAMPLES)
    assert [row["round"] for row in rows] == [0, 1]
    assert of_local(learning_rate=lambda count: 0.1, transform=optax.scale_by_adam())
    twice("fedavg")
    kept = engine().init(0, POPULATION)
    first, _ = engine().round(kept, STORE, one())
    second, _ = engine().round(first, STORE, one())
    assert next(iter(first)).params["Dense_0"]["kernel"].is_deleted()
    assert not second.server.params["Dense_0"]["kernel"].is_deleted()
