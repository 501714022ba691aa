"""Costs counted from traces: operations against hand counts, bytes against the papers' ratios."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from helpers import CASES, Compilations, fixed, small_network, stored

import fedjax_algos as fa
from fedjax_algos.algorithms import algorithms
from fedjax_algos.analysis.costs.flops import count
from fedjax_algos.analysis.costs.measured import UncountedError, count_flops, count_memory
from fedjax_algos.core import ClientData, Visit
from fedjax_algos.models import convolve, models, nnx_classifier

SCALARS = 100  # more operations on single numbers than any algorithm does in a step


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def operations(function, *inputs):
    """Of a function whose loops have fixed lengths."""
    found = count(jax.make_jaxpr(function)(*inputs), [None] * len(jax.tree.leaves(inputs)))
    assert not found.loops
    return found.fixed


def visits_of(num_steps, num_examples):
    steps, examples = np.broadcast_arrays(np.int32(num_steps), np.int32(num_examples))
    blank, rates = np.zeros_like(steps), np.ones(steps.shape, np.float32)
    return Visit(blank, blank, blank, steps, steps, examples, rates, rates, blank)


@functools.cache
def wide():
    """A perceptron of 318,010 parameters, its count, and 4 clients with 100 images each."""
    problem = models["mlp"]((28, 28), 10, hidden=400)
    params = jax.eval_shape(problem.init, jax.random.key(0)).params
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    clients = [{"x": np.zeros((100, 28, 28), np.uint8), "y": np.zeros(100, np.int32)}] * 4
    return problem, size, stored(clients)


def state_of(algorithm, data):
    """The shapes of an engine's first state: nothing is computed."""
    init = fa.make_engine(algorithm).init
    population = fa.Population(data.num_clients, 2, int(data.counts().sum()))
    return jax.eval_shape(functools.partial(init, 0, population))._replace(seed=0)


def build(name, problem, local=None, **hyperparameters):
    local = local or fa.Local(8, 0.1, steps=3)
    if name == "ghbm":
        hyperparameters["tau"] = 2
    return algorithms[name](problem, local, **hyperparameters)


def flops_of(name, *, batches="short", **hyperparameters):
    problem, _, data = wide()
    local = fa.Local(8, 0.1, steps=3, batches=batches)
    algorithm = build(name, problem, local, **hyperparameters)
    return count_flops(algorithm, state_of(algorithm, data), data)


def test_a_dense_layer():
    batch, inputs, outputs = 4, 3, 5
    shapes = shape(inputs, outputs), shape(outputs), shape(batch, inputs)

    def layer(w, b, x):
        return nn.relu(x @ w + b[None])

    product = 2 * batch * inputs * outputs
    assert operations(layer, *shapes) == product + 2 * batch * outputs

    def backward(w, b, x, cotangent):
        return jax.vjp(lambda w, b, x: x @ w + b[None], w, b, x)[1](cotangent)

    # two products and the sum over the batch; nothing reads the forward product
    found = operations(backward, *shapes, shape(batch, outputs))
    assert found == 2 * product + batch * outputs


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_recurrent_layer(cell):
    batch, times, inputs, width = 2, 7, 3, 5
    layer = fa.models.Recurrent(cell, width)
    x = shape(batch, times, inputs)
    params = jax.eval_shape(layer.init, jax.random.key(0), x)
    gates, elementwise = {"gru": (3, 2 + 2 + 3 + 4), "lstm": (4, 4 + 3 + 1 + 3 + 1 + 1)}[cell]
    products = gates * 2 * width * (inputs + width)
    biases = gates * 2 * width
    expected = batch * times * (products + biases + elementwise * width)
    assert operations(layer.apply, params, x) == expected


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_a_convolution(strides):
    """Forward, and towards kernel and images: the same products of real entries each time."""
    images, kernel = shape(2, 9, 11, 3), shape(3, 4, 3, 5)
    across, down = (9 - 3) // strides[0] + 1, (11 - 4) // strides[1] + 1
    expected = 2 * (2 * across * down * 5) * (3 * 4 * 3)

    def run(images, kernel):
        return convolve(images, kernel, strides=strides, padding="VALID", implementation="lax")

    assert operations(run, images, kernel) == expected
    outputs = jax.eval_shape(run, images, kernel)
    for wanted in (0, 1):
        pull = lambda i, k, c, wanted=wanted: jax.vjp(run, i, k)[1](c)[wanted]  # noqa: E731
        assert operations(pull, images, kernel, outputs) == expected
    patches = functools.partial(convolve, strides=strides, padding="VALID")
    assert operations(patches, images, kernel) == expected


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
def test_winograd_s_form_counts_as_the_plain_one(wanted):
    """A count must not depend on the machine, and of a conditional the dearest branch counts."""
    images, kernel = shape(2, 9, 8, 16), shape(3, 3, 16, 20)

    def loss(implementation, *inputs):
        return jnp.square(convolve(*inputs, implementation=implementation)).sum()

    auto, patches, winograd = (
        operations(jax.grad(functools.partial(loss, name), wanted), images, kernel)
        for name in ("auto", "patches", "winograd")
    )
    assert auto == patches > winograd


def test_padding_and_groups():
    same = functools.partial(convolve, implementation="lax")
    found = operations(same, shape(1, 5, 5, 2), shape(3, 3, 2, 4))
    assert found == 2 * 13 * 13 * 2 * 4  # on a row of 5 the kernel meets 2 + 3 + 3 + 3 + 2 entries
    grouped = nn.Conv(6, (3,), feature_group_count=2, padding="VALID", use_bias=False)
    x = shape(2, 7, 4)
    params = jax.eval_shape(grouped.init, jax.random.key(0), x)
    assert operations(grouped.apply, params, x) == 2 * (2 * 5 * 6) * (3 * 2)


def test_what_is_counted_and_what_is_not():
    x = shape(6, 4)
    assert operations(lambda x: jnp.where(x > 0, x, 0).T.reshape(-1)[::2], x) == 0
    assert operations(lambda x: x.astype(int) * 3 + 1, x) == 0
    assert operations(lambda x: jnp.exp(x) + x**2, x) == 3 * 24
    assert operations(lambda x: x**1, x) == 0
    assert operations(lambda x: x.sum(0), x) == 24
    assert operations(lambda x: x[None].sum(0), x) == 0
    assert operations(lambda x: jnp.cumsum(x, 1), x) == 24
    assert operations(lambda x: x.at[jnp.array([0, 0])].add(1.0), x) == 2 * 4
    assert operations(lambda x: nn.avg_pool(x[None, :, :, None], (2, 2), (2, 2)), x) == 6 * (4 + 1)
    assert operations(lambda x: (jnp.tanh(x), x + 1)[1], x) == 24  # nobody reads the tanh
    assert operations(jax.checkpoint(jnp.sin), x) == 24
    loop = lambda x: jax.lax.fori_loop(0, 5, lambda i, y: jax.jit(jnp.sin)(y), x)  # noqa: E731
    assert operations(loop, x) == 5 * 24
    branches = lambda x, which: jax.lax.cond(which, jnp.sin, lambda x: x * x + x, x)  # noqa: E731
    assert operations(branches, x, shape(dtype=bool)) == 2 * 24
    assert operations(lambda key: jax.random.permutation(key, 9), jax.random.key(0)) == 0


def test_loops_as_long_as_the_visit_says():
    def run(steps, examples, x):
        def step(i, x):
            return jax.lax.fori_loop(0, -(-examples // 4), lambda j, x: x + 1, x * 2)

        unread = lambda i, carry: (carry[0] + 1, carry[1] * 2)  # noqa: E731
        y, _ = jax.lax.fori_loop(2, jnp.maximum(steps, 1), unread, (x, x))
        return jax.lax.fori_loop(0, steps, step, x), y

    steps = lambda visits: visits.num_steps  # noqa: E731
    examples = lambda visits: visits.num_examples  # noqa: E731
    integer = shape(dtype=jnp.int32)
    found = count(jax.make_jaxpr(run)(integer, integer, shape(10)), [steps, examples, None])
    work = visits_of([0, 1, 5, 5], [8, 8, 8, 9])
    np.testing.assert_array_equal(found.of(work), [0, 30, 150 + 30, 200 + 30])


def test_what_cannot_be_counted_is_named():
    def halve(x):
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x)

    with pytest.raises(UncountedError, match=r"the loop at .*test_costs.py.* does not follow"):
        operations(halve, shape(3))
    with pytest.raises(UncountedError, match=r"the operation 'cholesky' at .*test_costs.py"):
        operations(lambda x: jax.lax.linalg.cholesky(x) + 1, shape(3, 3))

    def run(steps, x):
        loop = lambda x: jax.lax.fori_loop(0, steps, lambda i, x: x + 1, x)  # noqa: E731
        return jax.lax.cond(x.sum() > 0, loop, lambda x: x, x)

    known = [lambda visits: visits.num_steps, None]
    with pytest.raises(UncountedError, match=r"the conditional at .* holds a loop"):
        count(jax.make_jaxpr(run)(shape(dtype=jnp.int32), shape(3)), known)


def test_initialisation_that_nnx_repeats_is_not_counted():
    data = stored([{"x": np.zeros((9, 3), np.float32), "y": np.zeros(9, np.int32)}] * 2)
    problems = [
        nnx_classifier(lambda rngs: nnx.Linear(3, 2, rngs=rngs)),
        fa.models.classifier(nn.Dense(2), (3,)),
    ]
    steps = []
    for problem in problems:
        algorithm = fa.algorithms.fedavg(problem, fa.Local(4, 0.1, steps=1))
        (loop,) = count_flops(algorithm, state_of(algorithm, data), data).loops
        steps.append(loop.body.fixed)
    assert steps[0] == steps[1]


# Operations for each parameter of a local step beside the gradient, as our code does them. Those of
# FedAvg, FedProx, FedGBO and MimeLite are the FedGBO paper's; its MFL and our derived ones differ.
STEPS = [
    ("fedprox", {}, 5),
    ("fednova", {}, 7),
    *((name, {"optimizer": "rmsprop"}, 5) for name in ("fedgbo", "mimelite", "mimexlite")),
    *((name, {"optimizer": "sgdm"}, 5) for name in ("fedgbo", "mimelite", "mimexlite")),
    *((name, {"optimizer": "adam"}, 8) for name in ("fedgbo", "mimelite", "mimexlite")),
    ("mfl", {"optimizer": "rmsprop"}, 9),
    ("mfl", {"optimizer": "sgdm"}, 5),
    ("mfl", {"optimizer": "adam"}, 12),
    ("mimelitemom", {}, 4),
    ("scaffold", {}, 3),
    ("feddyn", {}, 6),
    ("adabest", {}, 3),
    ("fedcm", {}, 4),
    ("ghbm", {}, 3),
    ("localghbm", {}, 3),
    ("fedhbm", {}, 5),
    ("fedadc", {}, 3),
    ("fedlga", {}, 2),
]


@pytest.mark.parametrize(("name", "hyperparameters", "expected"), STEPS)
def test_operations_of_a_step(name, hyperparameters, expected):
    _, size, _ = wide()
    extra = flops_of(name, **hyperparameters).loops[0].body.fixed
    extra -= flops_of("fedavg").loops[0].body.fixed
    assert extra == pytest.approx((expected - 2) * size, abs=SCALARS)


def test_fedmax_works_on_the_activations():
    extra = flops_of("fedmax").loops[0].body.fixed - flops_of("fedavg").loops[0].body.fixed
    assert extra == pytest.approx(9 * 8 * 400, abs=SCALARS)  # a softmax of them, and its gradient


def test_a_step_of_fedavg():
    """By hand: three products of a perceptron less the one towards the images, and 2 |x|."""
    _, size, _ = wide()
    (loop,) = flops_of("fedavg").loops
    layers = 2 * 8 * (3 * (784 * 400 + 400 * 10) - 784 * 400)
    small = 8 * (784 + 3 * 400 + 30 * 10)  # pixels / 255, biases, ReLU, and the loss
    assert layers + 2 * size < loop.body.fixed < layers + 2 * size + small


def test_mime_takes_a_second_gradient_in_each_step():
    _, size, _ = wide()
    gradient = flops_of("fedavg").loops[0].body.fixed - 2 * size
    ask, step = (loop.body.fixed for loop in flops_of("mime").loops)
    assert step == pytest.approx(2 * gradient + 4 * size, rel=1e-4)
    assert ask == pytest.approx(gradient * 128 / 8 + 2 * size, rel=1e-3)  # times and plus, a piece


@pytest.mark.parametrize(("name", "passes"), [("mimelite", 1), ("mime", 1), ("mimexlite", 0)])
def test_full_gradients_go_by_pieces(name, passes):
    """ceil(n / 128) pieces, whatever the batch; the fixed part is free of them."""
    flops = flops_of(name)
    counts = np.array([1, 100, 128, 129, 256, 1000])
    found = flops.of(visits_of(3, counts))
    pieces = passes * -(-counts // 128)
    piece = found[3] - found[2]
    np.testing.assert_array_equal(found, found[0] + (pieces - pieces[0]) * piece)
    assert (piece > 0) == (passes > 0)


def test_unequal_steps_are_unequal_work():
    flops = flops_of("fedprox")
    found = flops.of(visits_of([[0, 1, 2], [7, 7, 1]], 100))
    assert found.shape == (2, 3)
    assert found.dtype == np.float64
    expected = flops.fixed + np.array([[0, 1, 2], [7, 7, 1]]) * flops.loops[0].body.fixed
    np.testing.assert_array_equal(found, expected)


def with_lengths(algorithm, data, num_steps, num_examples):
    """The same count from another trace, in which the numbers are constants of NumPy."""
    state = state_of(algorithm, data)
    visit = jax.tree.map(lambda leaf: leaf[()], visits_of(num_steps, num_examples))

    def turn(state, order, key):
        view = ClientData(
            data.examples, data.indices, jnp.int32(0), visit.num_examples, order, (), np.int32(0)
        )
        row = algorithm.client_init(state.origin, key)
        sent, updates = algorithm.broadcast(state.server, jnp.int32(0)), []
        if algorithm.prelude is not None:
            first = algorithm.prelude.broadcast(state.server, jnp.int32(0))
            updates = [algorithm.prelude.client_update(first, view, visit, key)]
            sent = first, sent
        return updates, algorithm.client_update(sent, row, view, visit, key)

    return operations(turn, state, shape(20, dtype=jnp.uint32), jax.random.key(0))


@pytest.mark.parametrize("batches", ["short", "feeder", "full"])
@pytest.mark.parametrize("name", ["fedavg", "mimexlite", "mime", "fedgbo"])
def test_lengths_that_are_constants_give_the_same(name, batches):
    toy = small_network()
    algorithm = build(name, toy.problem, fa.Local(2, 0.1, steps=3, batches=batches))
    flops = count_flops(algorithm, state_of(algorithm, toy.data), toy.data)
    for steps, examples in [(1, 5), (4, 1), (3, 8)]:
        found = flops.of(visits_of(steps, examples))
        expected = with_lengths(algorithm, toy.data, steps, examples)
        assert found == pytest.approx(expected, abs=2)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_algorithm_is_counted(case):
    toy = small_network()
    algorithm = case.build(toy.problem, fa.Local(2, 0.1, steps=3))
    state = state_of(algorithm, toy.data)
    found = count_flops(algorithm, state, toy.data).of(visits_of([1, 2, 3], 5))
    assert (found > 0).all()
    if case.name != "centralised":
        assert (np.diff(found) > 0).all()
    memory = count_memory(algorithm, state, toy.data)
    assert (memory.between_rounds > 0) == bool(jax.tree.leaves(state.clients))


def test_nothing_is_compiled_and_one_trace_is_kept():
    toy = small_network()
    algorithm = fa.algorithms.scaffold(toy.problem, fa.Local(2, 0.1, steps=3))
    state = state_of(algorithm, toy.data)
    with Compilations() as compilations:
        flops = count_flops(algorithm, state, toy.data)
        flops.of(visits_of([1, 2], 3))
        count_memory(algorithm, state, toy.data)
    assert compilations.count == 0
    traced = []

    def client_update(*inputs):
        traced.append(1)
        return algorithm.client_update(*inputs)

    other = algorithm._replace(client_update=client_update)
    for _ in range(3):
        count_flops(other, state, toy.data)
    assert len(traced) == 1


def test_the_column_of_a_run():
    """Cohorts of three with unequal work: the column is the sum over all visits so far."""
    toy = small_network()
    algorithm = fa.algorithms.fedprox(toy.problem, fa.Local(2, 0.1, epochs=1))
    sets = [(0, 1, 2), (3, 2, 0), (1, 2, 3)]

    def work(seed, rounds, clients, full_steps, local):
        return np.maximum(full_steps - rounds[:, None], 1)

    engine = fa.make_engine(algorithm)
    state, history = fa.simulate(
        engine,
        toy.data,
        cohort_size=3,
        rounds=3,
        sampler=fixed(sets),
        work=work,
        test=None,
        eval_every=2,
    )
    flops = count_flops(algorithm, state, toy.data)
    (loop,) = flops.loops
    full = {0: 3, 1: 1, 2: 4, 3: 2}  # ceil(n / 2) of 5, 1, 8 and 3 examples
    expected, found = [0.0], 0.0
    for number, cohort in enumerate(sets):
        for client in cohort:
            found += flops.fixed + max(full[client] - number, 1) * loop.body.fixed
        expected.append(found)
    assert [row["flops"] for row in history] == [expected[0], expected[2], expected[3]]


def test_a_run_that_cannot_be_counted_warns():
    toy = small_network()

    def penalised(outputs, batch):
        start = (outputs.logits - batch["y"]) ** 2
        halve = lambda x: jax.lax.stop_gradient(x) / 2  # noqa: E731
        small = jax.lax.while_loop(lambda x: (x > 1).any(), halve, jax.lax.stop_gradient(start))
        return start + small

    problem = toy.problem._replace(loss=penalised)
    engine = fa.make_engine(fa.algorithms.fedavg(problem, fa.Local(2, 0.1, steps=1)))
    with pytest.warns(UserWarning, match="the column flops will hold NaN: the loop at"):
        _, history = fa.simulate(engine, toy.data, cohort_size=2, rounds=1)
    assert np.isnan(history[-1]["flops"])
    assert np.isfinite(history[-1]["train_loss"])


# Bytes down and up over FedAvg's; GHBM's after its first tau rounds, MimeMom's 3 is the paper's
RATIOS = [
    ("fedprox", {}, 1),
    ("fedmax", {}, 1),
    ("fedavgm", {}, 1),
    ("feddyn", {}, 1),
    ("adabest", {}, 1),
    ("fednova", {}, 1),
    ("fedlga", {}, 1),
    ("localghbm", {}, 1),
    ("fedhbm", {}, 1),
    ("ghbm", {}, 1.5),
    ("fedadc", {}, 1.5),
    ("fedcm", {}, 1.5),
    ("fedgbo", {"optimizer": "sgdm"}, 1.5),
    ("fedgbo", {"optimizer": "rmsprop"}, 1.5),
    ("fedgbo", {"optimizer": "adam"}, 2),
    ("scaffold", {}, 2),
    ("mimelite", {"optimizer": "sgdm"}, 2),
    ("mimelite", {"optimizer": "adam"}, 2.5),
    ("mimexlite", {"optimizer": "sgdm"}, 2),
    ("mimelitemom", {}, 2),
    ("mfl", {"optimizer": "sgdm"}, 2),
    ("mfl", {"optimizer": "adam"}, 3),
    ("mime", {}, 2),
    ("mimemom", {}, 2.5),
]


@pytest.mark.parametrize(("name", "hyperparameters", "expected"), RATIOS)
def test_bytes_over_fedavg(name, hyperparameters, expected):
    problem, size, data = wide()
    algorithm = build(name, problem, **hyperparameters)
    transfer = fa.make_engine(algorithm).transfer
    sent = transfer(state_of(algorithm, data), data, visits_of([3], [100]))
    scalars = sum(sent) - expected * 2 * 4 * size
    assert 0 <= scalars <= 4 * 4


# Models held between rounds, and in a round: those sent, the own row, y_i, and what else moves
MEMORY = [
    ("fedavg", {}, 0, 2),
    ("fedprox", {}, 0, 2),
    ("fedavgm", {}, 0, 2),
    ("fedgbo", {"optimizer": "sgdm"}, 0, 3),
    ("fedgbo", {"optimizer": "adam"}, 0, 4),
    ("mfl", {"optimizer": "sgdm"}, 0, 4),
    ("mfl", {"optimizer": "adam"}, 0, 6),
    ("mimelite", {"optimizer": "sgdm"}, 0, 4),
    ("mimexlite", {"optimizer": "sgdm"}, 0, 3),
    ("mime", {}, 0, 3),
    ("mimemom", {}, 0, 4),
    ("scaffold", {}, 1, 4),
    ("feddyn", {}, 1, 3),
    ("adabest", {}, 1, 3),
    ("fedcm", {}, 0, 3),
    ("ghbm", {}, 0, 3),
    ("localghbm", {}, 1, 3),
    ("fedhbm", {}, 1, 3),
    ("fedlga", {}, 0, 2),
]


@pytest.mark.parametrize(("name", "hyperparameters", "kept", "held"), MEMORY)
def test_client_memory(name, hyperparameters, kept, held):
    problem, size, data = wide()
    algorithm = build(name, problem, **hyperparameters)
    memory = count_memory(algorithm, state_of(algorithm, data), data)
    for found, expected in zip(memory, (kept, held), strict=True):
        assert 0 <= found - expected * 4 * size <= 4 * 10


def test_the_local_transform_is_counted_and_held():
    problem, size, data = wide()
    local = fa.Local(8, 0.1, steps=3, transform=optax.scale_by_adam())
    algorithm = build("fedavg", problem, local)
    state = state_of(algorithm, data)
    assert count_memory(algorithm, state, data).in_round == pytest.approx(4 * 4 * size, abs=40)
    (loop,) = count_flops(algorithm, state, data).loops
    extra = loop.body.fixed - flops_of("fedavg").loops[0].body.fixed
    assert extra == pytest.approx(13 * size, abs=SCALARS)  # 3 + 4 moments, 2 biases, 4 the quotient
