"""The costs of the algorithms: bytes, memory, operations of local updates; the column of a run."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cost_helpers import (
    SCALARS,
    build,
    dispatches_of,
    flop_counter,
    on_perceptron,
    operations,
    shape,
    state_of,
)
from flax import nnx
from helpers import Compilations, fixed, small_network, stored

import fedjax_algos as fa
from fedjax_algos.analysis import count_flops, count_memory
from fedjax_algos.core import ClientData
from fedjax_algos.models import nnx_classifier


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


class Costs(NamedTuple):
    """What an algorithm costs, as the code does it; None where it is not compared."""

    name: str
    options: dict
    sent: float | None  # bytes down and up relative to FedAvg's; of GHBM after tau rounds
    # in models: kept between rounds; in a round with the broadcast, y_i and all else that changes;
    # and what training changes and reads, which for methods of the FedGBO paper is its Table I
    memory: tuple[int, int, int] | None
    steps: int | None  # operations of a local step for each parameter, without the gradient


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
    extra = flop_counter(costs.name, **costs.options).loops[0].body.fixed
    extra -= flop_counter("fedavg").loops[0].body.fixed
    assert extra == pytest.approx((costs.steps - 2) * SIZE, abs=SCALARS)


@pytest.mark.all
def test_the_local_transform_needs_operations_and_memory():
    local = fa.Local(8, 0.1, steps=3, transform=optax.scale_by_adam())
    given = on_perceptron("fedavg", local=local)
    assert count_memory(*given).in_round == pytest.approx(4 * 4 * SIZE, abs=40)
    (loop,) = count_flops(*given).loops
    extra = loop.body.fixed - flop_counter("fedavg").loops[0].body.fixed
    assert extra == pytest.approx(13 * SIZE, abs=SCALARS)  # 3 + 4 moments, 2 biases, 4 the quotient


def test_fedmax_adds_operations_on_the_activations():
    extra = flop_counter("fedmax").loops[0].body.fixed - flop_counter("fedavg").loops[0].body.fixed
    assert extra == pytest.approx(9 * 8 * 400, abs=SCALARS)  # a softmax of them, and its gradient


def test_a_step_of_fedavg():
    """By hand: three products of a perceptron without the gradient of the images, and 2 |x|."""
    (loop,) = flop_counter("fedavg").loops
    layers = 2 * 8 * (3 * (784 * 400 + 400 * 10) - 784 * 400)
    small = 8 * (784 + 3 * 400 + 30 * 10)  # pixels / 255, biases, ReLU, and the loss
    assert layers + 2 * SIZE < loop.body.fixed < layers + 2 * SIZE + small


def test_mime_takes_a_second_gradient_in_each_step():
    gradient = flop_counter("fedavg").loops[0].body.fixed - 2 * SIZE
    full, step = (loop.body.fixed for loop in flop_counter("mime").loops)
    assert step == pytest.approx(2 * gradient + 4 * SIZE, rel=1e-4)
    # each piece is scaled and added
    assert full == pytest.approx(gradient * 128 / 8 + 2 * SIZE, rel=1e-3)


def test_qfedavg_takes_a_forward_pass_over_all_examples():
    """In batches of 8, without the gradient, which nothing reads."""
    loss, step = flop_counter("qfedavg").loops
    layers = 2 * 8 * (784 * 400 + 400 * 10)
    assert layers < loss.body.fixed < layers + 8 * (784 + 2 * 400 + 10 * 10)
    assert step.body.fixed == flop_counter("fedavg").loops[0].body.fixed
    (pieces,) = {float(loss.length(dispatches_of(3, np.array([n])))[0]) for n in (33, 40)}
    assert pieces == 5


@pytest.mark.parametrize(("name", "passes"), [("mimelite", 1), ("mime", 1), ("mimexlite", 0)])
def test_full_gradients_are_counted_by_pieces(name, passes):
    """ceil(n / 128) pieces for any batch size, in a loop."""
    flops = flop_counter(name)
    counts = np.array([1, 100, 128, 129, 256, 1000])
    found = flops.of(dispatches_of(3, counts))
    pieces = passes * -(-counts // 128)
    piece = found[3] - found[2]
    np.testing.assert_array_equal(found, found[0] + (pieces - pieces[0]) * piece)
    assert (piece > 0) == (passes > 0)


def with_lengths(algorithm, data, num_steps, num_examples):
    """The same count from another trace, in which the numbers are NumPy constants."""
    state = state_of(algorithm, data)
    dispatch = jax.tree.map(lambda leaf: leaf[()], dispatches_of(num_steps, num_examples))

    def local_update(state, order, key):
        view = ClientData(
            data.examples, data.indices, jnp.int32(0), dispatch.num_examples, order, (), np.int32(0)
        )
        row = algorithm.client_init(state.origin, key)
        sent, updates = algorithm.broadcast(state.server, jnp.int32(0)), []
        if algorithm.prelude is not None:
            first = algorithm.prelude.broadcast(state.server, jnp.int32(0))
            updates = [algorithm.prelude.client_update(first, view, dispatch, key)]
            sent = first, sent
        return updates, algorithm.client_update(sent, row, view, dispatch, key)

    return operations(local_update, state, shape(20, dtype=jnp.uint32), jax.random.key(0))


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("mime", "persistent"),
        pytest.param("fedavg", "short", marks=pytest.mark.all),
        pytest.param("mimexlite", "full", marks=pytest.mark.all),
    ],
)
def test_constant_lengths_give_the_same_count(name, batches):
    toy = small_network()
    algorithm = build(name, toy.problem, fa.Local(2, 0.1, steps=3, batches=batches))
    flops = count_flops(algorithm, state_of(algorithm, toy.data), toy.data)
    for steps, examples in [(1, 5), (4, 1), (3, 8)]:
        found = flops.of(dispatches_of(steps, examples))
        expected = with_lengths(algorithm, toy.data, steps, examples)
        assert found == pytest.approx(expected, abs=2)


def test_nothing_is_compiled_and_one_trace_is_kept():
    toy = small_network()
    algorithm = fa.algorithms.scaffold(toy.problem, fa.Local(2, 0.1, steps=3))
    state = state_of(algorithm, toy.data)
    with Compilations() as compilations:
        flops = count_flops(algorithm, state, toy.data)
        flops.of(dispatches_of([1, 2], 3))
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


def test_the_flops_column_of_a_run():
    """Cohorts of three with unequal work: the column is the sum over all dispatches so far."""
    toy = small_network()
    algorithm = fa.algorithms.fedprox(toy.problem, fa.Local(2, 0.1, epochs=1))
    sets = [(0, 1, 2), (3, 2, 0), (1, 2, 3)]

    def work(seed, rounds, clients, full_steps, local):
        return np.maximum(full_steps - rounds[:, None], 1)

    rounds = {"cohort_size": 3, "rounds": 3, "sampler": fixed(sets), "work": work, "eval_every": 2}
    state, history = fa.simulate(fa.make_engine(algorithm), toy.data, test=None, **rounds)
    flops = count_flops(algorithm, state, toy.data)
    (loop,) = flops.loops
    full = {0: 3, 1: 1, 2: 4, 3: 2}  # ceil(n / 2) of 5, 1, 8 and 3 examples
    expected, found = [0.0], 0.0
    for number, cohort in enumerate(sets):
        for client in cohort:
            found += flops.fixed + max(full[client] - number, 1) * loop.body.fixed
        expected.append(found)
    assert [row["flops"] for row in history] == [expected[0], expected[2], expected[3]]


@pytest.mark.all
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
