"""Wrong calls of the Python interface: each names the value and the fix, before it computes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers import with_statistics

import fedjax_algos as fa
from fedjax_algos import asynchrony, data, models, participation
from fedjax_algos.core import weighted_by
from fedjax_algos.data import partitions
from fedjax_algos.runs.experiment import prepare
from fedjax_algos.runs.settings import Settings

N, CLIENTS, COHORT = 12, 4, 2
X = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
Y = np.arange(N, dtype=np.int32) % 2
EXAMPLES = {"x": X, "y": Y}
BIG = EXAMPLES | {"x": np.full((N, 3), 1e300)}
ROWS = np.split(np.arange(N), CLIENTS)
PAIRS = np.ones((3, 2), int)
ADAM = optax.adam(0.1)
LOCAL = fa.Local(batch_size=2, learning_rate=0.1, steps=1)
POPULATION = fa.Population(CLIENTS, COHORT, N)
MODEL = fa.Model({"Dense_0": {"kernel": np.zeros((3, 2)), "bias": np.zeros(2)}})
SYSTEM = asynchrony.simulated()
PLANNER = asynchrony.immediate(steps=1)
MOST = 2**31 - 1
KEY = jax.random.key(0)
ROUND = {"cohort_size": COHORT, "rounds": 1}
rows_of = fa.Partition.of


@functools.cache
def problem(width=3):
    return models.linear((width,), 2)


def federated(examples, rows=ROWS):
    return fa.federate(examples, rows_of(rows))


def stored(**changes):
    return federated(EXAMPLES | changes)


@functools.cache
def store():
    return stored()


def algorithm(name="fedavg", local=LOCAL, width=3, **options):
    return fa.algorithms.algorithms[name](problem(width), local, **options)


@functools.cache
def engine(name="fedavg", **options):
    return fa.make_engine(algorithm(name), **options)


@functools.cache
def executor():
    return fa.make_executor(algorithm("fedasync"))


def dispatches(rounds=1, counts=(3,) * CLIENTS, **changes):
    drawn = participation.Cohorts(np.array(counts), LOCAL, cohort_size=COHORT, seed=0)
    return drawn.dispatches(rounds)._replace(**changes)


def one():
    return jax.tree.map(lambda leaf: leaf[0], dispatches())


def state(name="fedavg", population=POPULATION, **options):
    return engine(name, **options).init(0, population)


def other(name="fedavg", **options):
    """A state of an algorithm with these options."""
    return fa.make_engine(algorithm(name, **options)).init(0, POPULATION)


@functools.cache
def consumed(name="fedavg"):
    first = state(name)
    engine(name).round(first, store(), one())
    return first


def a_round(before=None, data=None, name="fedavg", **changes):
    """A round, in which fields of the dispatches are lists."""
    changed = {field: np.asarray(values) for field, values in changes.items()}
    before = state(name) if before is None else before
    return engine(name).round(before, data or store(), one()._replace(**changed))


def of_scaffold(*population, **options):
    return a_round(state("scaffold", *population, **options), name="scaffold")


def simulate(made=None, **changes):
    return fa.simulate(made or engine(), **{"data": store()} | ROUND | changes)


def twice(name):
    """A round of a cohort that has a client twice."""
    return simulate(engine(name), sampler=lambda seed, rounds, *_: np.ones((len(rounds), 2), int))


def go_on(name="fedavg", start_round=0, **changes):
    return simulate(state=state(name), start_round=start_round, **changes)


def simulate_async(**changes):
    arguments = {"seconds": 1.0, "planner": PLANNER, "system": SYSTEM} | changes
    return fa.simulate_async(executor(), store(), **arguments)


def sweep(algorithm="fedprox", made=None, examples=None, **changes):
    arguments = ROUND | {"grid": {"mu": [0.1]}} | changes
    return fa.sweep(algorithm, made or problem(), LOCAL, examples or store(), **arguments)


def of_local(**changes):
    return algorithm(local=LOCAL._replace(**changes))


def steps(**changes):
    return participation.Cohorts(np.array([7, 9]), LOCAL._replace(**changes), cohort_size=1, seed=0)


def sampled(cohorts):
    sampler = lambda seed, rounds, clients, size: np.asarray(cohorts)  # noqa: E731
    drawn = participation.Cohorts(np.ones(4), LOCAL, cohort_size=2, seed=0, sampler=sampler)
    return drawn.dispatches(1)


def linear(dtype=float, **changes):
    """A problem of the user's own, with some of its functions replaced."""
    own = fa.Problem(
        init=lambda key: fa.Model({"w": jnp.zeros(3, dtype)}),
        apply=lambda model, batch, key, training: (batch["x"] @ model.params["w"], ()),
        loss=lambda prediction, batch: (prediction - batch["y"]) ** 2,
    )
    return own._replace(**changes)


def of_problem(made, data=None, **options):
    """Runs a problem of the user's own."""
    engine = fa.make_engine(fa.algorithms.fedavg(made, LOCAL))
    return simulate(engine, data=data or store(), **options)


def applied(function):
    """Runs a problem whose outputs the user computes from params and batch."""
    return of_problem(linear(apply=lambda model, batch, *_: function(model.params, batch)))


def measured(function):
    return of_problem(linear(metrics=function), test=EXAMPLES)


def classified(function, test=None, **changes):
    """A classifier whose loss the user has written."""
    return of_problem(problem()._replace(loss=function), stored(**changes), test=test)


def softmax(outputs, batch):
    return optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])


def indexed(outputs, batch):
    logits = jax.nn.log_softmax(outputs.logits)
    return -logits[jnp.arange(len(logits)), batch["y"]]


def of_one_array(name, **options):
    problem = fa.Problem(lambda key: fa.Model(jnp.ones(3)), None, None)
    return fa.algorithms.algorithms[name](problem, LOCAL, **options)


def pure(name="fedavg", population=POPULATION, **changes):
    made = fa.pure_round(algorithm(name))
    given = {"state": made.init(0, population), "data": store(), "dispatches": one()}
    return made(**given | changes)


def own_models(name, population):
    own = algorithm(name)
    return fa.make_evaluate_own(own)(fa.pure_round(own).init(0, population), store())


def traced(counts=(3,) * CLIENTS, **changes):
    return fa.traced_dispatches(0, counts, LOCAL, **ROUND | changes)


def started(value, **options):
    """A run of which client 1 has a row that is not finite."""
    params = algorithm().problem.init(KEY).params
    rows = jax.tree.map(lambda leaf: np.zeros((CLIENTS, *leaf.shape)), params)
    rows["Dense_0"]["bias"][1, 0] = value
    return engine("scaffold", **options).init(0, POPULATION, clients=fa.ClientStates(rows))


def plan():
    return PLANNER(SYSTEM(0), CLIENTS, arrivals=5)


def execute(**changes):
    given = {"state": executor().init(0, POPULATION), "data": store(), "plan": plan()}
    given["dispatches"] = asynchrony.plan_dispatches(plan(), store().counts(), LOCAL)
    return list(executor().run(**given | changes))


def changed(name="fedavg", data=None, **functions):
    """Runs an algorithm of which functions, or what these return, are replaced."""
    base = algorithm(name)
    made = base._replace(**{n: own(getattr(base, n)) for n, own in functions.items()})
    return simulate(fa.make_engine(made), data=data or store())


def returns(change):
    return lambda function: lambda *arguments: change(function(*arguments))


def of_each(change):
    return lambda tree: jax.tree.map(change, tree)


def system(seconds=1.0, unavailability=None):
    """A system model of the user's own, in which all dispatches are alike."""
    made = type("Own", (), {})()
    made.seconds = lambda client, number, num_steps: seconds
    made.unavailability = lambda client, number: unavailability
    return simulate_async(system=lambda seed, **transfer: made)


def own_rows(change):
    return lambda made: (change(made[0]), *made[1:])


def own_update(change):
    return lambda made: (made[0], jax.tree.map(change, made[1]), made[2])


def evaluate(model=MODEL, **examples):
    return fa.make_evaluate(problem())(model, EXAMPLES | examples)


def sums(gradient, params):
    return jax.tree.map(jnp.sum, gradient)


def source(**changes):
    example = {"x": jax.ShapeDtypeStruct((3,), np.float32)}
    return data.ClientSource("made", ["a", "b"], np.ones(2, int), example, None)._replace(**changes)


def personal(train, **options):
    return fa.make_evaluate_personal(problem(), LOCAL)(MODEL, train, store(), **options)


WRONG = [
    # how clients train
    (lambda: of_local(batch_size=0), r"batch_size=0 .* at least 1"),
    (lambda: of_local(batch_size=2.5), r"batch_size=2.5 .* a whole number"),
    (lambda: of_local(batch_size=2**31), r"at least 1 and at most 2147483647"),
    (lambda: of_local(batch_size=True), r"batch_size=True is out of range"),
    (lambda: of_local(learning_rate=None), r"learning_rate=None .* a number above 0"),
    (lambda: of_local(learning_rate=0.0), r"learning_rate=0.0 .* a number above 0"),
    (lambda: of_local(learning_rate=np.nan), r"learning_rate=nan is out of range"),
    (lambda: of_local(learning_rate="0.1"), r"='0.1' is out of range"),
    (lambda: of_local(steps=0), r"steps=0 is out of range"),
    (lambda: of_local(steps=2**31), r"steps=2147483648 .* 2147483647"),
    (lambda: of_local(epochs=0), r"epochs=0 .* a number above 0"),
    (lambda: of_local(epochs=np.nan), r"epochs=nan .* a number above 0"),
    (lambda: of_local(epochs=np.inf), r"epochs=inf .* a number above 0"),
    (lambda: of_local(batches="ful"), r"batches='ful' is unknown; choose short, dropped"),
    (lambda: of_local(rate_by="step"), r"'step' is unknown; choose round or"),
    (lambda: of_local(transform=None), r"transform=None is no optax .*; give one"),
    (lambda: of_local(transform=ADAM), r"transform points .*; give .*scale_by_adam\(\)"),
    (lambda: algorithm("fedgbo", optimizer=ADAM, upload="both"), r"fedgbo: optimizer points .*; "),
    (lambda: algorithm(server_transform=ADAM), r"server_transform points .*; give .*scale_by_adam"),
    (lambda: algorithm(local=0.1), r"local=0.1 is not of type Local; give fedjax"),
    (
        lambda: steps(learning_rate=lambda n: 0.1 if n < 3 else 1).dispatches(9),
        r"raised ValueErr.*;",
    ),
    (
        lambda: steps(learning_rate=lambda n: np.ones(2)).dispatches(9),
        r"returned shape \(2,\) for ",
    ),
    (lambda: steps(epochs=1), r"steps=1 and epochs=1; give exactly one"),
    (lambda: steps(steps=None), r"steps=None and epochs=None; give exactly one"),
    (lambda: steps(steps=2.5), r"Local: steps=2.5 is out of range"),
    (lambda: steps(steps=None, epochs=1e9), r"the local steps of client 1 would be 5000000000,"),
    (lambda: steps(steps=2**30).dispatches(40), r"client \d in all .* would be \d+, .* fewer roun"),
    (lambda: of_local(reverse=fa.ReverseMode(2, 3, "all")), r"policy='all' cannot be called; give"),
    (lambda: fa.differentiable(LOCAL, PAIRS), r"counts are int64\[3, 2\]; give the number of"),
    (lambda: fa.differentiable(LOCAL, store().counts(), "all"), r"reverse.policy='all' cannot be"),
    (lambda: steps(batch_size=8, batches="dropped"), r"client 0 holds 7 .*; give smal"),
    (lambda: steps(batch_size=8, batches="dropped", steps=None, epochs=1), r"holds 7 .*; give"),
    # examples and partitions
    (lambda: stored(y=Y[1:]), r"examples have \[11, 12\] rows; .* the same num"),
    (lambda: stored(y=Y.astype(str)), r"type <U11; give arrays of numbers"),
    (lambda: stored(y=Y.tolist()), r"leaf of type int; give arrays of numbers of NumPy or JAX"),
    (
        lambda: stored(y=type("Series", (), {"dtype": Y.dtype, "shape": Y.shape})()),
        r"leaf of type Series; give arrays of numbers of NumPy",
    ),
    (lambda: federated({}), r"=\{\} hold no array; give"),
    (lambda: fa.federate(EXAMPLES, ROWS), r"partition=<list> is not of type Partition; give Part"),
    (lambda: fa.federate(EXAMPLES, "iid"), r"partition='iid' is not of type Partition; give Part"),
    (lambda: federated([EXAMPLES] * 2), r"a list of 2 entries .* no arrays; give one tree of arra"),
    (lambda: federated(EXAMPLES, [[0], [12]]), r"names example 12; there are examples 0 to 11"),
    (lambda: federated(EXAMPLES, [[0], []]), r"client 1 holds no example .* give each at least on"),
    (lambda: federated(EXAMPLES, []), r"no clients; give"),
    (
        lambda: fa.federate(EXAMPLES, fa.Partition(Y, np.array([0, 3, 1, 4])), allow_empty=True),
        r"the offsets must ascend from 0 to the .*; make the partition with",
    ),
    (
        lambda: fa.federate(EXAMPLES, fa.Partition(np.arange(4), np.array([0.0, 4.0]))),
        r"offsets of type float64; give whole numbers",
    ),
    (lambda: rows_of([Y == 0, Y == 1]), r"client 0 are a mask .*np.flatnonzero"),
    (lambda: rows_of([[0.0, 1.0]]), r"client 0 are of type float64; giv"),
    (lambda: rows_of([3]), r"client 0 have shape \(\); give its example numb"),
    (lambda: rows_of({0: [1]}), r"of type dict; give a list with one"),
    (lambda: rows_of(rows_of(ROWS)), r"of type Partition"),
    (lambda: rows_of([[2**31]]), r"client 0 would be 2147483648, .* give num"),
    (lambda: data.StoredData(source(client_ids="a")), r"1 client_ids, .* int64\[2\]; give at lea"),
    (lambda: data.StoredData(source(client_ids="aa")), r"two clients 'a' in client_ids; rename"),
    (lambda: data.StoredData(source(example={"x": (3,)})), r"\(3,\); give jax.ShapeDtypeStruct\("),
    (lambda: partitions["iid"](Y, 2.5, 0), r"num_clients=2.5 .* a whole number"),
    (lambda: partitions["iid"](Y, 2, -1), r"seed=-1 .* least 0"),
    (lambda: partitions["iid"](X, 2, 0), r"give one label for each exam"),
    (lambda: partitions["iid"](Y, 13, 0), r"12 examples .*; use at most 12 clients"),
    (lambda: data.hold_out(rows_of(ROWS), 5, seed=0), r"share=5 is out of range; give a number fr"),
    (lambda: data.describe_partition(Y, ROWS), r"not of type Partition; give what a partition"),
    (lambda: data.describe_partition(Y + np.int64(2**40), rows_of(ROWS)), r"35.2 TB, .* fewer cl"),
    # runs in rounds
    (lambda: simulate(algorithm()), r"engine=.* is not of type Engine; give make_engine\(algorith"),
    (lambda: simulate("fedavg"), r"engine='fedavg' is not of type Engine; give make_engine\("),
    (lambda: fa.make_engine(fa.algorithms.fedavg), r"=fedavg is not of type Algorithm; give"),
    (lambda: fa.make_engine("fedavg"), r"='fedavg' is not of type Algorithm; give .*s.fedavg\("),
    (lambda: simulate(data=EXAMPLES), r"data=.* give what federate or open_"),
    (lambda: simulate(data=source()), r"data=.* or StoredData\(source\) of a source"),
    (lambda: simulate(seed=KEY), r"seed=<PRNGKeyArray> is out of range; give a whole number"),
    (lambda: simulate(rounds=0), r"rounds=0 .* a whole number of at least 1"),
    (lambda: simulate(eval_every=0), r"eval_every=0 .* at least 1"),
    (lambda: simulate(cohort_size=5), r"cohort_size=5 .*; give 1 to 4"),
    (lambda: simulate(cohort_size=0.5), r"cohort_size=0.5 .* a whole number"),
    (lambda: simulate(seed=2**32), r"at least 0 and at most 4294967295"),
    (lambda: simulate(seed=jnp.int32(-1)), r"seed=-1 .* a whole number of at least 0"),
    (lambda: simulate(seed=0.5), r"seed=0.5 .* a whole number of at least 0"),
    (lambda: simulate(sampler="uniform"), r"'uniform' cannot be called; "),
    (lambda: simulate(work="full"), r"work='full' cannot be called; give one"),
    (lambda: simulate(rounds=MOST), r"the rows of 214748365 evaluations would need .*; "),
    (lambda: simulate(rounds=MOST, eval_every=MOST), r"2147483647 rounds of 2 clients would need"),
    (lambda: simulate(test=False), r"test examples hold a leaf of type bool; g"),
    (lambda: simulate(test=[]), r"test examples=\[\] hold no array; give"),
    (lambda: simulate(test={"x": X}), r"test examples are x .* same names"),
    (lambda: simulate(test=EXAMPLES | {"x": X[:, :2]}), r"x float32\[12, 2\].* give arrays of the"),
    (lambda: simulate(test=EXAMPLES | {"x": X.astype(np.uint8)}), r"x uint8\[12, 3\].* types"),
    (lambda: simulate(test={"x": X[:0], "y": Y[:0]}), r"0 test exam.* test=None"),
    (lambda: simulate(test=EXAMPLES | {"y": Y[1:]}), r"\[11, 12\] rows; they"),
    (lambda: simulate(test=EXAMPLES | {"y": Y + 1}), r"test examples have label 2; .* from 0 to 1"),
    (lambda: simulate(test=store()), r"test is data of clients; give the ex"),
    (lambda: simulate(data=stored(y=Y + 1)), r"examples have label 2; give whole .* from 0 to 1"),
    (lambda: simulate(data=stored(y=Y - 1)), r"examples have label -1; give wh"),
    (lambda: simulate(data=stored(y=Y + 0.5)), r"labels y of type float32; give whole numbers"),
    (lambda: simulate(data=stored(x=X[:, :2])), r"which the model does not take .*; give examples"),
    (lambda: simulate(data=federated({"x": X})), r"hold x .* reads x and y; name the inputs x and"),
    (lambda: simulate(evaluate="loss"), r"='loss' cannot be called; give"),
    (lambda: simulate(params={"w": np.zeros(3)}), r"another structure \(w .*\) than the problem's"),
    (lambda: simulate(params=problem(2).init(KEY).params), r"\[2, 2\] .* \[3, 2\]; g"),
    (lambda: simulate(start_round=1), r"start_round=1 has no state; give the state after so many"),
    (lambda: simulate(state=state()), r"state has no start_round, .*; give the number of rounds"),
    (lambda: go_on(start_round=0.5), r"start_round=0.5 .* a whole number of at least 0"),
    (lambda: go_on(params=MODEL), r"state and params are both given; give params where the run be"),
    (lambda: go_on(seed=1), r"seed=1 is not that of the state; give seed=0"),
    (lambda: go_on("fedavgm"), r"the state is of another algorithm or model: .*; give what engine"),
    (lambda: simulate(state=state().server, start_round=0), r"state=.* is not of type FederatedSt"),
    (lambda: simulate(state=consumed(), start_round=1), r"this state was consumed .*; use the one"),
    # a problem of the user's own
    (lambda: fa.make_engine(fa.algorithms.fedavg(models.mlp, LOCAL)), r"=mlp is not .*; give Pro"),
    (lambda: fa.make_evaluate(models.mlp), r"=mlp is not of type Problem; give Problem\(init, app"),
    (lambda: measured(lambda outputs, _: outputs), r"metrics returned an array float32\[12\]; ret"),
    (lambda: measured(lambda _, batch: {"error": batch["z"]}), r"Problem.metrics raised KeyError"),
    (
        lambda: applied(lambda params, batch: (batch["inputs"], ())),
        r"Problem.apply raised KeyError in test_.*py, line \d+ \('inputs'\): its batch holds .*x",
    ),
    (
        lambda: applied(lambda params, batch: (params["w"] @ batch["x"], ())),
        r"Problem.apply raised TypeError in .* \(dot_general .*\): its batch holds mask",
    ),
    (lambda: applied(lambda params, batch: batch["x"] @ params["w"]), r"float32\[2\]; return \("),
    (
        lambda: of_problem(linear(loss=lambda prediction, batch: batch["label"])),
        r"Problem.loss raised KeyError .* \('label'\): its batch holds x .*, y int32.*; mend it",
    ),
    (
        lambda: of_problem(linear(loss=lambda prediction, batch: batch["y"])),
        r"the loss is of type int32, whose gradient is 0; return floats",
    ),
    (
        lambda: simulate(fa.make_engine(of_local(transform=optax.stateless(sums)))),
        r"a step of shape \(\) is made from params of shape \(2,\); keep the gradient's shapes",
    ),
    (
        lambda: prepare(Settings(model="linear"), [], data.Dataset(BIG, EXAMPLES, 2)),
        r"training examples\['x'\] has 1e\+300 in example 0, .* of float32",
    ),
    (lambda: of_problem(linear(), federated({"x": X, "label": Y})), r"\('y'\): its batch holds "),
    (lambda: of_problem(linear(), federated((X, Y))), r"Problem.apply raised TypeError .* not str"),
    (
        lambda: of_problem(problem()._replace(apply=lambda *given: problem().apply(*given)[0])),
        r"returned an object of type Outputs with the fields logits, features; return \(outp",
    ),
    (lambda: of_problem(linear(init=lambda key: {"w": jnp.zeros(3)})), r"init\(key\)=.* return f"),
    (lambda: of_problem(linear(int)), r"params\['w'\] of type int32, of which no gradient .*; giv"),
    (lambda: sweep(made=linear(int)), r"params\['w'\] of type int32, of which no gradient .*; giv"),
    (lambda: of_problem(linear(), params={"w": np.zeros(3, int)}), r"of type int64, of which"),
    (lambda: of_problem(linear(jnp.float16)), r"of type float16, in which sums .*; keep float32"),
    (lambda: classified(softmax, y=Y.astype(np.float32)), r"Problem.loss raised .*: its batch hol"),
    (lambda: classified(lambda outputs, batch: (outputs - batch["y"]) ** 2), r"fields logits, fea"),
    (
        lambda: of_problem(
            models.nnx_classifier(lambda rngs: nnx.Linear(3, 2, rngs=rngs), trainable=nnx.LoRAParam)
        ),
        r"trainable=LoRAParam matches none of the params bias float32\[2\], kernel .*; give a type",
    ),
    (
        lambda: of_problem(linear(loss=lambda prediction, batch: prediction.mean())),
        r"the loss has shape \(\), but must give one value for each example, shape \(2,\): return",
    ),
    (lambda: of_one_array("fedrep", head="*out"), r"none of the params, which are one array; give"),
    (lambda: of_one_array("fedbn", norm="*out"), r"none of the params, which are one array; give"),
    # numbers that the device cannot hold, and labels that a loss takes for other ones
    (lambda: stored(x=X.astype(np.int64) + 2**31), r"examples\['x'\] has 2147483648 in example 0"),
    (lambda: stored(x=X.astype(float) * 1e300), r"\['x'\] has 1e\+300 in example 0, .* of float32"),
    (lambda: simulate(test=EXAMPLES | {"x": X.astype(float) * -1e300}), r"\['x'\] has -1e\+300 in"),
    (lambda: classified(softmax, y=Y + 1), r"examples have label 2 in \['y'\], but the model has"),
    (lambda: classified(indexed, y=Y + 7), r"have label 7 in \['y'\], .* takes it for class 1; gi"),
    (lambda: classified(indexed, y=Y - 2), r"have label -2 in \['y'\], .* takes it for class 0; g"),
    (lambda: classified(softmax, EXAMPLES | {"y": Y + 1}), r"test examples have label 2 in"),
    (lambda: a_round(data=stored(y=Y + 1)), r"clients' examples have label 2; give whole numbers"),
    (lambda: engine(devices=2, examples="sharded").put_data(stored(y=Y + 1)), r"have label 2; giv"),
    (lambda: pure(data=stored(y=Y - 1)), r"clients' examples have label -1; give whole numbers"),
    (lambda: evaluate(y=Y + 1), r"the examples have label 2; give whole numbers from 0 to 1"),
    (
        lambda: fa.make_evaluate_clients(problem())(MODEL, stored(y=Y - 1)),
        r"the clients' examples have label -1; give whole numbers",
    ),
    (
        lambda: evaluate(x=X.astype(float) + 2.0**128),
        r"examples\['x'\] has 3.4.*e\+38 in example 0, .* of float32",
    ),
    (lambda: personal(stored(y=Y + 1)), r"the training examples have label 2; give whole numbers"),
    (lambda: engine().updates(state(), stored(y=Y + 1), one()), r"have label 2; give whole numbe"),
    # what a state, data and dispatches are of
    (lambda: engine().put_data(EXAMPLES), r"data=<dict> is not of type FederatedData .*; give wha"),
    (lambda: engine().updates(state(), EXAMPLES, one()), r"data=<dict> is not .*; give what feder"),
    (
        lambda: jax.jit(fa.pure_round(algorithm()))(state(), store(), dispatches()),
        r"dispatches have shape \(1, 2\); give arrays \[cohort\]",
    ),
    (lambda: pure("scaffold", population=fa.Population(2, 2, 6)), r"rows of shape \[2, .* 4 clie"),
    (lambda: pure(state=state("fedavgm")), r"the state is of another algorithm or model: .*; give"),
    (lambda: own_models("ditto", fa.Population(2, 2, 6)), r"the state is of 2 clients, but the da"),
    (lambda: started(np.nan), r"rows\['Dense_0'\]\['bias'\] of client 1 .* are not finite; give"),
    (lambda: started(np.inf, client_state="host"), r"of client 1 \(and 0 others\) are not finite"),
    (
        lambda: participation.Cohorts(store(), LOCAL, cohort_size=1, seed=0),
        r"of type FederatedData",
    ),
    (lambda: dispatches(counts=[3, 0, 3]), r"counts have 0 of client 1; give the number of exampl"),
    (lambda: traced([3, 3, -5]), r"counts have -5 of client 2; give the"),
    (lambda: traced([3, 5.7, 3]), r"counts have 5.7 of client 1; give t"),
    (lambda: traced(cohort_size=8), r"cohort_size=8 is out of range; give 1 to 4"),
    (lambda: traced(rounds=0), r"rounds=0"),
    (lambda: traced(sampler="cyclic"), r"give one of participation\.traced_samplers"),
    (lambda: traced(failures=0.3), r"give one of participation\.failures"),
    (lambda: traced([]), r"counts are float64\[0\]; give the number"),
    (lambda: asynchrony.plan_dispatches(plan(), [3, 3, 0, 3], LOCAL), r"counts have 0 of client 2"),
    (lambda: traced(sampler=lambda *_: jnp.array([0, 99])), r"client 99 is in a cohort; there are"),
    (lambda: traced(sampler=lambda *_: jnp.zeros(1, jnp.int32)), r"the sampler returned a cohort"),
    (lambda: traced(sampler=lambda *_: jnp.zeros(2)), r"cohort float32\[2\]; give one that return"),
    # the functions of an engine
    (lambda: consumed().server.params, r"this state was consumed .*; use the one that it returned"),
    (lambda: consumed("scaffold").clients, r"this state was consumed .*; use the one that it ret"),
    (lambda: engine().init(0, 4), r"population=4 is not of .*; give P"),
    (lambda: engine().init(0, fa.Population(0, 1, 1)), r"num_clients=0 .* a whole number of at le"),
    (lambda: engine().init(0, fa.Population(2, 3, 1)), r"cohort_size=3 .* at most num_clients=2"),
    (lambda: state("scaffold", fa.Population(MOST, 1, MOST)), r"2147483647 clients would need"),
    (lambda: engine().init(0, POPULATION, next(iter(consumed())).params), r"was consumed .*; use "),
    (lambda: a_round(()), r"state=\(\) is not .*; give wh"),
    (lambda: a_round(consumed()), r"this state was consumed by the round .*; use the one that it"),
    (lambda: a_round(state("fedavgm")), r"state is of another algorithm or"),
    (
        lambda: fa.make_engine(algorithm("ghbm", tau=2)).round(
            other("ghbm", tau=3), store(), one()
        ),
        r"the state is of the same algorithm with other options: .*; give what engine.init",
    ),
    (lambda: a_round(other(width=5)), r"the state is of another model: .*; give what engine.init"),
    (lambda: of_scaffold(fa.Population(5, COHORT, N)), r"rows of shape \[5, .* have 4 clients .*"),
    (lambda: of_scaffold(client_state="host"), r"='device', but .* rows are on the host; give wh"),
    (lambda: engine().round(state(), store(), dispatches()), r"shape \(1, 2\); give arrays \[coh"),
    (lambda: engine().rounds(state(), store(), one()), r"shape \(2,\); give arrays \[rounds, coho"),
    (lambda: engine().rounds(state(), store(), dispatches(), 2), r"number=2 .* give 1 to 1"),
    (lambda: engine().round(state(), store(), ROWS), r"not of type Dispatch; give"),
    (lambda: engine().rounds(state(), store(), dispatches(2), 1.5), r"number=1.5 .* give 1 to 2"),
    (
        lambda: a_round(num_examples=[3, 7]),
        r"client \d has num_examples=7, but holds 3; draw the dispatches from data.counts\(\) of",
    ),
    (lambda: a_round(client=[0, 4]), r"client 4 is in a cohort; there are clients 0 to 3: draw th"),
    (lambda: a_round(client=[0, -1]), r"client -1 is in a cohort; there are clients 0 to 3"),
    (lambda: a_round(client=[True, False]), r"are of type bool; .* give np.flatnonzero\(mask\)"),
    (lambda: a_round(number=[0, 0, 0]), r"number of shape \(3,\) and client of shape \(2,\); give"),
    (lambda: a_round(num_steps=[1, -1]), r"num_steps=-1 .*; give whole numbers of at least 0"),
    (lambda: a_round(learning_rate=[np.nan] * 2), r"learning_rate=nan; give numbers above 0 that"),
    (lambda: twice("fedhbm"), r"client 1 is twice in the cohort of round 0"),
    (
        lambda: a_round(state("scaffold"), name="scaffold", client=[1, 1]),
        r"client 1 is twice in the cohort of round 0, but this .*; give a sampler without replac",
    ),
    (
        lambda: pure("scaffold", dispatches=one()._replace(client=np.array([3, 3]))),
        r"client 3 is twice in the cohort of round 0, but this",
    ),
    # an algorithm of the user's own
    (
        lambda: changed("scaffold", client_update=returns(own_rows(of_each(jnp.sum)))),
        r"client_update returned: \['Dense_0'\]\['bias'\] is float32\[\], where float32\[2\] is",
    ),
    (
        lambda: changed("scaffold", client_update=returns(own_rows(of_each(jnp.int32)))),
        r"is int32\[2\], where float32\[2\] is expected; return a row of the shapes and types of",
    ),
    (
        lambda: changed("scaffold", client_update=returns(own_rows(lambda row: (row,)))),
        r"returned: \[0\]\['Dense_0'\]\['bias'\] is float32\[2\], where nothing is expected; re",
    ),
    (
        lambda: changed(client_update=returns(own_update(lambda leaf: leaf.sum()))),
        r"the delta in .* is float32\[\], where float32\[2\] is expected; a server rule would bro",
    ),
    (
        lambda: changed(client_update=returns(own_update(lambda leaf: leaf.astype("float16")))),
        r"\['Dense_0'\]\['bias'\] is float16\[2\], where float32\[2\] is expected; a server rule",
    ),
    (
        lambda: changed(server_update=returns(of_each(lambda leaf: leaf[None]))),
        r"server_update returned: .params\['Dense_0'\]\['bias'\] is float32\[1, 2\], where .*; re",
    ),
    (
        lambda: changed(client_update=returns(lambda made: made[:2])),
        r"tuple \(tuple, dict\); return",
    ),
    (
        lambda: changed(init=returns(lambda made: made._asdict())),
        r"type dict; return a NamedTuple w",
    ),
    (
        lambda: changed(decode=lambda _: None),
        r"Algorithm: decode=None cannot be called; give a fun",
    ),
    (
        lambda: changed(server_update=lambda _: lambda server, sums: server),
        r"<lambda> does not take \(server, sums, count, group\): too many .*; give a function \(s",
    ),
    (
        lambda: changed(prelude=lambda _: "mime"),
        r"prelude='mime' is not of type Prelude; give Pre",
    ),
    (lambda: changed(traits=lambda _: "stack"), r"traits='stack' is not of type Traits; give fedj"),
    (
        lambda: changed(traits=lambda _: fa.Traits(reduce="mean")),
        r"reduce='mean' is unknown; choos",
    ),
    (
        lambda: changed(traits=lambda _: fa.Traits("grad")),
        r"Traits: parts='grad' is unknown; choos",
    ),
    (lambda: of_problem(linear(loss=lambda batch: 0)), r"does not take \(outputs, batch\): too ma"),
    # what draws, plans and measures
    (
        lambda: simulate(sampler=lambda seed: 0),
        r"sampler=<lambda> does not take \(seed, rounds, nu",
    ),
    (lambda: simulate(work=lambda seed: 0), r"work=<lambda> does not take \(seed, rounds, clients"),
    (lambda: simulate(failures=lambda seed: 0), r"failures=<lambda> does not take \(seed, clients"),
    (lambda: simulate(failures=lambda *_: [True, False]), r"failures are .*; give a function that"),
    (
        lambda: simulate(on_evaluation=lambda: 0),
        r"does not take \(row\): too many .*; give a funct",
    ),
    (
        lambda: simulate(evaluate=lambda model: 0, test=EXAMPLES),
        r"does not take \(model, examples\)",
    ),
    (
        lambda: traced(work=lambda *_: jnp.ones(3, int)),
        r"local work is int32\[3\]; give one that re",
    ),
    (
        lambda: simulate_async(planner=lambda system: 0),
        r"planner=<lambda> does not take \(system, ",
    ),
    (lambda: simulate_async(planner=lambda *_, **__: None), r"plan=None is not of type Plan; give"),
    (
        lambda: simulate_async(system=lambda seed, **_: None),
        r"NoneType.seconds=None cannot be call",
    ),
    (lambda: system("1"), r"dispatch 0 of client 0 takes '1' s for 1 steps; give a system model"),
    (lambda: system(unavailability=0.5), r"has unavailability=0.5; give a share of its time from"),
    (
        lambda: of_local(transform=optax.GradientTransformation(lambda p: (), lambda g: g)),
        r"transform.update=<lambda> does not take \(updates, state, params\)",
    ),
    (
        lambda: sweep(lambda problem: 0, grid={"steps": [1]}),
        r"does not take \(problem, local\): too",
    ),
    (lambda: sampled([0, 1]), r"cohorts of shape \(2,\); give one that"),
    (lambda: sampled([[0, 4]]), r"client 4 is in a cohort; there a"),
    (lambda: engine("scaffold", client_state="cloud"), r"'cloud' is unknown; choose device or"),
    (lambda: engine("scaffold", client_state="disk"), r"'disk' has no folder; give client_state="),
    (lambda: engine("scaffold", client_state=fa.RowsOnDisk(3)), r"folder=3 is not of type str or"),
    # the virtual clock
    (lambda: simulate_async(planner="compass"), r"'compass' cannot be cal"),
    (lambda: simulate_async(system=SYSTEM(0)), r"cannot be called; give a system model, such as"),
    (lambda: simulate_async(seconds=0), r"seconds=0 .* a number above 0"),
    (lambda: simulate_async(seconds=np.inf), r"seconds=inf .* a number above 0"),
    (lambda: simulate_async(evaluations=0.5), r"evaluations=0.5 .* a whole n"),
    (lambda: simulate_async(evaluations=MOST), r"the rows of 2147483647 evaluations .*; give fewe"),
    (lambda: simulate_async(seconds=1e12), r"a plan with about .* dispatches would need at least"),
    (lambda: PLANNER(SYSTEM(0), 1, arrivals=MOST), r"arrivals=2147483647 would need .* give"),
    (lambda: asynchrony.compass(min_steps=30, max_steps=20), r"=30 is above max_steps=20; give at"),
    (lambda: asynchrony.compass(slack=0.9), r"slack=0\.9 is out of range"),
    (lambda: fa.make_executor(algorithm("mime")), r"does not run on the virtual clock: .* use sy"),
    (lambda: fa.make_executor(algorithm("fedasync"), slots=0.5), r"slots=0.5 .* a whole number of"),
    (lambda: execute(plan=None), r"plan=None is not of type Plan; give what a planner"),
    (lambda: execute(data=federated(EXAMPLES, ROWS[:2])), r"the plan dispatches client 3, but the"),
    # sweeps, evaluation and other functions
    (lambda: sweep("fedavg", grid={"learning_rate": [0.1]}), r"did you mean client_learning_rate"),
    (lambda: sweep(grid=0.1), r"grid=0.1 is not of .*; give \{option: values"),
    (lambda: sweep(grid={"mu": 0.1}), r"mu=0.1; give a list of val"),
    (lambda: sweep(examples=EXAMPLES), r"data=.* is not of type FederatedData; give what federate"),
    (lambda: sweep(algorithm()), r"algorithm=<Algorithm> cannot be called; give a name or a fact"),
    (lambda: sweep(seeds=()), r"seeds=\(\) has no seed; give at least one"),
    (lambda: sweep(seeds=[-1]), r"seed=-1 .* at least 0"),
    (lambda: sweep(seeds=[0, 0]), r"seed 0 .* twice; give each seed once"),
    (lambda: evaluate(MODEL.params), r"not of type Model; give state.model"),
    (lambda: fa.make_evaluate(with_statistics(problem()))(MODEL, EXAMPLES), r"such as state.model"),
    (lambda: evaluate(y=Y[1:]), r"\[11, 12\] rows; they"),
    (lambda: evaluate(x=X[:0], y=Y[:0]), r"0 examples .* give"),
    (lambda: fa.make_evaluate(problem(), 0.5), r"batch_size=0.5 .* a whole number of at least 1"),
    (lambda: fa.make_evaluate_clients(problem())(MODEL, EXAMPLES), r"type FederatedData; give wha"),
    (lambda: fa.summarise_clients(jnp.ones(3), "lowest"), r"not of type Mean; give one metric"),
    (lambda: personal(EXAMPLES), r"train=<dict> is not of type FederatedData; give what federate"),
    (lambda: personal(store(), num_steps=np.ones(3, int)), r"shape \(3,\) for 4 clients; give one"),
    (lambda: weighted_by("size"), r"'size' is unknown; choose uniform or ex"),
    (lambda: models.unet_3d((8, 6, 8), 2).init(KEY), r"\(8, 6, 8\) cannot be halved 2 times; .* "),
    (lambda: models.models["cnn_fedgbo"]((10, 9), 10).init(KEY), r"\(4, 3\) are too small: .* lea"),
    (lambda: models.mlp((3,), 2, layers=10**9), r"at least 1 and at most 1000, because each layer"),
    (lambda: Settings(rounds=2**31).check(), r"at most 2147483647, because it is counted in 32-bi"),
    (lambda: Settings(seeds=tuple(range(10**4)), clients=10**9, cohort=1).check(), r"80 TB, .*; g"),
]


@pytest.mark.all
@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_call_names_the_value_and_the_fix(call, message, monkeypatch):
    # the memory of a small machine, so that the sizes do not depend on this one
    for place in ("host_memory", "device_memory"):
        monkeypatch.setattr(f"fedjax_algos.core.limits.{place}", lambda device=None: 2**34)
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        call()
    assert ";" in str(raised.value) or ":" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_consumed_state_still_shows_what_it_held():
    assert "kernel float32[3, 2]" in repr(consumed())


@pytest.mark.all
def test_right_calls_pass():
    """The neighbours of the wrong calls above: seeds of 32 bits, numbers of NumPy, no labels."""
    _, rows = simulate(seed=np.uint32(2**32 - 1), rounds=np.int64(1), test=EXAMPLES)
    assert [row["round"] for row in rows] == [0, 1]
    assert of_local(learning_rate=lambda count: 0.1, transform=optax.scale_by_adam())
    twice("fedavg")
    kept = state()
    first, _ = engine().round(kept, store(), one())
    second, _ = engine().round(first, store(), one())
    assert next(iter(first)).params["Dense_0"]["kernel"].is_deleted()
    assert not second.server.params["Dense_0"]["kernel"].is_deleted()
