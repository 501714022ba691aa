"""Wrong calls of the Python interface: each names the value and the fix, before it computes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import fedjax_algos as fa
from fedjax_algos import asynchrony, data, models, participation
from fedjax_algos.core import weighted_by
from fedjax_algos.data import partitions
from fedjax_algos.runs.settings import Settings

N, CLIENTS, COHORT = 12, 4, 2
X = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
Y = np.arange(N, dtype=np.int32) % 2
EXAMPLES = {"x": X, "y": Y}
ROWS = np.split(np.arange(N), CLIENTS)
LOCAL = fa.Local(batch_size=2, learning_rate=0.1, steps=1)
POPULATION = fa.Population(CLIENTS, COHORT, N)
SYSTEM = asynchrony.simulated()
PLANNER = asynchrony.immediate(steps=1)


@functools.cache
def problem(width=3):
    return models.linear((width,), 2)


@functools.cache
def store():
    return fa.federate(EXAMPLES, fa.Partition.of(ROWS))


def stored(**changes):
    return fa.federate(EXAMPLES | changes, fa.Partition.of(ROWS))


def algorithm(name="fedavg", local=LOCAL, width=3, **options):
    return fa.algorithms.algorithms[name](problem(width), local, **options)


@functools.cache
def engine(name="fedavg", **options):
    return fa.make_engine(algorithm(name), **options)


@functools.cache
def executor():
    return fa.make_executor(algorithm("fedasync"))


def dispatches(rounds=1, counts=(3,) * CLIENTS, cohort_size=COHORT, **changes):
    drawn = participation.Cohorts(np.array(counts), LOCAL, cohort_size=cohort_size, seed=0)
    return drawn.dispatches(rounds)._replace(**changes)


def one(**changes):
    """The dispatches of one round, with some fields replaced."""
    return jax.tree.map(lambda leaf: leaf[0], dispatches())._replace(**changes)


def state(name="fedavg", population=POPULATION, **options):
    return engine(name, **options).init(0, population)


def simulate(**changes):
    arguments = {"data": store(), "cohort_size": COHORT, "rounds": 1} | changes
    return fa.simulate(engine(), **arguments)


def simulate_async(**changes):
    arguments = {"seconds": 1.0, "planner": PLANNER, "system": SYSTEM} | changes
    return fa.simulate_async(executor(), store(), **arguments)


def sweep(**changes):
    arguments = {"cohort_size": COHORT, "rounds": 1, "grid": {"mu": [0.1]}} | changes
    return fa.sweep("fedprox", problem(), LOCAL, store(), **arguments)


def of_local(**changes):
    return algorithm(local=LOCAL._replace(**changes))


@functools.cache
def consumed(name="fedavg"):
    first = state(name)
    engine(name).round(first, store(), one())
    return first


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
    return fa.simulate(engine, data or store(), cohort_size=COHORT, rounds=1, **options)


def classified(function, **changes):
    """A classifier whose loss the user has written."""
    return of_problem(problem()._replace(loss=function), stored(**changes))


def squared(prediction, batch):
    return (prediction - batch["label"]) ** 2


def softmax(outputs, batch):
    return optax.softmax_cross_entropy_with_integer_labels(outputs.logits, batch["y"])


def indexed(outputs, batch):
    logits = jax.nn.log_softmax(outputs.logits)
    return -logits[jnp.arange(len(logits)), batch["y"]]


def pure(name="fedavg", population=POPULATION, **changes):
    made = fa.pure_round(algorithm(name))
    given = {"state": made.init(0, population), "data": store(), "dispatches": one()}
    return made(**given | changes)


def traced(counts=(3,) * CLIENTS, **changes):
    return fa.traced_dispatches(0, counts, LOCAL, **{"cohort_size": 2, "rounds": 1} | changes)


def started(value, **options):
    """A run of which client 1 has a row that is not finite."""
    of = engine("scaffold", **options)
    params = algorithm().problem.init(jax.random.key(0)).params
    rows = jax.tree.map(lambda leaf: np.zeros((CLIENTS, *leaf.shape)), params)
    rows["Dense_0"]["bias"][1, 0] = value
    return of.init(0, POPULATION, clients=fa.ClientStates(rows))


def plan():
    return PLANNER(SYSTEM(0), CLIENTS, arrivals=5)


def execute(**changes):
    made = plan()
    given = {
        "state": executor().init(0, POPULATION),
        "data": store(),
        "plan": made,
        "dispatches": asynchrony.plan_dispatches(made, store().counts(), LOCAL),
    } | changes
    return list(executor().run(**given))


MODEL = fa.Model({"Dense_0": {"kernel": np.zeros((3, 2)), "bias": np.zeros(2)}})
WRONG = {
    # how clients train
    "a batch of none": (lambda: of_local(batch_size=0), r"batch_size=0 .* at least 1"),
    "half a batch": (lambda: of_local(batch_size=2.5), r"batch_size=2.5 .* a whole number"),
    "a huge batch": (lambda: of_local(batch_size=2**31), r"at least 1 and at most 2147483647"),
    "a flag as a batch": (lambda: of_local(batch_size=True), r"batch_size=True is out of range"),
    "no rate": (lambda: of_local(learning_rate=None), r"learning_rate=None .* a number above 0"),
    "rate 0": (lambda: of_local(learning_rate=0.0), r"learning_rate=0.0 .* a number above 0"),
    "a negative rate": (
        lambda: of_local(learning_rate=-0.1),
        r"learning_rate=-0.1 is out of range",
    ),
    "rate NaN": (lambda: of_local(learning_rate=np.nan), r"learning_rate=nan is out of range"),
    "a text as a rate": (lambda: of_local(learning_rate="0.1"), r"='0.1' is out of range"),
    "no steps": (lambda: of_local(steps=0), r"steps=0 is out of range"),
    "steps beyond 32 bits": (lambda: of_local(steps=2**31), r"steps=2147483648 .* 2147483647"),
    "epochs NaN": (lambda: of_local(epochs=np.nan), r"epochs=nan .* a number above 0"),
    "unknown batches": (lambda: of_local(batches="ful"), r"'ful' is unknown; choose short"),
    "an unknown count": (lambda: of_local(rate_by="step"), r"'step' is unknown; choose round or"),
    "no transform": (lambda: of_local(transform=None), r"transform=None is no optax .*; give one"),
    "an optimiser of optax as the transform": (
        lambda: of_local(transform=optax.adam(0.1)),
        r"transform points against the gradient, .*; give .*, optax.scale_by_adam\(\) in place of",
    ),
    "an optimiser of optax in fedgbo": (
        lambda: algorithm("fedgbo", optimizer=optax.adam(0.1), upload="both"),
        r"fedgbo: optimizer points against the gradient, .*; give .*, optax.scale_by_adam\(\) in",
    ),
    "an optimiser of optax as the server's": (
        lambda: algorithm(server_transform=optax.sgd(1.0, momentum=0.9)),
        r"fedavg: server_transform points against the gradient, .*; give .*, optax.scale_by_adam",
    ),
    "no Local": (lambda: algorithm(local=0.1), r"local=0.1 is not of type Local; give fedjax"),
    "epochs beyond 32 bits": (
        lambda: steps(steps=None, epochs=1e9),
        r"the local steps of client 1 would be 5000000000, .* at most 2147483647; give fewer ep",
    ),
    "steps of a run beyond 32 bits": (
        lambda: steps(steps=2**30).dispatches(40),
        r"the local steps of client \d in all its dispatches would be \d+, .* fewer rounds",
    ),
    # examples and partitions
    "unequal lengths": (lambda: stored(y=Y[1:]), r"examples have \[11, 12\] rows; .* the same num"),
    "texts": (lambda: stored(y=Y.astype(str)), r"type <U11; give arrays of numbers"),
    "no examples": (lambda: fa.federate({}, fa.Partition.of(ROWS)), r"=\{\} hold no array; give"),
    "no partition": (
        lambda: fa.federate(EXAMPLES, ROWS),
        r"partition=<list> is not of type Partition; give Partition.of",
    ),
    "a dictionary as the partition": (
        lambda: fa.federate(EXAMPLES, {0: [0], 1: [1]}),
        r"partition=\{0: .* not of type Partition; give Partition.of",
    ),
    "a name as the partition": (
        lambda: fa.federate(EXAMPLES, "iid"),
        r"partition='iid' is not of type Partition; give Partition.of",
    ),
    "a list of clients as the examples": (
        lambda: fa.federate([EXAMPLES, EXAMPLES], fa.Partition.of(ROWS)),
        r"a list of 2 entries that are no arrays; give one tree of arrays .* for all clients",
    ),
    "rows beyond the examples": (
        lambda: fa.federate(EXAMPLES, fa.Partition.of([[0], [12]])),
        r"names example 12; there are examples 0 to 11",
    ),
    "a client without examples": (
        lambda: fa.federate(EXAMPLES, fa.Partition.of([[0], []])),
        r"client 1 holds no example .* give each at least one",
    ),
    "no clients": (lambda: fa.federate(EXAMPLES, fa.Partition.of([])), r"no clients; give"),
    "descending offsets": (
        lambda: fa.federate(
            EXAMPLES, fa.Partition(np.arange(4), np.array([0, 3, 1, 4])), allow_empty=True
        ),
        r"the offsets must ascend from 0 to the .*; make the partition with",
    ),
    "offsets of floats": (
        lambda: fa.federate(EXAMPLES, fa.Partition(np.arange(4), np.array([0.0, 4.0]))),
        r"offsets of type float64; give whole numbers",
    ),
    "a mask": (lambda: fa.Partition.of([Y == 0, Y == 1]), r"client 0 are a mask .*np.flatnonzero"),
    "rows of floats": (lambda: fa.Partition.of([[0.0, 1.0]]), r"client 0 are of type float64; giv"),
    "one row": (lambda: fa.Partition.of([3]), r"client 0 have shape \(\); give its example numb"),
    "a dict of rows": (lambda: fa.Partition.of({0: [1]}), r"of type dict; give a list with one"),
    "a partition as rows": (lambda: fa.Partition.of(fa.Partition.of(ROWS)), r"of type Partition"),
    "huge rows": (lambda: fa.Partition.of([[2**31]]), r"client 0 would be 2147483648, .* give num"),
    "half a client": (lambda: partitions["iid"](Y, 2.5, 0), r"num_clients=2.5 .* a whole number"),
    "a negative seed of a partition": (lambda: partitions["iid"](Y, 2, -1), r"seed=-1 .* least 0"),
    "a label for each pair": (lambda: partitions["iid"](X, 2, 0), r"give one label for each exam"),
    "few labels": (lambda: partitions["iid"](Y, 13, 0), r"12 examples .*; use at most 12 clients"),
    "a description of rows": (
        lambda: data.describe_partition(Y, ROWS),
        r"not of type Partition; give what a partition",
    ),
    "a huge label": (
        lambda: data.describe_partition(Y + np.int64(2**40), fa.Partition.of(ROWS)),
        r"a table of 4 clients and 1099511627778 classes would need at least 35.2 TB, .* fewer cl",
    ),
    # runs in rounds
    "an algorithm as the engine": (
        lambda: fa.simulate(algorithm(), store(), cohort_size=2, rounds=1),
        r"engine=.* is not of type Engine; give make_engine\(algorithm\)",
    ),
    "a factory as the algorithm": (
        lambda: fa.make_engine(fa.algorithms.fedavg),
        r"algorithm=fedavg is not of type Algorithm; g",
    ),
    "a name as the algorithm": (
        lambda: fa.make_engine("fedavg"),
        r"algorithm='fedavg' is not of type Algorithm; give .*s.fedavg\(problem, local\)",
    ),
    "a name as the engine": (
        lambda: fa.simulate("fedavg", store(), cohort_size=2, rounds=1),
        r"engine='fedavg' is not of type Engine; give make_engine\(algorithm\)",
    ),
    "a list as the data": (
        lambda: simulate(data=[EXAMPLES]),
        r"data=.* give what federate or open_",
    ),
    "examples as the data": (
        lambda: simulate(data=EXAMPLES),
        r"data=.* give what federate or open_",
    ),
    "no rounds": (lambda: simulate(rounds=0), r"rounds=0 .* a whole number of at least 1"),
    "half a round": (lambda: simulate(rounds=1.5), r"rounds=1.5 .* a whole number of at least 1"),
    "evaluations of none": (lambda: simulate(eval_every=0), r"eval_every=0 .* at least 1"),
    "a large cohort": (lambda: simulate(cohort_size=5), r"cohort_size=5 .*; give 1 to 4"),
    "half a cohort": (lambda: simulate(cohort_size=0.5), r"cohort_size=0.5 .* a whole number"),
    "a negative seed": (lambda: simulate(seed=-1), r"seed=-1 .* at least 0"),
    "a seed beyond 32 bits": (lambda: simulate(seed=2**32), r"at least 0 and at most 4294967295"),
    "a real seed": (lambda: simulate(seed=0.5), r"seed=0.5 .* a whole number of at least 0"),
    "a name as the sampler": (lambda: simulate(sampler="uniform"), r"'uniform' cannot be called; "),
    "a name as the work": (
        lambda: simulate(work="full"),
        r"work='full' cannot be called; give one",
    ),
    "too many rows": (lambda: simulate(rounds=2**31 - 1), r"the rows of 214748365 evaluations wou"),
    "too many rounds at once": (
        lambda: simulate(rounds=2**31 - 1, eval_every=2**31 - 1),
        r"2147483647 rounds of 2 clients would need at least 464 GB, .* draw fewer rounds",
    ),
    "False as the test": (
        lambda: simulate(test=False),
        r"test examples hold a leaf of type bool; g",
    ),
    "a list as the test": (lambda: simulate(test=[]), r"test examples=\[\] hold no array; give"),
    "only inputs to test on": (
        lambda: simulate(test={"x": X}),
        r"test examples are x .* same names",
    ),
    "other inputs to test on": (
        lambda: simulate(test={"x": X[:, :2], "y": Y}),
        r"x float32\[12, 2\].* give arrays of the sa",
    ),
    "pixels to test on": (
        lambda: simulate(test={"x": X.astype(np.uint8), "y": Y}),
        r"x uint8\[12, 3\].* types",
    ),
    "no test examples": (
        lambda: simulate(test={"x": X[:0], "y": Y[:0]}),
        r"0 test exam.* test=None",
    ),
    "unequal test examples": (
        lambda: simulate(test={"x": X, "y": Y[1:]}),
        r"\[11, 12\] rows; they",
    ),
    "a test label out of range": (
        lambda: simulate(test={"x": X, "y": Y + 1}),
        r"test examples have label 2; .* from 0 to 1",
    ),
    "a label out of range": (
        lambda: simulate(data=stored(y=Y + 1)),
        r"examples have label 2; give whole .* from 0 to 1",
    ),
    "a negative label": (
        lambda: simulate(data=stored(y=Y - 1)),
        r"examples have label -1; give wh",
    ),
    "a real label": (
        lambda: simulate(data=stored(y=Y + 0.5)),
        r"labels y of type float32; give whole numbers",
    ),
    "inputs of another shape": (
        lambda: simulate(data=stored(x=X[:, :2])),
        r"which the model does not take .*; give examples",
    ),
    "no labels": (
        lambda: simulate(data=fa.federate({"x": X}, fa.Partition.of(ROWS))),
        r"hold x .* reads x and y; name the inputs x and the labels y",
    ),
    "a name as the evaluation": (
        lambda: simulate(evaluate="loss"),
        r"='loss' cannot be called; give",
    ),
    "params of another model": (
        lambda: simulate(params={"w": np.zeros(3)}),
        r"another structure \(w .*\) than the problem's",
    ),
    "params of other shapes": (
        lambda: simulate(
            params=jax.tree.map(np.ones_like, problem(2).init(jax.random.key(0)).params)
        ),
        r"params of shape \[2, 2\] where the problem's have \[3, 2\]; give params as problem.init",
    ),
    "a round to start from without a state": (
        lambda: simulate(start_round=1),
        r"start_round=1 has no state; give the state after so many rounds",
    ),
    "a state without the round to start from": (
        lambda: simulate(state=state()),
        r"state has no start_round, .*; give the number of rounds .*, 0 for one of engine.init",
    ),
    "half a round to start from": (
        lambda: simulate(state=state(), start_round=0.5),
        r"start_round=0.5 .* a whole number of at least 0",
    ),
    "params and a state": (
        lambda: simulate(state=state(), start_round=0, params=MODEL),
        r"state and params are both given; give params where the run begins",
    ),
    "a state of another seed": (
        lambda: simulate(state=state(), start_round=0, seed=1),
        r"seed=1 is not that of the state; give seed=0",
    ),
    "a server state to go on from": (
        lambda: simulate(state=state().server, start_round=0),
        r"state=.* is not of type FederatedState; give what engine.init, simulate or the last",
    ),
    "a state of another algorithm to go on from": (
        lambda: simulate(state=state("fedavgm"), start_round=0),
        r"the state is of another algorithm or model: .*; give what engine.init",
    ),
    "a consumed state to go on from": (
        lambda: simulate(state=consumed(), start_round=1),
        r"this state was consumed .*; use the one that it returned",
    ),
    "data as the test": (lambda: simulate(test=store()), r"test is data of clients; give the ex"),
    "examples on the engine's devices": (
        lambda: engine().put_data(EXAMPLES),
        r"data=<dict> is not of type FederatedData .*; give what federate",
    ),
    "examples for the updates": (
        lambda: engine().updates(state(), EXAMPLES, one()),
        r"data=<dict> is not of type FederatedData .*; give what federate",
    ),
    # a problem of the user's own
    "a factory as the problem": (
        lambda: fa.make_engine(fa.algorithms.fedavg(models.mlp, LOCAL)),
        r"problem=mlp is not of type Problem; give Problem\(init, apply, loss\), or what models",
    ),
    "a factory as the problem to evaluate": (
        lambda: fa.make_evaluate(models.mlp),
        r"problem=mlp is not of type Problem; give Problem\(init, apply, loss\), or what models",
    ),
    "metrics that are no dictionary": (
        lambda: of_problem(linear(metrics=lambda outputs, batch: outputs), test=EXAMPLES),
        r"Problem.metrics returned an array float32\[12\]; return a dictionary, such as",
    ),
    "a name that apply does not find": (
        lambda: of_problem(
            linear(apply=lambda model, batch, key, training: (batch["inputs"] @ model.params, ()))
        ),
        r"Problem.apply raised KeyError in test_.*py, line \d+ \('inputs'\): its batch holds .*x",
    ),
    "a name that the loss does not find": (
        lambda: of_problem(linear(loss=squared)),
        r"Problem.loss raised KeyError .* \('label'\): its batch holds x .*, y int32.*; mend it",
    ),
    "a name that the examples lack": (
        lambda: of_problem(linear(), fa.federate({"x": X, "label": Y}, fa.Partition.of(ROWS))),
        r"Problem.loss raised KeyError .* \('y'\): its batch holds label .* or give federate",
    ),
    "a name that a metric does not find": (
        lambda: of_problem(
            linear(metrics=lambda outputs, batch: {"error": batch["z"]}), test=EXAMPLES
        ),
        r"Problem.metrics raised KeyError .* \('z'\): its batch holds x .*; mend it",
    ),
    "a param that does not exist": (
        lambda: of_problem(
            linear(apply=lambda model, batch, key, training: (model.params["v"], ()))
        ),
        r"Problem.apply raised KeyError .* \('v'\): .* and its params w float32\[3\]; mend it",
    ),
    "a tuple of examples": (
        lambda: of_problem(linear(), fa.federate((X, Y), fa.Partition.of(ROWS))),
        r"Problem.apply raised TypeError .* not str\): its batch holds 0 .*, 1 .*; mend it",
    ),
    "outputs without statistics": (
        lambda: of_problem(
            linear(apply=lambda model, batch, key, training: batch["x"] @ model.params["w"])
        ),
        r"Problem.apply returned an array float32\[2\]; return \(outputs, statistics\), with",
    ),
    "a classifier's outputs without statistics": (
        lambda: of_problem(
            problem()._replace(apply=lambda *arguments: problem().apply(*arguments)[0])
        ),
        r"returned an object of type Outputs with the fields logits, features; return \(outp",
    ),
    "params in place of the model": (
        lambda: of_problem(linear(init=lambda key: {"w": jnp.zeros(3)})),
        r"Problem.init\(key\)=.* is not of type Model; return fedjax_algos.Model",
    ),
    "params of whole numbers": (
        lambda: of_problem(linear(int)),
        r"params\['w'\] of type int32, of which no gradient can be taken; give it a float type",
    ),
    "given params of whole numbers": (
        lambda: of_problem(linear(), params={"w": np.zeros(3, np.int32)}),
        r"params\['w'\] of type int32, of which no gradient can be taken; give it a float type",
    ),
    "params of a sweep of whole numbers": (
        lambda: fa.sweep(
            "fedprox", linear(int), LOCAL, store(), cohort_size=2, rounds=1, grid={"mu": [0.1]}
        ),
        r"params\['w'\] of type int32, of which no gradient can be taken; give it a float type",
    ),
    "params of float16": (
        lambda: of_problem(linear(jnp.float16)),
        r"of type float16, in which sums over clients overflow .*; keep float32 params and cast",
    ),
    "real labels": (
        lambda: classified(softmax, y=Y.astype(np.float32)),
        r"Problem.loss raised .*: its batch holds .*y float32.*; mend it, or give",
    ),
    "outputs as an array": (
        lambda: classified(lambda outputs, batch: (outputs - batch["y"]) ** 2),
        r"Problem.loss raised TypeError .* fields logits, features; mend it",
    ),
    "shapes that do not fit": (
        lambda: of_problem(
            linear(apply=lambda model, batch, key, training: (model.params["w"] @ batch["x"], ()))
        ),
        r"Problem.apply raised TypeError in .* \(dot_general .*\): its batch holds mask",
    ),
    # numbers that the device cannot hold, and labels that a loss takes for other ones
    "integers beyond 32 bits": (
        lambda: stored(x=X.astype(np.int64) + 2**31),
        r"examples\['x'\] has 2147483648 in example 0, .* range of int32; scale it, or enable x64",
    ),
    "floats beyond 32 bits": (
        lambda: stored(x=X.astype(float) * 1e300),
        r"examples\['x'\] has 1e\+300 in example 0, .* range of float32; scale it, or enable x64",
    ),
    "test examples beyond 32 bits": (
        lambda: simulate(test={"x": X.astype(float) * -1e300, "y": Y}),
        r"test examples\['x'\] has -1e\+300 in example 0, which is out of range of float32",
    ),
    "a label beyond the classes of one's own loss": (
        lambda: classified(softmax, y=Y + 1),
        r"examples have label 2 in \['y'\], but the model has 2 classes, and the loss .* is nan; g",
    ),
    "a label that indexing takes for the last class": (
        lambda: classified(indexed, y=Y + 7),
        r"examples have label 7 in \['y'\], .* loss takes it for class 1; give whole numbers from",
    ),
    "a negative label that indexing counts from the end": (
        lambda: classified(indexed, y=Y - 2),
        r"examples have label -2 in \['y'\], .* loss takes it for class 0; give whole numbers from",
    ),
    "a test label beyond the classes of one's own loss": (
        lambda: of_problem(problem()._replace(loss=softmax), test={"x": X, "y": Y + 1}),
        r"test examples have label 2 in \['y'\], but the model has 2 classes",
    ),
    "a label out of range in a round by hand": (
        lambda: engine().round(state(), stored(y=Y + 1), one()),
        r"the clients' examples have label 2; give whole numbers from 0 to 1",
    ),
    "a label out of range on two devices": (
        lambda: engine(devices=2, examples="sharded").put_data(stored(y=Y + 1)),
        r"the clients' examples have label 2; give whole numbers from 0 to 1",
    ),
    "a label out of range in a pure round": (
        lambda: pure(data=stored(y=Y - 1)),
        r"the clients' examples have label -1; give whole numbers from 0 to 1",
    ),
    # what a state, data and dispatches are of
    "a pure round of another population": (
        lambda: pure("scaffold", population=fa.Population(2, 2, 6)),
        r"rows of shape \[2, .*\], but the data have 4 clients .*; give the state of a run with th",
    ),
    "a pure round of another algorithm": (
        lambda: pure(state=state("fedavgm")),
        r"the state is of another algorithm or model: .*; give what engine.init",
    ),
    "own models of other clients": (
        lambda: fa.make_evaluate_own(algorithm("ditto"))(
            fa.pure_round(algorithm("ditto")).init(0, fa.Population(2, 2, 6)), store()
        ),
        r"the state is of 2 clients, but the data have 4; give the state and the data of the same",
    ),
    "rows of NaN": (
        lambda: started(np.nan),
        r"clients: rows\['Dense_0'\]\['bias'\] of client 1 \(and 0 others\) are not finite; give",
    ),
    "infinite rows": (
        lambda: started(np.inf, client_state="host"),
        r"clients: rows\['Dense_0'\]\['bias'\] of client 1 \(and 0 others\) are not finite; give",
    ),
    "a client without examples in the cohorts": (
        lambda: dispatches(counts=[3, 0, 3]),
        r"counts have 0 of client 1; give the number of examples of each client, .* at least 1",
    ),
    "counts below 0, traced": (lambda: traced([3, 3, -5]), r"counts have -5 of client 2; give the"),
    "half an example, traced": (
        lambda: traced([3, 5.7, 3]),
        r"counts have 5.7 of client 1; give t",
    ),
    "counts of no client, traced": (
        lambda: traced([]),
        r"counts are float64\[0\]; give the number",
    ),
    "counts of two axes, traced": (
        lambda: traced(np.ones((3, 2), int)),
        r"counts are int64\[3, 2\]; give the number of examples of each client, such as data.cou",
    ),
    "counts of two axes for static bounds": (
        lambda: fa.differentiable(LOCAL, np.ones((3, 2), int)),
        r"counts are int64\[3, 2\]; give the number of examples",
    ),
    "counts of a plan below 1": (
        lambda: asynchrony.plan_dispatches(plan(), [3, 3, 0, 3], LOCAL),
        r"counts have 0 of client 2; give the number of examples",
    ),
    "a traced cohort with a client that there is not": (
        lambda: traced(sampler=lambda *_: jnp.array([0, 99])),
        r"client 99 is in a cohort; there are clients 0 to 3: draw the dispatches from",
    ),
    "a traced cohort of one": (
        lambda: traced(sampler=lambda *_: jnp.zeros(1, jnp.int32)),
        r"the sampler returned a cohort int32\[1\]; give one that returns .* here int32\[2\]",
    ),
    "a traced cohort of floats": (
        lambda: traced(sampler=lambda *_: jnp.zeros(2)),
        r"the sampler returned a cohort float32\[2\]; give one that returns client ids",
    ),
    "a name as the policy": (
        lambda: fa.differentiable(LOCAL, store().counts(), "all"),
        r"reverse.policy='all' cannot be called; give one of jax.checkpoint_policies, or None",
    ),
    "a name as the policy of bounds by hand": (
        lambda: of_local(reverse=fa.ReverseMode(2, 3, "all")),
        r"reverse.policy='all' cannot be called; give one of jax.checkpoint_policies, or None",
    ),
    "a sweep without seeds": (
        lambda: sweep(seeds=()),
        r"seeds=\(\) has no seed; give at least one",
    ),
    "a type of params that the module does not have": (
        lambda: of_problem(
            models.nnx_classifier(lambda rngs: nnx.Linear(3, 2, rngs=rngs), trainable=nnx.LoRAParam)
        ),
        r"trainable=LoRAParam matches none of the params bias float32\[2\], kernel .*; give a type",
    ),
    # the functions of an engine
    "reading the model of a consumed state": (
        lambda: consumed().server.params,
        r"this state was consumed .*; use the one that it returned, or copy it before the round: j",
    ),
    "reading the rows of a consumed state": (
        lambda: consumed("scaffold").clients,
        r"this state was consumed .*; use the one that it returned, or copy it before the round: j",
    ),
    "a number as the population": (
        lambda: engine().init(0, 4),
        r"population=4 is not of .*; give P",
    ),
    "a population without clients": (
        lambda: engine().init(0, fa.Population(0, 1, 1)),
        r"num_clients=0 .* a whole number of at lea",
    ),
    "a cohort above the population": (
        lambda: engine().init(0, fa.Population(2, 3, 1)),
        r"cohort_size=3 .* at most num_clients=2",
    ),
    "a huge population": (
        lambda: fa.make_engine(algorithm("scaffold")).init(
            0, fa.Population(2**31 - 1, 1, 2**31 - 1)
        ),
        r"the state of 2147483647 clients would need at least 70.9 GB, .*, fewer clients or",
    ),
    "a state of itself": (
        lambda: engine().round((), store(), one()),
        r"state=\(\) is not .*; give wh",
    ),
    "a consumed state": (
        lambda: engine().round(consumed(), store(), one()),
        r"this state was consumed by the round that it was given to; use the one that it returned",
    ),
    "params of a consumed state": (
        lambda: engine().init(0, POPULATION, next(iter(consumed())).params),
        r"consumed by a round.* copy",
    ),
    "a state of another algorithm": (
        lambda: engine().round(state("fedavgm"), store(), one()),
        r"state is of another algorithm or",
    ),
    "a state of other options": (
        lambda: fa.make_engine(algorithm("ghbm", tau=2)).round(
            fa.make_engine(algorithm("ghbm", tau=3)).init(0, POPULATION), store(), one()
        ),
        r"the state is of the same algorithm with other options: .*; give what engine.init",
    ),
    "a state of another model": (
        lambda: engine().round(
            fa.make_engine(algorithm(width=5)).init(0, POPULATION), store(), one()
        ),
        r"the state is of another model: .*; give what engine.init or the last round",
    ),
    "a state of another population": (
        lambda: engine("scaffold").round(
            state("scaffold", fa.Population(5, COHORT, N)), store(), one()
        ),
        r"rows of shape \[5, .*\], but the data have 4 clients .*; give the state of a run with th",
    ),
    "a state of the host on the device": (
        lambda: engine("scaffold").round(state("scaffold", client_state="host"), store(), one()),
        r"the engine has client_state='device', but the state's rows are on the host; give what",
    ),
    "rounds in place of a round": (
        lambda: engine().round(state(), store(), dispatches()),
        r"shape \(1, 2\); give arrays \[coh",
    ),
    "a round in place of rounds": (
        lambda: engine().rounds(state(), store(), one()),
        r"shape \(2,\); give arrays \[rounds, coho",
    ),
    "too many of the rounds": (
        lambda: engine().rounds(state(), store(), dispatches(), 2),
        r"number=2 .* give 1 to 1",
    ),
    "no dispatches": (
        lambda: engine().round(state(), store(), ROWS),
        r"not of type Dispatch; give",
    ),
    "an unknown client": (
        lambda: engine().round(state(), store(), one(client=np.array([0, 4], np.int32))),
        r"client 4 is in a cohort; there are clients 0 to 3: draw the dispatches from",
    ),
    "a negative client": (
        lambda: engine().round(state(), store(), one(client=np.array([0, -1], np.int32))),
        r"client -1 is in a cohort; there are clients 0 to 3",
    ),
    "a mask of clients": (
        lambda: engine().round(state(), store(), one(client=np.array([True, False]))),
        r"clients of dispatches are of type bool; .* give np.flatnonzero\(mask\)",
    ),
    "unequal fields": (
        lambda: engine().round(state(), store(), one(number=np.zeros(3, np.int32))),
        r"number of shape \(3,\) and client of shape \(2,\); give arrays of one shape",
    ),
    "negative steps": (
        lambda: engine().round(state(), store(), one(num_steps=np.array([1, -1], np.int32))),
        r"num_steps=-1 .*; give whole numbers of at least 0",
    ),
    "a rate NaN": (
        lambda: engine().round(state(), store(), one(learning_rate=np.full(2, np.nan, np.float32))),
        r"learning_rate=nan; give numbers above 0 that are finite",
    ),
    "cohorts of another shape": (
        lambda: sampled([0, 1]),
        r"cohorts of shape \(2,\); give one that",
    ),
    "cohorts of an unknown client": (
        lambda: sampled([[0, 4]]),
        r"client 4 is in a cohort; there a",
    ),
    "cohorts of a negative client": (lambda: sampled([[0, -1]]), r"client -1 is in a cohort; ther"),
    # the virtual clock
    "a name as the planner": (
        lambda: simulate_async(planner="compass"),
        r"'compass' cannot be cal",
    ),
    "a system in place of its factory": (
        lambda: simulate_async(system=SYSTEM(0)),
        r"cannot be called; give a system model, such as",
    ),
    "no seconds": (lambda: simulate_async(seconds=0), r"seconds=0 .* a number above 0"),
    "infinite seconds": (
        lambda: simulate_async(seconds=np.inf),
        r"seconds=inf .* a number above 0",
    ),
    "half an evaluation": (
        lambda: simulate_async(evaluations=0.5),
        r"evaluations=0.5 .* a whole n",
    ),
    "too many evaluations": (
        lambda: simulate_async(evaluations=2**31 - 1),
        r"the rows of 2147483647 evaluations would need at least 1.07 TB, .*; give fewer evaluatio",
    ),
    "too many dispatches": (
        lambda: simulate_async(seconds=1e12),
        r"a plan with about .* dispatches would need at least .*; give fewer seconds or clients",
    ),
    "too many arrivals": (
        lambda: PLANNER(SYSTEM(0), 1, arrivals=2**31 - 1),
        r"arrivals=2147483647 would need .* give",
    ),
    "a synchronous algorithm": (
        lambda: fa.make_executor(algorithm("mime")),
        r"does not run on the virtual clock: .* use sy",
    ),
    "half a slot": (
        lambda: fa.make_executor(algorithm("fedasync"), slots=0.5),
        r"slots=0.5 .* a whole number of",
    ),
    "no plan": (lambda: execute(plan=None), r"plan=None is not of type Plan; give what a planner"),
    "a plan of other clients": (
        lambda: execute(data=fa.federate(EXAMPLES, fa.Partition.of(ROWS[:2]))),
        r"the plan dispatches client 3, but the data have 2 clients; give the data that it was",
    ),
    # sweeps, evaluation and other functions
    "a number as the grid": (
        lambda: sweep(grid=0.1),
        r"grid=0.1 is not of .*; give \{option: values",
    ),
    "a value in place of values": (lambda: sweep(grid={"mu": 0.1}), r"mu=0.1; give a list of val"),
    "examples as the data of a sweep": (
        lambda: fa.sweep(
            "fedavg", problem(), LOCAL, EXAMPLES, cohort_size=2, rounds=1, grid={"steps": [1]}
        ),
        r"data=.* is not of type FederatedData; give what federate returned, or that by seed",
    ),
    "an algorithm in a sweep": (
        lambda: fa.sweep(
            algorithm(), problem(), LOCAL, store(), cohort_size=2, rounds=1, grid={"steps": [1]}
        ),
        r"algorithm=<Algorithm> cannot be called; give a name or a factory",
    ),
    "examples to train personal models on": (
        lambda: fa.make_evaluate_personal(problem(), LOCAL)(MODEL, EXAMPLES, store()),
        r"train=<dict> is not of type FederatedData; give what federate returned",
    ),
    "a negative seed of a sweep": (lambda: sweep(seeds=[-1]), r"seed=-1 .* at least 0"),
    "a seed twice": (lambda: sweep(seeds=[0, 0]), r"seed 0 .* twice; give each seed once"),
    "params in place of a model": (
        lambda: fa.make_evaluate(problem())(MODEL.params, EXAMPLES),
        r"not of type Model; give Model",
    ),
    "examples of unequal lengths": (
        lambda: fa.make_evaluate(problem())(MODEL, {"x": X, "y": Y[1:]}),
        r"\[11, 12\] rows; they",
    ),
    "evaluation of nothing": (
        lambda: fa.make_evaluate(problem())(MODEL, {"x": X[:0], "y": Y[:0]}),
        r"0 examples .* give",
    ),
    "evaluation of half a batch": (
        lambda: fa.make_evaluate(problem(), 0.5),
        r"batch_size=0.5 .* a whole number of at least 1",
    ),
    "examples in place of clients": (
        lambda: fa.make_evaluate_clients(problem())(MODEL, EXAMPLES),
        r"type FederatedData; give wha",
    ),
    "an array in place of means": (
        lambda: fa.summarise_clients(jnp.ones(3), "lowest"),
        r"not of type Mean; give one metric",
    ),
    "steps for other clients": (
        lambda: fa.make_evaluate_personal(problem(), LOCAL)(
            MODEL, store(), store(), num_steps=np.ones(3, int)
        ),
        r"num_steps have shape \(3,\) for 4 clients; give one number",
    ),
    "an unknown weighting": (
        lambda: weighted_by("size"),
        r"'size' is unknown; choose uniform or ex",
    ),
    "too many layers": (
        lambda: models.mlp((3,), 2, layers=10**9),
        r"at least 1 and at most 1000, because each layer",
    ),
    "settings beyond 32 bits": (
        lambda: Settings(rounds=2**31).check(),
        r"at most 2147483647, because it is counted in 32-bi",
    ),
    "too many seeds": (
        lambda: Settings(seeds=tuple(range(10**4)), clients=10**9, cohort=1).check(),
        r"10000 seeds of clients=1000000000 would need at least 80 TB, .*; give fewer seeds or",
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_names_the_value_and_the_fix(name, monkeypatch):
    call, message = WRONG[name]
    # the memory of a small machine, so that the sizes do not depend on this one
    for place in ("host_memory", "device_memory"):
        monkeypatch.setattr(f"fedjax_algos.core.limits.{place}", lambda device=None: 2**34)
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        call()
    assert ";" in str(raised.value) or ":" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_batch_that_does_not_fit_is_refused_when_it_is_traced():
    made = fa.make_engine(of_local(batch_size=2**31 - 1))
    wide = {"x": np.zeros((4, 2**10), np.float32), "y": np.zeros(4, np.int32)}
    with pytest.raises(ValueError, match=r"batch_size=2147483647 would need .* give a smaller one"):
        jax.eval_shape(
            lambda examples: made.algorithm.client_update(
                {}, (), fa.ClientData(examples, jnp.arange(4), 0, 4, jnp.zeros(20), ()), None, None
            ),
            wide,
        )


def test_params_of_bfloat16_warn():
    made = fa.make_engine(fa.algorithms.fedavg(linear(jnp.bfloat16), LOCAL))
    with pytest.warns(UserWarning, match=r"params\['w'\] of type bfloat16.*keep float32 params"):
        state = made.init(0, POPULATION)
    assert state.server.params["w"].dtype == jnp.bfloat16
    rate = jnp.bfloat16(1e-4)  # what the warning is about
    assert jnp.bfloat16(1) - rate == jnp.bfloat16(1)


def test_a_consumed_state_still_shows_what_it_held():
    assert "kernel float32[3, 2]" in repr(consumed())


@pytest.mark.slow
def test_right_calls_pass():
    """The neighbours of the wrong calls above: seeds of 32 bits, numbers of NumPy, no labels."""
    _, rows = simulate(seed=np.uint32(2**32 - 1), rounds=np.int64(1), test=EXAMPLES)
    assert [row["round"] for row in rows] == [0, 1]
    assert of_local(learning_rate=lambda count: 0.1, transform=optax.scale_by_adam())
    kept = state()
    first, _ = engine().round(kept, store(), one())
    second, _ = engine().round(first, store(), one())
    assert next(iter(first)).params["Dense_0"]["kernel"].is_deleted()
    assert not second.server.params["Dense_0"]["kernel"].is_deleted()
