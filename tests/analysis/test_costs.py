"""Operations of functions and costs of algorithms, counted from traces, against hand counts."""

import functools
from operator import attrgetter
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cost_helpers import dispatches_of, loops_of, on_perceptron, operations, shape, state_of
from flax import nnx
from helpers import Compilations, small_network, stored

import fedjax_algos as fa
from fedjax_algos.analysis import UncountedError, count_flops, count_memory
from fedjax_algos.analysis.flops import count
from fedjax_algos.models import convolve, nnx_classifier


def test_a_dense_layer():
    batch, inputs, outputs = 4, 3, 5
    shapes = shape(inputs, outputs), shape(outputs), shape(batch, inputs)
    cotangent = shape(batch, outputs)

    def layer(w, b, x):
        return x @ w + b[None]

    product = 2 * batch * inputs * outputs
    found = operations(lambda *inputs: nn.relu(layer(*inputs)), *shapes)
    assert found == product + 2 * batch * outputs
    # two products and the sum over the batch; the forward product is not used
    found = operations(lambda c, *inputs: jax.vjp(layer, *inputs)[1](c), cotangent, *shapes)
    assert found == 2 * product + batch * outputs


def of_layer(layer, x):
    return operations(layer.apply, jax.eval_shape(layer.init, jax.random.key(0), x), x)


@pytest.mark.parametrize(
    ("cell", "gates", "elementwise"),
    [("gru", 3, 2 + 2 + 3 + 4), ("lstm", 4, 4 + 3 + 1 + 3 + 1 + 1)],
)
def test_a_recurrent_layer(cell, gates, elementwise):
    batch, times, inputs, width = 2, 7, 3, 5
    products_and_biases = gates * 2 * width * (inputs + width + 1)
    expected = batch * times * (products_and_biases + elementwise * width)
    assert of_layer(fa.models.Recurrent(cell, width), shape(batch, times, inputs)) == expected


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_a_convolution(strides):
    """Forward, and the gradients of kernel and images: the same products of real entries."""
    images, kernel = shape(2, 9, 11, 3), shape(3, 4, 3, 5)
    across, down = (9 - 3) // strides[0] + 1, (11 - 4) // strides[1] + 1
    expected = 2 * (2 * across * down * 5) * (3 * 4 * 3)

    def run(images, kernel):
        return convolve(images, kernel, strides=strides, padding="VALID", implementation="lax")

    assert operations(run, images, kernel) == expected
    for wanted in (0, 1):
        gradient = jax.grad(lambda *inputs: run(*inputs).sum(), wanted)
        assert operations(gradient, images, kernel) == expected
    patches = functools.partial(convolve, strides=strides, padding="VALID")
    assert operations(patches, images, kernel) == expected


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 1)])
def test_winograd_counts_as_a_plain_convolution(wanted):
    """A count does not depend on the backend: the most expensive branch of a conditional counts."""
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
    assert of_layer(grouped, shape(2, 7, 4)) == 2 * (2 * 5 * 6) * (3 * 2)


def test_a_qr_decomposition():
    """Of a square matrix LAPACK's 4/3 n^3 for R and as many for Q; of a column, twice 2 m."""
    assert operations(jnp.linalg.qr, shape(30, 30)) == pytest.approx(8 / 3 * 30**3)
    assert operations(jnp.linalg.qr, shape(1000, 1)) == pytest.approx(4 * 1000, rel=1e-3)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: jnp.where(x > 0, x, 0).T.reshape(-1)[::2], 0),
        (lambda x: x.astype(int) * 3 + 1, 0),
        (lambda x: jnp.exp(x) + x**2, 3 * 24),
        (lambda x: x**1, 0),
        (lambda x: x.sum(0), 24),
        (lambda x: x[None].sum(0), 0),
        (lambda x: jnp.cumsum(x, 1), 24),
        (lambda x: x.at[jnp.array([0, 0])].add(1.0), 2 * 4),
        (lambda x: nn.avg_pool(x[None, :, :, None], (2, 2), (2, 2)), 6 * (4 + 1)),
        (lambda x: (jnp.tanh(x), x + 1)[1], 24),  # tanh is not used
        (jax.checkpoint(jnp.sin), 24),
        (lambda x: jax.lax.fori_loop(0, 5, lambda i, y: jax.jit(jnp.sin)(y), x), 5 * 24),
        (lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, lambda x: x * x + x, x), 2 * 24),
        # as on all platforms but the named one
        (lambda x: jax.lax.platform_dependent(x, cpu=lambda x: x * x + x, default=jnp.sin), 24),
        (lambda x: jax.random.permutation(jax.random.key(0), 9), 0),
    ],
)
def test_what_is_counted_and_what_is_not(function, expected):
    assert operations(function, shape(6, 4)) == expected


def test_loops_whose_length_depends_on_the_dispatch():
    def run(steps, examples, x):
        def step(i, x):
            return jax.lax.fori_loop(0, -(-examples // 4), lambda j, x: x + 1, x * 2)

        def unused(i, carry):
            return carry[0] + 1, carry[1] * 2

        y, _ = jax.lax.fori_loop(2, jnp.maximum(steps, 1), unused, (x, x))
        return jax.lax.fori_loop(0, steps, step, x), y

    traced = jax.make_jaxpr(run)(*[shape(dtype=jnp.int32)] * 2, shape(10))
    found = count(traced, [attrgetter("num_steps"), attrgetter("num_examples"), None])
    work = dispatches_of([0, 1, 5, 5], [8, 8, 8, 9])
    np.testing.assert_array_equal(found.of(work), [0, 30, 150 + 30, 200 + 30])
    loops = "Flops(fixed=10), Flops(fixed=10, loops=[Flops(fixed=10)])"
    assert repr(found) == f"Flops(fixed=0, loops=[{loops}])"


def test_what_cannot_be_counted_is_an_error():
    def halve(x):
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x)

    with pytest.raises(UncountedError, match=r"the loop at .*test_costs.py.* does not follow"):
        operations(halve, shape(3))
    with pytest.raises(UncountedError, match=r"the operation 'cholesky' at .*test_costs.py"):
        operations(lambda x: jax.lax.linalg.cholesky(x) + 1, shape(3, 3))

    def run(steps, x):
        def loop(x):
            return jax.lax.fori_loop(0, steps, lambda i, x: x + 1, x)

        return jax.lax.cond(x.sum() > 0, loop, lambda x: x, x)

    traced = jax.make_jaxpr(run)(shape(dtype=jnp.int32), shape(3))
    with pytest.raises(UncountedError, match=r"the conditional at .* has a loop"):
        count(traced, [attrgetter("num_steps"), None])


def test_initialisation_that_nnx_repeats_is_not_counted():
    data = stored([{"x": np.zeros((9, 3), np.float32), "y": np.zeros(9, np.int32)}] * 2)

    def of_a_step(problem):
        algorithm = fa.algorithms.fedavg(problem, fa.Local(4, 0.1, steps=1))
        (loop,) = count_flops(algorithm, state_of(algorithm, data), data).loops
        return loop.body.fixed

    repeated = nnx_classifier(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
    assert of_a_step(repeated) == of_a_step(fa.models.classifier(nn.Dense(2), (3,)))


class Costs(NamedTuple):
    """What an algorithm costs, as the code does it; None where it is not compared."""

    name: str
    options: dict
    sent: float | None  # bytes down and up relative to FedAvg's; of GHBM after tau rounds
    # in models: kept between rounds; in a round with the broadcast, y_i and all else that changes;
    # and what training changes and reads, which for methods of the FedGBO paper is its Table I
    memory: tuple[int, int, int] | None
    steps: int | None  # operations of a local step for each parameter, without the gradient


SCALARS = 100  # more operations on single numbers than any algorithm does in a step
SIZE = 784 * 400 + 400 + 400 * 10 + 10  # params of the perceptron
SGDM, RMSPROP, ADAM = ({"optimizer": name} for name in ("sgdm", "rmsprop", "adam"))
# The operations of FedAvg, FedProx, FedGBO and MimeLite are the FedGBO paper's; its MFL and derived
# ones differ. Its MimeMom sends 3.
COSTS = [
    Costs("fedavg", {}, 1, (0, 2, 1), 2),
    Costs("fedprox", {}, 1, (0, 2, 2), 5),
    Costs("fedmax", {}, 1, None, None),
    Costs("fedavgm", {}, 1, (0, 2, 1), None),
    Costs("fednova", {}, 1, None, 7),
    Costs("fedlga", {}, 1, (0, 2, 1), 2),
    Costs("qfedavg", {}, 1, (0, 2, 2), None),
    Costs("feddyn", {}, 1, (1, 3, 3), 6),
    Costs("adabest", {}, 1, (1, 3, 2), 3),
    Costs("scaffold", {}, 2, (1, 4, 2), 3),
    Costs("fedcm", {}, 1.5, (0, 3, 2), 4),
    Costs("fedadc", {}, 1.5, None, 3),
    Costs("ghbm", {}, 1.5, (0, 3, 2), 3),
    Costs("localghbm", {}, 1, (1, 3, 2), 3),
    Costs("fedhbm", {}, 1, (1, 3, 2), 5),
    Costs("fedgbo", SGDM, 1.5, (0, 3, 2), 5),
    Costs("fedgbo", RMSPROP, 1.5, None, 5),
    Costs("fedgbo", ADAM, 2, (0, 4, 3), 8),
    Costs("mfl", SGDM, 2, (0, 4, 2), 5),
    Costs("mfl", RMSPROP, None, None, 9),
    Costs("mfl", ADAM, 3, (0, 6, 3), 12),
    Costs("mimelite", SGDM, 2, (0, 4, 3), 5),
    Costs("mimelite", RMSPROP, None, None, 5),
    Costs("mimelite", ADAM, 2.5, (0, 5, 4), 8),
    Costs("mimexlite", SGDM, 2, (0, 3, 2), 5),
    Costs("mimexlite", RMSPROP, None, None, 5),
    Costs("mimexlite", ADAM, None, None, 8),
    Costs("mimelitemom", {}, 2, None, 4),
    Costs("mime", {}, 2, (0, 3, 3), None),
    Costs("mimemom", {}, 2.5, (0, 4, 4), None),
    Costs("ifca", {"clusters": 3}, None, (0, 4, 4), None),  # it reads all models, changes one
]


def known(field):
    """The algorithms whose costs of one kind are compared."""
    rows = [row for row in COSTS if getattr(row, field) is not None]
    names = ["-".join([row.name, *map(str, row.options.values())]) for row in rows]
    return pytest.mark.parametrize("costs", rows, ids=names)


@known("sent")
def test_bytes_over_fedavg(costs):
    algorithm, state, data = on_perceptron(costs.name, **costs.options)
    sent = fa.make_engine(algorithm).transfer(state, data, dispatches_of([3], [100]))
    assert 0 <= sum(sent[:2]) - costs.sent * 2 * 4 * SIZE <= 4 * 4


@known("memory")
def test_client_memory(costs):
    memory = count_memory(*on_perceptron(costs.name, **costs.options))
    for found, expected in zip(memory, costs.memory, strict=True):
        assert 0 <= found - expected * 4 * SIZE <= 4 * 10


@pytest.mark.all
@known("steps")
def test_operations_of_a_step(costs):
    extra = loops_of(costs.name, **costs.options)[0] - loops_of("fedavg")[0]
    assert extra == pytest.approx((costs.steps - 2) * SIZE, abs=SCALARS)


@pytest.mark.all
def test_the_local_transform_needs_operations_and_memory():
    local = fa.Local(8, 0.1, steps=3, transform=optax.scale_by_adam())
    memory = count_memory(*on_perceptron("fedavg", local))
    assert memory.in_round == pytest.approx(16 * SIZE, abs=40)
    (step,) = loops_of("fedavg", local)
    # 3 + 4 for moments, 2 for biases, 4 for the quotient
    assert step - loops_of("fedavg")[0] == pytest.approx(13 * SIZE, abs=SCALARS)


def test_fedmax_adds_operations_on_the_activations():
    extra = loops_of("fedmax")[0] - loops_of("fedavg")[0]
    assert extra == pytest.approx(9 * 8 * 400, abs=SCALARS)  # a softmax of them, and its gradient


def test_a_step_of_fedavg():
    """By hand: three products of a perceptron without the gradient of the images, and 2 |x|."""
    (step,) = loops_of("fedavg")
    least = 2 * 8 * (3 * (784 * 400 + 400 * 10) - 784 * 400) + 2 * SIZE
    assert least < step < least + 8 * (3 * 400 + 30 * 10)  # biases, ReLU, and the loss


def test_mime_takes_a_second_gradient_in_each_step():
    gradient = loops_of("fedavg")[0] - 2 * SIZE
    full, step = loops_of("mime")
    assert step == pytest.approx(2 * gradient + 4 * SIZE, rel=1e-4)
    # each piece is scaled and added
    assert full == pytest.approx(gradient * 128 / 8 + 2 * SIZE, rel=1e-3)


def test_qfedavg_takes_a_forward_pass_over_all_examples():
    """In batches of 8, without the gradient, which nothing reads."""
    loss, step = count_flops(*on_perceptron("qfedavg")).loops
    layers = 2 * 8 * (784 * 400 + 400 * 10)
    assert layers < loss.body.fixed < layers + 8 * (2 * 400 + 10 * 10)
    assert step.body.fixed == loops_of("fedavg")[0]
    assert [*loss.length(dispatches_of(3, [33, 40, 41]))] == [5, 5, 6]


@pytest.mark.parametrize(("name", "passes"), [("mimelite", 1), ("mime", 1), ("mimexlite", 0)])
def test_full_gradients_are_counted_by_pieces(name, passes):
    """ceil(n / 128) pieces for any batch size, in a loop."""
    counts = np.array([1, 100, 128, 129, 256, 1000])
    found = count_flops(*on_perceptron(name)).of(dispatches_of(3, counts))
    pieces, piece = passes * -(-counts // 128), found[3] - found[2]
    np.testing.assert_array_equal(found, found[0] + (pieces - pieces[0]) * piece)
    assert (piece > 0) == (passes > 0)


@pytest.mark.parametrize("batches", ["persistent", "short", "full"])
def test_loops_are_as_long_as_the_dispatch_says(batches):
    """First the full gradient, in pieces of all 17 examples that there are; then the steps."""
    toy, work = small_network(), dispatches_of([1, 4, 3], [5, 17, 40])
    algorithm = fa.algorithms.mime(toy.problem, fa.Local(2, 0.1, steps=3, batches=batches))
    full, step = count_flops(algorithm, state_of(algorithm, toy.data), toy.data).loops
    assert [*full.length(work)] == [1, 1, 3]
    assert [*step.length(work)] == [1, 4, 3]


def test_nothing_is_compiled_and_one_trace_is_kept():
    toy, traced = small_network(), []
    scaffold = fa.algorithms.scaffold(toy.problem, fa.Local(2, 0.1, steps=3))

    def client_update(*inputs):
        traced.append(1)
        return scaffold.client_update(*inputs)

    algorithm = scaffold._replace(client_update=client_update)
    state = state_of(algorithm, toy.data)
    with Compilations() as compilations:
        for _ in range(2):
            count_flops(algorithm, state, toy.data).of(dispatches_of([1, 2], 3))
            count_memory(algorithm, state, toy.data)
    assert (compilations.count, len(traced)) == (0, 1)


@pytest.mark.all
def test_a_run_that_cannot_be_counted_warns():
    toy = small_network()

    def penalised(outputs, batch):
        start = jax.lax.stop_gradient(outputs.logits)
        halved = jax.lax.while_loop(lambda x: (x > 1).any(), lambda x: x / 2, start)
        return (outputs.logits - batch["y"]) ** 2 + halved

    problem = toy.problem._replace(loss=penalised)
    engine = fa.make_engine(fa.algorithms.fedavg(problem, fa.Local(2, 0.1, steps=1)))
    with pytest.warns(UserWarning, match="the column flops will hold NaN: the loop at"):
        _, history = fa.simulate(engine, toy.data, cohort_size=2, rounds=1)
    assert np.isnan(history[-1]["flops"])
    assert np.isfinite(history[-1]["train_loss"])
